"""Spans as tags, a tag a word, and back: IO, BIO (IOB2), IOB1, BIOES (also BILOU) and BMES.

A tag is O, or a letter and a label: B-person. B begins a span, I (M in BMES) goes on with it, E (L) ends it, S (U) is a
span of one word; in IOB1 a B stands only where a span follows one of its own label, in IO there is none at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

Scheme = Literal["io", "bio", "bioes", "bmes"]  # that a model can say
Found = Literal["io", "bio", "bioes", "bmes", "iob1"]  # that a file can have
Stretch = tuple[int, int, str]  # the first word of a span, the one after its last, its label
PREFIXES: dict[Scheme, str] = {"io": "I", "bio": "BI", "bioes": "BIES", "bmes": "BMES"}
OTHER_LETTERS = {"L": "E", "U": "S", "M": "I"}  # as BIOES has them
NO_LABEL = "span"  # of tags that are a letter alone, as those of word segmentation


def parts_of(tag: str) -> tuple[str, str]:
    """The letter of a tag, as BIOES has it, and its label; a label alone is inside.

    >>> parts_of("B-geo-loc"), parts_of("O"), parts_of("U-person"), parts_of("person"), parts_of("M")
    (('B', 'geo-loc'), ('O', ''), ('S', 'person'), ('I', 'person'), ('I', 'span'))
    """
    if tag == "O":
        return "O", ""
    letter, dash, label = tag.partition("-")
    if letter in ("B", "I", "E", "S", *OTHER_LETTERS) and bool(dash) == bool(label):
        return OTHER_LETTERS.get(letter, letter), label or NO_LABEL
    return "I", tag


def is_bare(tag: str) -> bool:
    """Whether a tag is a label alone."""
    return tag != "O" and parts_of(tag) == ("I", tag)


def scheme_of(rows: Iterable[Sequence[str]]) -> Found:
    """The scheme that rows of tags are written in.

    >>> scheme_of([["B-x", "I-x", "O"]]), scheme_of([["O", "I-x", "B-x"]]), scheme_of([["B-x", "M-x", "E-x"]])
    ('bio', 'iob1', 'bmes')
    """
    letters: set[str] = set()
    inside = alone = False  # an I that begins a span; a B that no span of its own label stands before
    for tags in rows:
        before = ""
        for tag in tags:
            letter, label = parts_of(tag)
            letters.add("I" if is_bare(tag) else tag[0])
            inside |= letter == "I" and label != before
            alone |= letter == "B" and label != before
            before = label
    if "M" in letters:
        return "bmes"
    if letters & set("ESLU"):
        return "bioes"
    if "B" in letters:
        return "iob1" if inside and not alone else "bio"
    return "io"


def is_legal(scheme: Found, before: str, tag: str) -> bool:
    """Whether a tag may stand right after another; a text begins and ends as if there was an O beside it.

    >>> is_legal("bio", "O", "I-x"), is_legal("bio", "B-x", "I-x"), is_legal("bmes", "B-x", "O")
    (False, True, False)
    """
    (last, own), (letter, label) = parts_of(before), parts_of(tag)
    if scheme == "io":
        return True
    if scheme == "iob1":
        return letter != "B" or own == label
    goes_on = last in ("B", "I") and own == label
    if scheme == "bio":
        return letter != "I" or goes_on
    return goes_on and letter in ("I", "E") if last in ("B", "I") else letter in ("O", "B", "S")


def mistakes(tags: Sequence[str], scheme: Found) -> Iterator[tuple[int, str]]:
    """The words whose tag may not stand there, and what stands beside them."""
    for place, (before, tag) in enumerate(zip(["O", *tags], [*tags, "O"], strict=True)):
        if not is_legal(scheme, before, tag):
            yield min(place, len(tags) - 1), f"{tag if place < len(tags) else 'an end'} after {before}"


def to_spans(tags: Sequence[str]) -> list[Stretch]:
    """The spans of tags of any scheme; where they break its rules, a span begins where one has to, as in conlleval.

    >>> to_spans(["B-x", "I-x", "O", "I-y", "B-y"])
    [(0, 2, 'x'), (3, 4, 'y'), (4, 5, 'y')]
    """
    found: list[Stretch] = []
    begin, own = 0, ""  # of the span that is open, "": none is
    for place, tag in enumerate([*tags, "O"]):
        letter, label = parts_of(tag)
        if own and (letter in ("O", "B", "S") or label != own):
            found.append((begin, place, own))
            own = ""
        if not own and letter != "O":
            begin, own = place, label
        if own and letter in ("E", "S"):
            found.append((begin, place + 1, own))
            own = ""
    return found


def to_tags(spans: Iterable[Stretch], length: int, scheme: Scheme) -> list[str]:
    """The tags of `length` words with these spans, of which none may overlap.

    >>> to_tags([(0, 2, "x"), (3, 4, "y")], 4, "bioes"), to_tags([(1, 3, "x")], 3, "io")
    (['B-x', 'E-x', 'O', 'S-y'], ['O', 'I-x', 'I-x'])
    """
    inner = "M" if scheme == "bmes" else "I"
    found = ["O"] * length
    for begin, end, label in spans:
        letters = ["I" if scheme == "io" else "B", *[inner] * (end - begin - 1)]
        if scheme in ("bioes", "bmes"):
            letters[-1] = "E" if len(letters) > 1 else "S"
        found[begin:end] = [f"{letter}-{label}" for letter in letters]
    return found


def tag_names(labels: Iterable[str], scheme: Scheme) -> list[str]:
    """All tags of these labels, O first.

    >>> tag_names(["x"], "bmes")
    ['O', 'B-x', 'M-x', 'E-x', 'S-x']
    """
    return ["O", *(f"{letter}-{label}" for label in labels for letter in PREFIXES[scheme])]
