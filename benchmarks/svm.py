"""The plain baseline of classification: TF-IDF and a linear SVM, by scikit-learn.

    pip install -c constraints.txt ".[bench]"
    REGARD_DATA=path/to/archives python benchmarks/svm.py trec sst2 chnsenticorp semeval2010-task8

Sets are those of the catalogue with labels. Features are words and pairs of words; of Chinese texts, which have no
spaces, one to three characters. Nothing is chosen on the test split: the strength of the SVM is scikit-learn's 1. Of a
text with two marked entities, the words between them and the entities themselves are features of their own, and what is
measured is macro-F1 as the task `relation` has it; of others it is accuracy.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

import torch

from regard.data import catalogue
from regard.data.markers import read_marked
from regard.data.noise import IDEOGRAPH
from regard.data.readers import read_labelled
from regard.tasks.relation import relation_f1
from regard.types import Example

FILES = {"semeval2010-task8": ("TRAIN_FILE.TXT", "TEST_FILE_FULL.TXT")}
CHARACTERS: dict[str, Any] = {"analyzer": "char", "ngram_range": (1, 3)}
WORDS: dict[str, Any] = {"analyzer": "word", "ngram_range": (1, 2), "token_pattern": r"\b\w+\b"}
MARKED = re.compile(r"(.*?)<(e\d)>(.*?)</e\d>(.*?)<(e\d)>(.*?)</e\d>(.*)", re.DOTALL)


def read(name: str) -> tuple[list[Example], list[Example]]:
    """The examples to learn from, and those of the test."""
    folder = catalogue.get(name)
    files = [folder / file for file in FILES.get(name, ("train.tsv", "test.tsv"))]
    reader = read_marked if name in FILES else read_labelled
    first, second = (list(reader([file])) for file in files)
    return first, second


def features(examples: Sequence[Example]) -> list[str]:
    """The texts; entities and what stands between them once more, as words of their own."""
    pairs = [(example.source, MARKED.match(example.source)) for example in examples]
    return [text if found is None else marked(found) for text, found in pairs]


def marked(found: re.Match[str]) -> str:
    before, name, first, between, other, second, after = found.groups()
    own = {name: first, "between": between, other: second}
    named = [f"{name}_{word}" for name, words in own.items() for word in re.findall(r"\w+", words)]
    return " ".join([before, first, between, second, after, *named])


def score(name: str) -> tuple[str, float]:
    """The metric's name, and its value on the test split."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    train, test = read(name)
    chinese = any(re.search(IDEOGRAPH, example.source) for example in train[:100])
    model = make_pipeline(TfidfVectorizer(**(CHARACTERS if chinese else WORDS)), LinearSVC())
    model.fit(features(train), [example.targets[0] for example in train])
    said, right = model.predict(features(test)), [example.targets[0] for example in test]
    if name not in FILES:
        return "accuracy", 100 * sum(a == b for a, b in zip(said, right, strict=True)) / len(right)
    labels = sorted({*said, *right})
    rows = [torch.tensor([[answer == label for label in labels] for answer in answers]) for answers in (said, right)]
    return "macro_f1", relation_f1(*rows, labels, ["Other"]).value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET")
    for name in parser.parse_args().sets:
        metric, value = score(name)
        print(f"{name}: {metric} {value:.1f}", flush=True)


if __name__ == "__main__":
    main()
