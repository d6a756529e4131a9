"""Knowledge beside a text: triples (subject, predicate, object) of its entities, put into it as branches (K-BERT).

A branch is the predicate and the object of a triple, right after the entity that is its subject. Which tokens are text
and which hang at it is said by codes, as `regard.ops.masks.branching` reads them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data import catalogue
from regard.data.marked import cut, units_of
from regard.data.readers import read_plain
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError, RunError
from regard.files import put_text
from regard.types import BRANCHES

WANTED = "subject, predicate, object, with tabs between them"
Triple = tuple[str, ...]  # subject, predicate, object
Offset = tuple[int, int]


def is_set(name: str) -> bool:
    """Whether this names a set of the catalogue, and no file."""
    return name in {entry.name for entry in catalogue.entries()}


def read_triples(name: str) -> Iterator[Triple]:
    """The triples of a file, one a line; or of the one .spo file of a set of the catalogue."""
    path = _file_of(name) if is_set(name) else Path(name)
    for line in read_plain(path):
        parts = tuple(part.strip() for part in line.source.split("\t"))
        if len(parts) == 3 and all(parts):
            yield parts
        elif line.source.strip():
            raise DataError("a line is no triple", got=line.source.strip()[:80], wanted=WANTED, where=line.place)


def _file_of(name: str) -> Path:
    files = sorted(catalogue.get(name).glob("*.spo"))
    if len(files) != 1:
        raise DataError("the set has no triples", got=name, wanted="one with an .spo file", where="task.knowledge")
    return files[0]


class Entity(NamedTuple):
    """A stretch of a text that triples speak of, and what they say."""

    start: int
    end: int
    branches: tuple[str, ...]


class Branched(NamedTuple):
    """A text as a model reads it: its ids, what hangs at it, and where in the text each token stands."""

    ids: list[int]
    codes: list[int]
    spans: list[Offset]  # empty ones for what is not of the text


class Knowledge:
    """At most `most` triples of each subject, the first ones.

    >>> known = Knowledge([("Paris", "is in", "France"), ("paris", "is", "a name")], most=2)
    >>> list(known.entities("in Paris, and in Parish"))
    [Entity(start=3, end=8, branches=('is in France',))]
    """

    def __init__(self, triples: Iterable[Triple], most: int) -> None:
        by_subject: dict[str, list[Triple]] = defaultdict(list)
        for triple in dict.fromkeys(triples):
            if len(by_subject[triple[0]]) < most:
                by_subject[triple[0]].append(triple)
        self.triples = [triple for own in by_subject.values() for triple in own]
        if not self.triples:
            raise DataError("there is no triple to know", got="an empty file", wanted=f"lines of {WANTED}")
        self._branches: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._sizes: dict[str, set[int]] = defaultdict(set)  # how many words subjects have, by their first
        for subject, own in by_subject.items():
            words = tuple(subject[start:end] for start, end in cut(subject, "words"))
            if words:
                self._branches[words] = tuple(branch_text(predicate, found) for _, predicate, found in own)
                self._sizes[words[0]].add(len(words))
        self._ids: dict[str, list[int]] = {}

    @classmethod
    def load(cls, path: Path) -> Knowledge:
        """Reads what `save` wrote."""
        if not path.is_file():
            remedy = "copy the run again, or train it again"
            raise RunError("the run has lost its knowledge", got=f"no {path.name}", where=path.parent, remedy=remedy)
        return cls(read_triples(str(path)), most=BRANCHES)

    def save(self, path: Path) -> None:
        """Writes the triples, whole or not at all."""
        try:
            put_text(path, "".join("\t".join(triple) + "\n" for triple in self.triples))
        except OSError as error:
            raise DataError("the knowledge cannot be written", got=error.strerror or error, where=path) from None

    @property
    def sum(self) -> str:
        """What tells one knowledge from another."""
        return hashlib.sha256(repr(self.triples).encode()).hexdigest()

    def entities(self, text: str) -> Iterator[Entity]:
        """The entities of a text from its beginning, each as long as can be: whole words, or characters of Chinese."""
        places = cut(text, "words")
        words, i = [text[start:end] for start, end in places], 0
        while i < len(words):
            sizes = [n for n in self._sizes.get(words[i], ()) if n <= len(words) - i]
            size = max((n for n in sizes if tuple(words[i : i + n]) in self._branches), default=0)
            if size:
                branches = self._branches[tuple(words[i : i + size])]
                yield Entity(places[i][0], places[i + size - 1][1], branches)
            i += max(size, 1)

    def branches_of(self, texts: Iterable[str]) -> list[str]:
        """What texts may have hanging at them, each branch once."""
        return list(
            dict.fromkeys(branch for text in texts for found in self.entities(text) for branch in found.branches)
        )

    def grow(self, text: str, ids: Sequence[int], spans: Sequence[Offset], tokenizer: Tokenizer, most: int) -> Branched:
        """A text with its branches, in all at most `most` tokens: a branch that would be too much is left out.

        An entity is made of the tokens that have a part of it, less those of the entity before; without any, it has no
        branches.
        """
        room, first = most - len(ids), 0
        codes, hanging = [0] * len(ids), {}  # by the last token of an entity
        for number, (start, end, branches) in enumerate(self.entities(text), 1):
            own = [i for i in range(first, len(ids)) if max(start, spans[i][0]) < min(end, spans[i][1])]
            first = own[-1] + 1 if own else first
            fitting: list[list[int]] = []
            for branch in self._encoded(branches, tokenizer) if own else ():
                if len(branch) <= room:
                    fitting.append(branch)
                    room -= len(branch)
            for i in own if fitting else ():
                codes[i] = BRANCHES * number
            if fitting:
                hanging[own[-1]] = fitting
        return _laid(ids, codes, spans, hanging)

    def _encoded(self, branches: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
        new = [branch for branch in branches if branch not in self._ids]
        self._ids |= zip(new, tokenizer.encode_batch(new), strict=True) if new else ()
        return [self._ids[branch] for branch in branches if self._ids[branch]]


def _laid(
    ids: Sequence[int], codes: Sequence[int], spans: Sequence[Offset], hanging: dict[int, list[list[int]]]
) -> Branched:
    """The row with branches behind the tokens that they hang at."""
    row = Branched([], [], [])
    for i, token in enumerate(ids):
        row.ids.append(token)
        row.codes.append(codes[i])
        row.spans.append(spans[i])
        for number, branch in enumerate(hanging.get(i, ()), 1):
            row.ids.extend(branch)
            row.codes.extend([codes[i] + number] * len(branch))
            row.spans.extend([(spans[i][1], spans[i][1])] * len(branch))
    return row


def branch_text(predicate: str, found: str) -> str:
    """What is put into a text: predicate and object, with a space between them where the language has spaces.

    >>> branch_text("is in", "France"), branch_text("位于", "法国")
    ('is in France', '位于法国')
    """
    return ("" if units_of([predicate, found]) == "characters" else " ").join((predicate, found))
