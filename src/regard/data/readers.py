"""Files -> Example. Lines end at \\n alone; .gz and .xz are read as they are; a bad line is named, never guessed at."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, Literal, cast

from regard.config import nearest
from regard.errors import DataError
from regard.types import Example

OnBadLine = Literal["error", "skip"]

COMPRESSED: dict[str, Callable[[Path, str], IO[bytes]]] = {".gz": gzip.open, ".xz": lzma.open}  # type: ignore[dict-item]
# of columns, in a first row
SOURCE_NAMES, TARGET_NAMES = {"source", "src", "document", "dialogue"}, {"target", "tgt", "trg", "summary"}
JSON_SOURCES = ("source", "document", "dialogue")  # keys of a .jsonl, the first that is there
JSON_TARGET = re.compile(r"(target|summary)\d*")  # several of them are equally right
LABEL_NAMES, TEXT_NAMES = {"label", "labels", "class", "category"}, {"text", "sentence", "question", "review"}
LABELLED_WANTED = "one .tsv (label, text) or one .jsonl (label, text)"
SHAPES_WANTED = "two parallel text files, one .tsv (source, target) or one .jsonl (source, target)"
MAX_NAMED = 20


class BadLine(Exception):
    """Why a line gives no example; `read_examples` turns it into an error or a count."""


@dataclass
class ReadReport:
    """What a reading came to: examples read, bad lines counted, the first of them named."""

    path: str = ""
    read: int = 0
    num_bad: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)  # file:line, reason; the first 20
    num_mended: int = 0  # of the bad lines: those that were read all the same
    most: int = MAX_NAMED  # bad lines that are named

    def add_bad(self, place: str, reason: str) -> None:
        self.num_bad += 1
        if len(self.bad) < self.most:
            self.bad.append((place, reason))

    def add_mended(self, place: str, reason: str) -> None:
        """A line that is bad, and read in the way that the reason says."""
        self.add_bad(place, reason)
        self.num_mended += 1

    @property
    def num_left_out(self) -> int:
        """Bad lines that gave nothing."""
        return self.num_bad - self.num_mended

    def describe(self) -> str:
        """One line a bad line, after the counts.

        >>> report = ReadReport("train.tsv", read=2)
        >>> report.add_bad("train.tsv:3", "the target is empty")
        >>> print(report.describe())
        train.tsv: 2 examples, 1 bad line skipped
          train.tsv:3: the target is empty
        """
        mended = f", {self.num_mended:,} of them read all the same" if self.num_mended else ""
        bad = f"{self.num_bad:,} bad line{'s' * (self.num_bad != 1)}{mended or ' skipped'}"
        lines = [f"{self.path}: {self.read:,} examples, {bad}"]
        lines += [f"  {place}: {reason}" for place, reason in self.bad]
        if self.num_bad > len(self.bad):
            lines.append(f"  and {self.num_bad - len(self.bad):,} more")
        return "\n".join(lines)


def read_examples(
    paths: Sequence[Path],
    *,
    on_bad_line: OnBadLine = "error",
    report: ReadReport | None = None,
    need_targets: bool = True,
) -> Iterator[Example]:
    """Reads two parallel text files, one .tsv, one .jsonl, or one plain text file of sources alone.

    Without `need_targets`, for prediction, a .tsv or .jsonl is read for its sources as well. Where there are sources
    alone, an empty one is kept, so that there is one answer a line.
    """
    return good_lines(_parse(paths, need_targets), paths, on_bad_line, report)


def read_labelled(
    paths: Sequence[Path],
    *,
    multi_label: bool = False,
    known: Sequence[str] = (),
    on_bad_line: OnBadLine = "error",
    report: ReadReport | None = None,
    need_labels: bool = True,
) -> Iterator[Example]:
    """Reads texts with labels: one .tsv (label, text) or one .jsonl (label, text); the targets are the labels.

    With `multi_label` a text may have any number of them: with commas between in a .tsv, as a list in a .jsonl. A label
    that is not among `known`, where that is given, makes a bad line. Without `need_labels`, for prediction, a file of
    texts alone will do, and labels are taken where they are.
    """
    return good_lines(parse_labelled(paths, multi_label, known, need_labels), paths, on_bad_line, report)


def good_lines(
    parsed: Iterator[tuple[str, Example | str]],
    paths: Sequence[Path],
    on_bad_line: OnBadLine,
    report: ReadReport | None,
) -> Iterator[Example]:
    """The examples; of bad lines an error, or a count in the report."""
    remedy = remedy_of(report)
    report = ReadReport() if report is None else report
    report.path = " + ".join(str(path) for path in paths)
    for place, result in parsed:
        if isinstance(result, Example):
            report.read += 1
            yield result
        elif on_bad_line == "skip":
            report.add_bad(place, result)
        else:
            raise DataError("a bad line", got=result, where=place, remedy=remedy)


def remedy_of(report: ReadReport | None) -> str:
    """What to do about a bad line; where nothing is counted, as for prediction, no key leaves it out."""
    skip = ', or set data.on_bad_line = "skip" to leave such lines out and count them'
    return "mend the line" + ("" if report is None else skip)


def read_text(file: IO[bytes], name: str, report: ReadReport | None = None) -> Iterator[str]:
    """The lines of an open text file, as those of a plain text file are read; `name` is what errors call it.

    With a `report`, bad lines are left out and named there.
    """
    for number, line in enumerate(_plain_lines(file, name), 1):
        try:
            text = decode_line(line)
        except BadLine as reason:
            if report is None:
                raise DataError("a bad line", got=reason, where=f"{name}:{number}") from None
            report.add_bad(f"{name}:{number}", str(reason))
        else:
            yield text


def read_plain(path: Path, *, on_bad_line: OnBadLine = "error", report: ReadReport | None = None) -> Iterator[Example]:
    """The lines of a plain text file, empty ones too."""
    require_file(path)
    remedy = remedy_of(report)
    report = ReadReport() if report is None else report
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            text = decode_line(line)
        except BadLine as reason:
            if on_bad_line == "error":
                raise DataError("a bad line", got=reason, where=place, remedy=remedy) from None
            report.add_bad(place, str(reason))
        else:
            report.read += 1
            yield Example(text, (), place)


def data_suffix(path: Path) -> str:
    """What says how a file is read: its suffix, without a compressor's.

    >>> data_suffix(Path("train.TSV.gz"))
    '.tsv'
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def require_file(path: Path) -> None:
    """Raises DataError unless this is a file; names the nearest file that is there."""
    if path.exists() and not path.is_dir():  # a pipe is as good
        return
    if path.is_dir():
        raise DataError("a folder where a file is wanted", got=path, wanted=SHAPES_WANTED)
    if not path.parent.is_dir():
        raise DataError("no such file", got=path, wanted=f"a file; the folder {path.parent} is not there either")
    near = nearest(path.name, (p.name for p in path.parent.iterdir() if p.is_file()))
    raise DataError("no such file", got=path, remedy=f"did you mean {path.parent / near}?" if near else None)


