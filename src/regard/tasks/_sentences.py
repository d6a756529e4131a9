"""Sentences of a document: where they begin and end, which of them a summary is best made of, which repeat others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from regard.data.noise import IDEOGRAPH
from regard.tasks.metrics import words_of

Cut = Literal["rules", "lines"]
LINE = re.compile(r"[^\n\r\t]+")  # a tab too, as a document on the command line is one line
CLOSING = "\"'\u2019\u201d)\\]\u300d\u300f\u3011\uff09\u300b"
# An end of a sentence: Chinese marks anywhere, Latin ones before a space and what can begin a sentence.
END = re.compile(rf"[\u3002\uff01\uff1f\u2026\uff1b]+[{CLOSING}]*|[.!?]+[{CLOSING}]*(?=\s+[^\sa-z])")
# A stop that ends no sentence: after a title, another abbreviation, or one capital letter.
ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|Mt|Gen|Col|Sgt|Capt|Lt|Rev|Hon|Sen|Rep|Gov|Inc|Ltd|Co|Corp|No|Nos"
    r"|vs|etc|e\.g|i\.e|cf|al|Fig|Eq|p|pp|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|[A-Z]|(?:[A-Z]\.)+[A-Z])\.$"
)
Offsets = tuple[int, int]


def cut_sentences(text: str, how: Cut = "rules") -> list[Offsets]:
    """From where to where in the text each of its sentences reaches, without the space around it.

    A line (or what stands between tabs) is one, or by rules as many as its punctuation ends.

    >>> text = "Mr. Hill came in. It rained! \\u4e0b\\u96e8\\u4e86\\u3002\\u4ed6\\u6765\\u4e86\\u3002"
    >>> [text[start:end] for start, end in cut_sentences(text)]
    ['Mr. Hill came in.', 'It rained!', '\\u4e0b\\u96e8\\u4e86\\u3002', '\\u4ed6\\u6765\\u4e86\\u3002']
    """
    found = []
    for line in LINE.finditer(text):
        start = line.start()
        ends = [] if how == "lines" else [match.end() for match in END.finditer(text, *line.span())]
        for end in (*ends, line.end()):
            if end < line.end() and ABBREVIATION.search(text[start:end]):
                continue
            piece = text[start:end]
            if piece.strip():
                found.append((start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())))
            start = end
    return found


def join_sentences(sentences: Sequence[str]) -> str:
    """Sentences as one text; Chinese and Japanese have no space between them.

    >>> join_sentences(["It rains.", "He came."])
    'It rains. He came.'
    """
    return ("" if any(re.search(IDEOGRAPH, text) for text in sentences) else " ").join(sentences)


def ngrams(words: Sequence[str], size: int) -> set[tuple[str, ...]]:
    """The runs of so many words, each once.

    >>> sorted(ngrams("a b a b".split(), 2))
    [('a', 'b'), ('b', 'a')]
    """
    return set(zip(*(words[i:] for i in range(size)), strict=False))


def oracle(sentences: Sequence[str], references: Sequence[str], most: int) -> list[int]:
    """The sentences that make the best summary: one after the other, while ROUGE-1 + ROUGE-2 grows (Nallapati et al.).

    ROUGE over sets of words and pairs of words within a sentence, its mean over the references: quick, and near enough
    to choose by. Where no sentence has a word of a reference, none is chosen.

    >>> oracle(["Late?", "A dog barked.", "The dog ran home."], ["The dog ran home late."], most=3)
    [0, 2]
    """
    parts = [[ngrams(words, size) for size in (1, 2)] for words in map(words_of, sentences)]
    wanted = [[ngrams(words, size) for size in (1, 2)] for words in map(words_of, references)]
    chosen: list[int] = []
    have: list[set[tuple[str, ...]]] = [set(), set()]
    best = 0.0
    while len(chosen) < most:
        rest = [i for i in range(len(sentences)) if i not in chosen]
        scored = [(_overlap([a | b for a, b in zip(have, parts[i], strict=True)], wanted), -i) for i in rest]
        if not scored or max(scored)[0] <= best:
            break
        best, place = max(scored)
        chosen.append(-place)
        have = [a | b for a, b in zip(have, parts[-place], strict=True)]
    return sorted(chosen)


def _overlap(have: list[set[tuple[str, ...]]], references: list[list[set[tuple[str, ...]]]]) -> float:
    """F1 of the sets, summed over sizes and references."""
    return sum(
        2 * len(a & b) / max(1, len(a) + len(b)) for wanted in references for a, b in zip(have, wanted, strict=True)
    )


def select(sentences: Sequence[str], scores: Sequence[float], most: int, *, least: float, block: bool) -> list[int]:
    """The sentences with the highest scores, at most so many, in the order of the document.

    Those under `least` are left out, but never all; with `block` also one that has three words in a row which an
    earlier choice has (Paulus et al. 2018).

    >>> select(["a b c d", "x b c d", "e"], [0.9, 0.8, 0.7], 2, least=0.0, block=True)
    [0, 2]
    """
    chosen: list[int] = []
    said: set[tuple[str, ...]] = set()
    for i in sorted(range(len(sentences)), key=lambda i: -scores[i]):
        if len(chosen) == most or (chosen and scores[i] < least):
            break
        own = ngrams(words_of(sentences[i]), 3) if block else set()
        if not own & said:
            chosen.append(i)
            said |= own
    return sorted(chosen)
