"""Texts with marked spans, as `[Alice](person) lives in Paris`; how text is cut into words, how a word is written."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

from regard.data.schemes import Stretch
from regard.errors import DataError
from regard.types import Span

Units = Literal["words", "characters"]
Places = tuple[tuple[int, int], ...]  # from where to where each word reaches

# scripts without spaces between words: Han, kana, Thai, Lao, Khmer, Myanmar
NO_SPACES = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{NO_SPACES}]")
# signs of the letter before them, as the accent of e + \u0301 or a vowel of Hindi, which `re` takes for no letters
_SIGNS = "".join(c for c in map(chr, range(0x300, 0x10000)) if unicodedata.category(c)[0] == "M")
LETTER = f"[^\\W{NO_SPACES}](?:(?![{NO_SPACES}])[{_SIGNS}])*"
_SHORT = r"['’](?:s|m|d|re|ve|ll)\b"  # what English joins to a word
_WORD = re.compile(
    rf"""(?i:(?:https?://|www\.)\S*[\w/]
    |{_SHORT}
    |[@\#]?(?:{LETTER})+(?:(?:(?!{_SHORT})['’]|[-.:_&/@+]|,(?=\d))(?:{LETTER})+)*
    |{_UNSPACED.pattern}
    |([^\w\s])\1*
    |\w)""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r"([\\\[\]])")
_MARKS = re.compile(r"\\(.)|(\[)|\]\(((?:\\.|[^\\)])*)\)", re.DOTALL)


def cut(text: str, units: Units) -> Places:
    """Where the words of a text stand: between spaces and apart from punctuation; or its characters.

    >>> text = "Who's @ann? In O'Hare, 3.5 km off..."
    >>> [text[start:end] for start, end in cut(text, "words")]
    ['Who', "'s", '@ann', '?', 'In', "O'Hare", ',', '3.5', 'km', 'off', '...']
    """
    if units == "characters":
        return tuple((i, i + 1) for i, character in enumerate(text) if not character.isspace())
    return tuple(found.span() for found in _WORD.finditer(text))


def units_of(words: Iterable[str]) -> Units:
    """Whether a text, of which these are words or lines, is read by words or by characters.

    >>> units_of(["高", "勇", "：", "男"]), units_of(["a", "tall", "man"]), units_of(["他住在巴黎。"])
    ('characters', 'words', 'characters')
    """
    seen = single = unspaced = every = 0
    for word in itertools.islice(words, 10_000):
        seen, single = seen + 1, single + (len(word) == 1)
        unspaced, every = unspaced + len(_UNSPACED.findall(word)), every + len(word)
    return "characters" if single > 0.9 * seen or unspaced > 0.5 * every else "words"


def shape_of(word: str) -> str:
    """How a word is written: X for capitals, x for small letters, d for digits, and no more than two alike in a row.

    >>> [shape_of(word) for word in ("Alice", "USA", "iPhone", "1998", "@bob", "I", "...")]
    ['Xxx', 'XX', 'xXxx', 'dd', '@xx', 'X', '..']
    """
    kinds = ("X" if c.isupper() else "x" if c.isalpha() else "d" if c.isdecimal() else c for c in word[:64])
    return "".join("".join(itertools.islice(run, 2)) for _, run in itertools.groupby(kinds))


def mark(text: str, spans: Sequence[Span]) -> str:
    """A text with its spans marked; what could be taken for a mark has a backslash before it.

    >>> mark("Alice lives in Paris [1]", [Span(0, 5, "person"), Span(15, 20, "city")])
    '[Alice](person) lives in [Paris](city) \\\\[1\\\\]'
    """
    return "".join(piece for piece, _ in _marked(text, spans))


def marked_places(text: str, spans: Sequence[Span]) -> list[int]:
    """Where each character of a text, and its end, stand in the marked one."""
    pieces = list(_marked(text, spans))
    ends = itertools.accumulate(len(piece) for piece, _ in pieces)
    found = [end - 1 for end, (_, is_text) in zip(ends, pieces, strict=True) if is_text]
    return [*found, sum(len(piece) for piece, _ in pieces)]


def _marked(text: str, spans: Sequence[Span]) -> Iterable[tuple[str, bool]]:
    """Pieces of the marked text: its characters (true), and marks."""
    opens = {span.start for span in spans}
    closes = {span.end: span.label for span in spans}
    for place, character in enumerate([*text, ""]):
        if place in closes:
            label = re.sub(r"([\\)])", r"\\\1", closes[place])
            yield f"]({label})", False
        if place in opens:
            yield "[", False
        if character:
            yield _ESCAPED.sub(r"\\\1", character), True


def unmark(marked: str, where: object = None) -> tuple[str, tuple[Span, ...]]:
    """The text and the spans of a marked text: what `mark` was given.

    >>> unmark("[Alice](person) lives in Paris")
    ('Alice lives in Paris', (Span(start=0, end=5, label='person', score=1.0),))
    """
    text, done, begin, spans = "", 0, -1, []
    for found in _MARKS.finditer(marked):
        text += marked[done : found.start()] + (found[1] or "")
        done = found.end()
        if found[2] is not None:
            if begin >= 0:
                break
            begin = len(text)
        elif found[3] is not None:
            if begin < 0:
                break
            spans.append(Span(begin, len(text), re.sub(r"\\(.)", r"\1", found[3])))
            begin = -1
    else:
        if begin < 0:
            return text + marked[done:], tuple(spans)
    raise DataError(
        "the marks of a text do not fit together",
        got=marked[:80],
        wanted="[words](label), none inside of another; a bracket of the text itself as \\[ or \\]",
        where=where,
    )


def spans_of(stretches: Iterable[Stretch], units: Places) -> tuple[Span, ...]:
    """Spans from the numbers of their words."""
    return tuple(Span(units[first][0], units[stop - 1][1], label) for first, stop, label in stretches)


def words_of(spans: Sequence[Span], units: Places) -> list[Stretch]:
    """Spans by the numbers of their words: the first, the one after the last, the label.

    A word that a span has a part of is in it, unless it is in the span before.
    """
    found: list[Stretch] = []
    for span in spans:
        inside = [i for i, (start, end) in enumerate(units) if start < span.end and end > span.start]
        if inside and (not found or inside[0] >= found[-1][1]):
            found.append((inside[0], inside[-1] + 1, span.label))
    return found
