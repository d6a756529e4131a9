"""Dropout of recurrent language models: one mask for a whole text, and whole words at a time.

Shapes: B batch, N length, D width, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class LockedDropout(nn.Dropout):
    """Drops the same parts of the states at every place of a row (Gal and Ghahramani 2016): B x N x D."""

    def forward(self, x: Tensor) -> Tensor:
        return x * F.dropout(x.new_ones(len(x), 1, x.shape[-1]), self.p, self.training)


class WordDropout(nn.Dropout):
    """Drops tokens of the vocabulary, wherever they stand in a batch: B x N x D and their B x N ids."""

    def __init__(self, p: float, size: int) -> None:
        super().__init__(p)
        self.size = size

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        if not self.training or not self.p:
            return x
        return x * F.embedding(ids, F.dropout(x.new_ones(self.size, 1), self.p))
