"""The plain aligner that heads are compared with, on texts whose links are plain to see."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from regard.look.corpus import read_gold

ENGLISH = ["the house", "the book", "a book", "a house is the house"]
GERMAN = ["das haus", "das buch", "ein buch", "ein haus ist das haus"]


@pytest.fixture(scope="module")
def aligner() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "word_alignment.py"
    spec = importlib.util.spec_from_file_location("word_alignment", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_words_that_go_together_are_linked(aligner: ModuleType) -> None:
    models = aligner.both_ways(ENGLISH, GERMAN)
    sure, possible = aligner.links(models, "the book", "das buch")
    assert sure == {(0, 0), (1, 1)}
    assert aligner.links(models, "book the", "das buch")[0] == {(1, 0), (0, 1)}, "it knows no order"
    assert sure <= possible


def test_of_a_word_that_stands_twice_the_nearer_one(aligner: ModuleType) -> None:
    models = aligner.both_ways(ENGLISH, GERMAN)
    sure, _ = aligner.links(models, ENGLISH[3], GERMAN[3])
    assert {(1, 1), (4, 4)} <= sure


def test_words_that_were_never_seen_have_no_link(aligner: ModuleType) -> None:
    models = aligner.both_ways(ENGLISH, GERMAN)
    assert aligner.links(models, "the tree", "das wort") == ({(0, 0)}, {(0, 0)})


def test_shares_are_those_of_the_textbook(aligner: ModuleType) -> None:
    """One step from even shares, the empty word among them: p(p | x) is its share of all that x explains."""
    model = aligner.Model1(["x", "x y"], ["p", "p q"], iterations=1)
    # "p" beside x: 1/2 of it (the empty word has the rest); in the second sentence x has 1/3 of p and 1/3 of q
    key = model.source.number["x"] * len(model.target) + model.target.number["p"]
    share = model.share[np.searchsorted(model.keys, key)]
    assert share == pytest.approx((1 / 2 + 1 / 3) / (1 / 2 + 1 / 3 + 1 / 3))


def test_links_are_written_as_look_reads_them(aligner: ModuleType) -> None:
    text = aligner.written({(0, 0)}, {(0, 0), (1, 2)})
    gold = read_gold(text, source="a b", target="x y z", where="here")
    assert (gold.sure, gold.possible) == ({(0, 0)}, {(1, 2)})
