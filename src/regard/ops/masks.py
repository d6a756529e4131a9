"""Masks say who may attend (true = may): closed, frozen values that compose with `&`.

    causal() & padding(lengths) & window(128) & same_segment(ids) & branching(codes) & visible(matrix)

A mask is a conjunction of rules, at most one of a kind where the kind can be merged: that is its canonical form,
which a backend recognises, or asks for any block of rows and columns. Everything is said in positions: a query's
position is its place among the keys, so the same mask serves a whole text, a strip of it and a cached step.

Shapes: B batch, H heads, R query rows, C key columns. Query positions are R or B x R, key positions C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.types import BRANCHES

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # FlexAttention's (b, h, q_idx, kv_idx) -> bool


class Rule(Protocol):
    """One reason why a query may see a key."""

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """True where the query may see the key, broadcastable to B x H x R x C."""

    def mask_mod(self) -> MaskMod:
        """The same rule about positions, as FlexAttention asks it."""

    def merge(self, other: Rule) -> Rule | None:
        """Both rules as one, or None if they stay two."""


@dataclass(frozen=True)
class Band:
    """Keys from `left` before the query to `right` after it; None is without limit. Causal is right = 0."""

    left: int | None
    right: int | None

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        ahead = key_positions - rows_first(query_positions)  # B|1 x 1 x R x C
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if self.right is not None:
            seen = ahead <= self.right
        return seen if self.left is None else seen & (ahead >= -self.left)

    def mask_mod(self) -> MaskMod:
        left, right = self.left, self.right

        def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            seen = k - q <= right if right is not None else k >= 0
            return seen if left is None else seen & (q - k <= left)

        return mod

    def merge(self, other: Rule) -> Rule | None:
        return Band(_least(self.left, other.left), _least(self.right, other.right)) if isinstance(other, Band) else None


@dataclass(frozen=True)
class Sliding:
    """A band, but the first tokens are global: every query sees them and they see every key (Beltagy et al. 2020)."""

    left: int
    right: int
    first: int  # how many they are; a number and not a tensor, so that no backend need ask a device for it

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        everyone = (rows_first(query_positions) < self.first) | (key_positions < self.first)
        return everyone | Band(self.left, self.right).block(query_positions, key_positions)

    def mask_mod(self) -> MaskMod:
        near, first = Band(self.left, self.right).mask_mod(), self.first
        return lambda b, h, q, k: (q < first) | (k < first) | near(b, h, q, k)

    def merge(self, other: Rule) -> Rule | None:
        if not isinstance(other, Sliding) or other.first != self.first:
            return None
        return Sliding(min(self.left, other.left), min(self.right, other.right), self.first)


@dataclass(frozen=True, eq=False)
class Lengths:
    """Keys before each row's length; the rest is padding."""

    lengths: Tensor  # B|1

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return key_positions < self.lengths[:, None, None, None]

    def mask_mod(self) -> MaskMod:
        return lambda b, h, q, k: k < self.lengths[own_index(b, self.lengths.shape[0])]

    def merge(self, other: Rule) -> Rule | None:
        return Lengths(torch.minimum(self.lengths, other.lengths)) if isinstance(other, Lengths) else None


@dataclass(frozen=True, eq=False)
class Prefix:
    """Causal, but the first `lengths` keys of a row are seen by every query of it (prefix language models)."""

    lengths: Tensor  # B|1

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return (key_positions <= rows_first(query_positions)) | (key_positions < self.lengths[:, None, None, None])

    def mask_mod(self) -> MaskMod:
        return lambda b, h, q, k: (k <= q) | (k < self.lengths[own_index(b, self.lengths.shape[0])])

    def merge(self, other: Rule) -> Rule | None:
        return Prefix(torch.minimum(self.lengths, other.lengths)) if isinstance(other, Prefix) else None


@dataclass(frozen=True, eq=False)
class Segments:
    """Keys of the query's own segment: packed documents do not see each other."""

    query: Tensor  # B|1 x query positions
    key: Tensor  # B|1 x key positions

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        rows = torch.atleast_2d(query_positions)
        batch = max(len(rows), len(self.query))
        # gather, and not take_along_dim: a position beyond the ids must fail, not wrap
        own = self.query.expand(batch, -1).gather(1, rows.expand(batch, -1))[:, None, :, None]
        return own == self.key.index_select(1, key_positions)[:, None, None, :]

    def mask_mod(self) -> MaskMod:
        rows, columns = self.query.shape[0], self.key.shape[0]
        return lambda b, h, q, k: self.query[own_index(b, rows), q] == self.key[own_index(b, columns), k]

    def merge(self, other: Rule) -> Rule | None:
        same = isinstance(other, Segments) and self.query is other.query and self.key is other.key
        return self if same else None


