"""What is to be had of a set of stories without reading them: the usual answer, and the usual one to a question.

python benchmarks/stories_baseline.py        # the catalogue's set `stories`
python benchmarks/stories_baseline.py DIR    # KIND_train.txt and KIND_test.txt, in the format of the bAbI tasks
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

from regard.data.babi import StoryQuestion, kind_of, read_stories
from regard.data.catalogue import get


def shares(train: list[StoryQuestion], test: list[StoryQuestion]) -> tuple[float, float]:
    """Right answers in percent: always the most frequent one of training, and that of the same question there."""
    usual, by_question = Counter(each.answer for each in train), defaultdict[str, Counter[str]](Counter)
    for each in train:
        by_question[each.question][each.answer] += 1
    (most, _), *_ = usual.most_common(1)
    told = [(by_question[each.question] or usual).most_common(1)[0][0] for each in test]
    always = sum(each.answer == most for each in test)
    guessed = sum(each.answer == answer for each, answer in zip(test, told, strict=True))
    return 100 * always / len(test), 100 * guessed / len(test)


def main(folder: Path) -> None:
    """Prints a line for each kind."""
    print(f"{'kind':<14}{'usual answer':>14}{'question alone':>16}{'sentences, mean':>17}{'most':>6}")
    for path in sorted(folder.glob("*_train.txt")):
        train, test = ([*read_stories([folder / path.name.replace("train", split)])] for split in ("train", "test"))
        lengths = [len(each.sentences) for each in test]
        always, guessed = shares(train, test)
        mean = sum(lengths) / len(lengths)
        print(f"{kind_of(path):<14}{always:>14.1f}{guessed:>16.1f}{mean:>17.1f}{max(lengths):>6}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else get("stories"))
