"""Attention layers that read only what is near: by a hash of the vectors, or by the place in the text.

Shapes: B batch, N tokens, D model width, H heads, d head width, R rounds of hashing, T places of a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.layers.attention import check_room, merge_heads, remember, split_heads
from regard.ops.attention import is_observed, record_weights
from regard.ops.hashing import (
    Near,
    Weights,
    attend_hashed,
    attend_local,
    attend_window,
    draw_rotations,
    hash_buckets,
    shared_keys,
    sort_by_bucket,
    usual_buckets,
    window_before,
    window_by_bucket,
)


@dataclass(frozen=True, slots=True)
class Text:
    """What attention is told of a whole text: how much of each row is real, and what is laid out in chunks."""

    lengths: Tensor  # B
    length: int  # of all rows, in whole chunks
    segments: Tensor | None = None  # B x N


@dataclass(frozen=True, slots=True)
class Cache:
    """What a layer remembers of the tokens so far, and where new ones stand (B x n, all of them under `bound`)."""

    tensors: tuple[Tensor, ...]  # each B x H x T x width
    positions: Tensor
    bound: int

    def add(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Writes B x H x n x width of each and gives all that is remembered."""
        check_room(self.tensors[0], self.bound)
        pairs = zip(self.tensors, new, strict=True)
        return tuple(remember(buffer, part, self.positions)[:, :, : self.bound] for buffer, part in pairs)


class LocalAttention(nn.Module):
    """Each token reads its chunk of the text and some before it, as far as it itself."""

    attends = "self"

    def __init__(self, model_dim: int, num_heads: int, head_dim: int, *, near: Near, dropout: float = 0.0) -> None:
        super().__init__()
        self.head_dim, self.near, self.dropout = head_dim, near, dropout
        self.qkv = nn.Linear(model_dim, 3 * num_heads * head_dim, bias=False)
        self.out = nn.Linear(num_heads * head_dim, model_dim, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        text: Text | None,
        cache: Cache | None = None,
        kept: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """B x N x D -> B x N x D: of a whole text, or of the tokens that come after what the cache holds."""
        q, k, v = (split_heads(part, self.head_dim) for part in self.qkv(x).chunk(3, dim=-1))
        keys, values = (k, v) if cache is None else cache.add(k, v)
        if text is None:
            assert cache is not None
            window = window_before(cache.positions, self.near)
            out, weights = attend_window(q, keys, values, cache.positions, window, shared=False)
        else:
            dropout = self.dropout if self.training else 0.0
            out, weights = attend_local(
                q, k, v, self.near, lengths=text.lengths, segments=text.segments, dropout=dropout
            )
        return _finish(self.out, out, weights, values)

    def new_cache(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Room for the keys and values of `length` tokens."""
        heads = self.out.in_features // self.head_dim
        return tuple(self.out.weight.new_zeros(rows, heads, length, self.head_dim) for _ in range(2))


class HashedAttention(nn.Module):
    """Each token reads those whose vectors fall into its bucket (Kitaev et al. 2020); queries and keys are one.

    `num_buckets` are the factors of their number, or () for one that fits the length; `max_length` is that of the
    longest text. A `seed` makes the hashes the same each time; None draws new ones for each pass.
    """

    attends = "self"

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        head_dim: int,
        *,
        near: Near,
        num_hashes: int,
        num_buckets: tuple[int, ...],
        max_length: int,
        seed: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.head_dim, self.near, self.dropout = head_dim, near, dropout
        self.num_hashes, self.num_buckets, self.max_length, self.seed = num_hashes, num_buckets, max_length, seed
        self.qk = nn.Linear(model_dim, num_heads * head_dim, bias=False)
        self.v = nn.Linear(model_dim, num_heads * head_dim, bias=False)
        self.out = nn.Linear(num_heads * head_dim, model_dim, bias=False)

    def rotations(self, length: int) -> Tensor | None:
        """What to hash a text of this length by (`draw_rotations`); None where it is one chunk."""
        if length <= self.near.chunk:
            return None
        heads, directions = self.out.in_features // self.head_dim, sum(self._counts(length)) // 2
        return draw_rotations(self.qk.weight, (heads, self.head_dim, self.num_hashes, directions), self.seed)

    def forward(
        self,
        x: Tensor,
        *,
        text: Text | None,
        rotations: Tensor | None,
        cache: Cache | None = None,
        kept: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """B x N x D -> B x N x D: of a whole text, or of the tokens that come after what the cache holds.

        With a cache, `rotations` are those of all its room, and of each row its own.
        """
        q, v = (split_heads(part(x), self.head_dim) for part in (self.qk, self.v))
        if cache is None:
            assert text is not None
            out, weights = self._whole(q, v, text, self._order(q, text, rotations, {} if kept is None else kept))
            return _finish(self.out, out, weights, v)
        buckets = self._buckets(q, rotations, cache.tensors[0].shape[2])
        keys, values, held = cache.add(q, v, buckets.transpose(2, 3))
        if text is not None:
            hashed = text.length > self.near.chunk
            order = sort_by_bucket(buckets, text.lengths, text.length) if hashed else None
            out, weights = self._whole(q, v, text, order)
        else:
            window = window_by_bucket(held, cache.positions, self.near)
            out, weights = attend_window(q, shared_keys(keys), values, cache.positions, window, shared=True)
        return _finish(self.out, out, weights, values)

    def new_cache(self, rows: int, length: int) -> tuple[Tensor, ...]:
        """Room for the vectors, values and buckets of `length` tokens."""
        shape = (rows, self.out.in_features // self.head_dim, length)
        q, v = (self.out.weight.new_zeros(*shape, self.head_dim) for _ in range(2))
        return q, v, q.new_zeros(*shape, self.num_hashes, dtype=torch.long)

    def _whole(self, q: Tensor, v: Tensor, text: Text, order: Tensor | None) -> tuple[Tensor, Weights]:
        dropout = self.dropout if self.training else 0.0
        return attend_hashed(q, v, order, self.near, lengths=text.lengths, segments=text.segments, dropout=dropout)

    def _order(self, q: Tensor, text: Text, rotations: Tensor | None, kept: dict[str, Tensor]) -> Tensor | None:
        """Where rounding could move a vector into another bucket, a second run would read other tokens: it is kept."""
        if rotations is None:
            return None
        if "order" not in kept:
            buckets = hash_buckets(q, rotations, self._counts(text.length))
            kept["order"] = sort_by_bucket(buckets, text.lengths, text.length).int()
        return kept["order"]

    def _buckets(self, q: Tensor, rotations: Tensor | None, room: int) -> Tensor:
        if rotations is None:  # there is no room for more than one chunk
            return torch.zeros(*q.shape[:2], self.num_hashes, q.shape[2], dtype=torch.long, device=q.device)
        return hash_buckets(q, rotations, self._counts(room))

    def _counts(self, length: int) -> tuple[int, ...]:
        return self.num_buckets or usual_buckets(length, self.near.chunk, self.max_length)


def _finish(projection: nn.Linear, out: Tensor, weights: Weights, values: Tensor) -> Tensor:
    """B x H x N x d -> B x N x D; who observes is told what was read."""
    if is_observed():
        record_weights(weights(), values, out, projection.weight)
    return projection(merge_heads(out))  # type: ignore[no-any-return]
