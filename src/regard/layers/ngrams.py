"""Vectors for runs of neighbouring tokens, found by a hash: no list of runs is kept, and some share a vector by chance.

Shapes: B batch, N length, D width of a token's vector, G width of a run's, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.embedding import Embedding
from regard.layers.output import text_places
from regard.types import Sequences

# A run is a number to the base FACTOR, modulo a prime that no number of rows divides nearly: with a factor of 1,000,003
# and no prime, the row of a pair among 1,000 would be that of 3 a + b. No product needs more than 62 bits.
FACTOR, PRIME = 1_103_515_245, 2**31 - 1
STEP = 5.0  # few batches hold a run: at the same rate its weights go this many times as far as others


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


class NgramWeights(nn.Module):
    """What the runs of 1 to `longest` tokens in a text say for each class, by themselves: B x C.

    The sum of the weights of the runs that a text has, however often, over the square root of how many these are: a
    linear classifier of n-grams. The weights begin at zero; each length has `rows` of its own.
    """

    def __init__(self, classes: int, *, longest: int, rows: int) -> None:
        super().__init__()
        self.longest, self.rows = longest, rows
        self.weight = nn.Parameter(torch.zeros(longest * rows, classes))

    def forward(self, source: Sequences) -> Tensor:
        places = text_places(source)
        found = torch.cat([self._rows_of(source.ids, n).masked_fill(~places, -1) for n in self._lengths()], dim=1)
        found = found.sort(dim=1).values
        new = found.diff(dim=1, prepend=torch.full_like(found[:, :1], -1)) > 0  # neither a run again nor padding
        said = (F.embedding(found.clamp(min=0), self.weight) * new[:, :, None]).sum(1)
        return STEP * said / new.sum(1, keepdim=True).clamp(min=1).sqrt()

    def _lengths(self) -> range:
        return range(1, self.longest + 1)

    def _rows_of(self, ids: Tensor, length: int) -> Tensor:
        return hash_ngrams(ids, length, self.rows) + (length - 1) * self.rows