def _parse(paths: Sequence[Path], need_targets: bool) -> Iterator[tuple[str, Example | str]]:
    """(place, example), or (place, reason) for a bad line."""
    for path in paths:
        require_file(path)
    suffixes = [data_suffix(path) for path in paths]
    if len(paths) == 2:
        if {".tsv", ".jsonl"} & set(suffixes):
            got = " and ".join(str(path) for path in paths)
            raise DataError("a .tsv or .jsonl holds both sides and stands alone", got=got, wanted=SHAPES_WANTED)
        return _parse_parallel(*paths)
    if len(paths) != 1:
        raise DataError("a split is one file or two", got=f"{len(paths)} files", wanted=SHAPES_WANTED)
    return _parse_single(paths[0], suffixes[0], need_targets)


def _parse_single(path: Path, suffix: str, need_targets: bool) -> Iterator[tuple[str, Example | str]]:
    if suffix == ".json":
        yield from _parse_squad(path)
        return
    parse = PARSERS.get(suffix, _source_alone)
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            text = decode_line(line)
            if number == 1 and suffix == ".tsv" and _is_header(text, place):
                continue
            source, *targets = parse(text, need_targets)
        except BadLine as reason:
            yield place, str(reason)
        else:
            yield place, Example(source, tuple(targets), place)


def _parse_squad(path: Path) -> Iterator[tuple[str, Example | str]]:
    """Questions with their texts as sources, answers as targets."""
    from regard.data.squad import as_prompt, read_squad

    for question in read_squad(path):
        text = as_prompt(question.question, question.context)
        yield question.place, Example(text, question.texts or ("",), question.place)


