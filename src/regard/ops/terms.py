"""What is added to attention scores: values that can be asked for any block of rows and columns.

Shapes: B batch, H heads, R query rows, C key columns, d head width. Query positions are R or B x R, key positions C.
A term gives values that are added to the scaled scores; one that depends on the query is given it, and the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.ops.masks import rows_first, take_block

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # (score, b, h, q_idx, kv_idx) -> score


class Term(Protocol):
    """Something that is added to the scores."""

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        """The values to add, broadcastable to B x H x R x C; `q` (B x H x R x d) are the queries of these rows."""

    def score_mod(self) -> ScoreMod | None:
        """The same values as FlexAttention asks for them, or None where it cannot."""


@dataclass(frozen=True, eq=False)
class Dense:
    """An explicit tensor over positions: B|1 x H|1 x query positions x key positions."""

    values: Tensor

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        return take_block(self.values, query_positions, key_positions)

    def score_mod(self) -> ScoreMod | None:
        batches, heads = self.values.shape[0] > 1, self.values.shape[1] > 1

        def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + self.values[b if batches else b * 0, h if heads else h * 0, q, k]

        return mod


@dataclass(frozen=True, eq=False)
class Alibi:
    """-slope_h |i - j| (Press et al. 2022); the same to both sides where the attention is bidirectional."""

    slopes: Tensor  # H

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        distance = (key_positions - rows_first(query_positions)).abs()
        return -self.slopes.to(q.dtype)[:, None, None] * distance

    def score_mod(self) -> ScoreMod | None:
        return lambda score, b, h, q, k: score - self.slopes[h] * (q - k).abs()


@dataclass(frozen=True, eq=False)
class Buckets:
    """A learned value per head and bucket of distances (T5)."""

    weight: Tensor  # buckets x H
    bidirectional: bool
    max_distance: int

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        bucket = self._bucket(key_positions - rows_first(query_positions))  # B|1 x 1 x R x C
        return self.weight[bucket.squeeze(1)].permute(0, 3, 1, 2)

    def score_mod(self) -> ScoreMod | None:
        return lambda score, b, h, q, k: score + self.weight[self._bucket(k - q), h]

    def _bucket(self, ahead: Tensor) -> Tensor:
        return t5_bucket(ahead, self.weight.shape[0], bidirectional=self.bidirectional, max_distance=self.max_distance)


@dataclass(frozen=True, eq=False)
class RelativeKeys:
    """(q + shift) . r_(j-i) scaled as the scores are: Shaw's clipped keys, and Transformer-XL's distances.

    Shaw et al. 2018 learn r up to `reach` and clip beyond. Transformer-XL (Dai et al. 2019) projects sinusoids, has
    a reach as long as the text, and adds its own bias v to the query where the content score has u: the layer adds
    u to the query before, so that `shift` is v - u.
    """

    table: Tensor  # H|1 x (2 reach + 1) x d: row n is distance j - i = n - reach
    shift: Tensor | None = None  # H x d

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        reach = self.table.shape[1] // 2
        if self.shift is not None:
            q = q + self.shift[:, None]
        by_distance = (q * scale) @ self.table.transpose(-1, -2)  # B x H x R x (2 reach + 1)
        place = (key_positions - rows_first(query_positions)).clamp(-reach, reach) + reach  # B|1 x 1 x R x C
        return by_distance.gather(-1, place.expand(*q.shape[:3], -1))

    def score_mod(self) -> ScoreMod | None:
        return None  # would need the queries inside the kernel


def alibi_slopes(num_heads: int) -> Tensor:
    """The geometric slopes of the ALiBi paper, for any number of heads.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    between = [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * power, 2)]
    return torch.tensor(slopes + between[: num_heads - power])


def t5_bucket(ahead: Tensor, num_buckets: int, *, bidirectional: bool, max_distance: int) -> Tensor:
    """T5's bucket of a distance j - i: exact when near, logarithmic to `max_distance`, one beyond it.

    >>> t5_bucket(torch.tensor([0, -1, -200, 3]), 8, bidirectional=True, max_distance=128).tolist()
    [0, 1, 3, 6]
    """
    bucket = torch.zeros_like(ahead)
    if bidirectional:
        num_buckets //= 2
        bucket = torch.where(ahead > 0, num_buckets, 0)
    distance = ahead.abs() if bidirectional else (-ahead).clamp(min=0)
    exact = num_buckets // 2
    # + 1e-6 would move exact powers; the clamp only keeps the logarithm finite where `exact` is chosen anyway
    far = torch.log(distance.clamp(min=1) / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    far = (exact + far.long()).clamp(max=num_buckets - 1)
    return bucket + torch.where(distance < exact, distance, far)
