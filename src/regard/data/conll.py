"""Files of texts with marked spans -> TaggedText.

CoNLL: a token a line, its tag in the last column, tabs or spaces between the columns, and an empty line (or a line that
begins with -DOCSTART-) between sentences. Or a .jsonl with `text` and `spans` [{start, end, label}]. Both also as .gz
and .xz. Tags may be in any scheme (see `schemes`). A tag that may not stand where it stands is counted, named and read
as conlleval does; anything else that is wrong makes a bad line, with which its sentence goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.marked import Places, Units, cut, mark, spans_of, units_of, unmark, words_of
from regard.data.readers import (
    BadLine,
    OnBadLine,
    ReadReport,
    data_suffix,
    decode_line,
    filled,
    good_lines,
    json_object,
    read_lines,
    require_file,
)
from regard.data.schemes import Found, is_bare, mistakes, scheme_of, to_spans
from regard.data.unread import policy_of
from regard.errors import DataError
from regard.types import Example, Span

WANTED = "one CoNLL file (a token a line, its tag last) or one .jsonl (text, spans)"
Parsed = Iterator[tuple[str, Example | str]]  # a place with its example, or with why there is none


@dataclass(frozen=True, slots=True)
class TaggedText(Example):
    """A text, where its words stand, and what is marked in it; its one target is the text with the marks."""

    units: Places = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Sentence:
    """Lines of a CoNLL file up to an empty one."""

    tokens: list[str]
    tags: list[str]
    lines: list[int]
    reason: str = ""  # why it cannot be read, and at which line
    bad_line: int = 0


@dataclass(frozen=True)
class Format:
    """What a file of tagged texts is like: the scheme of its tags, and whether it is read by words or characters."""

    scheme: Found
    units: Units


def tagged(example: Example, units: Units) -> TaggedText:
    """An example with its words and spans, as read from its file or else as its text and target say."""
    if isinstance(example, TaggedText):
        return example
    spans = unmark(example.targets[0], example.place)[1] if example.targets else ()
    return TaggedText(example.source, example.targets, example.place, cut(example.source, units), spans)


def with_words(text: TaggedText, words: Sequence[str]) -> TaggedText:
    """The same text with other words in place of its own, one for one."""
    source, units, done = "", [], 0
    for (start, end), word in zip(text.units, words, strict=True):
        source += text.source[done:start] + word
        units.append((len(source) - len(word), len(source)))
        done = end
    places = tuple(units)
    spans = spans_of(words_of(text.spans, text.units), places)
    return _text(source + text.source[done:], text.place, places, spans)


def format_of(path: Path) -> Format:
    """What a file is like, bad lines left aside."""
    _require_one([path])
    if data_suffix(path) == ".jsonl":
        texts = [example.source for _, example in _parse_json(path, "words") if isinstance(example, Example)]
        return Format("bio", units_of(texts))
    sentences = [sentence for sentence in _sentences(path) if not sentence.reason]
    words = (token for sentence in sentences for token in sentence.tokens)
    return Format(scheme_of(sentence.tags for sentence in sentences), units_of(words))


def read_tagged(
    paths: Sequence[Path],
    *,
    units: Units,
    on_bad_line: OnBadLine = "error",
    report: ReadReport | None = None,
) -> Iterator[Example]:
    """Reads texts with marked spans; tags that break their scheme are counted in the report, and read all the same."""
    path = _require_one(paths)
    report = ReadReport() if report is None else report
    parsed = _parse_json(path, units) if data_suffix(path) == ".jsonl" else _parse_conll(path, units, report)
    return good_lines(parsed, paths, on_bad_line, report)


def read_to_tag(path: Path, *, units: Units, report: ReadReport | None = None) -> Iterator[Example]:
    """Reads a file of texts that are to be answered: tagged as above, or a text a line, which then has no target.

    Where a line is a text, a bad one is left out if there is a `report`, and named there.
    """
    policy = policy_of(report)
    if data_suffix(path) == ".jsonl":
        return good_lines(_parse_json(path, units, need_spans=False), [path], policy, report)
    _require_one([path])
    first = [line for line in itertools.islice(read_lines(path), 100) if line.strip()]
    if first and all(_is_tagged(line) for line in first):
        return read_tagged([path], units=units)
    return good_lines(_parse_texts(path, units), [path], policy, report)


def _require_one(paths: Sequence[Path]) -> Path:
    if len(paths) != 1:
        raise DataError("tagged texts are one file", got=f"{len(paths)} files", wanted=WANTED)
    require_file(paths[0])
    return paths[0]


def _columns(line: str) -> list[str]:
    """The columns of a line: between tabs where it has any, else between spaces."""
    return [cell.strip(" ") for cell in line.split("\t")] if "\t" in line else [c for c in line.split(" ") if c]


def _is_tagged(line: bytes) -> bool:
    """Whether a line could be one of a CoNLL file."""
    columns = _columns(line.decode(errors="replace"))
    return columns[0] == "-DOCSTART-" or (len(columns) > 1 and (columns[-1] == "O" or not is_bare(columns[-1])))


def _sentences(path: Path) -> Iterator[Sentence]:
    for is_text, group in itertools.groupby(enumerate(read_lines(path), 1), key=lambda each: _is_text(each[1])):
        if is_text:
            yield _sentence(list(group))


def _is_text(line: bytes) -> bool:
    return bool(line.strip()) and not line.startswith(b"-DOCSTART-")


def _sentence(lines: Sequence[tuple[int, bytes]]) -> Sentence:
    found = Sentence([], [], [number for number, _ in lines])
    for number, line in lines:
        try:
            columns = _columns(decode_line(line))
            if len(columns) < 2:
                raise BadLine("one column; wanted a token, and its tag in the last column")
            if not (columns[0] and columns[-1]):
                raise BadLine(f"the {'tag' if columns[0] else 'token'} is empty")
        except BadLine as reason:
            return Sentence([], [], found.lines, str(reason), number)
        found.tokens.append(columns[0])
        found.tags.append(columns[-1])
    return found


def _parse_conll(path: Path, units: Units, report: ReadReport) -> Parsed:
    sentences = list(_sentences(path))
    tags = [tag for sentence in sentences for tag in sentence.tags]
    scheme, mixed = scheme_of(sentence.tags for sentence in sentences), {is_bare(tag) for tag in tags if tag != "O"}
    for sentence in sentences:
        bare = [i for i, tag in enumerate(sentence.tags) if len(mixed) == 2 and is_bare(tag)]
        if sentence.reason:
            yield f"{path}:{sentence.bad_line}", sentence.reason
        elif bare:
            reason = f'the tag "{sentence.tags[bare[0]]}" has no B- or I- before it, as others of the file have'
            yield f"{path}:{sentence.lines[bare[0]]}", reason
        else:
            for place, what in mistakes(sentence.tags, scheme):
                report.add_mended(
                    f"{path}:{sentence.lines[place]}", f"{what} in {scheme.upper()}; read as conlleval does"
                )
            where = f"{path}:{sentence.lines[0]}"
            yield where, _joined(sentence, units, where)


def _joined(sentence: Sentence, units: Units, place: str) -> TaggedText:
    """The text of a sentence: its words with spaces between them, its characters without."""
    between = " " if units == "words" else ""
    ends = [end - len(between) for end in itertools.accumulate(len(token + between) for token in sentence.tokens)]
    words = tuple((end - len(token), end) for end, token in zip(ends, sentence.tokens, strict=True))
    return _text(between.join(sentence.tokens), place, words, spans_of(to_spans(sentence.tags), words))


def _text(text: str, place: str, units: Places, spans: Sequence[Span]) -> TaggedText:
    return TaggedText(text, (mark(text, spans),), place, units, tuple(spans))


def _parse_texts(path: Path, units: Units) -> Parsed:
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            text = decode_line(line)
        except BadLine as reason:
            yield place, str(reason)
        else:
            yield place, TaggedText(text, (), place, cut(text, units))


def _parse_json(path: Path, units: Units, *, need_spans: bool = True) -> Parsed:
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            record = json_object(decode_line(line), "text and spans")
            name = next((name for name in ("text", "source") if name in record), None)  # `predict` writes source
            missing = "text" if name is None else "spans" if need_spans and "spans" not in record else None
            if name is None or missing:
                raise BadLine(f'no key "{missing}"; there are: {", ".join(map(str, record)) or "none"}')
            text = filled(record[name], "text")
            spans = _spans(record["spans"], text) if "spans" in record else None
        except BadLine as reason:
            yield place, str(reason)
        else:
            words = cut(text, units)
            yield place, TaggedText(text, (), place, words) if spans is None else _text(text, place, words, spans)


def _spans(given: Any, text: str) -> list[Span]:
    """The spans of a record, in their order; none may overlap another."""
    if not isinstance(given, list):
        raise BadLine("spans is not a list; wanted [{start, end, label}, ..]")
    spans = sorted((_span(each, text) for each in given), key=lambda span: span.start)
    for first, second in itertools.pairwise(spans):
        if second.start < first.end:
            got = f"{first.start}-{first.end} and {second.start}-{second.end}"
            raise BadLine(f"two spans overlap: {got}; a word has one tag")
    return spans


def _span(given: Any, text: str) -> Span:
    values = [given.get(name) for name in ("start", "end", "label")] if isinstance(given, dict) else []
    match values:
        case [int(start), int(end), str(label)] if label.strip():
            if not 0 <= start < end <= len(text) or not text[start:end].strip():
                raise BadLine(f"a span from {start} to {end} of a text of {len(text)} characters marks nothing")
            inner = text[start:end]
            return Span(start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip()), label.strip())
    raise BadLine(f"not a span: {str(given)[:60]}; wanted start and end (numbers) and label")


def labels_in(examples: Iterable[Example]) -> list[str]:
    """All labels of these texts, sorted."""
    return sorted({span.label for example in examples if isinstance(example, TaggedText) for span in example.spans})
