"""Texts with gaps, as `the <mask> sat on <mask>`: how they are read, and how a model fills them in."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.tokenizers import Tokenizer
from regard.decode.config import DecodeConfig
from regard.errors import DataError
from regard.tasks.texts import OnBatch, by_length
from regard.types import Axis, Batch, Example, Prediction

GAP = -1  # stands for a missing token among ids
MARKS = r"<mask>|\[MASK\]"  # how gaps are written where all are alike
MOST_EXAMPLES = 256  # of a split, which are all different and take long to spell
Offsets = list[tuple[int, int]]
Candidates = Callable[[list[list[int]]], list[Tensor]]  # rows with gaps -> log-probabilities at them: gaps x V


@dataclass(frozen=True)
class Gapped:
    """Ids, where in their text they stand, and the number of the gap that each is of, -1 for none."""

    ids: list[int]
    offsets: Offsets
    gaps: list[int]


@dataclass(frozen=True)
class Filled(Gapped):
    """A text with gaps, and what fills them: `ids` are of the whole text, `offsets` in the one with gaps."""

    text: str
    filled: str
    filled_offsets: Offsets

    def labels(self, none: int) -> list[int]:
        """The ids that fill gaps, `none` elsewhere."""
        return [i if gap >= 0 else none for i, gap in zip(self.ids, self.gaps, strict=True)]

    def axes(self, tokenizer: Tokenizer, read: Sequence[int], before: Sequence[int], after: int) -> dict[str, Axis]:
        """What stands along a row that is read, and what should; `before` and `after` it come special ids."""

        def axis(name: str, ids: Sequence[int], offsets: Offsets, text: str) -> Axis:
            spans = [*[(0, 0)] * len(before), *offsets, (len(text), len(text))]
            return Axis(name, tuple(tokenizer.tokens([*before, *ids, after])), tuple(spans), text)

        source = axis("source", read, self.offsets, self.text)
        return {"source": source, "target": axis("target", self.ids, self.filled_offsets, self.filled)}


class Gaps:
    """How gaps are written in a text, and the tokenizer of what stands between them."""

    def __init__(self, tokenizer: Tokenizer, pattern: str) -> None:
        self.tokenizer, self.pattern = tokenizer, re.compile(pattern)
        self.special = frozenset(tokenizer.special_ids)
        # whether a space is a piece of its own, or of the word after it, which a gap then stands for as well
        self.spaces_apart = sum(tokenizer.word_starts(["a b"])[0]) == 3

    def cut(self, text: str) -> tuple[list[str], list[re.Match[str]]]:
        """What stands between the gaps (one more than there are), and the gaps."""
        marks = list(self.pattern.finditer(text))
        ends = [0, *(place for mark in marks for place in mark.span()), len(text)]
        return [text[start:end] for start, end in zip(ends[::2], ends[1::2], strict=True)], marks

    def read(self, text: str) -> Gapped:
        """The ids of a text, with one GAP for each of its gaps."""
        parts, marks = self.cut(text)
        found = Gapped([], [], [])
        for number, part in enumerate(parts):
            at = marks[number - 1].end() if number else 0
            if number:
                found.ids.append(GAP)
                found.offsets.append(marks[number - 1].span())
                found.gaps.append(number - 1)
            ids, offsets = self._part(part, after=number > 0, before=number < len(marks))
            found.ids.extend(ids)
            found.offsets.extend((start + at, end + at) for start, end in offsets)
            found.gaps.extend([-1] * len(ids))
        return found

    def _part(self, text: str, *, after: bool, before: bool) -> tuple[list[int], Offsets]:
        """A part of a text, with a gap after or before it."""
        if before and not self.spaces_apart:
            text = text.rstrip()
        if after and text and not text[0].isspace():
            # what goes on right after a gap is no new word: it is read after a letter, where that can be told from it
            ids, offsets = self._encode(f"x{text}")
            starts = [start for start, _ in offsets]
            if 1 in starts:
                first = starts.index(1)
                return ids[first:], [(start - 1, end - 1) for start, end in offsets[first:]]
        return self._encode(text)

    def _encode(self, text: str) -> tuple[list[int], Offsets]:
        return self.tokenizer.encode_batch([text])[0], self.tokenizer.offsets(text)

    def fill_in(self, text: str, found: Sequence[Sequence[int]]) -> str:
        """The text with these ids in its gaps, and all else as it stands there.

        To decode all of it would lose what the tokenizer does not know or makes alike.
        """
        (filled, *rest), _ = self.cut(text)
        for ids, after in zip(found, rest, strict=True):
            filled = self._joined(filled, self._said(ids), after)
            filled += after if filled else after.lstrip()
        return filled

    def _said(self, ids: Sequence[int]) -> str:
        """What ids say behind others: with a space before it where they begin a word."""
        known = [i for i in ids if i not in self.special]
        one, both = (self.tokenizer.decode([*known[:1], *more]) for more in ([], known))
        return both.removeprefix(one)

    def _joined(self, before: str, said: str, after: str) -> str:
        """What stands before a gap and what fills it, with one space or none between them."""
        if self.spaces_apart:
            return before + said
        if not said:
            return before.rstrip() if after[:1].isspace() else before
        if not said[0].isspace():  # it goes on with the word before it
            return before.rstrip() + said
        return before + (said if before[-1:].isalnum() else said.lstrip())

    def pair(self, text: str, target: str | Sequence[int]) -> Filled:
        """A text with its gaps filled: by the ids of a search, one a gap, or as the whole text that `target` is."""
        if isinstance(target, str):
            return self._fitted(text, target)
        read, given = self.read(text), iter(target)
        ids = [next(given, GAP) if i == GAP else i for i in read.ids]
        if GAP in ids or next(given, None) is not None:
            raise DataError("each gap needs one id", got=f"{len(target)} ids", wanted=read.ids.count(GAP))
        filled, spans = self.tokenizer.spans(ids)
        return Filled(ids, read.offsets, read.gaps, text, filled, spans)

    def _fitted(self, text: str, filled: str) -> Filled:
        parts, marks = self.cut(text)
        match = re.fullmatch("(.*?)".join(map(re.escape, parts)), filled, re.DOTALL)
        if match is None:
            got, wanted = _short(filled), _short(text)
            raise DataError("the answer is not the text with its gaps filled in", got=got, wanted=wanted)
        ids, offsets = self._encode(filled)
        spans = [match.span(i + 1) for i in range(len(marks))]
        gaps = [next((i for i, (start, end) in enumerate(spans) if a < end and b > start), -1) for a, b in offsets]
        return Filled(ids, [*_moved(offsets, gaps, spans, marks)], gaps, text, filled, offsets)

    def example(self, ids: Sequence[int], hidden: Sequence[bool], mark: Callable[[int], str]) -> Example:
        """The text of these ids with a mark (of its number) for each run that is hidden, and the whole text."""
        text, spans = self.tokenizer.spans(ids)
        found, at, number = "", 0, 0
        for is_hidden, run in itertools.groupby(zip(hidden, spans, strict=True), key=lambda each: each[0]):
            places = [span for _, span in run]
            start, end = places[0][0], places[-1][1]
            start += len(text[start:end]) - len(text[start:end].lstrip())
            if is_hidden and start < end:
                found, at, number = found + text[at:start] + mark(number), end, number + 1
        return Example(found + text[at:], (text,))

    def examples(self, rows: Iterable[Iterable[tuple[int, bool]]], mark: Callable[[int], str]) -> list[Example]:
        """Rows of ids, each with whether it is hidden, as text with gaps; no more than a few hundred."""
        special = set(self.tokenizer.special_ids)
        plain = ([each for each in row if each[0] not in special] for row in rows)
        some = itertools.islice((row for row in plain if row), MOST_EXAMPLES)
        return [self.example([i for i, _ in row], [hidden for _, hidden in row], mark) for row in some]


def labelled(batches: Iterable[Batch]) -> Iterator[list[tuple[int, bool]]]:
    """The rows of batches without what was hidden in them: each id, and whether it has a label."""
    for batch in batches:
        assert batch.target is not None
        for ids, labels in zip(batch.source.ids.tolist(), batch.target.ids.tolist(), strict=True):
            yield [(label if label >= 0 else i, label >= 0) for i, label in zip(ids, labels, strict=True)]


def _moved(offsets: Offsets, gaps: list[int], spans: Offsets, marks: list[re.Match[str]]) -> Iterator[tuple[int, int]]:
    """Where the tokens of a filled text stand in the one with gaps."""
    for (start, end), gap in zip(offsets, gaps, strict=True):
        passed = [i for i, span in enumerate(spans) if span[1] <= start]
        shift = marks[passed[-1]].end() - spans[passed[-1]][1] if passed else 0
        yield marks[gap].span() if gap >= 0 else (start + shift, end + shift)


def fill_texts(
    gaps: Gaps,
    sources: Sequence[str],
    candidates: Candidates,
    config: DecodeConfig,
    *,
    most: int,
    on_batch: OnBatch | None,
    first_index: int,
) -> list[Prediction]:
    """Each text with its gaps filled in; the score is the mean log-probability of what was filled in."""
    rows = [fillable(gaps, text, number, most) for number, text in enumerate(sources, first_index + 1)]
    answers = [Prediction(("",), (0.0,), ((),), ids=((),))] * len(rows)  # of an empty line
    done = sum(not row for row in rows)
    asked = [i for i, row in enumerate(rows) if row]
    for group in by_length([rows[i] for i in asked], config.batch_tokens // config.n_best):
        numbers = [asked[i] for i in group]
        for i, found in zip(numbers, fill([rows[i] for i in numbers], config.n_best, candidates), strict=True):
            answers[i] = _prediction(gaps, sources[i], rows[i], found)
        done += len(numbers)
        if on_batch is not None:
            on_batch(done, len(rows))
    return answers


def fillable(gaps: Gaps, text: str, number: int, most: int) -> list[int]:
    """The ids of a text, with GAPs; none of an empty line. Raises where there is no gap, or too much to read."""
    if not text.strip():
        return []
    ids = gaps.read(text).ids
    if GAP not in ids:
        remedy = "as in: the <mask> sat on the mat"
        raise DataError(f"text {number:,} has no gap to fill in", got=_short(text), wanted="<mask>", remedy=remedy)
    if len(ids) > most:
        got, wanted = f"{len(ids)} tokens", f"at most {most} (task.context)"
        raise DataError(f"text {number:,} is too long", got=got, wanted=wanted, remedy="cut what is far from the gap")
    return ids


def _prediction(gaps: Gaps, text: str, row: list[int], found: list[tuple[float, list[int]]]) -> Prediction:
    places = [place for place, i in enumerate(row) if i == GAP]
    filled = [tuple(ids[place] for place in places) for _, ids in found]
    return Prediction(
        texts=tuple(gaps.fill_in(text, [[i] for i in ids]) for ids in filled),
        scores=tuple(score / len(places) for score, _ in found),
        tokens=tuple(tuple(gaps.tokenizer.tokens(ids)) for ids in filled),
        ids=tuple(filled),
    )


def fill(rows: Sequence[list[int]], n_best: int, candidates: Candidates) -> list[list[tuple[float, list[int]]]]:
    """Fills the gaps of each row, the surest first, each with all that is filled before it in view.

    Of each row come the `n_best` likeliest fillings that are found so: the log-probability of all that was filled in,
    and the whole row.
    """
    beams = [[(0.0, row)] for row in rows]
    while asked := [(i, score, ids) for i, beam in enumerate(beams) for score, ids in beam if GAP in ids]:
        grown: dict[int, dict[tuple[int, ...], float]] = {}  # by row, as several ways may lead to one filling
        for (i, score, ids), known in zip(asked, candidates([ids for _, _, ids in asked]), strict=True):
            surest = int(known.amax(1).argmax())
            place = [p for p, token in enumerate(ids) if token == GAP][surest]
            values, tokens = known[surest].topk(min(n_best, known.shape[1]))
            for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
                row, found = (*ids[:place], token, *ids[place + 1 :]), grown.setdefault(i, {})
                found[row] = max(score + value, found.get(row, score + value))
        for i, found in grown.items():
            best = sorted(found.items(), key=lambda each: -each[1])[:n_best]
            beams[i] = [(score, list(row)) for row, score in best]
    return beams


def likely(logits: Tensor, never: Sequence[int]) -> Tensor:
    """Log-probabilities, .. x V, -inf for what can never be."""
    found = logits.log_softmax(-1, dtype=torch.float32)
    found[..., torch.as_tensor(never, device=logits.device)] = -torch.inf
    return found


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
