"""Pairs of texts of which the second follows the first, or is of another document (Devlin et al. 2019).

A line is a sentence; a line without words parts two documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from regard.data.batching import NONE, Ints, Planned
from regard.data.corruption import Bools, Draw, Key, uniform
from regard.data.text import Text
from regard.errors import DataError
from regard.types import Specials


@dataclass(frozen=True)
class Pair:
    """Two stretches of the ids of a text, and whether the second comes right after the first."""

    first: range
    second: range
    follows: bool


@dataclass(frozen=True)
class Sentences:
    """A text (with `line_ends` "none") as sentences: they are numbered through, without the empty lines."""

    text: Text

    def __post_init__(self) -> None:
        several = self.documents.max(initial=0) > 0 and self.begins.any()
        if not several:
            raise DataError(
                "there are no two documents of which one has two sentences",
                got=f"{len(self.documents):,} sentences in {self.documents.max(initial=-1) + 1:,} documents",
                wanted="a sentence a line, and an empty line between two documents",
                remedy="task.next_sentence = false needs neither",
            )

    @cached_property
    def _real(self) -> Bools:
        return self.text.lines.lengths > 0

    @cached_property
    def starts(self) -> Ints:
        """Where each sentence starts among the ids, and after the last where all end."""
        return np.append(np.asarray(self.text.lines.starts[:-1])[self._real], len(self.text.lines.ids))

    @cached_property
    def documents(self) -> Ints:
        """The number of the document that each sentence is of."""
        _, found = np.unique(np.cumsum(~self._real)[self._real], return_inverse=True)
        return found.astype(np.int64)

    @cached_property
    def ends(self) -> Ints:
        """For each sentence, the first one after its document."""
        return np.searchsorted(self.documents, self.documents, side="right")

    @cached_property
    def begins(self) -> Bools:
        """Whether another sentence of the same document comes after each."""
        return self.ends > np.arange(len(self.ends)) + 1

    def chunks(self, room: int, random: np.random.Generator | None) -> Ints:
        """The sentences that rows begin with, about `room` tokens apart; with `random` at other places each time."""
        total = len(self.text.lines.ids)
        grid = np.arange(0 if random is None else random.integers(min(room, total)), total, room)
        found = np.unique(np.searchsorted(self.starts[:-1], grid))
        found = found[found < len(self.begins)]
        found = found[self.begins[found]]
        return found if len(found) else np.flatnonzero(self.begins)[:1]

    def pairs(self, rows: Ints, room: int, key: Key) -> list[Pair]:
        """What follows from each first sentence: as many as fit are cut in two between sentences, and in half of the
        pairs the second text is exchanged for one of another document."""
        draws = [uniform(key, rows, draw).tolist() for draw in (Draw.SPLIT, Draw.FOLLOWS, Draw.ELSEWHERE)]
        return [self._pair(row, room, *each) for row, *each in zip(rows.tolist(), *draws, strict=True)]

    def _pair(self, row: int, room: int, split: float, follows: float, elsewhere: float) -> Pair:
        end = self._filled(row, room, fewest=2)
        middle = row + 1 + int(split * (end - row - 1))
        before, start = int(self.starts[middle] - self.starts[row]), middle
        if follows >= 0.5:
            start = self._of_another_document(row, elsewhere)
            end = self._filled(start, max(1, room - before), fewest=1)
        after = int(self.starts[end] - self.starts[start])
        # of what is too long each text keeps what is next to the other
        before = min(before, max(room - after, room // 2))
        after = min(after, room - before)
        seam, second = int(self.starts[middle]), int(self.starts[start])
        return Pair(range(seam - before, seam), range(second, second + after), follows < 0.5)

    def _filled(self, row: int, room: int, fewest: int) -> int:
        """The sentence before which a text of `room` tokens, or a document, ends that begins with this one."""
        full = int(np.searchsorted(self.starts, self.starts[row] + room))
        return min(max(full, row + fewest), int(self.ends[row]))

    def _of_another_document(self, row: int, draw: float) -> int:
        first = int(np.searchsorted(self.documents, self.documents[row]))
        inside = int(self.ends[row]) - first
        found = int(draw * (len(self.documents) - inside))
        return found + inside if found >= first else found


@dataclass(frozen=True)
class PairPlan:
    """How the pairs of a text are laid into batches of one shape."""

    sentences: Sentences
    context: int

    @property
    def room(self) -> int:
        """Tokens of both texts, without <s> and their two ends."""
        return self.context - 3

    def plan(self, *, batch_tokens: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]:
        """Which rows make which batch, and what their draws follow from."""
        random = np.random.default_rng([seed, epoch]) if shuffle else None
        rows, size = self.sentences.chunks(self.room, random), max(1, batch_tokens // self.context)
        rows = rows if random is None else random.permutation(rows)
        parts = [rows[i : i + size] for i in range(0, len(rows), size)]
        shape = (len(parts[0]), self.context, self.context)
        return [Planned(part, shape, (seed, epoch) if shuffle else ()) for part in parts]

    def lay(self, planned: Planned, special: Specials) -> Laid:
        """`<s> .. </s> .. </s>` in each row of the batch."""
        rows, width, _ = planned.shape
        found = Laid(
            ids=np.full((rows, width), special.pad, np.int64),
            places=np.zeros((rows, width), np.int64),
            free=np.zeros((rows, width), bool),
            lengths=np.zeros(rows, np.int64),
            segments=(segments := np.zeros((rows, width), np.int64)),
            follows=(follows := np.full(rows, NONE)),
        )
        for i, pair in enumerate(self.sentences.pairs(planned.rows, self.room, planned.key)):
            middle, end = len(pair.first) + 1, len(pair.first) + len(pair.second) + 2  # where the ends stand
            found.places[i, 1:middle], found.places[i, middle + 1 : end] = pair.first, pair.second
            found.free[i, 1:middle] = found.free[i, middle + 1 : end] = True
            found.ids[i, 0], found.ids[i, [middle, end]] = special.start, special.end
            found.lengths[i], follows[i], segments[i, middle + 1 : end + 1] = end + 1, 1 - pair.follows, 1
        found.ids[found.free] = self.sentences.text.lines.ids[found.places[found.free]]
        return found


@dataclass(frozen=True)
class Laid:
    """Rows as a model reads them, and where their tokens stand in the text: B x N, `lengths` and `follows` B.

    `free` are the tokens of the text. `follows` is 0 where the second text follows, 1 where not, -100 without a row.
    """

    ids: Ints
    places: Ints
    free: Bools
    lengths: Ints
    segments: Ints | None = None
    follows: Ints | None = None
