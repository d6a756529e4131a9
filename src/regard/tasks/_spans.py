"""Stretches of a text that may answer a question: the best of each window, put together over the windows of a text.

Shapes: B batch, N length of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.layers.reader import NEVER


@dataclass(frozen=True, slots=True)
class Found:
    """A stretch of a text that may answer, and the logarithm of its odds against there being no answer."""

    start: int
    end: int
    odds: float


@dataclass(frozen=True, slots=True)
class Answers:
    """The best stretches of a text, the best first, no two of the same words; `total`: log of the odds of all."""

    found: tuple[Found, ...]
    total: float
    cut: int = 0  # tokens of the question that were not read


def merged(windows: Sequence[tuple[Sequence[Found], float]], text: str, number: int, cut: int = 0) -> Answers:
    """The best spans of all windows of a text; a span that two windows have counts once, by the larger odds."""
    best: dict[str, Found] = {}
    for span in sorted((span for spans, _ in windows for span in spans), key=lambda span: -span.odds):
        words = text[span.start : span.end]
        start = span.start + len(words) - len(words.lstrip())  # a piece may hold the space before it
        if words.strip():
            best.setdefault(words.strip(), Found(start, start + len(words.strip()), span.odds))
    total = torch.tensor([total for _, total in windows], dtype=torch.float64).logsumexp(0)
    return Answers(tuple(best.values())[:number], float(total), cut)


def best_spans(scores: Tensor, longest: int, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of B x 2 x N scores the best spans of at most `longest` places, the best first: their first and last places and
    the logarithms of their odds against <s>, each B x number; and those of all spans together: B.

    >>> first, last, odds, _ = best_spans(torch.tensor([[[0.0, 2.0, 1.0], [0.0, 0.0, 3.0]]]), 2, 1)
    >>> first.tolist(), last.tolist(), odds.tolist()
    ([[1]], [[2]], [[5.0]])
    """
    first, last = scores[:, :, 1:].unbind(1)
    after = F.pad(last, (0, longest - 1), value=NEVER).unfold(1, longest, 1)  # B x N - 1 x longest
    nothing = scores[:, :, 0].sum(1)
    odds = (first[:, :, None] + after - nothing[:, None, None]).flatten(1)
    best = odds.topk(min(number, odds.shape[1]), dim=1)
    begin = best.indices // longest + 1
    return begin, begin + best.indices % longest, best.values, odds.double().logsumexp(1)


def fit_threshold(odds: Sequence[float], worth: Sequence[float]) -> float:
    """From which odds on answers should be given, so that the sum of the worth of those that are is the largest.

    >>> fit_threshold([3.0, 1.0, -1.0, -2.0], [1.0, 0.5, -1.0, 0.25])
    0.0
    """
    rows = sorted(zip(odds, worth, strict=True), key=lambda row: -row[0])
    best = total = 0.0
    number = 0  # of answers that are given
    for place, (odd, gain) in enumerate(rows, 1):
        total += gain
        last = place == len(rows) or rows[place][0] < odd  # those of the same odds are given together
        if last and total > best:
            best, number = total, place
    if number == len(rows):
        return min(0.0, rows[-1][0] - 1.0) if math.isfinite(rows[-1][0]) else -1e9
    if number == 0:
        return max(0.0, rows[0][0] + 1.0)
    return (rows[number - 1][0] + rows[number][0]) / 2
