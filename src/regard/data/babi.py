"""Stories with questions in the format of the bAbI tasks (Weston et al. 2015).

    1 Ada walked to the garden.
    2 Ada took the lamp.
    3 Where is the lamp?<TAB>garden<TAB>2 1

A number begins each line, 1 begins a story; a line with a tab is a question about the lines before it: its answer, and
the numbers of the lines that it follows from. As one string, a story and its question are the sentences and then the
question with a tab between each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.readers import BadLine, OnBadLine, ReadReport, decode_line, read_lines, remedy_of, require_file
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.errors import DataError
from regard.types import Example

TAB = "\t"
LINE = re.compile(r"(\d+) +(.*)")
SPLIT_NAME = re.compile(r"_(train|val|valid|dev|test)$")
WANTED = "a number and a sentence; or a number, a question, its answer and the numbers of the lines that say so"


@dataclass(frozen=True, slots=True)
class StoryQuestion:
    """A question about the sentences before it, its answer, and which of them (from 0) it follows from."""

    sentences: tuple[str, ...]
    question: str
    answer: str
    facts: tuple[int, ...]
    kind: str  # what its file is called
    place: str
    story: str = ""  # what the story begins with, to know again to which one a question belongs

    @property
    def example(self) -> Example:
        source = TAB.join((*self.sentences, self.question))
        return Example(source, (self.answer,) if self.answer else (), self.place)


def kind_of(path: Path) -> str:
    """The kind of the questions of a file, by its name.

    >>> kind_of(Path("qa1_single-supporting-fact_train.txt")), kind_of(Path("two-facts_val.txt.gz"))
    ('qa1_single-supporting-fact', 'two-facts')
    """
    return SPLIT_NAME.sub("", path.name.split(".")[0])


def has_numbers(path: Path) -> bool:
    """Whether the lines of a file are numbered, so that a story has many."""
    require_file(path)
    return LINE.match(next(read_lines(path), b"").decode(errors="replace")) is not None


def read_stories(
    paths: Sequence[Path],
    *,
    on_bad_line: OnBadLine = "error",
    report: ReadReport | None = None,
    known: Sequence[str] = (),
    need_answers: bool = True,
) -> Iterator[StoryQuestion]:
    """Every question of these files, each file a kind; with `known`, an answer that is none of them is bad.

    Without `need_answers`, for prediction, a question may end without an answer (and be told by its question mark), and
    a file whose lines have no numbers has a story and its question on each, with tabs between.
    """
    remedy = remedy_of(report)
    report = ReadReport() if report is None else report
    for path in paths:
        require_file(path)
        report.path = str(path)
        for place, found in _parse(path, known, need_answers):
            if isinstance(found, StoryQuestion):
                report.read += 1
                yield found
            elif on_bad_line == "error":
                raise DataError("a bad line in a story", got=found, wanted=WANTED, where=place, remedy=remedy)
            else:
                report.add_bad(place, found)


def _parse(path: Path, known: Sequence[str], need_answers: bool) -> Iterator[tuple[str, StoryQuestion | str]]:
    """(place, question), or (place, reason) for a bad line, which is then no part of its story."""
    kind, story, numbers = kind_of(path), list[str](), dict[int, int]()  # number of a line -> which sentence it is
    last, begins = 0, ""
    for at, line in enumerate(read_lines(path), 1):
        place = f"{path}:{at}"
        try:
            text = decode_line(line)
            if not need_answers and not LINE.match(text):
                yield place, _in_one_line(text, kind, place)
                continue
            if not text.strip():
                continue
            number, content = _numbered(text)
            if number == 1:
                story, numbers, begins = [], {}, ""
            elif number <= last:
                raise BadLine(f"line {number} after line {last}")
            last = number
            if TAB in content or (not need_answers and content.rstrip().endswith("?")):
                begins = begins or TAB.join(story)
                found = _question(content, story, numbers, known, need_answers)
                yield place, StoryQuestion(tuple(story), *found, kind, place, begins)
            else:
                numbers[number] = len(story)
                story.append(content.strip())
        except BadLine as reason:
            yield place, str(reason)


def _numbered(text: str) -> tuple[int, str]:
    found = LINE.fullmatch(text)
    if found is None or not found[2].strip():
        raise BadLine(f"no number and sentence: {text[:40].strip()}")
    return int(found[1]), found[2]


def _question(
    content: str, story: Sequence[str], numbers: dict[int, int], known: Sequence[str], need_answers: bool
) -> tuple[str, str, tuple[int, ...]]:
    """The question, its answer, and which sentences say so."""
    asked, answer, facts = (*(cell.strip() for cell in content.split(TAB)), "", "")[:3]
    if not asked or not story:
        raise BadLine("a question without words" if not asked else "a question before any sentence")
    if need_answers and not answer:
        raise BadLine("a question without an answer")
    if need_answers and known and answer not in known:
        raise BadLine(f'the answer "{answer}" is not one of the training split')
    named = facts.split()
    wrong = [name for name in named if not name.isdecimal() or int(name) not in numbers]
    if wrong:
        raise BadLine(f"{wrong[0]} is not the number of a sentence before the question")
    return asked, answer, tuple(sorted(numbers[int(name)] for name in named))


def _in_one_line(text: str, kind: str, place: str) -> StoryQuestion:
    """A story and its question with tabs between, or nothing."""
    *story, question = (part.strip() for part in text.split(TAB))
    return StoryQuestion(tuple(story), question, "", (), kind, place)


# --- a story as one row -----------------------------------------------------------------------------------------------


class StoryTokenizer(Tokenizer):
    """A tokenizer of stories: each sentence ends with </s>, and the question follows as the last."""

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.markers = (self.specials.end,)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        parts = [sentences_of(text) for text in texts]
        # a story grows from question to question: what is in all of them is encoded once
        different = list(dict.fromkeys(text for own in parts for text, _ in own))
        ids = dict(zip(different, super().encode_batch(different), strict=True))
        end = self.specials.end
        return [[i for k, (text, _) in enumerate(own) for i in ([end] if k else []) + ids[text]] for own in parts]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        found = list[tuple[int, int]]()
        for k, (sentence, start) in enumerate(sentences_of(text)):
            found += [(start - 1, start)] if k else []  # the tab
            spans = super().offsets(sentence)
            found += [(begin + start, end + start) for begin, end in spans]
        return found


def sentences_of(source: str) -> list[tuple[str, int]]:
    """The sentences and the question of a story in one string, and where each begins.

    >>> sentences_of("Ada left.\\tWho left?")
    [('Ada left.', 0), ('Who left?', 10)]
    """
    found, start = list[tuple[str, int]](), 0
    for part in source.split(TAB):
        if part.strip():
            found.append((part, start))
        start += len(part) + 1
    return found


def train_on_stories(config: TokenizerConfig, texts: Iterable[str], *, extra: Sequence[str] = ()) -> StoryTokenizer:
    """A tokenizer that is trained on the sentences of stories."""
    parts = dict.fromkeys(part for text in texts for part, _ in sentences_of(text))  # stories go on: each counts once
    return StoryTokenizer(train_tokenizer(config, parts, extra=extra).inner)


def newest(ids: Sequence[int], end: int, most: int) -> list[int]:
    """Which places of a story that is too long are read: its last sentences, as many as fit, and the question.

    >>> newest([5, 5, 3, 6, 3, 7, 7], end=3, most=5)
    [3, 4, 5, 6]
    """
    begins = [0, *(i + 1 for i, each in enumerate(ids) if each == end)]
    first = next((begin for begin in begins if len(ids) - begin <= most), len(ids) - most)
    return list(range(first, len(ids)))
