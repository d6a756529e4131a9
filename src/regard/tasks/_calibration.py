"""How sure a classifier is: the temperature that makes its probabilities mean something."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

COLDEST, HOTTEST = 0.1, 10.0  # temperatures


def fit_temperature(logits: Tensor, right: Tensor) -> float:
    """The temperature T under which softmax(logits / T), or sigmoid where `right` is N x C, is likeliest.

    The loss is convex in 1 / T: where its slope is 0 is found by halving. Where it falls for ever, as all answers are
    right, nothing says how sure is too sure, and T is 1.
    """
    logits = logits.double()
    low, high = 1 / HOTTEST, 1 / COLDEST
    if _slope(logits, right, high) <= 0:
        return 1.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _slope(logits, right, middle) > 0 else (middle, high)
    return 1 / low


def _slope(logits: Tensor, right: Tensor, inverse: float) -> float:
    """How the loss changes with 1 / T: what the model expects the logit to be, less what it is."""
    if right.dim() == 2:
        return float((logits * ((logits * inverse).sigmoid() - right.double())).sum())
    expected = ((logits * inverse).softmax(-1) * logits).sum()
    return float(expected - logits.gather(-1, right[:, None]).sum())


def likelihood_loss(logits: Tensor, right: Tensor) -> Tensor:
    """The mean negative log-likelihood of an example's labels."""
    if right.dim() == 2:
        return F.binary_cross_entropy_with_logits(logits, right.to(logits.dtype), reduction="sum") / len(right)
    return F.cross_entropy(logits, right)
