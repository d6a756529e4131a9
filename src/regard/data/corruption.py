"""What the objectives of pretraining hide of a text: masked tokens, the end of an order, spans.

Every draw follows from a key (seed and epoch; nothing in validation) and from the place of the token in its text, and
from nothing else. So a training that is taken up again draws the same, and what is hidden of a row does not depend on
the batch that it is in.

Shapes: B rows, N tokens of a row. `free` says which of them may be hidden (specials and padding may not).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from regard.data.batching import NONE, Ints, Planned
from regard.data.windows import Windows
from regard.types import Batch, Sequences

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Key = tuple[int, ...]
ROOM = 4  # tokens by which the last word may go beyond the share of a row


class Draw(IntEnum):
    """What a number is drawn for: two draws at one place do not know of each other."""

    CHOICE = 0
    COUNT = 1
    FATE = 2
    OTHER = 3
    LENGTH = 4
    SHIFT = 5
    RANK = 6
    SPANS = 7
    GAPS = 8
    SPLIT = 9
    FOLLOWS = 10
    ELSEWHERE = 11


def uniform(key: Sequence[int], places: npt.ArrayLike, purpose: Draw) -> Floats:
    """Numbers from 0 to 1, one for each place: the same key, place and purpose always give the same one.

    >>> uniform((1, 0), [7, 8], Draw.CHOICE).round(3).tolist() == uniform((1, 0), [7, 8], Draw.CHOICE).round(3).tolist()
    True
    """
    x = np.atleast_1d(np.asarray(places)).astype(np.uint64)
    for number in (*key, purpose):  # SplitMix64's steps (Steele et al. 2014), one for each number of the key
        x = x + np.uint64((number + 1) * 0x9E3779B97F4A7C15 % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    found: Floats = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found.reshape(np.shape(places))


# --- masked tokens ----------------------------------------------------------------------------------------------------


def most_hidden(length: int, share: float) -> int:
    """More tokens than this are hidden of no row of this length."""
    return min(length, int(np.ceil(share * length)) + ROOM)


def hide(
    ids: Ints,
    free: Bools,
    places: Ints,
    key: Key,
    *,
    share: float,
    mask: int,
    others: Ints,
    word_starts: Bools | None = None,
) -> tuple[Ints, Ints]:
    """BERT's rule: a share of the free tokens is to be said. Of these 80 % are masked, 10 % become one of `others`, and
    10 % stay as they are. Gives the changed ids and the labels, both B x N.

    With `word_starts` whole words are taken; one on the edge is taken if its middle fits.
    """
    first, last = _ends_of_words(ids.shape, word_starts)
    draws = np.take_along_axis(uniform(key, places, Draw.CHOICE), first, 1)
    order = np.argsort(np.where(free, draws, 2.0), axis=1, kind="stable")  # the tokens of a word stay together
    ranks = np.argsort(order, axis=1)
    ends = np.take_along_axis(ranks, last, 1)
    middle = (np.take_along_axis(ranks, first, 1) + ends + 1) / 2
    number = free.sum(1)
    # a part of a token more or less, so that the mean is the share, of words too
    wanted = np.maximum(0.75, share * number + uniform(key, places.max(1), Draw.COUNT) - 0.5)
    chosen = free & (middle < wanted[:, None]) & (ends < most_hidden(ids.shape[1], share))
    fate = uniform(key, places, Draw.FATE)
    drawn = others[(uniform(key, places, Draw.OTHER) * len(others)).astype(np.int64)]
    changed = np.where(fate < 0.8, mask, np.where(fate < 0.9, drawn, ids))
    return np.where(chosen, changed, ids), np.where(chosen, ids, NONE)


def _ends_of_words(shape: tuple[int, ...], word_starts: Bools | None) -> tuple[Ints, Ints]:
    """The first and the last place of the word that each token is of; without words, of itself."""
    places = np.broadcast_to(np.arange(shape[1]), shape)
    if word_starts is None:
        return places, places
    starts = word_starts | (places == 0)
    first = np.maximum.accumulate(np.where(starts, places, 0), axis=1)
    ends = np.concatenate([starts[:, 1:], np.ones((shape[0], 1), bool)], axis=1)
    last = np.minimum.accumulate(np.where(ends, places, shape[1])[:, ::-1], axis=1)[:, ::-1]
    return first, last


# --- the end of an order ----------------------------------------------------------------------------------------------


def most_predicted(length: int, part: int) -> int:
    """How many tokens of a row of this length are predicted, at most."""
    return max(1, length // part)


def order(
    ids: Ints, free: Bools, lengths: Ints, places: Ints, key: Key, *, part: int, longest: int
) -> tuple[Ints, Ints]:
    """XLNet's rule: spans of 1 to `longest` tokens, each somewhere within a stretch `part` times as long, stand last in
    the order of their row. Gives the place of each token in the order (-1: before all of them) and the labels.
    """
    rows, (num_rows, width) = np.arange(len(ids)), ids.shape
    lengths_of, shifts = uniform(key, places, Draw.LENGTH), uniform(key, places, Draw.SHIFT)
    change, at = np.zeros((num_rows, width + 1), np.int64), np.zeros(num_rows, np.int64)
    while (open_ := (lengths - at) // part >= 1).any():
        here = np.minimum(at, width - 1)
        span = np.minimum(1 + (lengths_of[rows, here] * longest).astype(np.int64), (lengths - at) // part)
        start = at + (shifts[rows, here] * ((part - 1) * span + 1)).astype(np.int64)
        change[rows[open_], start[open_]] += 1
        change[rows[open_], (start + span)[open_]] -= 1
        at = np.where(open_, at + part * span, at)
    chosen = free & (np.cumsum(change[:, :-1], axis=1) > 0)
    draws = np.where(chosen, uniform(key, places, Draw.RANK), -1.0)
    ranks = np.argsort(np.argsort(draws, axis=1, kind="stable"), axis=1) - (~chosen).sum(1, keepdims=True)
    return np.where(chosen, ranks, -1), np.where(chosen, ids, NONE)


# --- spans ------------------------------------------------------------------------------------------------------------


def span_counts(length: int, density: float, mean: float) -> tuple[int, int]:
    """How many tokens of a text of this length are taken out, and in how many spans.

    >>> span_counts(100, 0.15, 3.0)
    (15, 5)
    """
    hidden = min(max(1, round(length * density)), max(1, length - 1))
    return hidden, min(max(1, round(hidden / mean)), length - hidden + 1)


def spans(lengths: Ints, places: Ints, key: Key, *, density: float, mean: float) -> Bools:
    """T5's rule: which tokens are taken out, in spans with at least one token between two: B x N.

    How many, and in how many spans, depends on the length of a row alone.
    """
    found = np.zeros(places.shape, bool)
    for length in np.unique(lengths[lengths > 0]).tolist():
        rows = np.flatnonzero(lengths == length)
        hidden, number = span_counts(length, density, mean)
        inside = _parts(uniform(key, places[rows], Draw.SPANS), hidden, number)
        # what stands before the first span and after the last may be nothing
        between = _parts(uniform(key, places[rows], Draw.GAPS), length - hidden + 2, number + 1)
        between[:, [0, -1]] -= 1
        both = np.empty((len(rows), 2 * number + 1), np.int64)
        both[:, ::2], both[:, 1::2] = between, inside
        borders, change = np.cumsum(both, axis=1)[:, :-1], np.zeros((len(rows), length + 1), np.int64)
        np.add.at(change, (np.arange(len(rows))[:, None], borders), 1)
        found[rows, :length] = np.cumsum(change[:, :length], axis=1) % 2 == 1
    return found


def _parts(draws: Floats, total: int, number: int) -> Ints:
    """`total` things in so many parts of one or more, every way as likely as any other: B x number."""
    borders = np.sort(np.argsort(draws[:, : total - 1], axis=1)[:, : number - 1], axis=1) + 1
    return np.diff(borders, axis=1, prepend=0, append=total)


def without_spans(ids: Ints, hidden: Bools, lengths: Ints, sentinels: Ints) -> tuple[list[Ints], list[Ints]]:
    """The rows with a sentinel for each span, and the spans, each after its sentinel."""
    real = np.arange(ids.shape[1]) < lengths[:, None]
    first = hidden & ~np.pad(hidden, ((0, 0), (1, 0)))[:, :-1]
    marks = sentinels[np.maximum(np.cumsum(first, axis=1) - 1, 0)]
    sources = zip(np.where(first, marks, ids), real & (~hidden | first), strict=True)
    targets = zip(np.stack([marks, ids], axis=2), np.stack([first, hidden], axis=2), strict=True)
    return [row[kept] for row, kept in sources], [row[kept] for row, kept in targets]


def pad(rows: Sequence[npt.ArrayLike], width: int, filling: int) -> Sequences:
    """Rows of ids, padded at the right to one width."""
    ids = np.full((len(rows), width), filling, np.int64)
    lengths = np.zeros(len(rows), np.int64)
    for i, row in enumerate(map(np.asarray, rows)):
        ids[i, : len(row)], lengths[i] = row, len(row)
    return Sequences(torch.from_numpy(ids), torch.from_numpy(lengths))


# --- a split ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pieces:
    """Rows of running text, as they come to an objective: ids, their places in the text, and what draws follow from."""

    ids: Ints  # B x N
    lengths: Ints  # B
    places: Ints  # B x N
    key: Key


@dataclass(frozen=True)
class Corrupted:
    """Windows of a text, each changed by an objective: the batches of an epoch, planned and then made one by one."""

    windows: Windows
    width: int  # of a row, after the change
    change: Callable[[Pieces], tuple[Sequences, Sequences]]  # -> what is read, and what is to be said of it

    def plan(self, *, batch_tokens: int, shuffle: bool, seed: int, epoch: int, multiple: int) -> list[Planned]:
        windows = replace(self.windows, num_rows=self.windows.num_rows or max(1, batch_tokens // self.width))
        draws: dict[str, Any] = {"seed": seed, "epoch": epoch, "shuffle": shuffle}
        plan = windows.plan(batch_tokens=batch_tokens, multiple=multiple, **draws)
        return [replace(each, key=(seed, epoch) if shuffle else ()) for each in plan]

    def collate(self, planned: Planned) -> Batch:
        found = self.windows.collate(planned)
        lengths = found.source.lengths.numpy()
        places = np.pad(planned.rows, (0, len(lengths) - len(planned.rows)))[:, None] + np.arange(planned.shape[1])
        source, target = self.change(Pieces(found.source.ids.numpy(), lengths, places, planned.key))
        return replace(found, source=source, target=target, num_tokens=int(source.lengths.sum()))

    def first(self, number: int) -> Batch:
        """The first rows as one batch."""
        size, last = self.windows.context, self.windows.last
        starts = np.arange(0, max(1, last - size + 1), size)[:number]
        return replace(self.collate(Planned(starts, (len(starts), size, size))), carry=None)

    def padding(self, plan: list[Planned]) -> float:
        return self.windows.padding(plan)

    def describe(self) -> str:
        return self.windows.describe()