def _parse_parallel(source_path: Path, target_path: Path) -> Iterator[tuple[str, Example | str]]:
    # The lines of each file are counted to the end even when one stops early: both counts belong into the message.
    counts = [0, 0]
    for number, lines in enumerate(zip_longest(read_lines(source_path), read_lines(target_path)), 1):
        counts = [count + (line is not None) for count, line in zip(counts, lines, strict=True)]
        if None in lines:
            continue
        texts: list[str] = []
        place = f"{source_path}:{number}"
        try:
            for path, line, side in zip((source_path, target_path), lines, ("source", "target"), strict=True):
                place = f"{path}:{number}"
                texts.append(filled(decode_line(cast(bytes, line)), side))
        except BadLine as reason:
            yield place, str(reason)
        else:
            first = f"{source_path}:{number}"
            yield first, Example(texts[0], (texts[1],), first, target_place=place)
    if counts[0] != counts[1]:
        raise DataError(
            "parallel files differ in their number of lines",
            got=f"{counts[0]:,} lines in {source_path}, {counts[1]:,} in {target_path}",
            wanted="line n of the one to be the translation of line n of the other",
        )


def _is_header(text: str, place: str) -> bool:
    """Whether a first row names the columns; raises DataError where it names them in another order than is read."""
    names = [cell.strip().lower() for cell in text.split("\t")]
    if names[0] in SOURCE_NAMES and (len(names) == 1 or names[1] in TARGET_NAMES):
        return True
    if SOURCE_NAMES & set(names) and TARGET_NAMES & set(names):
        raise DataError(
            "the columns of the .tsv are not in the order that is read",
            got=", ".join(names),
            wanted="source, target, and further targets if there are any",
            where=place,
            remedy="put the columns into this order and leave others out, or make a .jsonl with these keys",
        )
    return False


def _source_alone(text: str, need_targets: bool) -> list[str]:
    return [text]


def _tsv_sides(text: str, need_targets: bool) -> list[str]:
    cells = text.split("\t")
    if not need_targets:
        return cells[:1]
    if len(cells) < 2:
        raise BadLine("one column; wanted source, tab, target")
    names = ["source", "target", *(f"target in column {n}" for n in range(3, len(cells) + 1))]
    return [filled(cell, name) for cell, name in zip(cells, names, strict=True)]


def _json_sides(line: str, need_targets: bool) -> list[str]:
    record = json_object(line, "source and target")
    source = next((name for name in JSON_SOURCES if name in record), None)
    named = [value for name, value in record.items() if JSON_TARGET.fullmatch(name)]
    missing = "source" if source is None else "target" if need_targets and not named else None
    if source is None or missing:
        raise BadLine(f'no key "{missing}"; there are: {", ".join(map(str, record)) or "none"}')
    text: object = record[source]
    if isinstance(text, list):  # of sentences, or turns
        text = "\n".join(_text(part, "source") for part in text)
    if not need_targets:
        return [_text(text, "source")]
    targets = [target for value in named for target in (value if isinstance(value, list) else [value])]
    if not targets:
        raise BadLine("the target is empty")
    return [filled(text, "source"), *(filled(target, "target") for target in targets)]


