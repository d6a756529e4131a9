"""Two texts of a row that read each other (Seo et al. 2017), and a layer that reads each of them for itself.

Shapes: B batch, N length, D width. `second` (B x N) is true at the places of the second text, of real tokens only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.layers.recurrent import BidirectionalLayer
from regard.ops.attention import read, record_weights, score, weigh


class Weighing(nn.Module):
    """Reads by given scores, where it may; a module of its own so that it can be observed."""

    attends = "self"  # both texts stand along one row

    def forward(self, scores: Tensor, allowed: Tensor, values: Tensor) -> Tensor:
        """B x N x M scores, B x M x D -> B x N x D."""
        weights, values = weigh(scores, allowed).to(values.dtype)[:, None], values[:, None]  # one head
        out = read(weights, values)
        record_weights(weights, values, out)
        return out[:, 0]


class CoAttention(nn.Module):
    """Attention both ways: [a; what it reads of the other text; a * that; a * what of its own text matters to it].

    The score of two places is w_1 . a_i + w_2 . a_j + w_3 . (a_i * a_j). A text's own places are weighed by the largest
    score that any place of the other text has with them.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dim) * dim**-0.5)
        self.other, self.own = Weighing(), Weighing()

    def forward(self, x: Tensor, lengths: Tensor, second: Tensor | None) -> Tensor:
        """B x N x D -> B x N x 4D; without `second` a row is one text, which reads itself."""
        real = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, None]  # B x 1 x N
        apart = real if second is None else real & (second[:, :, None] != second[:, None])
        together = real if second is None else real & (second[:, :, None] == second[:, None])
        rows, keys, both = self.weight
        scores = score(x * both, x, scale=1.0) + (x @ rows)[:, :, None] + (x @ keys)[:, None]
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        apart, together = apart.expand_as(scores), together.expand_as(scores)
        seen = self.other(scores, apart, x)
        matter = scores.masked_fill(~apart, -math.inf).amax(-1).masked_fill(~apart.any(-1), 0.0)  # B x N
        own = self.own(matter[:, None].expand_as(scores), together, x)
        return torch.cat([x, seen, x * seen, x * own], dim=-1)


def read_apart(layer: BidirectionalLayer, x: Tensor, lengths: Tensor, second: Tensor | None) -> Tensor:
    """Both texts of each row by one recurrent layer, each as if it stood alone: B x N x D -> B x N x 2H."""
    if second is None:
        return layer(x, lengths)  # type: ignore[no-any-return]
    number = lengths - second.sum(1)  # tokens of the first text
    places = torch.arange(x.shape[1], device=x.device)
    moved = _take(x, (places + number[:, None]).clamp(max=x.shape[1] - 1))  # the second text at the front of its row
    first, other = layer(torch.cat([x, moved]), torch.cat([number, lengths - number])).chunk(2)
    return torch.where(second[:, :, None], _take(other, (places - number[:, None]).clamp(min=0)), first)


def _take(x: Tensor, places: Tensor) -> Tensor:
    return x.gather(1, places[:, :, None].expand_as(x))
