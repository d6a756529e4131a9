"""Tokens to vectors and back: scaled embeddings with positions, and the output head that may share their weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.adaptive import AdaptiveEmbedding
from regard.layers.positions import Axial, Learned, Sinusoidal
from regard.ops.losses import token_cross_entropy


class Embedding(nn.Module):
    """Token vectors times sqrt(D), plus the position's vector where the scheme is absolute; `norm` is of their sum."""

    def __init__(
        self,
        tokens: nn.Embedding | AdaptiveEmbedding,
        *,
        position: Sinusoidal | Learned | Axial | None,
        scale: bool = True,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens, self.position, self.norm, self.dropout = tokens, position, norm, nn.Dropout(dropout)
        self.scale = tokens.embedding_dim**0.5 if scale else 1.0

    @property
    def places(self) -> int | None:
        """How many tokens a text may have; None: any number."""
        return self.position.longest if isinstance(self.position, (Learned, Axial)) else None

    def forward(self, ids: Tensor, positions: Tensor | None = None, bound: int | None = None) -> Tensor:
        """B x N ids -> B x N x D; `positions` B x N or None for 0 .. N-1, all of them under `bound`."""
        x = self.tokens(ids) * self.scale
        if self.position is not None:
            if isinstance(self.position, (Learned, Axial)):
                self.position.check(bound or ids.shape[1])
            if positions is None:
                positions = torch.arange(ids.shape[1], device=ids.device)
            x = x + self.position(positions).to(x.dtype)
        return self.dropout(x if self.norm is None else self.norm(x))  # type: ignore[no-any-return]


class Head(nn.Module):
    """Hidden states to logits. `tokens` shares the embedding's weight; otherwise the head has its own."""

    def __init__(self, dim: int, size: int, tokens: nn.Embedding | None = None, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = tokens.weight if tokens is not None else nn.Parameter(torch.randn(size, dim) * dim**-0.5)
        self.register_parameter("bias", nn.Parameter(torch.zeros(size)) if bias else None)
        self.bias: Tensor | None

    def forward(self, hidden: Tensor) -> Tensor:
        """.. x D -> .. x V."""
        return F.linear(hidden, self.weight, self.bias)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of the cross-entropies of T x D states, without their logits; labels under 0 count nothing."""
        return token_cross_entropy(hidden, self.weight, labels, smoothing, self.bias)


def token_table(size: int, dim: int) -> nn.Embedding:
    """Token vectors of unit length on average once they are scaled by sqrt(D)."""
    table = nn.Embedding(size, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)
    return table
