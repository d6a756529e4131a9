"""Pairs of texts as ids, encoded once and then memory-mapped."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from regard.data.cache import Kept, kept, name_of
from regard.data.readers import SHAPES_WANTED, OnBadLine, ReadReport, read_examples
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError
from regard.types import Example

TooLong = Literal["error", "truncate", "drop"]
Item = TypeVar("Item")
Ids = npt.NDArray[np.unsignedinteger[Any]]
Read = Callable[[ReadReport], Iterable[Example]]
Lead = Callable[[str], list[int]]
Places = Callable[[Sequence[int]], Sequence[int]]

ARRAYS = ("source_ids", "source_starts", "target_ids", "target_starts")
NAMES = {"train": "training", "val": "validation"}  # of splits, in words
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
    """What became of the text: rows cut or left out for their length, lines that were bad, tokens that are unknown."""

    truncated: int = 0
    dropped: int = 0
    bad: int = 0
    unknown: int = 0  # tokens (of sources, where there are two sides) that the vocabulary has not
    unknown_targets: int = 0
    bad_lines: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # the first: file:line, reason

    def to_json(self, paths: Sequence[Path]) -> dict[str, Any]:
        """What a cache keeps of them. It goes by content: of a bad line it has the number of its file, no path.

        >>> Counts(bad=1, bad_lines=[("b.tsv:2", "one column")]).to_json([Path("a.tsv"), Path("b.tsv")])["bad_lines"]
        [(1, ':2', 'one column')]
        """
        bad = [(*_parted(place, paths), reason) for place, reason in self.bad_lines]
        return {**dataclasses.asdict(self), "bad_lines": bad}

    @classmethod
    def of_json(cls, about: dict[str, Any], paths: Sequence[Path]) -> Self:
        """What was counted, with the bad lines in these files, which hold what was read then."""
        bad = [(f"{paths[file]}{line}", reason) for file, line, reason in about["bad_lines"]]
        return cls(**{**about, "bad_lines": bad})


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
        """One line: rows, tokens, what was cut or left out, and what share of the tokens is unknown."""
        c = self.counts
        return (
            f"{len(self):,} rows, {len(self.sources.ids):,} source and {len(self.targets.ids):,} target tokens; "
            f"{c.truncated:,} truncated, {c.dropped:,} dropped, {c.bad:,} bad lines"
            f"{unknown_share(c.unknown, len(self.sources.ids), 'source tokens')}"
            f"{unknown_share(c.unknown_targets, len(self.targets.ids), 'target tokens')}"
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
    split: str,
    read: Read | None = None,
    lead: Lead | None = None,
    places: Places | None = None,
    more: dict[str, Any] | None = None,
) -> Store:
    """Encodes a split, or finds it encoded: the same files, tokenizers and policy are never encoded twice.

    `max_length` counts the ids of each side, without special ones. A task that reads its files in its own way gives
    `read`, `lead` where ids that follow from the target are put before a source, and `places` where of a longer source
    not the first ids are read; `more` is all that these depend on.
    """
    policy: dict[str, Any] = {"max_length": max_length, "too_long": too_long, "on_bad_line": on_bad_line}
    policy |= more or {}

    def make() -> Kept:
        report = ReadReport()
        found = read(report) if read else read_examples(paths, on_bad_line=on_bad_line, report=report)
        store = _encode(found, source, target, max_length=max_length, too_long=too_long, lead=lead, places=places)
        store.counts.bad, store.counts.bad_lines = report.num_bad, report.bad
        store.counts.unknown = count_unknown(store.sources.ids, source)
        store.counts.unknown_targets = count_unknown(store.targets.ids, target)
        if not len(store):
            raise no_example(split, report.path, store.counts)
        columns = (store.sources.ids, store.sources.starts, store.targets.ids, store.targets.starts)
        return dict(zip(ARRAYS, columns, strict=True)), store.counts.to_json(paths)

    arrays, about = kept(cache_dir / name_of(paths, [source, target], policy), make)
    source_ids, source_starts, target_ids, target_starts = (arrays[name] for name in ARRAYS)
    counts = Counts.of_json(about, paths)
    return Store(Column(source_ids, source_starts), Column(target_ids, target_starts), counts)


def as_asked(example: Example, prefix: str, *, swapped: bool) -> Example:
    """An example as a model is asked it.

    >>> as_asked(Example("good", ("a fine film",)), "sentiment: ", swapped=True)
    Example(source='sentiment: a fine film', targets=('good',), place='', target_place='')
    """
    if swapped:
        places = {"place": example.target_place or example.place, "target_place": example.place}
        return dataclasses.replace(example, source=prefix + example.targets[0], targets=(example.source,), **places)
    return dataclasses.replace(example, source=prefix + example.source)


def _parted(place: str, paths: Sequence[Path]) -> tuple[int, str]:
    """Which of the files a place is in, and where in it."""
    names = [str(path) for path in paths]
    file = max((i for i, name in enumerate(names) if place.startswith(f"{name}:")), key=lambda i: len(names[i]))
    return file, place.removeprefix(names[file])


def _encode(
    examples: Iterable[Example],
    source: Tokenizer,
    target: Tokenizer,
    *,
    max_length: int,
    too_long: TooLong,
    lead: Lead | None,
    places: Places | None,
) -> Store:
    counts = Counts()
    sides: tuple[list[Column], list[Column]] = ([], [])
    dtypes = [np.uint16 if tokenizer.size <= 2**16 else np.uint32 for tokenizer in (source, target)]
    for chunk in chunks(examples, CHUNK):
        rows = _encode_chunk(chunk, source, target, lead or (lambda text: []))
        kept = list(_fit(rows, counts, max_length=max_length, too_long=too_long, places=places))
        for i, side in enumerate(sides):
            side.append(Column.of([pair[i] for pair in kept], dtypes[i]))
    return Store(join(sides[0], dtypes[0]), join(sides[1], dtypes[1]), counts)


def _encode_chunk(
    chunk: list[Example], source: Tokenizer, target: Tokenizer, lead: Lead
) -> Iterator[tuple[Example, list[int], list[int]]]:
    """(example, source ids, target ids) for each example and each of its targets."""
    alone = next((example for example in chunk if not example.targets), None)
    if alone is not None:
        raise DataError("there are sources, but no targets", got=alone.place, wanted=SHAPES_WANTED)
    target_ids = iter(target.encode_batch([text for example in chunk for text in example.targets]))
    for example, source_ids in zip(chunk, source.read_batch([example.source for example in chunk]), strict=True):
        for text, ids in zip(example.targets, islice(target_ids, len(example.targets)), strict=True):
            yield example, [*lead(text), *source_ids], ids


def _fit(
    rows: Iterable[tuple[Example, list[int], list[int]]],
    counts: Counts,
    *,
    max_length: int,
    too_long: TooLong,
    places: Places | None,
) -> Iterator[tuple[list[int], list[int]]]:
    """The rows under the policy for what is too long."""
    for example, source_ids, target_ids in rows:
        longest = max(len(source_ids), len(target_ids))
        if longest <= max_length:
            yield source_ids, target_ids
        elif too_long == "truncate":
            counts.truncated += 1
            read = places(source_ids) if places else range(min(max_length, len(source_ids)))
            yield [source_ids[i] for i in read], target_ids[:max_length]
        elif too_long == "drop":
            counts.dropped += 1
        elif longest == len(source_ids):
            raise too_long_error("source", longest, max_length, example.place)
        else:
            raise too_long_error("target", longest, max_length, example.target_place or example.place)


def too_long_error(side: str, length: int, most: int, place: str) -> DataError:
    """What is said of a text that has more tokens than `data.max_length`, where that is an error."""
    return DataError(
        f"the {side} is too long",
        got=f"{length:,} tokens",
        wanted=f"at most {most:,} (data.max_length)",
        where=place,
        remedy='raise data.max_length, or set data.too_long = "truncate" or "drop"',
    )


def count_unknown(ids: Ids, tokenizer: Tokenizer) -> int:
    """How many of the ids stand for what the vocabulary has not."""
    special = tokenizer.specials
    if special.unk in (None, special.start, special.end, special.pad):  # as GPT-2's, which ends a text
        return 0
    return int(np.count_nonzero(ids == special.unk))


def unknown_share(unknown: int, tokens: int, what: str = "tokens") -> str:
    """The end of a line about a split: what share of its tokens is unknown, where any is.

    >>> unknown_share(32, 1000), unknown_share(1, 5000, "target tokens"), unknown_share(0, 1000)
    ('; 3.2% unknown tokens', '; under 0.1% unknown target tokens', '')
    """
    if not unknown:
        return ""
    share = unknown / tokens
    return f"; {f'{share:.1%}' if share >= 0.001 else 'under 0.1%'} unknown {what}"


def no_example(split: str, where: object, counts: Counts | None = None) -> DataError:
    """What is said of a split in which nothing is left to read."""
    counts = counts or Counts()
    gone = {"too long": counts.dropped, "bad": counts.bad}
    remedy = f"put lines into it, or name another file under {split}"
    if split == "val":
        remedy += "; or none, and a val_share of the training files that holds some"
    if counts.bad:
        remedy = "mend its lines; the first: " + ": ".join(counts.bad_lines[0])
    if counts.dropped:
        remedy = 'raise data.max_length, or set data.too_long = "truncate"'
    return DataError(
        f"the {NAMES.get(split, split)} split holds no example",
        got=", ".join(f"{number:,} {what}" for what, number in gone.items() if number) or "0 examples",
        where=where,
        remedy=remedy,
    )


def need_room(ids: Sequence[int], most: int, too_long: TooLong, number: int) -> None:
    """Raises where the text of this number that is to be answered is longer than is read, if that is an error."""
    if len(ids) > most and too_long == "error":
        found = too_long_error("text", len(ids), most, f"source {number:,}")
        remedy = "a shorter text; a model trained with data.too_long = truncate cuts it"
        raise DataError(found.what, got=found.got, wanted=found.wanted, where=found.where, remedy=remedy)


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of at most `size` items.

    >>> list(chunks("abc", 2))
    [['a', 'b'], ['c']]
    """
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def join(columns: list[Column], dtype: npt.DTypeLike) -> Column:
    """Columns as one, row after row."""
    ids = np.concatenate([np.empty(0, dtype), *(column.ids for column in columns)])
    lengths = np.concatenate([np.zeros(1, np.int64), *(column.lengths for column in columns)])
    return Column(ids, np.cumsum(lengths))
