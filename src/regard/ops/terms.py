"""What is added to attention scores: values that can be asked for any block of rows and columns.

Shapes: B batch, H heads, R query rows, C key columns, d head width. Query positions are R or B x R, key positions C.
A term gives values that are added to the scaled scores; one that depends on the query is given it, and the scale.
One that knows of places only how far apart they are may also give its values by distance: where rows and columns
follow each other, `skewed` brings these to their places by a view, and gradients come back by a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.masks import own_index, rows_first, same_segment, take_block

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]  # (score, b, h, q_idx, kv_idx) -> score


class Term(Protocol):
    """Something that is added to the scores."""

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        """The values to add, broadcastable to B x H x R x C; `q` (B x H x R x d) are the queries of these rows."""

    def by_distance(self, q: Tensor, first: int, width: int, scale: float) -> Tensor | None:
        """What is added at so many distances j - i, from `first` on, broadcastable to B x H x R x `width`.

        None where that cannot be said, or where `block` costs no more.
        """

    def score_mod(self) -> ScoreMod | None:
        """The same values as FlexAttention asks for them, or None where it cannot."""


@dataclass(frozen=True, eq=False)
class Dense:
    """An explicit tensor over positions: B|1 x H|1 x query positions x key positions."""

    values: Tensor

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        return take_block(self.values, query_positions, key_positions)

    def by_distance(self, q: Tensor, first: int, width: int, scale: float) -> None:
        return None

    def score_mod(self) -> ScoreMod | None:
        batch, heads = self.values.shape[:2]

        def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + self.values[own_index(b, batch), own_index(h, heads), q, k]

        return mod


@dataclass(frozen=True, eq=False)
class Alibi:
    """-slope_h |i - j| (Press et al. 2022); the same to both sides where the attention is bidirectional."""

    slopes: Tensor  # H

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        # Not in the type of q: bfloat16 cannot tell a distance of 1,000 from one of 1,001.
        slopes = self.slopes.to(torch.promote_types(q.dtype, self.slopes.dtype))
        return -slopes[:, None, None] * (key_positions - rows_first(query_positions)).abs()

    def by_distance(self, q: Tensor, first: int, width: int, scale: float) -> None:
        return None  # the block is one product, and has nothing to learn

    def score_mod(self) -> ScoreMod | None:
        return lambda score, b, h, q, k: score - self.slopes[h] * (q - k).abs()


@dataclass(frozen=True, eq=False)
class Buckets:
    """A learned value per head and bucket of distances (T5)."""

    weight: Tensor  # buckets x H
    bidirectional: bool
    max_distance: int

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        place = self._place(key_positions - rows_first(query_positions)).squeeze(1)  # B|1 x R x C
        values = self._values().index_select(1, place.flatten())
        return values.view(len(values), *place.shape).movedim(0, 1)

    def by_distance(self, q: Tensor, first: int, width: int, scale: float) -> Tensor:
        ahead = torch.arange(first, first + width, device=self.weight.device)
        return self._values().index_select(1, self._place(ahead))[None, :, None]

    def score_mod(self) -> ScoreMod | None:
        values, reach = self._values(), self.max_distance
        return lambda score, b, h, q, k: score + values[h, (k - q).clamp(-reach, reach) + reach]

    def _place(self, ahead: Tensor) -> Tensor:
        return ahead.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def _values(self) -> Tensor:
        """The value of each distance from -max_distance to max_distance, beyond which nothing changes: H x distances.

        The bucket of a distance is thus found here alone: a kernel's own logarithm might fall on the other side.
        """
        ahead = torch.arange(-self.max_distance, self.max_distance + 1, device=self.weight.device)
        buckets = t5_bucket(
            ahead, self.weight.shape[0], bidirectional=self.bidirectional, max_distance=self.max_distance
        )
        return self.weight.index_select(0, buckets).t().contiguous()


@dataclass(frozen=True, eq=False)
class RelativeKeys:
    """(q + shift) . r_(j-i) scaled as the scores are: Shaw's clipped keys, and Transformer-XL's distances.

    Shaw et al. 2018 learn r up to `reach` and clip beyond. Transformer-XL (Dai et al. 2019) projects sinusoids, has
    a reach as long as the text, and adds its own bias v to the query where the content score has u: the layer adds
    u to the query before, so that `shift` is v - u. A batch of G equal parts may have a table for each.
    """

    table: Tensor  # (G x) H|1 x distances x d: the last row is the distance j - i = `ahead`, the one before it one less
    shift: Tensor | None = None  # H x d
    ahead: int | None = None  # None: as far ahead as back

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        products = self._products(q, self.table, scale)  # B x H x R x distances
        place = self._place(key_positions - rows_first(query_positions))  # B|1 x 1 x R x C
        return products.gather(-1, place.expand(*q.shape[:3], -1))

    def by_distance(self, q: Tensor, first: int, width: int, scale: float) -> Tensor:
        if width <= 2 * self.table.shape[-2]:
            ahead = torch.arange(first, first + width, device=self.table.device)
            return self._products(q, self.table.index_select(-2, self._place(ahead)), scale)
        # a short table: few products, and those at its ends again and again
        (least, most), found = self._reach, self._products(q, self.table, scale)
        before, after = (min(max(n, 0), width) for n in (least - first, first + width - 1 - most))
        middle = found[..., max(first - least, 0) :][..., : width - before - after]
        ends = found[..., :1].expand(-1, -1, -1, before), found[..., -1:].expand(-1, -1, -1, after)
        return torch.cat([ends[0], middle, ends[1]], dim=-1)

    @property
    def _reach(self) -> tuple[int, int]:
        """The distances of the first and the last row of the table."""
        rows = self.table.shape[-2]
        most = rows // 2 if self.ahead is None else self.ahead
        return most + 1 - rows, most

    def _place(self, ahead: Tensor) -> Tensor:
        """The row of the table that a distance is in."""
        least, most = self._reach
        return ahead.clamp(least, most) - least

    def _products(self, q: Tensor, table: Tensor, scale: float) -> Tensor:
        """Of the queries of each part with its own rows: one product a head, of all rows of the part."""
        table = table if table.dim() == 4 else table[None]
        if len(q) % len(table):
            fits = f"a batch of {len(q)} rows has no {len(table)} equal parts"
            raise ConfigError(fits, got=len(q), wanted=f"a multiple of {len(table)}")
        parts = shifted(q, self.shift, scale).unflatten(0, (len(table), -1))
        return torch.einsum("gbhrd,ghwd->gbhrw", parts, table).flatten(0, 1)

    def score_mod(self) -> ScoreMod | None:
        return None  # would need the queries inside the kernel


@dataclass(frozen=True, eq=False)
class SegmentKeys:
    """(q + shift) . s scaled as the scores are, with one s for keys of the query's own segment and one for others.

    XLNet (Yang et al. 2019, 2.5) says so which of two texts a token is of; `shift` is what it is in RelativeKeys.
    """

    table: Tensor  # 2 x H x d: the same segment, another one
    segments: Tensor  # B|1 x positions
    shift: Tensor | None = None  # H x d

    def block(self, q: Tensor, query_positions: Tensor, key_positions: Tensor, scale: float) -> Tensor:
        queries = shifted(q, self.shift, scale)
        same, other = (queries @ self.table.permute(1, 2, 0)).split(1, dim=-1)  # B x H x R x 1
        return torch.where(same_segment(self.segments).block(query_positions, key_positions), same, other)

    def by_distance(self, q: Tensor, first: int, width: int, scale: float) -> None:
        return None

    def score_mod(self) -> ScoreMod | None:
        return None  # would need the queries inside the kernel


def shifted(q: Tensor, shift: Tensor | None, scale: float) -> Tensor:
    """Queries (B x H x R x d) with a bias of their head, scaled: in their own type, which a product would take."""
    return q * scale if shift is None else torch.add((shift * scale).to(q.dtype)[:, None], q, alpha=scale)


def skewed(values: Tensor, columns: int) -> Tensor:
    """Values by distance, .. x R x W, at their places, .. x R x C: each row begins one before the row above it.

    In memory that is one row with a shorter step, and no place is in two rows where W is more than C. A row that ends
    before its last column goes on in the row below: those columns must be masked.

    >>> skewed(torch.tensor([[-2, -1, 0, 1], [-2, -1, 0, 1]]), 3)
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    rows, width = values.shape[-2:]
    if rows == 1:
        return values[..., :columns]
    if torch.compiler.is_compiling():
        # it knows no strides: the same by slices, of which each has a gradient to fill
        line = values.flatten(-2)[..., rows - 1 : rows * width - 1]
        return line.unflatten(-1, (rows, width - 1))[..., :columns]  # type: ignore[no-any-return]
    if values.stride()[-2:] != (width, 1):
        values = values.contiguous()
    strides, begin = (*values.stride()[:-2], width - 1, 1), values.storage_offset() + rows - 1
    return values.as_strided((*values.shape[:-1], columns), strides, begin)


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
    if not 0 < exact < max_distance:  # an `if`: a message that is made before it is needed cannot be traced
        raise ConfigError(
            "these buckets leave no room for near and far distances",
            got=f"{num_buckets} buckets to a side, max_distance {max_distance}",
            wanted="at least 2 buckets to a side, and a max_distance over half of them",
        )
    # The clamp only keeps the logarithm finite where `exact` is chosen anyway. In float32 whatever the default type is:
    # where a range ends, rounding decides, and a model must keep the buckets that it was trained with.
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    far = (exact + far.long()).clamp(max=num_buckets - 1)
    return bucket + torch.where(distance < exact, distance, far)
