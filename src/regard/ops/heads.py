"""What each head does on average, in a few numbers: little work, and none of it waits for the device.

So it can run beside a training, captured as part of a CUDA graph. The means are those of `look.measures.head_scores`.

Shapes: B batch, H heads, N rows (queries), M keys, R rows of a strip.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from regard.ops.call import Call
from regard.ops.masks import rows_first
from regard.ops.strips import Scores, plainly, wide

MEASURES = ("entropy", "confidence", "distance", "previous", "first")
STRIP = 2**24  # weights in memory at once: 64 MiB


def call_means(call: Call, real: Tensor, *, own: bool) -> Tensor:
    """The mean of each of `MEASURES` over the real rows (B x N) of a call: measures x H.

    `own` says that rows and keys are the same places: then row 0, which has nothing before it and is key 0 itself,
    counts neither for the previous nor for the first token; where they are not, there is no previous one: nan.
    A row that may attend nowhere does not count.

    >>> q, k, v = torch.zeros(3, 1, 2, 4, 8)
    >>> call_means(Call(q, k, v, None, (), 1.0, 0.0, None), torch.ones(1, 4).bool(), own=True)[:, 0].tolist()
    [1.3862943649291992, 0.25, 1.25, 0.25, 0.25]
    """
    batch, num_heads, num_rows = call.q.shape[:3]
    height = max(1, STRIP // (batch * num_heads * call.k.shape[2]))
    with plainly(call.q):
        scores, heads = Scores(call), torch.arange(num_heads, device=call.q.device)
        strips = torch.arange(num_rows, device=call.q.device).split(height)
        return _mean(
            [
                _sums(scores.rows(rows, heads).softmax(-1), scores.positions[..., rows], real[:, rows], own)
                for rows in strips
            ]
        )


def weight_means(weights: Tensor, real: Tensor, *, own: bool) -> Tensor:
    """The same from weights that are there as a whole, B x H x N x M.

    >>> weights = torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])
    >>> weight_means(weights, torch.ones(1, 2).bool(), own=True)[1:, 0].tolist()
    [0.875, 0.125, 0.25, 0.25]
    """
    with plainly(weights):
        places = torch.arange(weights.shape[2], device=weights.device)
        return _mean([_sums(weights.to(wide(weights.dtype)), places, real, own)])


def _sums(weights: Tensor, positions: Tensor, real: Tensor, own: bool) -> tuple[Tensor, Tensor]:
    """The sum of each measure over the rows that count for it, and how many they are: each measures x H."""
    place = rows_first(positions)  # B|1 x 1 x R x 1
    keys = torch.arange(weights.shape[3], device=weights.device)
    before = (place - 1).clamp(0, weights.shape[3] - 1).expand(*weights.shape[:3], 1)
    spread: Tensor = torch.special.entr(weights)
    confidence = weights.amax(-1)
    values = {
        "entropy": spread.sum(-1),
        "confidence": confidence,
        "distance": (weights * (keys - place).abs()).sum(-1),
        "previous": weights.gather(-1, before).squeeze(-1),
        "first": weights[..., 0],
    }
    counted = (confidence > 0) & real[:, None]  # the weights of a row that may attend nowhere are no numbers
    later = counted & (place.squeeze(-1) >= 1) if own else counted
    counts = {"previous": later if own else torch.zeros_like(counted), "first": later}
    rows = torch.stack([counts.get(name, counted) for name in MEASURES])  # measures x B x H x R
    found = torch.stack([values[name] for name in MEASURES])
    return torch.where(rows, found, 0.0).sum((1, 3)), rows.sum((1, 3))


def _mean(strips: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    sums, counts = reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]), strips)
    return sums / counts
