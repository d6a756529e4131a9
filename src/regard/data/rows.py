"""Texts and their labels as rows of ids, one text a row: what encoders are trained on.

A row is kept as the model reads it, `<s> ids </s>`. Its labels are one for each of its places, or a fixed number for
the whole of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.batching import NONE, Planned, collate_rows, first_rows, padding_share, plan_batches
from regard.data.cache import Kept, name_of
from regard.data.cache import kept as stored
from regard.data.readers import ReadReport
from regard.data.store import (
    CHUNK,
    Column,
    Counts,
    TooLong,
    chunks,
    count_unknown,
    join,
    no_example,
    too_long_error,
    unknown_share,
)
from regard.data.tokenizers import Tokenizer
from regard.types import BRANCHES, Batch, Example

Labels = Callable[[Example], Sequence[int]]
Row = tuple[Sequence[int], ...]  # its ids as the model reads them, its labels, and codes where branches hang at it
Encode = Callable[[Sequence[Example]], list[list[int]]]
Grow = Callable[[str, Sequence[int]], tuple[Sequence[int], Sequence[int]]]
ARRAYS = ("ids", "starts", "label_ids", "label_starts", "branch_ids", "branch_starts")


@dataclass(frozen=True)
class Rows:
    """A split, encoded: the batches of an epoch, planned and then made one by one."""

    texts: Column
    labels: Column
    counts: Counts
    pad: int
    label_width: int = 0  # labels of a row; 0: one for each of its places
    branches: Column | None = None  # what is text and what hangs at it, where anything does

    def __len__(self) -> int:
        return len(self.texts.starts) - 1

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]:
        return plan_batches(
            self.texts.lengths,
            None,
            batch_tokens=batch_tokens,
            multiple=multiple,
            seed=seed,
            epoch=epoch,
            shuffle=shuffle,
        )

    def collate(self, planned: Planned) -> Batch:
        return collate_rows(
            self.texts, self.labels, planned, pad=self.pad, label_width=self.label_width, branches=self.branches
        )

    def first(self, number: int) -> Batch:
        """The first rows of the split as one batch."""
        plan = self.plan(batch_tokens=4096, multiple=4, seed=0, epoch=0, shuffle=False)
        return first_rows(plan, self.collate, number)

    def padding(self, plan: list[Planned]) -> float:
        return padding_share(plan, self.texts.lengths, None)

    def describe(self) -> str:
        """One line, and one more for each of the first bad lines that were left out."""
        c = self.counts
        hanging = None if self.branches is None else int((self.branches.ids % BRANCHES > 0).sum())
        known = "" if hanging is None else f", {hanging:,} of them knowledge"
        line = f"{len(self):,} texts, {len(self.texts.ids):,} tokens{known}; "
        line += f"{c.truncated:,} truncated, {c.dropped:,} dropped, {c.bad:,} bad lines"
        line += unknown_share(c.unknown, len(self.texts.ids))
        return line + "".join(f"\n  {place}: {reason}" for place, reason in c.bad_lines)


def build_rows(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    read: Callable[[ReadReport], Iterable[Example]],
    labels: Labels,
    *,
    split: str,
    policy: dict[str, Any],
    cache_dir: Path,
    max_length: int,
    too_long: TooLong = "error",
    label_width: int = 0,
    kept: Callable[[Sequence[int]], Sequence[int]] | None = None,
    encode: Encode | None = None,
    num_ids: int = 0,
    grow: Grow | None = None,
) -> Rows:
    """Encodes what `read` reads of the files, or finds it encoded.

    `policy` is all that decides what the functions here give, beside the files; `max_length` counts the ids of a text
    without the special ones. `kept` says which places of a longer text are read, where not the first. `encode` is the
    tokenizer's unless it is given, then with ids under `num_ids`. Where each place has a label (`label_width` 0),
    `labels` gives those of the ids without the special ones. `grow` makes of a text and all its ids the row that is
    read, with branches, and the codes of these.
    """
    policy = {**policy, "max_length": max_length, "too_long": too_long}

    def rows(report: ReadReport, counts: Counts) -> Iterator[Row]:
        for chunk in chunks(read(report), CHUNK):
            ids_of = encode(chunk) if encode else tokenizer.encode_batch([example.source for example in chunk])
            for example, whole in zip(chunk, ids_of, strict=True):
                ids, own = fit(whole, counts, max_length, too_long, example.place, kept), labels(example)
                if ids is not None and grow is not None:
                    row, codes = grow(example.source, whole)
                    yield row, own, codes
                elif ids is not None:
                    yield framed(ids, tokenizer), own if label_width else [NONE, *own[: len(ids)], NONE]

    return keep_rows(
        paths,
        tokenizer,
        rows,
        split=split,
        policy=policy,
        cache_dir=cache_dir,
        label_width=label_width,
        num_ids=num_ids,
    )


def keep_rows(
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    rows: Callable[[ReadReport, Counts], Iterable[Row]],
    *,
    split: str,
    policy: dict[str, Any],
    cache_dir: Path,
    label_width: int = 0,
    num_ids: int = 0,
) -> Rows:
    """The rows and labels that `rows` makes of the files, or finds them encoded; `policy` is all that decides it."""

    def make() -> Kept:
        report, counts = ReadReport(), Counts()
        sides: list[list[Column]] = []  # the ids of all rows, their labels, and their codes where they have any
        dtypes = (np.uint16 if (num_ids or tokenizer.size) <= 2**16 else np.uint32, np.int32, np.int32)
        for found in chunks(rows(report, counts), CHUNK):
            sides = sides or [[] for _ in found[0]]
            for i, side in enumerate(sides):
                side.append(Column.of([row[i] for row in found], dtypes[i]))
        counts.bad, counts.bad_lines = report.num_bad, report.bad
        if not sides:
            raise no_example(split, report.path, counts)
        columns = [join(side, dtype) for side, dtype in zip(sides, dtypes, strict=False)]
        ids = columns[0].ids % tokenizer.size if num_ids else columns[0].ids  # a piece has an id for each shape
        counts.unknown = count_unknown(ids, tokenizer)
        arrays = [array for column in columns for array in (column.ids, column.starts)]
        return dict(zip(ARRAYS, arrays, strict=False)), counts.to_json(paths)

    arrays, about = stored(cache_dir / name_of(paths, [tokenizer], {**policy, "rows": 1}), make)
    found = [arrays[name] for name in ARRAYS if name in arrays]
    texts, labels, *more = (Column(*pair) for pair in zip(found[::2], found[1::2], strict=True))
    return Rows(texts, labels, Counts.of_json(about, paths), tokenizer.specials.pad, label_width, *more)


def fit(
    ids: list[int],
    counts: Counts,
    max_length: int,
    too_long: TooLong,
    place: str,
    kept: Callable[[Sequence[int]], Sequence[int]] | None = None,
) -> list[int] | None:
    """The ids under the policy for what is too long; None where the text is left out."""
    if len(ids) <= max_length:
        return ids
    if too_long == "error":
        raise too_long_error("text", len(ids), max_length, place)
    if too_long == "drop":
        counts.dropped += 1
        return None
    counts.truncated += 1
    return ids[:max_length] if kept is None else [ids[i] for i in kept(ids)]


def framed(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """A row as an encoder reads it: `<s> ids </s>`."""
    return [tokenizer.specials.start, *ids, tokenizer.specials.end]


def is_held_out(text: str, share: float) -> bool:
    """Whether a text is in the share that is held out: the same text always is, or never, in any order or file.

    >>> sum(is_held_out(f"text {i}", 0.1) for i in range(1000))
    87
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) < share * 2**64
