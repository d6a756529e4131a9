"""What was understood of a user's files, and what is wrong with them: for every task, by its own reader."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.conll import format_of
from regard.data.readers import BadLine, ReadReport, data_suffix, decode_line, read_lines, require_file
from regard.data.text import LABELLED
from regard.errors import ConfigError, DataError
from regard.fitting import FITTED
from regard.fitting.profile import LABELS, Side, Spread, as_read, read, sample_of
from regard.fitting.suspect import Note, Notes, Seen, look_at_bytes, look_at_columns, look_at_labels, looks_like_names
from regard.fitting.text import shell
from regard.tasks import task as find_task
from regard.types import Example

MOST_BAD = 10  # bad lines that are named
MOST_LABELS = 20
WIDTH = 160  # characters that are shown of a text


@dataclass(frozen=True)
class Row:
    """What a task calls its columns: those that are read (tabs part them in a source), and the one that is answered."""

    read: tuple[str, ...] = ("source",)
    answer: str = "target"  # "" = there is none
    plain: str = ""  # what a file is whose name says nothing, where that is not a text a line
    pairs: bool = False  # whether both sides are about as long

    def sides(self, example: Example) -> dict[str, str]:
        """The columns of an example.

        >>> Row(("question", "text"), "answer").sides(Example("Who?\\tI did.", ("I",)))
        {'question': 'Who?', 'text': 'I did.', 'answer': 'I'}
        """
        parts = example.source.split("\t", len(self.read) - 1)
        found = dict(zip(self.read, parts, strict=False))
        return {**found, self.answer: " | ".join(example.targets)} if self.answer else found


# A task without a row has sources and targets.
PAIRS, LINES = Row(pairs=True), Row(("line",), "")
ROWS = {
    "classification": Row(("text",), "label"),
    "dialogue": Row(("turns before",), "reply", "a conversation a line, its turns parted by tabs or __eou__"),
    "extractive-summarization": Row(("document",), "summary"),
    "language-modeling": LINES,
    "link-prediction": Row(("head", "relation"), "tail"),
    "masked-language-modeling": LINES,
    "permutation-language-modeling": LINES,
    "question-answering": Row(("question", "text"), "answer"),
    "relation": Row(("text",), "label"),
    "span-corruption": LINES,
    "story-question-answering": Row(("story and question",), "answer", "stories as bAbI's: lines with numbers"),
    "summarization": Row(("document",), "summary"),
    "tagging": Row(("text",), "marked"),
    "text-to-text": PAIRS,
    "translation": PAIRS,
    "vectors": Row(("text",), ""),
}


@dataclass
class Findings:
    """All that `regard data check` says."""

    task: str
    files: list[str]
    form: str
    header: str = ""
    num_examples: int = 0
    sides: dict[str, Side] = field(default_factory=dict)
    labels: Counter[str] = field(default_factory=Counter)
    several: int = 0  # examples with several answers, or labels
    repeated: int = 0
    disagreeing: int = 0
    without: int = 0
    empty: int = 0
    first: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # place, columns
    report: ReadReport = field(default_factory=ReadReport)
    notes: list[Note] = field(default_factory=list)
    error: str = ""  # why nothing more was read
    against: dict[str, Any] = field(default_factory=dict)
    next: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether a training would read all of it without a complaint."""
        return not self.error and not self.report.num_left_out

    def to_table(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "task": self.task,
            "files": self.files,
            "usable": self.is_usable,
            "error": self.error or None,
            "format": self.form,
            "header": self.header,
            "examples": self.num_examples,
            "columns": {name: _measured(side) for name, side in self.sides.items()},
            "labels": dict(self.labels.most_common()),
            "several_answers": self.several,
            "without_answer": self.without,
            "empty": self.empty,
            "repeated": self.repeated,
            "disagreeing": self.disagreeing,
            "first": [{"place": place, **sides} for place, sides in self.first],
            "bad_lines": self.report.num_left_out,
            "mended_lines": self.report.num_mended,
            "bad": [{"place": place, "reason": reason} for place, reason in self.report.bad],
            "suspicious": [vars(note) for note in self.notes],
            "against": self.against or None,
            "next": self.next,
        }

    def lines(self) -> Iterator[str]:
        """The same for people."""
        yield f"{' + '.join(self.files)}, as {self.task} reads it"
        yield f"format: {self.form}"
        if self.header:
            yield f"header: {self.header}"
        if not self.error:
            yield from self._contents()
        yield from self._flaws()
        yield f"next: {self.next}"

    def _contents(self) -> Iterator[str]:
        yield f"examples: {self.num_examples:,}"
        for name, side in self.sides.items():
            yield f"{name}: {side.written_in}; {', '.join(_lengths(side))}"
        if self.labels:
            most = ", ".join(f"{name} {count:,}" for name, count in self.labels.most_common(MOST_LABELS))
            more = f" and {len(self.labels) - MOST_LABELS:,} more" if len(self.labels) > MOST_LABELS else ""
            yield f"labels: {len(self.labels):,}: {most}{more}"
        yield from self._counts()
        yield "the first as they were read:"
        for place, sides in self.first:
            yield f"  {place}"
            yield from (f"    {name}: {_short(text)}" for name, text in sides.items())

    def _counts(self) -> Iterator[str]:
        if self.several and self.labels:
            yield f"with several labels: {self.several:,}; commas part labels (--single-label takes them as they are)"
        elif self.several:
            yield f"with several answers, equally right: {self.several:,}"
        if self.empty:
            yield f"empty: {self.empty:,}"
        if self.without:
            yield f"without an answer: {self.without:,}"
        again = f"; the same with another answer: {self.disagreeing:,}" if ROWS.get(self.task, Row()).answer else ""
        yield f"repeated: {self.repeated:,}{again}"
        if self.against:
            them, both, same = (self.against[name] for name in ("files", "sources", "examples"))
            yield f"also in {' + '.join(them)}: {both:,} of its {self.against['of']:,}, {same:,} with the same answer"

    def _flaws(self) -> Iterator[str]:
        if self.error:
            yield f"error: {self.error}"
        report = self.report
        if report.num_left_out:
            yield f"bad lines: {report.num_left_out:,}, each an error in training (or left out, on_bad_line = skip)"
        elif not self.error:
            yield "bad lines: none"
        if report.num_mended:
            yield f"lines that are wrong and read all the same: {report.num_mended:,}"
        yield from (f"  {place}: {reason}" for place, reason in report.bad[:MOST_BAD])
        if report.num_bad > MOST_BAD:
            yield f"  and {report.num_bad - MOST_BAD:,} more"
        yield f"suspicious: {len(self.notes) or 'nothing'}"
        yield from (f"  {note}" for note in self.notes)