@dataclass(frozen=True, eq=False)
class Branching:
    """Texts with branches, see `branching`: a branch and its entity see each other, and all of the text does."""

    codes: Tensor  # B|1 x positions

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        rows = torch.atleast_2d(query_positions)
        batch = max(len(rows), len(self.codes))
        own = self.codes.expand(batch, -1).gather(1, rows.expand(batch, -1))[:, None, :, None]
        return _meet(own, self.codes.index_select(1, key_positions)[:, None, None, :])

    def mask_mod(self) -> MaskMod:
        rows = self.codes.shape[0]
        return lambda b, h, q, k: _meet(self.codes[own_index(b, rows), q], self.codes[own_index(b, rows), k])

    def merge(self, other: Rule) -> Rule | None:
        return self if isinstance(other, Branching) and self.codes is other.codes else None


@dataclass(frozen=True, eq=False)
class Visible:
    """An explicit matrix over positions, for whatever has no shorter name (XLNet's permutations)."""

    matrix: Tensor  # B|1 x H|1 x query positions x key positions

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return take_block(self.matrix, query_positions, key_positions)

    def mask_mod(self) -> MaskMod:
        batch, heads = self.matrix.shape[:2]
        return lambda b, h, q, k: self.matrix[own_index(b, batch), own_index(h, heads), q, k]

    def merge(self, other: Rule) -> Rule | None:
        return Visible(self.matrix & other.matrix) if isinstance(other, Visible) else None


