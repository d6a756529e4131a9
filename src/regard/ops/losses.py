"""Losses as sums over real tokens, so that the loop divides once, whatever the batches were.

Shapes: T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def token_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float
) -> Tensor:
    """Sum of label-smoothed cross-entropies of softmax(hidden weight^T + bias); labels of -100 count nothing.

    `hidden` is T x D, `weight` V x D, `labels` T.
    """
    logits = F.linear(hidden, weight, bias)
    return F.cross_entropy(logits.float(), labels, ignore_index=-100, label_smoothing=smoothing, reduction="sum")
