"""The plain baseline of tagging: every span of the training file is a name, wherever its words stand again.

    python benchmarks/tagging_baseline.py train.conll test.conll

Of words that could be several names the longest is taken, from left to right, with the label that they mostly had. It
knows nothing of context, and no name that it has not seen.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

from regard.data.conll import TaggedText, format_of, read_tagged, tagged
from regard.data.marked import Units, words_of
from regard.tasks.metrics import Mark, span_scores

Words = tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    arguments = parser.parse_args()
    units = format_of(arguments.train).units
    names = learn(read(arguments.train, units))
    texts = read(arguments.test, units)
    right = [set(words_of(text.spans, text.units)) for text in texts]
    precision, recall, f1 = span_scores([find(words(text), names) for text in texts], right)[""]
    print(f"{len(names):,} names learned; {len(texts):,} texts")
    print(f"f1 {f1:.2f}  precision {precision:.2f}  recall {recall:.2f}")


def read(path: Path, units: Units) -> list[TaggedText]:
    return [tagged(each, units) for each in read_tagged([path], units=units)]


def words(text: TaggedText) -> Words:
    return tuple(text.source[start:end] for start, end in text.units)


def learn(texts: list[TaggedText]) -> dict[Words, str]:
    """The words of each name, with the label that they had most often."""
    seen: defaultdict[Words, Counter[str]] = defaultdict(Counter)
    for text in texts:
        for begin, stop, label in words_of(text.spans, text.units):
            seen[words(text)[begin:stop]][label] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in seen.items()}


def find(row: Words, names: dict[Words, str]) -> set[Mark]:
    """The names in a row of words, the longest first."""
    longest, place = max(map(len, names)), 0
    found: set[Mark] = set()
    while place < len(row):
        stops = range(min(len(row), place + longest), place, -1)
        stop = next((stop for stop in stops if row[place:stop] in names), None)
        if stop is not None:
            found.add((place, stop, names[row[place:stop]]))
        place = stop or place + 1
    return found


if __name__ == "__main__":
    main()
