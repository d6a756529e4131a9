"""BM25 (Robertson et al. 1994): which passages matter to a question, by the words that they share.

    sum over the question's terms t of  idf(t) * f / (f + k1 * (1 - b + b * length / mean length))

with f how often t stands in the passage and idf(t) = ln(1 + (N - n + 0.5) / (n + 0.5)), n of N passages having t.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence

from regard.data.marked import LETTER, NO_SPACES

TERMS = re.compile(f"([{NO_SPACES}]+)|((?:{LETTER})+)")


def terms(text: str) -> list[str]:
    """Words in lower case; of a script without spaces, every two characters that stand together.

    The same letter may be written in several ways (full-width, or with its accent apart): they are one here.

    >>> terms("Who built Tokyo Tower?"), terms("東京タワー1958年")
    (['who', 'built', 'tokyo', 'tower'], ['東京', '京タ', 'タワ', 'ワー', '1958', '年'])
    """
    found: list[str] = []
    for run, word in TERMS.findall(unicodedata.normalize("NFKC", text).lower()):
        found += [word] if word else [run[i : i + 2] for i in range(max(1, len(run) - 1))]
    return found


class BM25:
    """An index of passages.

    >>> index = BM25(["the cat sat", "the dog ran", "a cat and a cat"])
    >>> [number for number, _ in index.best("cat")], index.shared("the black cat", "the cat sat")
    ([2, 0], ('cat', 'the'))
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(terms(text)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / max(1, len(lengths))
        self.places: dict[str, list[tuple[int, float]]] = defaultdict(list)  # of a term: passages, and how it weighs
        for number, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            spread = k1 * (1 - b + b * length / mean) if mean else k1
            for term, times in count.items():
                self.places[term].append((number, times / (times + spread)))
        self.number = len(texts)

    def best(self, question: str) -> list[tuple[int, float]]:
        """The passages that share a term with the question, the best first, and their scores."""
        scores: dict[int, float] = defaultdict(float)
        for term, times in Counter(terms(question)).items():
            for place, weight in self.places.get(term, []):
                scores[place] += times * self.rarity(term) * weight
        return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))

    def rarity(self, term: str) -> float:
        """What a term says: much where few passages have it."""
        found = len(self.places.get(term, []))
        return math.log(1 + (self.number - found + 0.5) / (found + 0.5))

    def shared(self, question: str, text: str) -> tuple[str, ...]:
        """The terms of a question that a passage has, the rarest first."""
        there = set(terms(text))
        return tuple(sorted(there & set(terms(question)), key=lambda term: (-self.rarity(term), term)))


def fused(rankings: Sequence[Sequence[int]], k: int = 60) -> list[tuple[int, float]]:
    """Several rankings as one: each gives 1 / (k + rank) to what it ranks (Cormack et al. 2009).

    >>> [number for number, _ in fused([[4, 7], [7, 9]])]
    [7, 4, 9]
    """
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, number in enumerate(ranking, 1):
            scores[number] += 1 / (k + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
