"""Losses as sums over real tokens, so that the loop divides once, whatever the batches were.

Shapes: T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.compiling import lacks_for_triton

# Logits alive at a time. On a CPU a chunk stays in the cache; on a GPU it is large enough to fill the chip.
CHUNK = {"cpu": 2**22, "cuda": 2**27}
FILL = 16  # vocabularies of GPUs are multiples of it: tensor cores take rows of 8, and Triton knows of 16 alone


def token_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float = 0.0, bias: Tensor | None = None
) -> Tensor:
    """Sum of the label-smoothed cross-entropies of softmax(hidden weight^T + bias); labels under 0 count nothing.

    `hidden` is T x D, `weight` V x D, `labels` T, or T x A where a state has several labels, `bias` V or none. The
    logits are never whole in memory: each chunk of them is made, weighed and turned into gradients at once.

    >>> token_cross_entropy(torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([1, -100])).item()
    1.3862943649291992
    """
    labels = labels[:, None] if labels.dim() == 1 else labels
    if not hidden.is_cuda:  # there a choice of rows would wait for the device, and could not be captured
        real = (labels >= 0).any(1)
        hidden, labels = hidden[real], labels[real]
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden, weight = (x.to(torch.get_autocast_dtype(kind)) for x in (hidden, weight))
    bias = bias if bias is None else bias.to(weight.dtype)
    return _TokenCrossEntropy.apply(hidden, weight, bias, labels, smoothing)  # type: ignore[no-untyped-call, no-any-return]


def adaptive_cross_entropy(
    hidden: Tensor, first: Tensor, bands: Sequence[tuple[Tensor, Tensor]], labels: Tensor
) -> Tensor:
    """Sum of the cross-entropies of an adaptive softmax (Grave et al. 2017); labels under 0 count nothing.

    `first` holds the vectors of the frequent tokens and then one for each band of rarer ones ((V_0 + bands) x D);
    a band is what narrows the states (d x D) and its tokens' vectors (V_i x d). A band sees only its own tokens; on a
    GPU it sees all of them and counts its own, as a choice would wait for the device.
    """
    low = len(first) - len(bands)
    total, coarse = None, labels
    for band, (narrow, weight) in enumerate(bands):
        own = (labels >= low) & (labels < low + len(weight))
        coarse = torch.where(own, len(first) - len(bands) + band, coarse)
        states, inner = hidden, torch.where(own, labels - low, -1)
        if not hidden.is_cuda:
            states, inner = hidden[own], inner[own]
        loss = token_cross_entropy(F.linear(states, narrow), weight, inner)
        total, low = loss if total is None else total + loss, low + len(weight)
    loss = token_cross_entropy(hidden, first, coarse)
    return loss if total is None else total + loss


class _TokenCrossEntropy(torch.autograd.Function):
    """The gradient is known as soon as the loss is: softmax minus the target, (1 - smoothing) at the label plus
    smoothing / V everywhere. What is the same everywhere needs no pass over the logits: it is a sum of rows."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
    ) -> Tensor:
        needed, (wants_hidden, wants_weight, *_) = any(ctx.needs_input_grad), ctx.needs_input_grad
        wide = torch.promote_types(hidden.dtype, torch.float32)
        size, fast = len(weight), _is_fast(hidden, labels)
        if fast and size % FILL:
            weight = F.pad(weight, (0, 0, 0, -size % FILL))
            bias = bias if bias is None else F.pad(bias, (0, -size % FILL))
        total = torch.zeros((), dtype=wide, device=hidden.device)
        d_hidden = torch.zeros_like(hidden) if wants_hidden else hidden  # which has as many rows
        d_weight = torch.zeros_like(weight) if wants_weight else None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=wide)
        spread = smoothing / size
        row_sum = weight.sum(0, dtype=wide) * spread
        bias_sum = 0.0 if bias is None else bias.sum(dtype=wide) * spread
        rows = max(1, CHUNK.get(hidden.device.type, 2**22) // len(weight))
        with torch.autocast(hidden.device.type, enabled=False):
            for h, y, dh in zip(hidden.split(rows), labels.split(rows), d_hidden.split(rows), strict=True):
                real, place = (y >= 0).to(wide), y.clamp(min=0)  # rows x A
                number = real.sum(1, keepdim=True)
                logits = h @ weight.T if bias is None else torch.addmm(bias, h, weight.T)
                if fast:
                    from regard.ops.kernel_losses import weigh_rows

                    found = weigh_rows(logits, y[:, 0], size, smoothing, write=needed)
                    slope, (chosen, log_sum) = logits, (each[:, None] for each in found)
                else:
                    slope = logits.log_softmax(-1, dtype=wide)
                    chosen = slope.gather(1, place)
                    log_sum = logits.gather(1, place[:, :1]).to(wide) - chosen[:, :1]
                mean = (h.to(wide) @ row_sum)[:, None] + bias_sum - smoothing * log_sum
                total -= (((1 - smoothing) * chosen + mean) * real).sum()  # a label each: mean stands beside all
                if not needed:
                    continue
                if not fast:
                    slope.exp_()
                    if h.is_cuda or y.shape[1] > 1:  # elsewhere every row has one label
                        slope *= number
                    slope.scatter_add_(1, place, (smoothing - 1) * real)
                if d_bias is not None:
                    d_bias += slope.sum(0, dtype=wide) - real.sum() * spread
                slope = slope.to(h.dtype)
                if wants_hidden:
                    torch.sub(slope @ weight, (number * row_sum).to(h.dtype), out=dh)
                if d_weight is not None:
                    d_weight.addmm_(slope.T, h)
                    d_weight -= ((h * number).sum(0, dtype=wide) * spread).to(h.dtype)
        if needed:
            d_bias = None if bias is None or d_bias is None else d_bias[:size].to(bias.dtype)
            d_weight = d_weight if d_weight is None else d_weight[:size]
            ctx.save_for_backward(d_hidden if wants_hidden else None, d_weight, d_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[Tensor | None, ...]:
        gradients = (g if g is None else g * outputs[0].to(g.dtype) for g in ctx.saved_tensors)
        return (*gradients, None, None)


def _is_fast(hidden: Tensor, labels: Tensor) -> bool:
    """Whether the kernel of rows can weigh these."""
    known = hidden.is_cuda and torch.version.hip is None and hidden.dtype != torch.float64
    return known and labels.shape[1] == 1 and lacks_for_triton() is None
