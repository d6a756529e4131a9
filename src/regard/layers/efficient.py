"""Self-attention that does not cost the square of the length: a sliding window, linear attention, low rank.

Shapes: B batch, N length, D model width, H heads, K key heads, R slots, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import RegardError
from regard.layers.attention import SelfAttention, head_width, merge_heads, split_heads
from regard.ops.attention import attend
from regard.ops.linear import attend_linear, new_state
from regard.ops.masks import Lengths, Mask, window


class WindowAttention(SelfAttention):
    """Each token reads `reach` tokens to either side; the `first` ones read all and are read by all (Longformer).

    With `separate`, what the first ones read by is projected by matrices of its own (Beltagy et al. 2020, 3.1).
    """

    def __init__(
        self, model_dim: int, num_heads: int, *, reach: int, first: int = 0, separate: bool = False, **options: Any
    ) -> None:
        super().__init__(model_dim, num_heads, **options)
        self.reach, self.first = reach, first
        self.global_q = nn.Linear(model_dim, self.sizes[0]) if separate else None
        self.global_kv = nn.Linear(model_dim, sum(self.sizes[1:])) if separate else None

    def forward(self, x: Tensor, *, mask: Mask | None = None, **cached: Any) -> Tensor:
        """B x N x D -> B x N x D; see SelfAttention."""
        near = window(self.reach, first=self.first)
        mask = near if mask is None else mask & near
        if self.global_q is None or self.global_kv is None or not self.first:
            return super().forward(x, mask=mask, **cached)
        # Heads twice as wide, of which a query has one half and zeros: so each meets the keys and values that it has
        # to, in one call that can be observed as any other.
        first, width = min(self.first, x.shape[1]), self.head_dim
        q, *local = self._heads(self.qkv(x).split(self.sizes, dim=-1))
        own = self._heads(self.global_kv(x).chunk(2, dim=-1))
        (wide_q,) = self._heads([self.global_q(x[:, :first])])
        q = torch.cat([F.pad(wide_q, (width, 0)), F.pad(q[:, :, first:], (0, width))], dim=2)
        k, v = (torch.cat(both, dim=-1) for both in zip(local, own, strict=True))
        dropout = self.dropout if self.training else 0.0
        out = attend(q, k, v, mask=mask, scale=width**-0.5, dropout=dropout, backend=self.backend)
        out = torch.cat([out[:, :, :first, width:], out[:, :, first:, :width]], dim=2)
        return self.out(merge_heads(out))  # type: ignore[no-any-return]

    def _heads(self, parts: Any) -> list[Tensor]:
        return [split_heads(part, self.head_dim) for part in parts]


class LinearAttention(nn.Module):
    """Self-attention by sums over feature maps of the keys; what it remembers of a text is one matrix a head."""

    attends = "self"

    def __init__(self, model_dim: int, num_heads: int, *, num_kv_heads: int | None = None) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads or num_heads
        self.head_dim = head_width(model_dim, num_heads, self.num_kv_heads)
        self.sizes = [num_heads * self.head_dim, *2 * [self.num_kv_heads * self.head_dim]]
        self.qkv, self.out = nn.Linear(model_dim, sum(self.sizes)), nn.Linear(model_dim, model_dim)

    def forward(self, x: Tensor, *, mask: Mask | None = None, cache: tuple[Tensor] | None = None) -> Tensor:
        """B x N x D -> B x N x D. With a cache, x comes after what it remembers, and it is brought up to date."""
        q, k, v = (split_heads(part, self.head_dim) for part in self.qkv(x).split(self.sizes, dim=-1))
        out = attend_linear(q, k, v, mask=mask, state=None if cache is None else cache[0], projection=self.out.weight)
        return self.out(merge_heads(out))  # type: ignore[no-any-return]

    def new_cache(self, rows: int, length: int, like: Tensor) -> tuple[Tensor]:
        """What a text that was not begun remembers, whatever its length."""
        return (new_state(rows, self.num_kv_heads, self.head_dim, like),)


class LowRankAttention(nn.Module):
    """Every token reads R slots, each a learned mixture of all keys: softmax(q (E k)^T) (F v) (Wang et al. 2020).

    `mix` are E and F, R x the longest text; they may be one, and that of other layers.
    """

    attends, keys_axis = "cross", "slots"

    def __init__(
        self, model_dim: int, num_heads: int, *, mix: tuple[nn.Parameter, nn.Parameter], dropout: float, backend: str
    ) -> None:
        super().__init__()
        self.head_dim = head_width(model_dim, num_heads, num_heads)
        self.qkv, self.out = nn.Linear(model_dim, 3 * model_dim), nn.Linear(model_dim, model_dim)
        self.mix_keys, self.mix_values = mix
        self.dropout, self.backend = dropout, backend

    def forward(self, x: Tensor, *, mask: Mask | None = None) -> Tensor:
        """B x N x D -> B x N x D; of masks only padding can be meant, as a slot holds keys of the whole text."""
        q, *both = (split_heads(part, self.head_dim) for part in self.qkv(x).chunk(3, dim=-1))
        real = _real(mask, x)
        k, v = (
            mix[:, : x.shape[1]] @ (part if real is None else part.masked_fill(~real, 0.0))  # B x H x R x d
            for mix, part in zip((self.mix_keys, self.mix_values), both, strict=True)
        )
        dropout = self.dropout if self.training else 0.0
        out = attend(q, k, v, dropout=dropout, backend=self.backend, projection=self.out.weight)
        return self.out(merge_heads(out))  # type: ignore[no-any-return]


def _real(mask: Mask | None, x: Tensor) -> Tensor | None:
    """Which places of each row are real: B x 1 x N x 1."""
    if mask is None:
        return None
    if not all(isinstance(rule, Lengths) for rule in mask.rules):
        got = ", ".join(type(rule).__name__ for rule in mask.rules)
        raise RegardError("low-rank attention reads the whole text at once", got=got, wanted="padding(lengths)")
    places = torch.arange(x.shape[1], device=x.device)
    return mask.block(places[:1], places).mT
