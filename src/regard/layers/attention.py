"""Multi-head attention layers: self and cross.

Shapes: B batch, N queries, M keys, D model width, H heads, K key heads, d head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import RegardError, require
from regard.layers.positions import Relative
from regard.ops.attention import attend
from regard.ops.masks import Mask
from regard.ops.terms import Term

KeysValues = tuple[Tensor, Tensor]  # each B x K x length x d


class SelfAttention(nn.Module):
    """MultiHead(x, x, x) = Concat(head_1 .. head_H) W^O, with the three input projections in one matrix.

    `relative` says where the queries and keys stand (rotary, T5, ALiBi, Shaw, Transformer-XL) or is None. Heads are
    model_dim / num_heads wide unless `head_dim` is given, and scores are scaled by head_dim**-0.5 unless `scale` is.
    """

    attends = "self"  # the kind that an observer names it by

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        relative: Relative | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads or num_heads
        self.head_dim, self.scale = head_width(model_dim, num_heads, self.num_kv_heads, head_dim), scale
        self.sizes = [self.num_heads * self.head_dim, *2 * [self.num_kv_heads * self.head_dim]]
        self.qkv = nn.Linear(model_dim, sum(self.sizes), bias=bias)
        self.out = nn.Linear(num_heads * self.head_dim, model_dim, bias=bias)
        self.relative = relative
        self.dropout, self.backend = dropout, backend

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | int | None = None,
        cache: KeysValues | None = None,
        bound: int | None = None,
        over: Tensor | None = None,
        terms: Sequence[Term] = (),
    ) -> Tensor:
        """B x N x D -> B x N x D. With a cache, x is what comes at `positions` (B x N), all of them under `bound`.

        New keys and values are written into the cache; the mask must then be causal, as what lies after a row's
        position was not written for it. With `over` (B x M x D) those states are read, and x stands at `positions`
        among them, or from there on where it is a number. `terms` are added to what `relative` adds.
        """
        q, k, v = (split_heads(part, self.head_dim) for part in self._project(x, over))
        if self.relative is not None:
            q = self.relative.queries(q, positions)
            k = self.relative.keys(k, positions if over is None else None)
        if cache is not None:
            assert isinstance(positions, Tensor)
            check_room(cache[0], bound or 0)
            k, v = (remember(buffer, new, positions)[:, :, :bound] for buffer, new in zip(cache, (k, v), strict=True))
            positions = None if bound == x.shape[1] else positions  # nothing was before: it is a whole pass
        terms = (*terms, *(() if self.relative is None else self.relative.terms(k.shape[2])))
        dropout = self.dropout if self.training else 0.0
        out = attend(
            q,
            k,
            v,
            mask=mask,
            terms=terms,
            scale=self.scale,
            positions=positions,
            dropout=dropout,
            backend=self.backend,
            projection=self.out.weight,
        )
        return self.out(merge_heads(out))  # type: ignore[no-any-return]

    def _project(self, x: Tensor, over: Tensor | None) -> Sequence[Tensor]:
        """The queries of x, and the keys and values of x or of what is read in its place."""
        if over is None:
            return self.qkv(x).split(self.sizes, dim=-1)  # type: ignore[no-any-return]
        sizes = [self.sizes[0], sum(self.sizes[1:])]
        weights = self.qkv.weight.split(sizes)
        biases = (None, None) if self.qkv.bias is None else self.qkv.bias.split(sizes)
        q, kv = (F.linear(states, *both) for states, *both in zip((x, over), weights, biases, strict=True))
        return q, *kv.chunk(2, dim=-1)

    def new_cache(self, rows: int, length: int, like: Tensor) -> KeysValues:
        """Empty keys and values for `length` tokens of each row."""
        shape = (rows, self.num_kv_heads, length, self.head_dim)
        return like.new_zeros(shape), like.new_zeros(shape)


class CrossAttention(nn.Module):
    """Queries from one text, keys and values from another, which are projected once."""

    attends = "cross"

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        memory_dim: int | None = None,
        head_dim: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        num_kv_heads = num_kv_heads or num_heads
        self.head_dim, self.scale = head_width(model_dim, num_heads, num_kv_heads, head_dim), scale
        self.q = nn.Linear(model_dim, num_heads * self.head_dim, bias=bias)
        self.kv = nn.Linear(memory_dim or model_dim, 2 * num_kv_heads * self.head_dim, bias=bias)
        self.out = nn.Linear(num_heads * self.head_dim, model_dim, bias=bias)
        self.dropout, self.backend = dropout, backend

    def project(self, memory: Tensor) -> KeysValues:
        """The keys and values of a B x M x D memory."""
        k, v = self.kv(memory).chunk(2, dim=-1)
        return split_heads(k, self.head_dim), split_heads(v, self.head_dim)

    def forward(self, x: Tensor, memory: KeysValues, *, mask: Mask | None = None) -> Tensor:
        """B x N x D -> B x N x D; x may have several rows for each one of the memory, which follow each other."""
        sources = len(memory[0])
        rows = x if len(x) == sources else x.reshape(sources, -1, x.shape[2])  # more queries of the same keys
        q = split_heads(self.q(rows), self.head_dim)
        dropout = self.dropout if self.training else 0.0
        out = attend(
            q,
            *memory,
            mask=mask,
            scale=self.scale,
            dropout=dropout,
            backend=self.backend,
            projection=self.out.weight,
        )
        return self.out(merge_heads(out)).reshape(x.shape)  # type: ignore[no-any-return]


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """B x N x (H d) -> B x H x N x d."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)  # type: ignore[no-any-return]


def merge_heads(x: Tensor) -> Tensor:
    """B x H x N x d -> B x N x (H d)."""
    return x.transpose(1, 2).flatten(2)


def remember(buffer: Tensor, new: Tensor, positions: Tensor) -> Tensor:
    """Writes B x K x N x d into a B x K x length x d buffer at positions B x N, and gives the buffer."""
    place = positions[:, None, :, None].expand_as(new)
    return buffer.scatter_(2, place, new.to(buffer.dtype))


def check_room(buffer: Tensor, length: int) -> None:
    """Raises where this many tokens do not fit into the cache, before a device could fail on it."""
    if length > buffer.shape[2]:
        wanted, remedy = f"at most {buffer.shape[2]}", "start with a larger max_length"
        raise RegardError("the cache is full", got=f"{length} tokens", wanted=wanted, remedy=remedy)


def head_width(model_dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None = None) -> int:
    """The width of a head, once the numbers were seen to fit: model_dim / num_heads, or the one that was given."""
    require(
        head_dim is not None or model_dim % num_heads == 0,
        "model_dim must be divisible by num_heads",
        got=(model_dim, num_heads),
        wanted="model_dim % num_heads == 0",
    )
    require(
        num_heads % num_kv_heads == 0,
        "num_heads must be divisible by num_kv_heads",
        got=(num_heads, num_kv_heads),
        wanted="num_heads % num_kv_heads == 0",
    )
    return head_dim or model_dim // num_heads
