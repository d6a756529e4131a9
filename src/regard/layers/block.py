"""Blocks of the Transformer: sublayers with residual and norm, before (pre) or after (post) them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from regard.layers.attention import KeysValues
from regard.ops.masks import Mask


class Sublayer(nn.Module):
    """x + dropout(body(norm(x))) with the norm first; norm(x + dropout(body(x))) as the first paper has it."""

    def __init__(self, body: nn.Module, norm: nn.Module, *, norm_first: bool, dropout: float) -> None:
        super().__init__()
        self.body, self.norm, self.dropout, self.norm_first = body, norm, nn.Dropout(dropout), norm_first

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.norm_first:
            return x + self.dropout(self.body(self.norm(x), *args, **kwargs))  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(self.body(x, *args, **kwargs)))  # type: ignore[no-any-return]


Wrap = Callable[[nn.Module], Sublayer]


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward; `wrap` puts residual and norm around each.

    Under a causal mask it is the block of a decoder that reads nothing else: `cached` is then what a step says to the
    attention (positions, cache, bound).
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module, wrap: Wrap) -> None:
        super().__init__()
        self.attention, self.feedforward = wrap(attention), wrap(feedforward)

    def forward(self, x: Tensor, mask: Mask | None, **cached: Any) -> Tensor:
        return self.feedforward(self.attention(x, mask=mask, **cached))  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Masked self-attention, attention to the memory, feed-forward."""

    def __init__(self, attention: nn.Module, cross: nn.Module, feedforward: nn.Module, wrap: Wrap) -> None:
        super().__init__()
        self.attention, self.cross, self.feedforward = wrap(attention), wrap(cross), wrap(feedforward)

    def forward(
        self,
        x: Tensor,
        memory: KeysValues,
        *,
        mask: Mask,
        memory_mask: Mask,
        positions: Tensor | None = None,
        cache: KeysValues | None = None,
        bound: int | None = None,
    ) -> Tensor:
        x = self.attention(x, mask=mask, positions=positions, cache=cache, bound=bound)
        return self.feedforward(self.cross(x, memory, mask=memory_mask))  # type: ignore[no-any-return]
