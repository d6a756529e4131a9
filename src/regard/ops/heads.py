"""What each head does on average, in a few numbers: little work, and none of it waits for the device.

So it can run beside a training, captured as a CUDA graph. The means are those of `look.measures.head_scores`.

Shapes: L layers, B batch, H heads, N rows (queries), M keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.call import Call
from regard.ops.masks import rows_first
from regard.ops.strips import Scores, plainly, wide

MEASURES = ("entropy", "confidence", "distance", "previous", "first")
CONFIDENCE, PREVIOUS = MEASURES.index("confidence"), MEASURES.index("previous")
STRIP = 2**24  # weights in memory at once: 64 MiB


def call_rows(call: Call) -> Tensor:
    """Each of `MEASURES` for every row of a call, measures x B x H x N; nan in a row that may attend nowhere."""
    batch, num_heads, num_rows = call.q.shape[:3]
    with plainly(call.q):
        scores, places, keys = Scores(call), torch.arange(num_rows, device=call.q.device), call.key_positions
        k = scores.k.repeat_interleave(scores.groups, dim=1) if scores.groups > 1 else scores.k
        height = max(1, STRIP // (batch * num_heads * max(1, len(keys))))
        found = []
        for part in (slice(start, start + height) for start in range(0, num_rows, height)):
            # scaled afterwards: where a GPU multiplies in TF32, products of bf16 are exact, but not of what was scaled
            weights = (scores.q[:, :, part] @ k.transpose(-1, -2)).mul_(call.scale)
            bias = scores.bias(places[part], keys)
            weights = weights if bias is None else weights.add_(bias)
            found.append(_measure(weights.softmax(-1), scores.positions[..., part], keys))
        return torch.cat(found, dim=-1) if len(found) > 1 else found[0]


def weight_rows(weights: Tensor) -> Tensor:
    """The same from weights that are there as a whole, B x H x N x M, of the rows 0 .. N-1.

    >>> weight_rows(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]))[1:, 0, 0].tolist()
    [[1.0, 0.75], [0.0, 0.25], [1.0, 0.25], [1.0, 0.25]]
    """
    with plainly(weights):
        rows, keys = (torch.arange(length, device=weights.device) for length in weights.shape[2:])
        return _measure(weights.to(wide(weights.dtype)), rows, keys)


def head_means(rows: Tensor, real: Tensor, *, own: bool) -> Tensor:
    """The mean of each measure over the real rows (B x N) that attend: L x measures x B x H x N -> L x measures x H.

    `own` says that rows and keys are the same places: then row 0, which has nothing before it and is key 0 itself,
    counts neither for the previous nor for the first token. Where they are not, there is no previous one: nan.

    >>> rows = weight_rows(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]]))
    >>> head_means(rows[None], torch.tensor([[True, True]]), own=True)[0, 1:, 0].tolist()
    [0.875, 0.125, 0.25, 0.25]
    """
    valid = torch.ones(len(MEASURES), 1, 1, rows.shape[-1], dtype=torch.bool, device=rows.device)
    if own:
        valid[PREVIOUS:, :, :, 0].fill_(False)  # and first
    else:
        valid[PREVIOUS].fill_(False)
    counted = valid & (rows[:, CONFIDENCE, None] > 0) & real[:, None]
    return torch.where(counted, rows, 0.0).sum((2, 4)) / counted.sum((2, 4))


def _measure(weights: Tensor, positions: Tensor, keys: Tensor) -> Tensor:
    if not len(keys):  # one that nobody weighs: so all of them attend nowhere
        weights, keys = F.pad(weights, (0, 1)), keys.new_zeros(1)
    place = rows_first(positions)  # B|1 x 1 x N x 1
    before = (place - 1).clamp(0, len(keys) - 1).expand(*weights.shape[:3], 1)
    spread: Tensor = torch.special.entr(weights)
    values = {
        "entropy": spread.sum(-1),
        "confidence": weights.amax(-1),
        "distance": (weights * (keys - place).abs()).sum(-1),
        "previous": weights.gather(-1, before).squeeze(-1),
        "first": weights[..., 0],
    }
    return torch.stack([values[name] for name in MEASURES])
