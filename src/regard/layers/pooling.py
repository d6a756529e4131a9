"""One state of a whole row, read from the states of all its places by an attention that can be looked at.

Shapes: B batch, M places, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.ops.attention import read, record_weights, score_additive, weigh
from regard.ops.masks import padding


class AttentionPooling(nn.Module):
    """sum_j a_j h_j, a = softmax_j(v . tanh(W h_j + b)): which places matter is learned (Yang et al. 2016)."""

    attends = "cross"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.keys = nn.Linear(dim, dim, bias=False)
        self.query = nn.Parameter(torch.zeros(dim))  # b: one question for every row
        self.vector = nn.Parameter(torch.randn(dim) * dim**-0.5)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """B x M x D -> B x D; of an empty row zeros."""
        return read_places(score_additive(self.query[None, None], self.keys(hidden), self.vector), hidden, lengths)


def read_places(scores: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
    """What one query a row reads from the real places by its scores: B x 1 x M, B x M x D -> B x D."""
    places = torch.arange(memory.shape[1], device=memory.device)
    allowed = padding(lengths).block(places[:1], places)[:, 0]  # B x 1 x M
    weights, values = weigh(scores, allowed).to(memory.dtype)[:, None], memory[:, None]  # one head
    out = read(weights, values)
    record_weights(weights, values, out)
    return out[:, 0, 0]
