"""Frequent tokens get wide vectors, rare ones narrow: adaptive embeddings (Baevski & Auli 2019) and softmax (Grave et
al. 2017).

Token ids go by frequency. The first `cutoffs[0]` are the shortlist, with vectors of D numbers; the ids up to each next
cutoff, and to the end, are a band, whose vectors have 1/shrink of the width of those before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import require
from regard.ops.losses import adaptive_cross_entropy


class AdaptiveTables(nn.Module):
    """The vectors of the shortlist and of each band."""

    def __init__(self, size: int, dim: int, cutoffs: Sequence[int], shrink: int) -> None:
        super().__init__()
        self.bounds = [0, *cutoffs, size]
        rising = all(low < high for low, high in pairwise(self.bounds))
        require(
            rising and len(cutoffs) > 0,
            "cutoffs must rise, and stay under the size of the vocabulary",
            got=f"{list(cutoffs)} of {size} tokens",
            wanted=f"0 < first < next < {size}",
        )
        self.widths = [dim // shrink**band for band in range(len(cutoffs) + 1)]
        require(
            self.widths[-1] > 0,
            "the last band has no width left",
            got=f"{dim} / {shrink}^{len(cutoffs)}",
            wanted=">= 1",
        )
        sizes = [high - low for low, high in pairwise(self.bounds)]
        self.bands = nn.ParameterList(
            nn.Parameter(torch.randn(size, width) * dim**-0.5) for size, width in zip(sizes, self.widths, strict=True)
        )


class AdaptiveEmbedding(nn.Module):
    """Token vectors of D numbers, each from the table of its band and the band's projection."""

    def __init__(self, tables: AdaptiveTables) -> None:
        super().__init__()
        self.tables, self.embedding_dim = tables, tables.widths[0]
        self.up = nn.ModuleList(_even(width, self.embedding_dim) for width in tables.widths[1:])

    def forward(self, ids: Tensor) -> Tensor:
        """Ids of any shape -> the same x D."""
        bounds = list(pairwise(self.tables.bounds))
        x: Tensor | None = None
        for band, (table, (low, high)) in enumerate(zip(self.tables.bands, bounds, strict=True)):
            # every band looks at every id: to choose the rows would wait for the device
            part = F.embedding((ids - low).clamp(0, high - low - 1), table)
            part = self.up[band - 1](part) if band else part
            x = part if x is None else torch.where((ids >= low)[..., None], part.to(x.dtype), x)
        assert x is not None
        return x


class AdaptiveHead(nn.Module):
    """Hidden states to log-probabilities: of the shortlist and the bands first, then of the tokens of a band.

    `tables` may be those of the embedding. The loss makes of each band only what its own tokens need.
    """

    def __init__(self, tables: AdaptiveTables) -> None:
        super().__init__()
        self.tables, dim = tables, tables.widths[0]
        self.gates = nn.Parameter(torch.randn(len(tables.bands) - 1, dim) * dim**-0.5)  # a row for each band
        self.down: Any = nn.ModuleList(_even(dim, width) for width in tables.widths[1:])

    def forward(self, hidden: Tensor) -> Tensor:
        """.. x D -> .. x V, as logits: their softmax is what they are the logarithm of."""
        shortlist, *bands = self.tables.bands
        first = F.linear(hidden, torch.cat([shortlist, self.gates])).log_softmax(-1)
        known, gates = first.split([len(shortlist), len(bands)], dim=-1)
        parts = [known]
        for band, (down, table) in enumerate(zip(self.down, bands, strict=True)):
            parts.append(gates[..., band : band + 1] + F.linear(down(hidden), table).log_softmax(-1))
        return torch.cat(parts, dim=-1)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of the cross-entropies of T x D states; labels under 0 count nothing."""
        require(smoothing == 0, "an adaptive softmax smooths no labels", got=smoothing, wanted="label_smoothing = 0")
        shortlist, *bands = self.tables.bands
        narrow = [(down.weight, table) for down, table in zip(self.down, bands, strict=True)]
        return adaptive_cross_entropy(hidden, torch.cat([shortlist, self.gates]), narrow, labels)


def _even(width: int, out: int) -> nn.Linear:
    """A projection that leaves the spread of the numbers as it is, so that rare tokens begin as large as others."""
    layer = nn.Linear(width, out, bias=False)
    nn.init.normal_(layer.weight, std=width**-0.5)
    return layer
