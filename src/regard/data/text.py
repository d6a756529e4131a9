"""Running text as one stream of ids: what language models read."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.data.cache import Kept, kept, name_of
from regard.data.noise import Noise
from regard.data.readers import OnBadLine, ReadReport, data_suffix, read_labelled, read_plain
from regard.data.store import CHUNK, NAMES, Column, chunks, count_unknown, join, unknown_share
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError
from regard.types import Example

LineEnds = Literal["text", "token"]
Ends = Literal["text", "token", "none"]  # none: lines are apart, and one without words is an empty row
Part = Literal["all", "first", "last"]
LABELLED = (".tsv", ".jsonl")  # files of which the texts alone are running text


@dataclass(frozen=True)
class Span:
    """Which part of a text is meant: all of it, or what comes before or after the last `share` of its characters."""

    part: Part = "all"
    share: float = 0.0

    def of(self, lines: Iterator[str]) -> Iterator[str]:
        """The lines of this part, with their ends; of the one that the cut goes through each part has its own.

        >>> list(Span("first", 0.25).of(iter(["abcd\\n", "efg\\n"])))
        ['abcd\\n', 'e']
        """
        if self.part == "all":
            return lines
        text = "".join(lines)
        cut = int(len(text) * (1 - self.share) + 1e-6)  # 10 * (1 - 0.8) is less than 2
        return io.StringIO(text[:cut] if self.part == "first" else text[cut:], newline="\n")


WHOLE, NO_NOISE = Span(), Noise()


@dataclass(frozen=True)
class Measures:
    """How much text there is, however it is cut into tokens; a line's end is a character, a word where it counts."""

    lines: int
    words: int
    characters: int
    bytes: int


@dataclass(frozen=True)
class Text:
    """A text as ids: `lines` are rows of a column, each with the id of its end where that is a token."""

    lines: Column
    measures: Measures
    bad: int = 0
    unknown: int = 0  # tokens that the vocabulary has not
    starts: npt.NDArray[np.bool_] | None = None  # of each id, whether a word begins with it

    def __len__(self) -> int:
        return len(self.lines.ids)

    def describe(self) -> str:
        m = self.measures
        bad = f"; {self.bad:,} bad lines left out" if self.bad else ""
        line = f"{len(self):,} tokens, {m.lines:,} lines, {m.words:,} words, {m.characters:,} characters{bad}"
        return line + unknown_share(self.unknown, len(self))


def read_lines_of(paths: Sequence[Path], span: Span, *, on_bad_line: OnBadLine, report: ReadReport) -> Iterator[str]:
    """The lines of running text, one file after the other, each with its end."""
    return span.of(f"{example.source}\n" for example in read_running(paths, on_bad_line=on_bad_line, report=report))


def read_running(paths: Sequence[Path], *, on_bad_line: OnBadLine, report: ReadReport) -> Iterator[Example]:
    """Each line of plain text; of a .tsv or .jsonl of labelled texts each text, as classification reads it."""
    for path in paths:
        if data_suffix(path) in LABELLED:
            for example in read_labelled([path], need_labels=False, on_bad_line=on_bad_line, report=report):
                yield from (Example(line, (), example.place) for line in example.source.split("\n"))
        else:
            yield from read_plain(path, on_bad_line=on_bad_line, report=report)


def build_text(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    *,
    cache_dir: Path,
    line_ends: Ends,
    split: str,
    span: Span = WHOLE,
    on_bad_line: OnBadLine = "error",
    words: bool = False,
    noise: Noise = NO_NOISE,
) -> Text:
    """Encodes plain text, or finds it encoded. A line's end is text as any other character, or a token: `</s>`.

    With `words` the text also knows where its words begin; with `noise` it has mistakes, line by line.
    """

    def make() -> Kept:
        report = ReadReport(", ".join(str(path) for path in paths))
        end = [tokenizer.specials.end] if line_ends == "token" else []
        dtype = np.uint16 if tokenizer.size <= 2**16 else np.uint32
        columns, starts, counts = [], [], np.zeros(4, np.int64)
        for chunk in chunks(read_lines_of(paths, span, on_bad_line=on_bad_line, report=report), CHUNK):
            chunk = [noise.text(line) for line in chunk] if noise.share else chunk
            lines = [_without_end(line, line_ends) for line in chunk]
            ends = [end * line.endswith("\n") for line in chunk]  # a line that was cut in two has one end
            rows = zip(tokenizer.encode_batch(lines), ends, strict=True)
            columns.append(Column.of([[*row, *last] for row, last in rows], dtype))
            if words:
                begun = zip(tokenizer.word_starts(lines), ends, strict=True)
                known = (x for row, last in begun for x in (*row, *[True] * len(last)))
                starts.append(np.fromiter(known, bool, len(columns[-1].ids)))
            num_words = sum(len(line.split()) for line in chunk) + sum(map(len, ends))
            counts += [len(chunk), num_words, sum(map(len, chunk)), sum(len(line.encode()) for line in chunk)]
        column = join(columns, dtype)
        if len(column.ids) < 2:
            remedy = f"put more text into it, or name another file under {split}"
            raise DataError(
                f"the {NAMES.get(split, split)} split has no text to read",
                got=f"{len(column.ids)} tokens",
                wanted="two or more",
                where=report.path,
                remedy=remedy,
            )
        unknown = count_unknown(column.ids, tokenizer)
        about = {"measures": asdict(Measures(*counts.tolist())), "bad": report.num_bad, "unknown": unknown}
        arrays = {"ids": column.ids, "starts": column.starts}
        return (arrays | {"word_starts": np.concatenate(starts)} if words else arrays), about

    policy: dict[str, object] = {
        "line_ends": line_ends,
        "span": [span.part, span.share],
        "on_bad_line": on_bad_line,
        "text": 3,
    }
    policy |= {"words": True} if words else {}
    policy |= {"noise": str(noise)} if noise.share else {}
    arrays, about = kept(cache_dir / name_of(paths, [tokenizer], policy), make)
    column = Column(arrays["ids"], arrays["starts"])
    return Text(column, Measures(**about["measures"]), about["bad"], about["unknown"], arrays.get("word_starts"))


def _without_end(line: str, ends: Ends) -> str:
    return {"text": line, "token": line.removesuffix("\n"), "none": line.strip()}[ends]
