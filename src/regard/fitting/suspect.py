"""What can be read and is probably not meant: sides that are alike, labels that hardly differ, odd bytes."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.data.readers import data_suffix, opened
from regard.types import Example

NAMED = 3  # places that are named of each
FAR = 10  # times as many characters: two sides that hardly belong together
LONG = 40  # characters from which on that is asked
# what first rows say in files of this kind, beside what the readers take for names of columns
USUAL_NAMES = frozenset(
    re.findall(
        r"\w+",
        """
label labels class category sentiment polarity target tag text sentence review comment content tweet question answer
answers context source src tgt trg document dialogue summary article title id index input output head relation tail
en de fr zh es english german french chinese 标签 类别 文本 内容 评论 句子 问题 答案 摘要 原文 译文
""",
    )
)
ODD_BYTES = {
    b"\xef\xbf\xbd": "the character U+FFFD: the text was read in a wrong encoding before",
    b"\xe2\x80\x8b": "a space of no width (U+200B), which nobody sees",
}


@dataclass
class Note:
    """Something to look at: how often, and where first."""

    what: str
    count: int = 0
    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = f"{', '.join(self.places)}{' ..' if self.count > len(self.places) else ''}: " if self.places else ""
        return f"{where}{self.what}{f' ({self.count:,} times)' if self.count > 1 else ''}"


class Notes:
    """Notes by what they say, each counted."""

    def __init__(self) -> None:
        self.found: dict[str, Note] = {}

    def add(self, what: str, place: str = "") -> None:
        note = self.found.setdefault(what, Note(what))
        note.count += 1
        if place and len(note.places) < NAMED:
            note.places.append(place)


class Seen:
    """What is counted of all examples as they pass by."""

    def __init__(self, notes: Notes, *, written: bool, pairs: bool) -> None:
        self.notes = notes
        self.written, self.pairs = written, pairs  # the answer is a text, and about as long as what is read
        self.first: list[Example] = []
        self.examples: dict[int, set[int]] = {}  # of each source its answers, both as hashes
        self.num_repeated = 0
        self.empty = 0  # sources without a word
        self.without = 0  # examples without an answer
        self.has_first_line = False

    def watch(self, examples: Iterable[Example]) -> Iterator[Example]:
        """The examples as they are, each looked at."""
        for example in examples:
            self._look(example)
            yield example

    def _look(self, example: Example) -> None:
        if len(self.first) < NAMED:
            self.first.append(example)
        self.has_first_line |= example.place.endswith(":1")
        self.without += not any(example.targets)
        if not example.source.strip():
            self.empty += 1
            return
        answers = self.examples.setdefault(hash(example.source), set())
        own = hash(example.targets)
        if own in answers:
            self.num_repeated += 1
        answers.add(own)
        if self.written and example.targets:
            self._look_at_pair(example)

    def _look_at_pair(self, example: Example) -> None:
        source, target = example.source.strip(), example.targets[0].strip()
        few, many = sorted((len(source), len(target)))
        if source == target:
            self.notes.add("both sides are the same", example.place)
        elif self.pairs and many >= LONG and many > FAR * few:
            self.notes.add(f"one side is more than {FAR} times as long: do they belong together?", example.place)

    def shared_with(self, other: Seen) -> tuple[int, int]:
        """How many of its sources the other has too, and how many of these with the same answer."""
        both = self.examples.keys() & other.examples.keys()
        return len(both), sum(bool(self.examples[source] & other.examples[source]) for source in both)

    @property
    def num_disagreeing(self) -> int:
        """Sources that stand there with different answers."""
        return sum(len(answers) > 1 for answers in self.examples.values())


def look_at_labels(labels: Counter[str], num_examples: int, notes: Notes) -> None:
    """Labels that are hardly meant as they stand."""
    once = [label for label, count in labels.items() if count == 1]
    if len(labels) == 1:
        notes.add(f"there is one label alone ({next(iter(labels))}): nothing can be learned from that")
    elif len(labels) > 10 and len(once) > 0.5 * num_examples:
        notes.add("nearly every example has a label of its own: is the label the first column?")
    elif once:
        more = " .." if len(once) > 10 else ""
        notes.add(f"{_number(len(once), 'label')} seen once: {', '.join(map(_quoted, once[:10]))}{more}")
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(_plain(label), []).append(label)
    for names in alike.values():
        if len(names) > 1:
            shown = " and ".join(f"{_quoted(name)} ({labels[name]:,})" for name in names)
            notes.add(f"labels that differ in case, spaces or signs alone: {shown}")


def look_at_columns(examples: Sequence[Example], notes: Notes) -> None:
    """Labels that are longer than their texts."""
    for example in examples:
        if any(len(label) > len(example.source) for label in example.targets):
            notes.add("the label is longer than the text: are the columns swapped?", example.place)


def look_at_bytes(path: Path, form: str, notes: Notes) -> None:
    """What an editor does not show; `form` is "tsv", "columns" (of CoNLL), "text" or another."""
    ends, tabs, lines, is_tsv = 0, 0, 0, data_suffix(path) == ".tsv"
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            place, text = f"{path}:{number}", line.removesuffix(b"\n").removesuffix(b"\r")
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                notes.add("a mark of UTF-8 (BOM), which is left out", place)
            ends, lines = ends + line.endswith(b"\r\n"), lines + bool(text.strip())
            if b"\r" in text:
                notes.add("an end of line of old Macs (CR) inside a line: the lines may be several", place)
            for odd, what in ODD_BYTES.items():
                if odd in line:
                    notes.add(what, place)
            tabs += b"\t" in text
            if form == "tsv" and b"\t" not in text and re.search(rb"\S {2,}\S|, |;", text):
                notes.add("no tab, but spaces or commas: what parts the columns is one tab", place)
            if form == "text" and b"\t" in text and not is_tsv:
                notes.add("a tab in plain text: if it parts columns, name the file .tsv", place)
    if ends:
        notes.add(f"line ends of Windows (CRLF) in {ends:,} of its lines, which are left out", str(path))
    if form == "columns" and 0 < tabs < lines:
        notes.add(f"tabs part the columns in {tabs:,} lines, spaces in {lines - tabs:,}", str(path))


def looks_like_names(row: str) -> bool:
    """Whether a first row could be names of columns.

    >>> looks_like_names("sentiment\\tcomment"), looks_like_names("good\\tI liked it")
    (True, False)
    """
    cells = [cell.strip().strip('"').lower() for cell in row.split("\t")]
    return len(cells) > 1 and all(cell in USUAL_NAMES for cell in cells)


def _plain(label: str) -> str:
    return re.sub(r"[\s_-]+", " ", unicodedata.normalize("NFKC", label).casefold()).strip(" .")


def _quoted(label: str) -> str:
    return f'"{label}"'


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
