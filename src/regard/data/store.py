"""Encoded text on disk: written once, memory-mapped, found again by what it was made of.

A cache folder is named after everything that decides its content. It appears whole or not at all, carries the sums
of its files, and is made again when they do not hold: a damaged cache costs time, never an error or a wrong row.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from regard.data.folders import put_folder
from regard.data.readers import SHAPES_WANTED, OnBadLine, ReadReport, data_suffix, read_examples, require_file
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError
from regard.types import Example

TooLong = Literal["error", "truncate", "drop"]
Ids = npt.NDArray[np.unsignedinteger[Any]]

FORMAT = 1  # change it when the same input must give other files
ARRAYS = ("source_ids.npy", "source_starts.npy", "target_ids.npy", "target_starts.npy")
COUNTS, SUMS = "counts.json", "sums.json"
CHUNK = 8192  # examples encoded at once


@dataclass(frozen=True)
class Column:
    """One side of all rows: their ids behind one another, and where each row starts (one more than there are rows)."""

    ids: Ids
    starts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], dtype: npt.DTypeLike) -> Self:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter((i for row in rows for i in row), dtype, int(lengths.sum()))
        return cls(flat, np.concatenate([[0], np.cumsum(lengths)]))

    @functools.cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.starts)

    def row(self, i: int) -> Ids:
        return self.ids[self.starts[i] : self.starts[i + 1]]


@dataclass
class Counts:
    """What became of the text: rows that were cut or left out for their length, lines that were bad."""

    truncated: int = 0
    dropped: int = 0
    bad: int = 0
    bad_lines: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # the first: file:line, reason


@dataclass(frozen=True)
class Store:
    """Rows of ids without special ones: one a pair of source and target, so several for an example with variants."""

    sources: Column
    targets: Column
    counts: Counts

    def __len__(self) -> int:
        return len(self.sources.starts) - 1

    def source(self, i: int) -> Ids:
        return self.sources.row(i)

    def target(self, i: int) -> Ids:
        return self.targets.row(i)

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        return self.sources.lengths

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        return self.targets.lengths

    def describe(self) -> str:
        """One line: rows, tokens, and what was cut or left out."""
        c = self.counts
        return (
            f"{len(self):,} rows, {len(self.sources.ids):,} source and {len(self.targets.ids):,} target tokens; "
            f"{c.truncated:,} truncated, {c.dropped:,} dropped, {c.bad:,} bad lines"
        )


def build_store(
    paths: Sequence[Path],
    source: Tokenizer,
    target: Tokenizer,
    *,
    cache_dir: Path,
    max_length: int,
    too_long: TooLong = "error",
    on_bad_line: OnBadLine = "error",
) -> Store:
    """Encodes a split, or finds it encoded: the same files, tokenizers and policy are never encoded twice.

    `max_length` counts the ids of each side, without special ones.
    """
    policy = {"max_length": max_length, "too_long": too_long, "on_bad_line": on_bad_line}
    folder = cache_dir / _key(paths, source, target, policy)
    found = _open(folder)
    if found is not None:
        return found
    report = ReadReport()
    examples = read_examples(paths, on_bad_line=on_bad_line, report=report)
    store = _encode(examples, source, target, max_length=max_length, too_long=too_long)
    store.counts.bad, store.counts.bad_lines = report.num_bad, report.bad
    if not len(store):
        raise DataError("there is no example to learn from", got=store.describe(), where=report.path)
    put_folder(folder, lambda draft: _write(store, draft), what="the encoded text", is_whole=_is_whole)
    return _open(folder) or store


def _key(paths: Sequence[Path], source: Tokenizer, target: Tokenizer, policy: dict[str, Any]) -> str:
    """The name of the cache: a sum over all that decides what is in it, and not over where the files lie."""
    for path in paths:
        require_file(path)
    try:
        files = [[data_suffix(path), path.suffix, _sum(path)] for path in paths]
    except OSError as error:
        raise DataError("the file cannot be read", got=error.strerror, where=error.filename) from None
    parts = {
        "format": FORMAT,
        "files": files,
        "tokenizers": [hashlib.sha256(t.to_json().encode()).hexdigest() for t in (source, target)],
        "policy": policy,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _encode(
    examples: Iterable[Example], source: Tokenizer, target: Tokenizer, *, max_length: int, too_long: TooLong
) -> Store:
    counts = Counts()
    sides: tuple[list[Column], list[Column]] = ([], [])
    dtypes = [np.uint16 if tokenizer.size <= 2**16 else np.uint32 for tokenizer in (source, target)]
    for chunk in _chunks(examples, CHUNK):
        rows = _encode_chunk(chunk, source, target)
        kept = list(_fit(rows, counts, max_length=max_length, too_long=too_long))
        for i, side in enumerate(sides):
            side.append(Column.of([pair[i] for pair in kept], dtypes[i]))
    return Store(_join(sides[0], dtypes[0]), _join(sides[1], dtypes[1]), counts)


def _encode_chunk(
    chunk: list[Example], source: Tokenizer, target: Tokenizer
) -> Iterator[tuple[str, list[int], list[int]]]:
    """(place, source ids, target ids) for each example and each of its targets."""
    alone = next((example for example in chunk if not example.targets), None)
    if alone is not None:
        raise DataError("there are sources, but no targets", got=alone.place, wanted=SHAPES_WANTED)
    target_ids = iter(target.encode_batch([text for example in chunk for text in example.targets]))
    for example, source_ids in zip(chunk, source.encode_batch([example.source for example in chunk]), strict=True):
        for ids in islice(target_ids, len(example.targets)):
            yield example.place, source_ids, ids


def _fit(
    rows: Iterable[tuple[str, list[int], list[int]]], counts: Counts, *, max_length: int, too_long: TooLong
) -> Iterator[tuple[list[int], list[int]]]:
    """The rows under the policy for what is too long."""
    for place, source_ids, target_ids in rows:
        longest = max(len(source_ids), len(target_ids))
        if longest <= max_length:
            yield source_ids, target_ids
        elif too_long == "truncate":
            counts.truncated += 1
            yield source_ids[:max_length], target_ids[:max_length]
        elif too_long == "drop":
            counts.dropped += 1
        else:
            side = "source" if longest == len(source_ids) else "target"
            raise DataError(
                f"the {side} is too long",
                got=f"{longest:,} tokens",
                wanted=f"at most {max_length:,} (data.max_length)",
                where=place,
                remedy='raise data.max_length, or set data.too_long = "truncate" or "drop"',
            )


def _chunks(examples: Iterable[Example], size: int) -> Iterator[list[Example]]:
    examples = iter(examples)
    while chunk := list(islice(examples, size)):
        yield chunk


def _join(columns: list[Column], dtype: npt.DTypeLike) -> Column:
    ids = np.concatenate([np.empty(0, dtype), *(column.ids for column in columns)])
    lengths = np.concatenate([np.zeros(1, np.int64), *(column.lengths for column in columns)])
    return Column(ids, np.cumsum(lengths))


def _write(store: Store, folder: Path) -> None:
    arrays = (store.sources.ids, store.sources.starts, store.targets.ids, store.targets.starts)
    for name, array in zip(ARRAYS, arrays, strict=True):
        np.save(folder / name, array, allow_pickle=False)
    (folder / COUNTS).write_text(json.dumps(dataclasses.asdict(store.counts), indent=1))
    sums = {name: _sum(folder / name) for name in (*ARRAYS, COUNTS)}
    (folder / SUMS).write_text(json.dumps(sums, indent=1))


def _open(folder: Path) -> Store | None:
    """The store in this folder, or None where it is not there, not whole or not what was written."""
    try:
        if json.loads((folder / SUMS).read_text()) != {name: _sum(folder / name) for name in (*ARRAYS, COUNTS)}:
            return None
        arrays = [np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in ARRAYS]
        counts = Counts(**json.loads((folder / COUNTS).read_text()))
    except (OSError, ValueError):
        return None
    counts.bad_lines = [(place, reason) for place, reason in counts.bad_lines]  # JSON has no tuples
    return Store(Column(arrays[0], arrays[1]), Column(arrays[2], arrays[3]), counts)


def _is_whole(folder: Path) -> bool:
    return _open(folder) is not None


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
