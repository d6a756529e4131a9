"""Cross-entropies of rows of logits on NVIDIA GPUs: their log-sum-exp, and the gradient in place of the logits.

A row is read twice, and the second time it comes from the cache; the plain passes of `losses.py` write and read it in
float32 six times over.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _row(base, place, columns, width):
    """The logits at these places of a row; what only fills it up is read as well, so that all loads are whole ones."""
    x = tl.load(base + place, mask=place < width, other=float("-inf")).to(tl.float32)
    return tl.where(place < columns, x, float("-inf"))


@triton.jit
def slope_pass(
    logits_pointer,
    label_pointer,
    sum_pointer,
    chosen_pointer,
    stride,
    columns,
    width,
    share,  # of the target that the label has
    write: tl.constexpr,
    block: tl.constexpr,
):
    """One row: log sum exp and the logit of its label; then softmax - share at the label, or zeros without a label."""
    row = tl.program_id(0).to(tl.int64)
    base = logits_pointer + row * stride
    label = tl.load(label_pointer + row)
    places = tl.arange(0, block)
    most = tl.full((block,), -1e38, tl.float32)
    sums = tl.zeros((block,), tl.float32)
    for start in range(0, width, block):
        x = _row(base, start + places, columns, width)
        higher = tl.maximum(most, x)
        sums = sums * tl.exp(most - higher) + tl.exp(x - higher)
        most = higher
    highest = tl.max(most, 0)
    log_sum = highest + tl.log(tl.sum(sums * tl.exp(most - highest), 0))
    real = label >= 0
    tl.store(sum_pointer + row, log_sum)
    tl.store(chosen_pointer + row, tl.load(base + tl.maximum(label, 0)).to(tl.float32))
    if write:
        tl.debug_barrier()  # the label's logit is read before it is written over
        for start in range(0, width, block):
            place = start + places
            x = _row(base, place, columns, width)
            slope = tl.exp(x - log_sum) - tl.where(place == label, share, 0.0)
            tl.store(base + place, tl.where(real, slope, 0.0).to(logits_pointer.dtype.element_ty), mask=place < width)


def weigh_rows(logits: Tensor, labels: Tensor, columns: int, smoothing: float, *, write: bool) -> tuple[Tensor, Tensor]:
    """The log-probability of each row's label (of label 0 where it has none), and the log-sum-exp.

    Only the first `columns` of a row count. With `write` the rows become their gradients, (softmax - (1 - smoothing)
    at the label), and zeros where the label is under 0 or the column does not count.
    """
    assert logits.stride(1) == 1
    log_sum, chosen = torch.empty((2, len(logits)), dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(logits.shape[1]))
    with torch.cuda.device_of(logits):  # Triton runs on the device that is current
        slope_pass[(len(logits),)](
            logits, labels.contiguous(), log_sum, chosen, logits.stride(0), columns, logits.shape[1], 1.0 - smoothing,
            write=write, block=block, num_warps=8 if block >= 2048 else 4,
        )  # fmt: skip
    return chosen - log_sum, log_sum
