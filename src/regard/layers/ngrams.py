"""Vectors for runs of neighbouring tokens, found by a hash: no list of runs is kept, and some share a vector by chance.

Shapes: B batch, N length, D width of a token's vector, G width of a run's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.embedding import Embedding

# A run is a number to the base FACTOR, modulo a prime that no number of rows divides nearly: with a factor of 1,000,003
# and no prime, the row of a pair among 1,000 would be that of 3 a + b. No product needs more than 62 bits.
FACTOR, PRIME = 1_103_515_245, 2**31 - 1


def hash_ngrams(ids: Tensor, length: int, rows: int) -> Tensor:
    """A number under `rows` for the run of `length` tokens that ends at each place (B x N); before a text are zeros.

    Whole numbers alone, and none that overflows: it is the same on every machine.

    >>> hash_ngrams(torch.tensor([[7, 8, 7, 8]]), 2, 1000).tolist()
    [[774, 434, 107, 434]]
    """
    found = torch.zeros_like(ids)
    for back in reversed(range(length)):
        before = F.pad(ids, (back, 0))[:, : ids.shape[1]]
        found = (found * FACTOR + before) % PRIME
    found = (found ^ (found >> 15)) * FACTOR % PRIME  # ids that follow one another are no neighbours then
    return found % rows


class NgramEmbedding(Embedding):
    """Beside each token's vector the sum of those of the runs of 2 to `longest` tokens that end there: B x N x (D + G).

    Each length has `rows` vectors of its own. They begin at zero: what was never seen says nothing.
    """

    def __init__(self, tokens: nn.Embedding, *, longest: int, rows: int, dim: int, **form: Any) -> None:
        super().__init__(tokens, **form)
        self.longest, self.rows = longest, rows
        self.ngrams = nn.Embedding((longest - 1) * rows, dim)
        nn.init.zeros_(self.ngrams.weight)

    def forward(self, ids: Tensor, positions: Tensor | None = None, bound: int | None = None) -> Tensor:
        """B x N ids -> B x N x (D + G). No run has a token after its place, and so none has padding."""
        runs = sum(self.ngrams(self._row(ids, length)) for length in range(2, self.longest + 1))
        return torch.cat([super().forward(ids, positions, bound), self.dropout(runs)], dim=-1)

    def _row(self, ids: Tensor, length: int) -> Tensor:
        return hash_ngrams(ids, length, self.rows) + (length - 2) * self.rows
