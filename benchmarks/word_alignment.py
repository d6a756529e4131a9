"""A plain word aligner to compare heads with: IBM model 1 (Brown et al. 1993), both directions, in numpy.

    python benchmarks/word_alignment.py --train train.en train.de --align val.en val.de --out val.jsonl
    regard look RUN val.jsonl --quick     # the columns "error" are then the disagreement with model 1

Words are what white space parts. Model 1 knows which words are seen together and nothing else: no order, no spelling.
A link that both directions find is written as sure (0-0), one that only one of them finds as possible (0?0). These are
no gold alignments: nobody has checked them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Link = tuple[int, int]  # source word, target word, counted from 0
NULL, ITERATIONS = 0, 10


class Words:
    """The words of one language as numbers; 0 is the empty word, and one that was not seen in training is -1."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.number = {word: i for i, word in enumerate(sorted({word for line in lines for word in line.split()}), 1)}

    def __len__(self) -> int:
        return len(self.number) + 1

    def ids(self, line: str) -> Ints:
        return np.array([self.number.get(word, -1) for word in line.split()], dtype=np.int64)


class Model1:
    """p(target word | source word) of each pair that stands together in a training sentence."""

    def __init__(self, sources: Sequence[str], targets: Sequence[str], iterations: int = ITERATIONS) -> None:
        self.source, self.target = Words(sources), Words(targets)
        pairs, places = self._cells(sources, targets)
        self.keys, cell = np.unique(pairs, return_inverse=True)  # a cell: one target word beside one source word
        given = self.keys // len(self.target)
        self.share = np.ones(len(self.keys))
        for _ in range(iterations):
            # E: a target word is shared among the source words of its sentence; M: shares of each source word sum to 1
            found = self.share[cell]
            counts = np.bincount(cell, found / np.bincount(places, found)[places], len(self.keys))
            self.share = counts / np.bincount(given, counts)[given]

    def _cells(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[Ints, Ints]:
        """The key of every cell of every sentence, and the number of the target word's place that it belongs to."""
        pairs, places, first = [], [], 0
        for source, target in zip(sources, targets, strict=True):
            rows, columns = self.target.ids(target), np.concatenate([[NULL], self.source.ids(source)])
            pairs.append((columns[None] * len(self.target) + rows[:, None]).ravel())
            places.append(np.repeat(np.arange(first, first + len(rows)), len(columns)))
            first += len(rows)
        return np.concatenate(pairs), np.concatenate(places)

    def align(self, source: str, target: str) -> Iterator[Link]:
        """The best source word of each target word; none where that is the empty word, or no pair was ever seen."""
        columns, rows = np.concatenate([[NULL], self.source.ids(source)]), self.target.ids(target)
        for j, row in enumerate(rows):
            keys = columns * len(self.target) + row
            place = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
            known = (self.keys[place] == keys) & (columns >= 0) & (row >= 0)
            # of a word that stands there twice, the one nearer to the diagonal: model 1 itself cannot tell
            away = np.abs((np.arange(len(columns)) - 0.5) / (len(columns) - 1) - (j + 0.5) / len(rows))
            best = int(np.where(known, self.share[place] * (1 - 1e-9 * away), 0.0).argmax())
            if best and known[best]:
                yield best - 1, j


def both_ways(sources: Sequence[str], targets: Sequence[str]) -> tuple[Model1, Model1]:
    """Model 1 from source to target, and the other way round."""
    return Model1(sources, targets), Model1(targets, sources)


def links(models: tuple[Model1, Model1], source: str, target: str) -> tuple[set[Link], set[Link]]:
    """What both directions find, and what any of them does."""
    forward = set(models[0].align(source, target))
    backward = {(i, j) for j, i in models[1].align(target, source)}
    return forward & backward, forward | backward


def written(sure: set[Link], possible: set[Link]) -> str:
    """Links as `regard look` reads them.

    >>> written({(0, 0)}, {(0, 0), (1, 2)})
    '0-0 1?2'
    """
    return " ".join(f"{i}{'-' if (i, j) in sure else '?'}{j}" for i, j in sorted(possible))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--align", type=Path, nargs=2, required=True, metavar=("SOURCE", "TARGET"))
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl with source, target and alignment")
    arguments = parser.parse_args()
    start = time.process_time()
    models, sure = both_ways(*map(lines, arguments.train)), 0
    with arguments.out.open("w", encoding="utf-8") as file:
        for source, target in zip(*map(lines, arguments.align), strict=True):
            found = links(models, source, target)
            sure += len(found[0])
            record = {"source": source, "target": target, "alignment": written(*found)}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    print(f"{sure:,} links that both directions find, in {time.process_time() - start:.0f} s of one core")


if __name__ == "__main__":
    main()
