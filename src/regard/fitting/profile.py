"""A look at a user's text: how much there is, how long its lines are, which scripts it is written in."""

from __future__ import annotations

import functools
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from regard.data.config import DataConfig
from regard.data.marked import unmark
from regard.data.markers import MARK
from regard.data.readers import ReadReport, read_examples, read_labelled
from regard.data.text import read_running
from regard.errors import DataError
from regard.tasks import task as find_task
from regard.types import Example

SAMPLE = 50_000  # examples whose text is looked at; all of them are counted
# scripts that put no space between words
UNSPACED = frozenset({"HAN", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"})

ENDING, CLOSING = (".", "!", "?", "…", "。", "！", "？"), "\"')]»”’」』）"  # of sentences, and what may come after it


@dataclass(frozen=True)
class Spread:
    """Where numbers lie: the middle, the upper end, the largest, the mean."""

    median: float
    high: float  # 99 % are at most this
    largest: float
    mean: float
    most: float  # 95 % are at most this

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """
        >>> Spread.of([1, 2, 3, 4])
        Spread(median=3, high=4, largest=4, mean=2.5, most=4)
        """
        ordered = sorted(values)
        last = len(ordered) - 1
        middle, most, high = (ordered[min(last, int(share * len(ordered)))] for share in (0.5, 0.95, 0.99))
        return cls(middle, high, ordered[-1], sum(ordered) / len(ordered), most)

    def __str__(self) -> str:
        return f"median {self.median:g}, 99 % within {self.high:g}, longest {self.largest:g}"


@dataclass(frozen=True)
class Side:
    """One side of the examples."""

    characters: Spread
    words: Spread
    alphabet: Counter[str]  # characters other than white space
    vocabulary: Counter[str]  # words, as white space parts them

    @classmethod
    def of(cls, texts: Sequence[str]) -> Side:
        split = [text.split() for text in texts]
        vocabulary = Counter(word for words in split for word in words)
        alphabet: Counter[str] = Counter()
        for word, count in vocabulary.items():
            for character in word:
                alphabet[character] += count
        return cls(Spread.of(map(len, texts)), Spread.of(map(len, split)), alphabet, vocabulary)

    @property
    def scripts(self) -> list[tuple[str, float]]:
        """The scripts of its letters, each with its share, the largest first."""
        found: Counter[str] = Counter()
        for character, count in self.alphabet.items():
            if script := script_of(character):
                found[script] += count
        total = max(1, found.total())
        return [(script, count / total) for script, count in found.most_common()]

    @property
    def is_spaced(self) -> bool:
        """Whether words stand apart."""
        return sum(share for script, share in self.scripts if script in UNSPACED) < 0.3

    @property
    def is_closed(self) -> bool:
        """Whether few words, each seen often, are all there is: phonemes, digits, tags."""
        return len(self.vocabulary) <= 1000 and self.vocabulary.total() >= 20 * len(self.vocabulary)

    @property
    def is_single_words(self) -> bool:
        """Whether most texts are one word, which leaves characters to look at."""
        return self.is_spaced and self.words.median <= 1

    @property
    def written_in(self) -> str:
        """Its scripts as a reader is told them."""
        scripts = ", ".join(f"{name.title()} {share:.0%}" for name, share in self.scripts[:3] if share >= 0.005)
        return scripts or "no letters"

    def describe(self) -> str:
        words = f"; words: {self.words}; {len(self.vocabulary):,} different words, " if self.is_spaced else "; "
        return f"{self.written_in}; characters: {self.characters}{words}{len(self.alphabet):,} different characters"


@dataclass
class Layout:
    """How running text is laid out: its lines that are not empty, and the documents that empty lines part."""

    lines: int = 0
    ended: int = 0  # lines that end as sentences do
    documents: int = 0
    longer: int = 0  # documents of two lines or more
    _inside: int = 0  # lines of this document so far

    def watch(self, lines: Iterable[Example]) -> Iterator[Example]:
        """The same lines, looked at one by one."""
        for line in lines:
            text = line.source.strip()
            self._inside = self._inside + 1 if text else 0
            self.lines += bool(text)
            self.ended += text.rstrip(CLOSING).endswith(ENDING)
            self.documents += self._inside == 1
            self.longer += self._inside == 2
            yield line

    def is_sentences(self, fewest: float) -> bool:
        """Whether lines are sentences, of so many documents: wrapped lines end anywhere, and paragraphs stand alone."""
        return self.ended > 0.7 * self.lines and self.longer > 0.5 * self.documents and self.longer >= fewest


@dataclass(frozen=True)
class Profile:
    """A split: how many examples, what both sides look like, how their lengths relate, which lines were bad."""

    num_examples: int
    source: Side
    target: Side
    num_variants: int  # examples of the sample with more than one right answer
    report: ReadReport
    ratio: Spread  # target characters for each source character
    labels: Counter[str] = field(default_factory=Counter)  # of texts with labels: examples of the sample that have each
    layout: Layout = field(default_factory=Layout)  # of running text
    follows: bool = False  # whether all splits are laid out for next sentences

    def describe(self) -> list[str]:
        """What stands on both sides, a line each."""
        if not self.labels:
            told = [f"target: {self.target.describe()}"] if self.target.alphabet else []
            return [f"{'source' if told else 'text'}: {self.source.describe()}", *told]
        most = ", ".join(f"{name} {count:,}" for name, count in self.labels.most_common(10))
        more = f" and {len(self.labels) - 10:,} more" if len(self.labels) > 10 else ""
        return [f"text: {self.source.describe()}", f"labels: {len(self.labels):,}: {most}{more}"]

    @property
    def shares_alphabet(self) -> bool:
        """Whether nearly all of each side could be written with what the other side often uses."""
        return all(_covered(a.alphabet, b.alphabet) >= 0.9 for a, b in self._both_ways())

    @property
    def shares_words(self) -> bool:
        return all(_covered(a.vocabulary, b.vocabulary) >= 0.9 for a, b in self._both_ways())

    def _both_ways(self) -> tuple[tuple[Side, Side], tuple[Side, Side]]:
        return (self.source, self.target), (self.target, self.source)


def look(task: str, paths: Sequence[Path], split: str) -> Profile:
    """Reads a split as its task does and says what is in it; bad lines are counted, but there must be good ones."""
    report, where = ReadReport(), ", ".join(map(str, paths))
    layout, found = Layout(), read(task, paths, report)
    sample, number = sample_of(layout.watch(found) if task in UNANSWERED else found, report, split)
    answered = [example for example in sample if example.targets]
    if not answered and task not in UNANSWERED:
        wanted = "two parallel files, a .tsv with source and target, or a .jsonl with both"
        raise DataError(f"the {split} split has sources only", got=where, wanted=wanted)
    labels = LABELS.get(task)
    firsts = [" ".join(map(str, labels(each))) if labels else each.targets[0] for each in answered] or [""]
    return Profile(
        num_examples=number,
        source=Side.of([as_read(task, example.source) for example in sample]),
        target=Side.of(firsts),
        num_variants=sum(len(example.targets) > 1 for example in sample),
        report=report,
        ratio=Spread.of([len(each.targets[0]) / max(1, len(each.source)) for each in answered] or [1.0]),
        labels=Counter(label for each in answered for label in labels(each)) if labels else Counter(),
        layout=layout,
    )


def read(task: str, paths: Sequence[Path], report: ReadReport, *, multi_label: bool | None = None) -> Iterator[Example]:
    """The examples of these files as the task reads them; texts have several labels if the files say so, or as told."""
    file = _reader(task)
    if task == "vectors":
        return read_examples(paths, on_bad_line="skip", report=report, need_targets=False)
    if not hasattr(file, "read_split"):
        report.path = " + ".join(map(str, paths))
        return read_running(paths, on_bad_line="skip", report=report)
    if task == "classification":
        config = file.Config(multi_label=_has_several(paths) if multi_label is None else multi_label)
    else:
        config = file.Config()
    found = file.read_split(config, DataConfig(on_bad_line="skip"), lambda name: paths, "test", report)
    return (each if isinstance(each, Example) else file.as_example(each) for each in found)


def with_layout(train: Profile, others: Iterable[Profile], share: float) -> Profile:
    """What training looks like, with what all splits have in common; validation may be this share of its files."""
    fewest = 10 / share if share else 2  # the last documents may be longer ones than the others
    found = train.layout.is_sentences(fewest) and all(each.layout.is_sentences(2) for each in others)
    return replace(train, follows=found)


def can_hold_out(task: str, paths: Sequence[Path], share: float) -> bool:
    """Whether this share of a file leaves examples on both sides: of a few long texts it may not."""
    file = _reader(task)
    if not hasattr(file, "read_split"):
        return True
    data = DataConfig(on_bad_line="skip", val_share=share)
    config = file.Config(multi_label=True) if task == "classification" else file.Config()
    splits = (file.read_split(config, data, lambda name: paths, name, ReadReport()) for name in ("train", "val"))
    return all(any(True for _ in split) for split in splits)


def _reader(task: str) -> ModuleType:
    """The file of the task that reads the files: those of the parts of a text-to-text are pairs."""
    file = find_task(task)
    return find_task("translation") if getattr(file, "OWN_FILES", False) else file


def _has_several(paths: Sequence[Path]) -> bool:
    """Whether any text of a labelled file has several labels."""
    labelled = read_labelled(paths, multi_label=True, on_bad_line="skip")
    return any(len(example.targets) > 1 for example in labelled)


def as_read(task: str, text: str) -> str:
    """A text without what marks its entities, which is no text."""
    return MARK.sub("", text) if task == "relation" else text


def _names_in(example: Example) -> list[str]:
    """The labels of the spans of a text."""
    return [span.label for span in unmark(example.targets[0])[1]]


# What is said of an example, where that is one of a few things.
LABELS: dict[str, Callable[[Example], Sequence[str]]] = {
    "classification": lambda example: example.targets,
    "relation": lambda example: example.targets,
    "tagging": _names_in,
}
UNANSWERED = {  # running text
    "language-modeling",
    "masked-language-modeling",
    "permutation-language-modeling",
    "span-corruption",
}


def sample_of(examples: Iterable[Example], report: ReadReport, split: str) -> tuple[list[Example], int]:
    """All examples, or of very many as many as are looked at; and how many there are."""
    sample: list[Example] = []
    draw, number = random.Random(1), 0
    for number, example in enumerate(examples, 1):
        if len(sample) < SAMPLE:
            sample.append(example)
        elif (place := draw.randrange(number)) < SAMPLE:  # each example has the same chance to stay
            sample[place] = example
    if not sample:
        got = f"bad: {report.bad[0][0]}: {report.bad[0][1]}" if report.bad else "no lines"
        raise DataError(f"the {split} split holds no example", got=got, where=report.path)
    return sample, number


@functools.cache
def script_of(character: str) -> str:
    """The script of a letter, as its Unicode name begins; nothing for digits and punctuation.

    >>> script_of("a"), script_of("ж"), script_of("猫"), script_of("7")
    ('LATIN', 'CYRILLIC', 'HAN', '')
    """
    if not unicodedata.category(character).startswith("L"):
        return ""
    first = unicodedata.name(character, "UNKNOWN").split()[0]
    return "HAN" if first == "CJK" else first


def _covered(text: Counter[str], known: Counter[str]) -> float:
    """The share of a text's characters (or words) that the other text uses at least as often as 1 in 100,000."""
    often = {item for item, count in known.items() if count * 100_000 >= known.total()}
    return sum(count for item, count in text.items() if item in often) / max(1, text.total())
