"""Mistakes in texts: how many, which, and always the same ones."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from regard.data.noise import Noise, typo
from regard.errors import ConfigError

WORDS = [f"{a}{b}{c}ing" for a in "bcdfg" for b in "aeiou" for c in "lmnprst"]
TEXT = " ".join(WORDS)  # 175 words, all different
CHINESE = "".join(chr(0x4E00 + i) for i in range(200))


def test_the_same_text_has_the_same_mistakes() -> None:
    random.seed(0)
    first = Noise(0.2).text(TEXT)
    random.seed(1)
    assert Noise(0.2).text(TEXT) == first
    assert Noise(0.2, seed=2).text(TEXT) != first
    assert Noise(0.3).text(TEXT) != first
    assert Noise(0.0).text(TEXT) == TEXT


@pytest.mark.parametrize("text", [TEXT, CHINESE])
def test_a_share_of_the_words_is_changed(text: str) -> None:
    def units(text: str) -> list[str]:
        return text.split() if " " in text else list(text)

    kept = []
    for seed in range(20):
        there = set(units(Noise(0.2, seed).text(text)))
        kept.append(sum(unit in there for unit in units(text)) / len(units(text)))
    # of the fifth that is changed, a typo or the loss of three quarters leaves no trace of the word, or doubles it
    assert 0.8 < sum(kept) / 20 < 0.95


def test_all_kinds_of_mistakes_are_made() -> None:
    made: Counter[str] = Counter()
    for seed in range(30):
        found = Noise(0.1, seed).text(TEXT).split()
        made["dropped"] += len(WORDS) - len(found)
        places = {word: i for i, word in enumerate(found)}
        known = [places[word] for word in WORDS if word in places]
        made["swapped"] += sum(a > b for a, b in pairwise(known))
        made["mistyped"] += sum(word not in WORDS for word in found)
    # 525 words are hit: about half, a quarter, a quarter
    assert 180 < made["mistyped"] < 350
    assert 80 < made["dropped"] < 180
    assert 80 < made["swapped"] < 180


def test_typos_alone_keep_the_words_in_their_places() -> None:
    found = Noise(0.3).words(WORDS)
    assert len(found) == len(WORDS)
    changed = [i for i, (a, b) in enumerate(zip(WORDS, found, strict=True)) if a != b]
    assert 30 < len(changed) < 75
    assert " ".join(found) == Noise(0.3).typos(TEXT)
    assert Noise(1.0).words(["-", "...", ","]) == ["-", "...", ","]


def test_a_typo_is_one_mistake() -> None:
    kinds = Counter()
    for seed in range(400):
        found = typo("planet", Random(seed), "")
        assert found != "planet"
        kinds[len(found) - len("planet")] += 1
        if len(found) == 6:
            turned = sorted(found) == sorted("planet")
            kinds["turned" if turned else "replaced"] += 1
            assert sum(a != b for a, b in zip(found, "planet", strict=True)) == (2 if turned else 1)
    assert min(kinds[-1], kinds[1], kinds["turned"], kinds["replaced"]) > 50


def test_letters_are_those_of_the_alphabet_or_of_the_text() -> None:
    for seed in range(100):
        assert typo("A1", Random(seed), "").isascii()
        assert set(typo("Дом", Random(seed), "Дом и сад")) <= set("Дом и сад")
        assert set(typo("好", Random(seed), "你好吗")) <= set("你好吗")
        assert len(typo("好", Random(seed), "你好吗")) in (1, 2)  # a word of one letter stays a word
        assert typo("(x)", Random(seed), "")[0] == "("


@pytest.mark.parametrize("text", ["", "  ", "...", " - , ", "\n"])
def test_what_has_no_words_stays(text: str) -> None:
    assert Noise(1.0).text(text) == text
    assert Noise(1.0).typos(text) == text


def test_something_stays_of_every_text() -> None:
    for seed in range(50):
        for text in ("a", "yes !", " one two ", "你好"):
            found = Noise(1.0, seed).text(text)
            assert any(letter.isalnum() for letter in found)
            assert found[0].isspace() == text[0].isspace()
            assert found[-1].isspace() == text[-1].isspace()


def test_a_share_is_a_share() -> None:
    with pytest.raises(ConfigError, match=r"noise is a share of the words\n  got:    1\.5\n  wanted: 0 <= x <= 1"):
        Noise(1.5)
    assert (str(Noise(0.1)), str(Noise(0.25, 3))) == ("noise 0.1", "noise 0.25 seed 3")