def check(
    task: str, paths: Sequence[Path], *, against: Sequence[Path] = (), multi_label: bool | None = None
) -> Findings:
    """Reads files as their task does, and says what is in them and what is wrong; `against` is another split."""
    find_task(task)
    if multi_label is not None and task != "classification":
        raise ConfigError("labels are counted for classification alone", got=task, wanted="classification")
    for path in (*paths, *against):
        require_file(path)
    findings, notes = Findings(task, [str(path) for path in paths], ""), Notes()
    try:
        findings.form, kind = form_of(task, paths)
        seen = _examine(findings, paths, notes, multi_label)
        if against:
            _compare(findings, seen, against, notes, multi_label)
    except DataError as error:
        findings.form, kind = findings.form or "not recognised", "text"
        findings.error = str(error)
    for path in paths:
        try:
            look_at_bytes(path, kind, notes)
        except DataError as error:
            findings.error = findings.error or str(error)
    findings.notes, findings.next = list(notes.found.values()), _next(findings, paths, against)
    return findings


def _examine(findings: Findings, paths: Sequence[Path], notes: Notes, multi_label: bool | None) -> Seen:
    """Puts into the findings what is in the files."""
    task, report, labels = findings.task, findings.report, LABELS.get(findings.task)
    row = ROWS.get(task, Row())
    seen = Seen(notes, written=bool(row.answer) and labels is None, pairs=row.pairs)
    counted: Counter[str] = Counter()

    def watched() -> Iterator[Example]:
        for example in seen.watch(read(task, paths, report, multi_label=multi_label)):
            counted.update(labels(example) if labels else ())
            yield example

    sample, findings.num_examples = sample_of(watched(), report, "given")
    _need_answers(sample, row, paths)
    columns = [row.sides(example) for example in sample]
    names = [*row.read, *([row.answer] if row.answer and labels is None else [])]
    for name in names:
        texts = [as_read(task, column[name]) for column in columns if name in column]
        findings.sides[name] = Side.of(texts or [""])
    findings.labels, findings.repeated, findings.disagreeing = counted, seen.num_repeated, seen.num_disagreeing
    findings.several = sum(len(example.targets) > 1 for example in sample)
    findings.without, findings.empty = seen.without if row.answer else 0, seen.empty
    findings.first = [(example.place, row.sides(example)) for example in seen.first]
    findings.header = _header(findings, paths, seen, notes)
    if labels is not None:
        look_at_labels(counted, findings.num_examples, notes)
    if row.answer == "label":
        look_at_columns(sample, notes)
    return seen


def _need_answers(sample: Sequence[Example], row: Row, paths: Sequence[Path]) -> None:
    if row.answer and not any(example.targets for example in sample):
        raise DataError(
            "there are sources alone",
            got=", ".join(map(str, paths)),
            wanted=f"{' and '.join(row.read)} and {row.answer}: two parallel files, a .tsv or a .jsonl",
        )


