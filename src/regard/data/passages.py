"""A question and its text as rows of ids, `<s> question </s> window </s>`: a long text is read in several windows.

Shapes: a row has N places. Its labels are one for each of them: where the answer begins and ends, <s> if it has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from regard.data.batching import NONE
from regard.data.squad import Question
from regard.data.store import TooLong
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError

BEGINS, ENDS, BOTH = 1, 2, 3  # labels: an answer of one token begins and ends at one place
Offsets = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Window:
    """A row: a question and a part of its text."""

    ids: list[int]
    first: int  # the place of the row where the text begins
    begin: int  # the token of the text that stands there
    offsets: Offsets = field(repr=False)  # of all tokens of the text: from where to where in it each reaches

    @property
    def number(self) -> int:
        """How many tokens of the text there are."""
        return len(self.ids) - 1 - self.first

    def places(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last place that have a part of text[start:end]; None where not all of it is here."""
        found = covering(self.offsets, start, end)
        if found is None or found[0] < self.begin or found[1] >= self.begin + self.number:
            return None
        return found[0] - self.begin + self.first, found[1] - self.begin + self.first

    def labels(self, places: tuple[int, int] | None) -> list[int]:
        """Of every place of the row."""
        first, last = places or (0, 0)
        labels = [NONE] * len(self.ids)
        labels[first], labels[last] = BEGINS, ENDS
        if first == last:
            labels[first] = BOTH
        return labels

    def span(self, first: int, last: int) -> tuple[int, int]:
        """From where to where in the text these places reach."""
        shift = self.begin - self.first
        return self.offsets[first + shift][0], self.offsets[last + shift][1]


class Reader:
    """Lays questions and their texts into rows of at most `max_length` tokens, special ones not counted."""

    def __init__(
        self, tokenizer: Tokenizer, *, max_length: int, stride: int, question_length: int, too_long: TooLong = "error"
    ) -> None:
        self.tokenizer, self.max_length, self.stride = tokenizer, max_length, stride
        self.question_length, self.too_long = question_length, too_long
        self._text = lru_cache(maxsize=64)(self._encode)  # the questions on a text come one after the other

    def _encode(self, text: str) -> tuple[list[int], Offsets]:
        return self.tokenizer.encode_batch([text])[0], self.tokenizer.offsets(text)

    def question(self, text: str) -> list[int]:
        """The ids of a question; none is special, whatever it spells: </s> says where the text begins."""
        special = set(self.tokenizer.special_ids) - {self.tokenizer.specials.unk}
        return [i for i in self.tokenizer.encode_batch([text])[0] if i not in special]

    def windows(self, question: str, context: str, place: str = "") -> list[Window]:
        """The rows of a question: every token of its text is in one of them at least."""
        asked, special = self.question(question), self.tokenizer.specials
        if len(asked) > self.question_length and self.too_long == "error":
            raise DataError(
                "the question is too long",
                got=f"{len(asked):,} tokens",
                wanted=f"at most {self.question_length:,} (task.question_length)",
                where=place or None,
                remedy='raise task.question_length, or set data.too_long = "truncate"',
            )
        asked = asked[: self.question_length]
        ids, offsets = self._text(context)
        room = self.max_length - len(asked)
        before = [special.start, *asked, special.end]
        return [
            Window([*before, *ids[begin : begin + room], special.end], len(before), begin, offsets)
            for begin in begins(len(ids), room, self.stride)
        ]

    def rows(self, question: Question) -> Iterator[tuple[list[int], list[int]]]:
        """The ids and labels of each row; of several answers the first counts."""
        for window in self.windows(question.question, question.context, question.place):
            found = None
            if question.answers:
                text, start = question.answers[0]
                found = window.places(start, start + len(text))
            yield window.ids, window.labels(found)


def begins(length: int, room: int, stride: int) -> list[int]:
    """Where windows of `room` tokens begin in a text; the last is as full as the others.

    >>> begins(10, 4, 3), begins(11, 4, 3), begins(3, 4, 3)
    ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    last = max(0, length - room)
    return [*range(0, last, min(stride, room)), last]


def covering(offsets: Offsets, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last token that have a part of text[start:end].

    >>> covering([(0, 2), (2, 5), (5, 6)], 3, 6)
    (1, 2)
    """
    found = [i for i, (first, last) in enumerate(offsets) if first < end and last > start]
    return (found[0], found[-1]) if found else None
