"""Two entities that are marked in a text: <e1>..</e1> and <e2>..</e2>.

To a tokenizer a mark is one piece, which no text can spell; a text that is too long is cut outside of the entities.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from regard.data.readers import OnBadLine, ReadReport, data_suffix, good_lines, parse_labelled, read_plain, require_file
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.errors import DataError
from regard.types import Example

MARKS = ("<e1>", "</e1>", "<e2>", "</e2>")
MARK = re.compile("|".join(MARKS))
MARKED_WANTED = "a text with one <e1>..</e1> and one <e2>..</e2>"
UNUSED = re.compile(r"[\[<]unused_?\d+[\]>]|madeupword\d+")  # pieces that others keep free for such a use
SEMEVAL = re.compile(r'(\d+)\t"(.*)"\s*')  # the line that begins an example of SemEval-2010 task 8


def flaw(text: str) -> str:
    """What is wrong with the marks of a text, "" where nothing is.

    >>> flaw("<e1>birds</e1> build <e2>nests</e2>"), flaw("<e1>birds</e1> build nests")
    ('', 'there is no <e2>')
    """
    for begin, end in (MARKS[:2], MARKS[2:]):
        for mark in (begin, end):
            if text.count(mark) != 1:
                number = text.count(mark)
                return f"{mark} is there {number} times" if number else f"there is no {mark}"
        if text.index(end) < text.index(begin):
            return f"{end} stands before {begin}"
        if not MARK.sub("", text[text.index(begin) : text.index(end)]).strip():
            return f"nothing stands between {begin} and {end}"
    return ""


def need_marked(texts: Sequence[str], first_index: int = 0) -> None:
    """Raises DataError unless every text that is not empty has its two entities marked."""
    for number, text in enumerate(texts, first_index + 1):
        found = flaw(text) if text.strip() else ""
        if found:
            got = f"{found}: {text[:80]}"
            where = f"source {number:,}"
            raise DataError("the entities of a text are not marked", got=got, wanted=MARKED_WANTED, where=where)


def changed_around(text: str, outside: Callable[[str], str], inside: Callable[[str], str]) -> str:
    """The text with other words outside of its entities and in them; the marks stay.

    >>> changed_around("a <e1>child</e1> slept in a <e2>bed</e2>", str.upper, str.title)
    'A <e1>Child</e1> SLEPT IN A <e2>Bed</e2>'
    """
    out, depth = [], 0
    for part in re.split(f"({MARK.pattern})", text):
        if part in MARKS:
            depth += -1 if "/" in part else 1
        out.append(part if part in MARKS else (inside if depth else outside)(part))
    return "".join(out)


def read_marked(
    paths: Sequence[Path],
    *,
    multi_label: bool = False,
    known: Sequence[str] = (),
    on_bad_line: OnBadLine = "error",
    report: ReadReport | None = None,
    need_labels: bool = True,
) -> Iterator[Example]:
    """As `read_labelled`, of texts whose entities are marked; also the files of SemEval-2010 task 8, by their form.

    Without `need_labels`, for prediction, a text may come without its marks: the task says so, and answers the others.
    """
    if len(paths) == 1 and _is_semeval(paths[0]):
        parsed = _parse_semeval(paths[0], known, need_labels)
    else:
        parsed = parse_labelled(paths, multi_label, known, need_labels)
    return good_lines(map(_checked, parsed) if need_labels else parsed, paths, on_bad_line, report)


def _checked(parsed: tuple[str, Example | str]) -> tuple[str, Example | str]:
    place, example = parsed
    if isinstance(example, str):
        return parsed
    found = flaw(example.source)
    return (place, f"{found}; wanted {MARKED_WANTED}") if found else parsed


def _is_semeval(path: Path) -> bool:
    """Whether a file begins as those of SemEval do: a number, a tab, a text in quotes."""
    require_file(path)
    if data_suffix(path) in (".tsv", ".jsonl"):
        return False
    first = next((line.source for line in read_plain(path, on_bad_line="skip") if line.source.strip()), "")
    return SEMEVAL.fullmatch(first) is not None


def _parse_semeval(path: Path, known: Sequence[str], need_labels: bool) -> Iterator[tuple[str, Example | str]]:
    """A number, a tab and the text in quotes; its label; a comment; an empty line. Without labels the text alone."""
    place, text, label = "", "", ""
    lines = [line.source for line in read_plain(path)]
    for number, line in enumerate([*lines, '0\t""'], 1):  # one more, which ends the last
        begun = SEMEVAL.fullmatch(line)
        if begun is None:
            if line.strip() and not line.startswith("Comment") and not label:
                label = line.strip()
            continue
        if place:
            yield place, _labelled(text, label, place, known, need_labels)
        place, text, label = f"{path}:{number}", begun[2], ""


def _labelled(text: str, label: str, place: str, known: Sequence[str], need_labels: bool) -> Example | str:
    if need_labels and not label:
        return "no label on the line below"
    if need_labels and known and label not in known:
        return f'the label "{label}" is not one of the training split'
    return Example(text, (label,) if label else (), place)


class MarkedTokenizer(Tokenizer):
    """A tokenizer to which each mark is one piece of its own; a text without marks it reads as before.

    One that is trained has pieces for them. One of others gives them pieces that it keeps unused, else the last ones of
    its vocabulary, which are rarely missed: the same each time, as they follow from the tokenizer alone.
    """

    marks: ClassVar[tuple[str, ...]] = MARKS

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.markers = self._chosen()
        self._special |= dict(zip(self.markers, self.marks, strict=True))

    def parts(self, text: str) -> Iterator[Part]:
        """A text cut at its marks."""
        return _parts(text)

    def _chosen(self) -> tuple[int, ...]:
        own = {name: i for i, name in self._special.items()}
        if all(mark in own for mark in self.marks):
            return tuple(own[mark] for mark in self.marks)
        pieces = {i: piece for piece, i in self.inner.get_vocab().items() if i < self.size}
        unused = sorted(i for i, piece in pieces.items() if UNUSED.fullmatch(piece))
        beyond = range(max(pieces) + 1, self.size)  # rows of the model that the tokenizer knows nothing of
        rare = sorted(pieces.keys() - {*self._special, self.specials.unk} - {*unused}, reverse=True)
        return tuple([*unused, *beyond, *rare][: len(self.marks)])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        parts = [list(self.parts(text)) for text in texts]
        encoded = iter(super().encode_batch([part.text for own in parts for part in own if part.mark is None]))

        def ids(part: Part) -> list[int]:
            return self._spoken(next(encoded)) if part.mark is None else [self.markers[part.mark]]

        return [[i for part in own for i in ids(part)] for own in parts]

    def _spoken(self, ids: Sequence[int]) -> list[int]:
        """The ids of a part of the text: what is spelled like a mark is unknown."""
        unknown = self.specials.end if self.specials.unk is None else self.specials.unk
        return [unknown if i in self.markers else i for i in ids]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for part in self.parts(text):
            spans = [(0, len(part.text))] if part.mark is not None else super().offsets(part.text)
            shift = part.start - part.spaced
            found += [(max(part.start, begin + shift), max(part.start, end + shift)) for begin, end in spans]
        return found


class Part(NamedTuple):
    """A part of a text between marks, or a mark."""

    text: str
    start: int  # in the whole text
    mark: int | None = None  # which one it is
    spaced: int = 0  # 1: the text has a space before it that stands before the mark


def _parts(text: str) -> Iterator[Part]:
    """A text cut at its marks.

    A space before an entity goes along with it, as in the plain text: to many tokenizers it is a part of the word.

    >>> [part.text for part in _parts("the <e1>child</e1> slept")]
    ['the', '<e1>', ' child', '</e1>', ' slept']
    """
    at = spaced = 0
    for mark in (*MARK.finditer(text), None):
        own = text[at : None if mark is None else mark.start()]
        begins = mark is not None and "/" not in mark[0]
        kept = own.rstrip() if begins else own
        if kept:
            yield Part(" " * spaced + kept, at, spaced=spaced)
        spaced = int(begins and (kept != own or (spaced == 1 and not own)))  # marks may follow one another
        if mark is not None:
            yield Part(mark[0], mark.start(), MARKS.index(mark[0]))
            at = mark.end()


def train_marked(config: TokenizerConfig, texts: Iterable[str], *, extra: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer that is trained on the parts of texts, with a piece for each mark."""
    parts = (part.text for text in texts for part in _parts(text) if part.mark is None)
    return MarkedTokenizer(train_tokenizer(config, parts, extra=(*MARKS, *extra)).inner)


def places_to_keep(ids: Sequence[int], markers: Sequence[int], most: int) -> list[int]:
    """Which places of a text that is too long are read: the marks, the entities, what is between them, what is near.

    >>> places_to_keep([7, 7, 7, 1, 9, 2, 8, 8, 3, 9, 4, 7, 7], markers=(1, 2, 3, 4), most=10)
    [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    """
    if len(ids) <= most:
        return list(range(len(ids)))
    marks = [list(ids).index(i) for i in markers]
    (first, last), entities = (min(marks), max(marks)), (marks[:2], marks[2:])

    def rank(place: int) -> tuple[int, int]:
        away = min(abs(place - mark) for mark in marks)
        if any(begin <= place <= end for begin, end in entities):
            return (0, away)  # a mark itself is 0 away
        return (1 if first < place < last else 2, away)

    return sorted(sorted(range(len(ids)), key=rank)[:most])