def _compare(findings: Findings, seen: Seen, against: Sequence[Path], notes: Notes, multi_label: bool | None) -> None:
    """What two splits have in common, and which labels the second has alone."""
    other = Findings(findings.task, [str(path) for path in against], "")
    others = _examine(other, against, Notes(), multi_label)
    sources, examples = others.shared_with(seen)
    findings.against = {"files": other.files, "of": len(others.examples), "sources": sources, "examples": examples}
    findings.against["bad_lines"] = other.report.num_left_out
    name = " + ".join(other.files)
    if sources:
        notes.add(f"{sources:,} of its examples stand in both: what is judged by was learned before", name)
    if other.report.num_left_out:
        notes.add(f"{other.report.num_left_out:,} bad lines: check it as well", name)
    unknown = [label for label in other.labels if label not in findings.labels]
    if unknown:
        notes.add(f"labels that {' + '.join(findings.files)} has not: {', '.join(unknown[:10])}", name)


def form_of(task: str, paths: Sequence[Path]) -> tuple[str, str]:
    """How files are read and why, in words and as a kind: tsv, columns, text or another."""
    suffix, packed = data_suffix(paths[0]), ""
    if paths[0].suffix.lower() in (".gz", ".xz"):
        packed = f", compressed ({paths[0].suffix})"
    running = ROWS.get(task) is LINES
    if len(paths) > 1:
        how = "one after the other" if running else "line n of the one belongs to line n of the other"
        return f"{len(paths)} text files, {how}{packed}", "text"
    if running and suffix not in LABELLED:
        return f"plain text, a line each{packed}", "text"
    if suffix == ".jsonl":
        return f"an object a line (.jsonl) with the keys {', '.join(_keys(paths[0])) or '?'}{packed}", "jsonl"
    if suffix == ".json":
        return f"one JSON, as SQuAD's (.json){packed}", "json"
    if suffix == ".tsv":
        columns = _first_row(paths[0]).count("\t") + 1
        return f"columns with a tab between (.tsv), {columns} in the first row{packed}", "tsv"
    if task == "tagging":
        found = format_of(paths[0])
        what = f"CoNLL, a token and its tag a line; tags in {found.scheme.upper()}, read by {found.units}"
        return f"{what}{packed}", "columns"
    if task == "relation":
        what = f"SemEval-2010 task 8, or else none that is known: its name ends in {suffix or 'nothing'}"
        return f"{what}{packed}", "other"
    if plain := ROWS.get(task, Row()).plain:
        return f"{plain}{packed}", "other"
    what = f"plain text, a line each: its name ends in {suffix or 'nothing'}, which is not .tsv or .jsonl"
    more = "; a .csv is not read as columns: part them by tabs, without quotes" if suffix == ".csv" else ""
    return f"{what}{more}{packed}", "text"


def _header(findings: Findings, paths: Sequence[Path], seen: Seen, notes: Notes) -> str:
    """Whether the first row of a .tsv was taken for names of columns."""
    if len(paths) != 1 or data_suffix(paths[0]) != ".tsv":
        return ""
    first = _first_row(paths[0])
    was_read = seen.has_first_line or any(place.endswith(":1") for place, _ in findings.report.bad)
    if not was_read and first.strip():
        return f"the first row names the columns: {', '.join(first.split(chr(9)))}"
    if looks_like_names(first):
        shown = ", ".join(first.split("\t"))
        notes.add(f"the first row ({shown}) looks like names of columns and was read as an example", f"{paths[0]}:1")
    return "none: the first row is an example"


def _first_row(path: Path) -> str:
    try:
        return decode_line(next(read_lines(path), b""))
    except BadLine:
        return ""


def _keys(path: Path) -> list[str]:
    try:
        record = json.loads(_first_row(path))
    except ValueError:
        return []
    return list(map(str, record)) if isinstance(record, dict) else []


def _next(findings: Findings, paths: Sequence[Path], against: Sequence[Path]) -> str:
    files = " ".join(map(shell, paths))
    if findings.error:
        return "mend this, then check again"
    if findings.task not in FITTED:  # vectors
        return f"regard convert FOLDER RUN (an encoder that was trained elsewhere), then regard predict RUN {files}"
    val = f" --val {' '.join(map(shell, against))}" if against else ""
    out = shell(f"{paths[0].name.partition('.')[0] or 'mine'}.toml")
    return f"regard new {findings.task} --train {files}{val} --out {out}"


def _lengths(side: Side) -> Iterator[str]:
    def told(what: str, spread: Spread) -> str:
        return f"{what}: median {spread.median:g}, 95 % within {spread.most:g}, longest {spread.largest:g}"

    if side.is_spaced:
        yield told("words", side.words)
    yield told("characters", side.characters)


def _measured(side: Side) -> dict[str, Any]:
    """What JSON says of a column."""
    spreads = {"characters": side.characters, **({"words": side.words} if side.is_spaced else {})}
    lengths = {name: {"median": s.median, "95%": s.most, "longest": s.largest} for name, s in spreads.items()}
    return {"scripts": {name: round(share, 4) for name, share in side.scripts}, **lengths}


def _short(text: str) -> str:
    text = text.replace("\n", " / ")
    return text if len(text) <= WIDTH else f"{text[:WIDTH]} .."
