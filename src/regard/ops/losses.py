"""Losses as sums over real tokens, so that the loop divides once, whatever the batches were.

Shapes: T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Logits alive at a time. On a CPU a chunk stays in the cache; on a GPU it is large enough to fill the chip.
CHUNK = {"cpu": 2**22, "cuda": 2**27}


def token_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Sum of the label-smoothed cross-entropies of softmax(hidden weight^T + bias); labels under 0 count nothing.

    `hidden` is T x D, `weight` V x D, `labels` T. The logits are never whole in memory: each chunk of them is made,
    weighed and turned into gradients at once.

    >>> token_cross_entropy(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(4), torch.tensor([1, -100])).item()
    1.3862943649291992
    """
    if not hidden.is_cuda:  # there a choice of rows would wait for the device, and could not be captured
        real = labels >= 0
        hidden, labels = hidden[real], labels[real]
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden, weight = (x.to(torch.get_autocast_dtype(kind)) for x in (hidden, weight))
    return _TokenCrossEntropy.apply(hidden, weight, bias, labels, smoothing)  # type: ignore[no-untyped-call, no-any-return]


class _TokenCrossEntropy(torch.autograd.Function):
    """The gradient is known as soon as the loss is: softmax minus the smoothed target."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        needed = any(ctx.needs_input_grad)
        rows = max(1, CHUNK.get(hidden.device.type, 2**22) // len(weight))
        total = torch.zeros((), dtype=bias.dtype, device=hidden.device)
        gradients = [torch.zeros_like(x) if needed else x for x in (hidden, weight, bias)]
        with torch.autocast(hidden.device.type, enabled=False):
            for h, y, dh in zip(hidden.split(rows), labels.split(rows), gradients[0].split(rows), strict=True):
                logits = torch.addmm(bias.to(h.dtype), h, weight.T)
                loss, slope = _loss_and_slope(logits, y, smoothing, needed)
                total += loss
                if needed:
                    torch.mm(slope, weight, out=dh)
                    gradients[1].addmm_(slope.T, h)
                    gradients[2].add_(slope.sum(0, dtype=bias.dtype))
        if needed:
            ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> tuple[Tensor | None, ...]:
        return (*(gradient * outputs[0].to(gradient.dtype) for gradient in ctx.saved_tensors), None, None)


def _loss_and_slope(logits: Tensor, labels: Tensor, smoothing: float, needed: bool) -> tuple[Tensor, Tensor]:
    """Sum of -sum_v target_v log p_v with target = (1 - smoothing) at the label + smoothing / V, and d sum / d logits."""
    real = (labels >= 0)[:, None]
    place = labels.clamp(min=0)[:, None]
    wide = logits.float() if logits.dtype.itemsize < 4 else logits
    log_sum = wide.logsumexp(-1, keepdim=True)
    loss = log_sum - (1 - smoothing) * wide.gather(1, place)
    if smoothing:
        loss = loss - smoothing * wide.mean(-1, keepdim=True)
    loss = (loss * real).sum()
    if not needed:
        return loss, logits
    slope = wide.sub_(log_sum).exp_()
    slope.scatter_add_(1, place, torch.full_like(log_sum, smoothing - 1))
    if smoothing:
        slope -= smoothing / slope.shape[1]
    return loss, slope.mul_(real).to(logits.dtype)
