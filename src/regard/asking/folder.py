"""A folder of texts as passages: short paragraphs together, long ones in parts that overlap a little."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.errors import DataError

SUFFIXES = (".txt", ".md")
SIZE, OVERLAP = 1000, 250  # of a passage and of what two share, in bytes: a Chinese character is worth three letters
PARAGRAPH = re.compile(r"\S(?:.*?\S)??(?=[ \t]*(?:\r?\n[ \t]*\r?\n|\s*\Z))", re.DOTALL)
SENTENCE = re.compile(r".+?(?:[.!?][\"')\]]*(?=\s)|[。！？!?][」』”）]*|\n|\Z)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a file, as it stands there."""

    file: Path
    start: int  # characters of the file before it
    line: int  # that it begins in, from 1
    text: str

    @property
    def end(self) -> int:
        """The character of the file after it."""
        return self.start + len(self.text)

    def line_of(self, place: int) -> int:
        """The line of the file that a character of the passage is in."""
        return self.line + self.text.count("\n", 0, place)


@dataclass(frozen=True, slots=True)
class Library:
    """The passages of a folder, and the files that could not be read, each with the reason."""

    folder: Path
    passages: tuple[Passage, ...]
    num_files: int
    left_out: tuple[tuple[Path, str], ...]


def read_folder(folder: Path) -> Library:
    """Every .txt and .md in a folder and the folders in it, in the order of their names."""
    if not folder.is_dir():
        got = f"{folder}, {'a file' if folder.exists() else 'which is not there'}"
        raise DataError("no folder of texts", got=got, wanted=f"a folder with {' or '.join(SUFFIXES)} files")
    names = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    files = [path for path in names if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    passages: list[Passage] = []
    left_out: list[tuple[Path, str]] = []
    for path in files:
        try:
            passages += cut(path, read_text(path))
        except (OSError, ValueError) as error:
            left_out.append((path, _reason(error)))
    if not passages:
        got = f"{len(files):,} such files, {len(left_out):,} of them unreadable" if files else "no such file"
        wanted = f"{' or '.join(SUFFIXES)} files with words in them, in UTF-8"
        remedy = f"{left_out[0][0]}: {left_out[0][1]}" if left_out else None
        raise DataError("the folder holds no text", got=got, wanted=wanted, where=folder, remedy=remedy)
    return Library(folder, tuple(passages), len(files), tuple(left_out))


def read_text(path: Path) -> str:
    """A text file in UTF-8, or in UTF-16 if it says so itself; what is neither is refused, never guessed at."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    if 0 in data:
        raise ValueError("a NUL byte: not text")
    return data.decode("utf-8-sig")


def cut(file: Path, text: str, size: int = SIZE, overlap: int = OVERLAP) -> Iterator[Passage]:
    """The passages of a text: as many whole parts as fit; of the last ones, the next passage begins with some again."""
    parts = [part for found in PARAGRAPH.finditer(text) for part in _parts(text, *found.span(), size)]
    first = counted = 0
    line = 1
    while first < len(parts):
        last = first
        while last + 1 < len(parts) and _size(text[parts[first][0] : parts[last + 1][1]]) <= size:
            last += 1
        start, end = parts[first][0], parts[last][1]
        line, counted = line + text.count("\n", counted, start), start
        yield Passage(file, start, line, text[start:end].rstrip())
        again = last + 1
        if again == len(parts):
            return
        while again - 1 > first and _fits(text, parts[again - 1][0], end, parts[last + 1][1], size, overlap):
            again -= 1
        first = again


def _fits(text: str, start: int, end: int, next_end: int, size: int, overlap: int) -> bool:
    """Whether a passage may begin so far before the end of the last one, and still hold the part after it."""
    return _size(text[start:end]) <= overlap and _size(text[start:next_end]) <= size


def _parts(text: str, start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """A paragraph as it is, or its sentences where it is too long; a sentence that is too long itself is cut."""
    if _size(text[start:end]) <= size:
        yield start, end
        return
    for sentence in SENTENCE.finditer(text, start, end):
        first, last = sentence.span()
        step = max(1, (last - first) * size // max(1, _size(sentence[0])))
        for place in range(first, last, step):
            if text[place : min(place + step, last)].strip():
                yield place, min(place + step, last)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start:,}"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