def json_object(text: str, keys: str) -> dict[str, Any]:
    """A line of a .jsonl; `keys` is what it should have."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise BadLine(f"not a JSON object; wanted one with {keys}")
    return record


PARSERS: dict[str, Callable[[str, bool], list[str]]] = {".tsv": _tsv_sides, ".jsonl": _json_sides}


def parse_labelled(
    paths: Sequence[Path], multi_label: bool, known: Sequence[str], need_labels: bool
) -> Iterator[tuple[str, Example | str]]:
    """(place, example), or (place, reason) for a bad line."""
    if len(paths) != 1:
        raise DataError("labelled texts are one file", got=f"{len(paths)} files", wanted=LABELLED_WANTED)
    (path,) = paths
    require_file(path)
    suffix = data_suffix(path)
    if need_labels and suffix not in (".tsv", ".jsonl"):
        raise DataError("a file without labels", got=path, wanted=LABELLED_WANTED)
    split = _json_label if suffix == ".jsonl" else _tsv_label
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            text = decode_line(line)
            if number == 1 and suffix == ".tsv" and _is_label_header(text, place):
                continue
            labels, content = split(text) if suffix in (".tsv", ".jsonl") else (None, text)
            targets = _labels(labels, multi_label, known) if need_labels else _labels_there(labels, multi_label)
            example = Example((filled if need_labels else _text)(content, "text"), targets, place)
        except BadLine as reason:
            yield place, str(reason)
        else:
            yield place, example


def _is_label_header(text: str, place: str) -> bool:
    """Whether a first row names the columns; raises DataError where it names them in another order than is read."""
    names = [cell.strip().lower() for cell in text.split("\t")]
    *before, last = names
    if last in TEXT_NAMES and len(before) < 2 and LABEL_NAMES.issuperset(before):
        return True
    if LABEL_NAMES & set(names) and TEXT_NAMES & set(names):
        raise DataError(
            "the columns of the .tsv are not in the order that is read",
            got=", ".join(names),
            wanted="label, text",
            where=place,
            remedy="put the columns into this order and leave others out, or make a .jsonl with these keys",
        )
    return False


def _tsv_label(line: str) -> tuple[object, object]:
    """The label, None where there is one column, and the text."""
    cells = line.split("\t")
    if len(cells) > 2:
        raise BadLine(f"{len(cells)} columns; wanted label, tab, text")
    return (None, cells[0]) if len(cells) == 1 else (cells[0], cells[1])


def _json_label(line: str) -> tuple[object, object]:
    record = json_object(line, "label and text")
    names = [name for name in ("text", "source") if name in record]  # `predict` writes source and target
    if not names:
        raise BadLine(f'no key "text"; there are: {", ".join(map(str, record)) or "none"}')
    return record.get("label", record.get("target")), record[names[0]]


def _labels_there(value: object, multi_label: bool) -> tuple[str, ...]:
    """The labels of a text that is to be answered, if it has any that can be read."""
    try:
        return _labels(value, multi_label, ())
    except BadLine:
        return ()


def _labels(value: object, multi_label: bool, known: Sequence[str]) -> tuple[str, ...]:
    """The labels of an example, each once."""
    if value is None:
        raise BadLine("no label; wanted label and text")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # JSON may spell classes as numbers
    if not multi_label:
        found = [filled(value, "label").strip()]
    else:
        parts = value if isinstance(value, list) else _text(value, "label").split(",")
        found = [name for name in (_text(part, "label").strip() for part in parts) if name]
    unknown = [name for name in found if known and name not in known]
    if unknown:
        near = nearest(unknown[0], known)
        hint = f'; did you mean "{near}"?' if near else f"; known are: {', '.join(known[:10])}"
        raise BadLine(f'the label "{unknown[0]}" is not one of the training split{hint}')
    return tuple(dict.fromkeys(found))


def filled(value: object, side: str) -> str:
    """A text of a record that is not empty; `side` is what it is called."""
    text = _text(value, side)
    if not text.strip():
        raise BadLine(f"the {side} is empty")
    return text


def _text(value: object, side: str) -> str:
    if not isinstance(value, str):
        raise BadLine(f"the {side} is not a string: {json.dumps(value)[:40]}")
    try:
        value.encode()  # JSON can spell half a surrogate pair, which no UTF-8 file could hold
    except UnicodeEncodeError:
        raise BadLine(f"the {side} holds half a surrogate pair") from None
    return value


def decode_line(line: bytes) -> str:
    """The text of a line."""
    if 0 in line:
        raise BadLine(f"a NUL byte at column {line.index(0) + 1}: not text, or not UTF-8")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}") from None


def read_whole(path: Path) -> str:
    """All of a text file, also of a compressed one."""
    require_file(path)
    try:
        return b"\n".join(read_lines(path)).decode()
    except UnicodeDecodeError as error:
        raise DataError("the file is not UTF-8", got=error, where=path) from None


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, also of a compressed one, without their ends."""
    with opened(path) as file:
        yield from _plain_lines(file, path)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, also a compressed one, with errors that say which it is."""
    try:
        with COMPRESSED.get(path.suffix.lower(), Path.open)(path, "rb") as file:
            yield file
    except EOFError:
        raise DataError(
            "the compressed file is truncated", got=path, remedy="copy or download it again; `gzip -t`, `xz -t` check"
        ) from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise DataError("the compressed file is damaged", got=error, where=path, remedy="copy it again") from None
    except OSError as error:
        raise DataError("the file cannot be read", got=error.strerror or error, where=path) from None


def _plain_lines(file: IO[bytes], name: object) -> Iterator[bytes]:
    """Lines without their end: \\n, or \\r\\n. The mark that some editors put before UTF-8 is no text."""
    for number, line in enumerate(file):
        if number == 0:
            _refuse_utf16(line, name)
            line = line.removeprefix(b"\xef\xbb\xbf")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _refuse_utf16(line: bytes, name: object) -> None:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError("the file is UTF-16", got=name, wanted="UTF-8", remedy="iconv -f UTF-16 -t UTF-8")
