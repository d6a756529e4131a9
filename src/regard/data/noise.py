"""Mistakes that people make when they type: how far does a model fall that has to read them?

A word is changed with the probability `share`. Every second one gets a typo: two letters change places, or one is left
out, doubled or another. Of the rest one half is left out, and the other half changes places with the next word. Of
Chinese and Japanese each character is a word. The same text, share and seed always give the same mistakes.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from regard.errors import require

# Chinese and Japanese characters, which are words here: no spaces stand between them.
IDEOGRAPH = r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
WORD = re.compile(rf"(\s*)({IDEOGRAPH}|(?:(?!{IDEOGRAPH})\S)+)")  # the space before it, and the word
CHANGES = ("typo", "typo", "drop", "swap")


@dataclass(frozen=True)
class Noise:
    """Mistakes in a share of the words of a text.

    >>> Noise(0.3).text("the surgeon cuts a small hole in the skull")
    'the cuts surgeon small hole in the skull'
    """

    share: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, "noise is a share of the words", got=self.share, wanted="0 <= x <= 1")

    def __str__(self) -> str:
        return f"noise {self.share:g}" + (f" seed {self.seed}" if self.seed != 1 else "")

    def text(self, text: str) -> str:
        """The text with typos, without some of its words, and with some of them in another order."""
        drawn, found = self._drawn(text), [(space, word) for space, word in WORD.findall(text)]
        words = [i for i, (_, word) in enumerate(found) if _is_word(word)]
        left, swapped = len(words), -1
        for place, i in enumerate(words):
            change = self._change(drawn)
            if not change or place == swapped:
                continue
            space, word = found[i]
            if change == "drop" and left > 1:  # something stays
                found[i], left = ("", ""), left - 1
            elif change == "swap" and place + 1 < len(words):
                other, swapped = words[place + 1], place + 1
                found[i], found[other] = (space, found[other][1]), (found[other][0], word)
            else:
                found[i] = (space, typo(word, drawn, text))
        begin = text[: len(text) - len(text.lstrip())]
        end = text[max(len(begin), len(text.rstrip())) :]
        return begin + "".join(space + word for space, word in found).strip() + end

    def typos(self, text: str) -> str:
        """The text with typos alone: as many words, in the same order."""
        drawn = self._drawn(text)
        return WORD.sub(lambda found: found[1] + self._mistyped(found[2], drawn, text), text)

    def words(self, words: Sequence[str]) -> list[str]:
        """The words of a text with typos alone, one for one."""
        text = " ".join(words)
        drawn = self._drawn(text)
        return [self._mistyped(word, drawn, text) for word in words]

    def _mistyped(self, word: str, drawn: Random, text: str) -> str:
        return typo(word, drawn, text) if self._change(drawn) and _is_word(word) else word

    def _change(self, drawn: Random) -> str:
        """What is done to the next word; "" for nothing."""
        hit, change = drawn.random() < self.share, drawn.choice(CHANGES)
        return change if hit else ""

    def _drawn(self, text: str) -> Random:
        return Random(int.from_bytes(hashlib.sha256(f"{self.seed} {text}".encode()).digest()[:8]))


def typo(word: str, drawn: Random, text: str) -> str:
    """The word with one mistake in it; a letter that takes another's place is of the alphabet, or else of the text.

    >>> [typo("surgeon", Random(i), "") for i in (0, 1, 2, 7)]
    ['suregon', 'surgzon', 'ssurgeon', 'srgeon']
    """
    letters = [i for i, letter in enumerate(word) if letter.isalnum()]
    turned = [i for i in letters if i + 1 in letters and word[i] != word[i + 1]]
    kinds = ["double", "replace", *(["drop"] if len(letters) > 1 else []), *(["swap"] if turned else [])]
    kind = drawn.choice(kinds)
    i = drawn.choice(turned if kind == "swap" else letters)
    before, letter, after = word[:i], word[i], word[i + 1 :]
    if kind == "swap":
        return before + after[0] + letter + after[1:]
    if kind == "drop":
        return before + after
    if kind == "double":
        return before + letter + letter + after
    return before + _another(letter, drawn, text) + after


def _another(letter: str, drawn: Random, text: str) -> str:
    if letter.isascii():
        others = string.digits if letter.isdigit() else string.ascii_letters
    else:
        others = "".join(sorted({one for one in text if one.isalnum() and not one.isascii()}))
    fitting = [one for one in others if one != letter and one.isupper() == letter.isupper()]
    return drawn.choice(fitting) if fitting else letter + letter


def _is_word(word: str) -> bool:
    return any(letter.isalnum() for letter in word)
