"""BM25 against its formula, and rankings as one."""

from __future__ import annotations

import math

import pytest

from regard.asking.bm25 import BM25, fused, terms

TEXTS = ["the cat sat on the mat", "the dog ran", "a cat and a cat", ""]


def test_scores_are_those_of_the_formula() -> None:
    found = dict(BM25(TEXTS).best("The cat cat ran"))
    lengths = [len(text.split()) for text in TEXTS]
    mean = sum(lengths) / 4
    for number, text in enumerate(TEXTS):
        wanted = 0.0
        for term in ("the", "cat", "cat", "ran"):
            having = sum(term in other.split() for other in TEXTS)
            times = text.split().count(term)
            rarity = math.log(1 + (4 - having + 0.5) / (having + 0.5))
            wanted += rarity * times / (times + 1.2 * (0.25 + 0.75 * lengths[number] / mean))
        assert found.get(number, 0.0) == pytest.approx(wanted)
    assert 3 not in found


def test_the_best_come_first_and_nothing_shared_finds_nothing() -> None:
    index = BM25(TEXTS)
    assert [number for number, _ in index.best("cat?")] == [2, 0]
    assert index.best("zebra") == index.best("?!") == []
    assert BM25([]).best("cat") == []
    assert index.shared("Did the dog see the cat?", TEXTS[0]) == ("cat", "the")


def test_a_letter_is_the_same_however_it_is_written() -> None:
    assert terms("Jose\u0301 \uff34\uff4f\uff4b\uff59\uff4f") == terms("Jos\u00e9 Tokyo") == ["jos\u00e9", "tokyo"]
    assert terms("\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e") == (
        ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u092d\u093e\u0937\u093e"]
    )


def test_text_without_spaces_is_found_by_pairs_of_characters() -> None:
    index = BM25(["東京タワーは1958年に完成した。", "手塚治虫は大阪で育った。"])
    assert index.best("手塚治虫はどこで育った？")[0][0] == 1
    assert index.shared("1958年", "東京タワーは1958年に") == ("1958",)
    assert terms("Öl, x_1") == ["öl", "x_1"]


def test_rankings_are_fused_by_reciprocal_ranks() -> None:
    scores = dict(fused([[4, 7], [7, 9]]))
    assert scores == pytest.approx({7: 1 / 62 + 1 / 61, 4: 1 / 61, 9: 1 / 62})
    assert [number for number, _ in fused([[3, 1], []])] == [3, 1]
