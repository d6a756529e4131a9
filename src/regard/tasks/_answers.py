"""How near an answer is to the right ones: exact match and F1 as SQuAD counts them, and by characters.

English and other text with spaces is compared by words, without case, punctuation and articles (Rajpurkar et al.
2016). Chinese and Japanese are compared by characters; a run of other letters or digits is one unit there, as in MLQA
(Lewis et al. 2020).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from regard.data.marked import NO_SPACES, Units
from regard.tasks.metrics import Score

CHARACTERS = re.compile(rf"[{NO_SPACES}]|[^{NO_SPACES}\s]+")
ARTICLES = re.compile(r"\b(a|an|the)\b")
SIGNATURES = {
    "words": "units:words|normalised:case,punctuation,articles (SQuAD)",
    "characters": "units:characters, words of spaced scripts (MLQA)|normalised:case,punctuation,spaces",
}


def normal(text: str, units: Units) -> list[str]:
    """What is compared of an answer.

    >>> normal("The Eiffel-Tower!", "words"), normal("「東京」1958年", "characters")
    (['eiffeltower'], ['東', '京', '1958', '年'])
    """
    if units == "words":
        plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return ARTICLES.sub(" ", plain).split()
    plain = "".join(" " if _is_mark(letter) else letter for letter in text.lower())
    return CHARACTERS.findall(plain)


def _is_mark(letter: str) -> bool:
    return letter in string.punctuation or unicodedata.category(letter).startswith("P")


def overlap(answer: str, right: str, units: Units) -> float:
    """F1 of the units of an answer and a right one, from 0 to 1; of two that are empty it is 1.

    >>> overlap("in the year 1889", "1889", "words"), overlap("", "", "words")
    (0.5, 1.0)
    """
    said, wanted = normal(answer, units), normal(right, units)
    if not said or not wanted:
        return float(said == wanted)
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted))


def best_overlap(answer: str, right: Sequence[str], units: Units) -> float:
    """With the nearest of the right answers; where there is none, the empty one is right."""
    return max(overlap(answer, each, units) for each in right or [""])


def is_right(answer: str, right: Sequence[str], units: Units) -> bool:
    """Whether an answer is one of the right ones."""
    return normal(answer, units) in [normal(each, units) for each in right or [""]]


def answer_scores(answers: Sequence[str], right: Sequence[Sequence[str]], units: Units) -> list[Score]:
    """Exact match and F1 in percent; where some have an answer and some have none, also of each kind."""
    rows = list(zip(answers, [[each for each in texts if each] for texts in right], strict=True))
    kinds = {"": rows, "answerable_": [row for row in rows if row[1]], "unanswerable_": [r for r in rows if not r[1]]}
    found = []
    for prefix, some in kinds.items() if kinds["answerable_"] and kinds["unanswerable_"] else [("", rows)]:
        signature = f"questions:{len(some)}|{SIGNATURES[units]}|best of the answers"
        number = max(1, len(some))
        exact = sum(is_right(answer, texts, units) for answer, texts in some) / number
        near = sum(best_overlap(answer, texts, units) for answer, texts in some) / number
        found.append(Score(f"{prefix}exact_match", 100 * exact, signature))
        if prefix != "unanswerable_":  # where nothing is right, near is not
            found.append(Score(f"{prefix}f1", 100 * near, signature))
    return found