@dataclass(frozen=True, eq=False)
class Mask:
    """A conjunction of rules. Make it with the functions below and `&`."""

    rules: tuple[Rule, ...]

    def __and__(self, other: Mask) -> Mask:
        return Mask(reduce(_add_rule, other.rules, self.rules))

    def block(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """True where the query may see the key, broadcastable to B x H x R x C.

        >>> causal().block(torch.arange(2), torch.arange(3))[0, 0].int().tolist()
        [[1, 0, 0], [1, 1, 0]]
        """
        blocks = [rule.block(query_positions, key_positions) for rule in self.rules]
        return reduce(torch.logical_and, blocks)

    def mask_mod(self) -> MaskMod:
        """The same mask about positions, as FlexAttention asks it."""
        mods = [rule.mask_mod() for rule in self.rules]
        return lambda b, h, q, k: reduce(torch.logical_and, [mod(b, h, q, k) for mod in mods])

    @property
    def is_causal(self) -> bool:
        """Exactly causal and nothing else: the form that every fused kernel knows."""
        return self.rules == (Band(None, 0),)

    @property
    def sees_itself(self) -> bool:
        """Whether the form alone says that every query sees the key at its own place.

        >>> (causal() & window(2)).sees_itself, (causal() & padding(torch.tensor([3]))).sees_itself
        (True, False)
        """
        return all(
            isinstance(rule, (Band, Sliding, Prefix, Branching))
            or (isinstance(rule, Segments) and rule.query is rule.key)
            for rule in self.rules
        )

    @property
    def reach(self) -> tuple[int | None, int | None, int]:
        """How far any query sees to the left and to the right (None: without limit), but for so many first tokens.

        >>> (causal() & window(128, first=1)).reach
        (128, 0, 1)
        """
        left, right, first = None, None, 0
        for rule in self.rules:
            if isinstance(rule, (Band, Sliding)):
                left, right = _least(left, rule.left), _least(right, rule.right)
                first = max(first, rule.first if isinstance(rule, Sliding) else 0)
        return left, right, first


def causal() -> Mask:
    """A query sees itself and what came before it."""
    return Mask((Band(None, 0),))


def padding(lengths: Tensor) -> Mask:
    """Only the first `lengths[b]` keys of row b are real.

    >>> padding(torch.tensor([1, 3])).block(torch.arange(1), torch.arange(3)).int().flatten().tolist()
    [1, 0, 0, 1, 1, 1]
    """
    return Mask((Lengths(_checked(lengths, 1, "lengths", "one length a row: B")),))


def window(left: int, right: int | None = None, *, first: int = 0) -> Mask:
    """Keys at most `left` before and `right` after the query (`right` = `left` if not given).

    The `first` tokens of every row are global: they see all and are seen by all.

    >>> (causal() & window(128)).rules
    (Band(left=128, right=0),)
    >>> window(128, first=1).rules
    (Sliding(left=128, right=128, first=1),)
    """
    right = left if right is None else right
    if min(left, right, first) < 0:
        raise RegardError("a window cannot be negative", got=(left, right, first), wanted="0 or more")
    return Mask((Sliding(left, right, first) if first else Band(left, right),))


def prefix(lengths: Tensor) -> Mask:
    """Causal, except that everyone sees the first `lengths[b]` keys of row b."""
    return Mask((Prefix(_checked(lengths, 1, "lengths", "one length a row: B")),))


def same_segment(query_ids: Tensor, key_ids: Tensor | None = None) -> Mask:
    """A query sees the keys whose segment id equals its own (ids: B x length)."""
    key_ids = query_ids if key_ids is None else key_ids
    return Mask((Segments(*(_checked(ids, 2, "segment ids", "B x length") for ids in (query_ids, key_ids))),))


def branching(codes: Tensor) -> Mask:
    """K-BERT's visible matrix (Liu et al. 2020), of codes (B x length) that say what is text and what hangs at it.

    A token of the text has code 0, or `BRANCHES` x n where it is of entity n (from 1); a token of branch j of that
    entity (from 1) has `BRANCHES` x n + j. All tokens of the text see each other. A branch sees itself and its entity,
    and is seen by no others.

    >>> branching(torch.tensor([[0, 16, 17, 18]])).block(torch.arange(4), torch.arange(4))[0, 0].int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [0, 1, 0, 1]]
    """
    return Mask((Branching(_checked(codes, 2, "codes of branches", "B x length")),))


def visible(matrix: Tensor) -> Mask:
    """An explicit matrix: N x M, B x N x M or B x H x N x M, true where the query may see the key."""
    if matrix.dtype != torch.bool:
        raise RegardError("a visible matrix is boolean", got=matrix.dtype, wanted="torch.bool (true = may attend)")
    if matrix.dim() not in (2, 3, 4):
        raise RegardError("a visible matrix has 2, 3 or 4 axes", got=tuple(matrix.shape), wanted="N x M, with B x, H x")
    if matrix.dim() == 2:
        matrix = matrix[None]
    return Mask((Visible(matrix[:, None] if matrix.dim() == 3 else matrix),))


def rows_first(query_positions: Tensor) -> Tensor:
    """Query positions (R or B x R) as B|1 x 1 x R x 1, so that they broadcast against key positions."""
    rows = query_positions if query_positions.dim() == 2 else query_positions[None]
    return rows[:, None, :, None]


def own_index(index: Tensor, size: int) -> Tensor:
    """The place of a row or head on an axis of this size: its own, or 0 where one serves all of them."""
    return index if size > 1 else index * 0


def take_block(tensor: Tensor, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """The block of a B|1 x H|1 x N x M tensor at these positions."""
    columns = tensor.index_select(3, key_positions)
    if query_positions.dim() == 1:
        return columns.index_select(2, query_positions)
    return columns.expand(len(query_positions), -1, -1, -1).take_along_dim(rows_first(query_positions), dim=2)


def _meet(query: Tensor, key: Tensor) -> Tensor:
    """Whether tokens with these codes of branches see each other."""
    query_is_text, key_is_text = query % BRANCHES == 0, key % BRANCHES == 0
    near = (query // BRANCHES == key // BRANCHES) & (query_is_text | key_is_text | (query == key))
    return near | (query_is_text & key_is_text)


def _least(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _add_rule(rules: tuple[Rule, ...], new: Rule) -> tuple[Rule, ...]:
    for i, old in enumerate(rules):
        merged = old.merge(new)
        if merged is not None:
            return (*rules[:i], merged, *rules[i + 1 :])
    return tuple(sorted((*rules, new), key=lambda rule: type(rule).__name__))  # one order, whatever was said first


def _checked(tensor: Tensor, dim: int, name: str, wanted: str) -> Tensor:
    if tensor.dim() != dim or tensor.dtype.is_floating_point or tensor.dtype == torch.bool:
        got = f"{tensor.dtype}, shape {tuple(tensor.shape)}"
        raise RegardError(f"a mask does not understand these {name}", got=got, wanted=f"whole numbers, {wanted}")
    return tensor
