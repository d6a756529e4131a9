"""Facts of a head, a relation and a tail: how they are read, numbered, asked, and what is known of them.

A fact is asked both ways: (head, relation, ?) and, with a relation of its own for the way back, (tail, relation^-1, ?).
Ids are those of the model: a few special ones, then the entities, then the relations and their ways back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from regard.config import nearest
from regard.data.readers import BadLine, OnBadLine, ReadReport, decode_line, good_lines, read_lines, require_file
from regard.data.unread import policy_of
from regard.errors import DataError, RunError
from regard.files import put_text
from regard.types import Example, Specials

Ints = npt.NDArray[np.int64]
PAD, MASK = 0, 1
FIRST = 2  # id of the first entity
ASKED, BACK = "?", "^-1"
HEADER = ({"head", "subject"}, {"relation", "predicate"}, {"tail", "object"})
WANTED = "a .tsv of head, relation, tail"
QUERY = "head<TAB>relation, or ?<TAB>relation<TAB>tail to ask for heads"


def read_facts(
    paths: Sequence[Path], *, on_bad_line: OnBadLine = "error", report: ReadReport | None = None
) -> Iterator[Example]:
    """The facts of one .tsv of head, relation, tail: `head<TAB>relation` as source, the tail as target."""
    if len(paths) != 1:
        raise DataError("facts are one file", got=f"{len(paths)} files", wanted=WANTED)
    return good_lines(_parse(paths[0]), paths, on_bad_line, report)


def read_queries(path: Path, report: ReadReport | None = None) -> Iterator[Example]:
    """What a file asks: queries as they are typed, or facts, whose tails are then asked for.

    A line that is neither is a query all the same: the task says what is wrong with it, and answers the others.
    """
    return good_lines(_parse(path, need_tails=False), [path], policy_of(report), report)


def _parse(path: Path, *, need_tails: bool = True) -> Iterator[tuple[str, Example | str]]:
    require_file(path)
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            cells = [cell.strip() for cell in decode_line(line).split("\t")]
            if number == 1 and _is_header(cells):
                continue
            if not need_tails and (len(cells) != 3 or not all(cells) or ASKED in (cells[0], cells[-1])):
                yield place, Example("\t".join(cells), (), place)
                continue
            if len(cells) != 3:
                raise BadLine(f"{len(cells)} columns; wanted head, relation, tail with tabs between them")
            for cell, name in zip(cells, ("head", "relation", "tail"), strict=True):
                if cell in ("", ASKED):
                    raise BadLine(f"the {name} is {'empty' if not cell else 'a question mark, which asks for a name'}")
        except BadLine as reason:
            yield place, str(reason)
        else:
            yield place, Example("\t".join(cells[:2]), (cells[2],), place)


def _is_header(cells: Sequence[str]) -> bool:
    names = [cell.lower() for cell in cells]
    return len(names) == 3 and all(name in known for name, known in zip(names, HEADER, strict=True))


@dataclass(frozen=True)
class Graph:
    """The names of a run, and the facts that it was trained on: N x 3, an entity, a relation and an entity each.

    >>> graph = Graph.of([Example("ann\\tknows", ("bob",))])
    >>> graph.query("ann\\tknows"), graph.query("?\\tknows\\tbob"), graph.tokens([3, 5])
    ((2, 4), (3, 5), ['bob', 'knows^-1'])
    """

    entities: tuple[str, ...]
    relations: tuple[str, ...]
    facts: Ints

    specials: ClassVar = Specials(MASK, MASK, PAD, mask=MASK)  # as a tokenizer has them
    special_ids: ClassVar = [PAD, MASK]

    @classmethod
    def of(cls, facts: Sequence[Example], others: Iterable[Example] = ()) -> Graph:
        """The graph of a training split; of the other splits it has the names alone."""
        heads, relations, tails = zip(*(_cells(fact) for fact in [*facts, *others]), strict=True)
        names = cls(tuple(sorted({*heads, *tails})), tuple(sorted({*relations})), np.zeros((0, 3), np.int64))
        return replace(names, facts=names.numbers(facts))

    @classmethod
    def load(cls, path: Path) -> Graph:
        """Reads what `save` wrote."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            facts = np.array(found["facts"], np.int64).reshape(-1, 3)
            return cls(tuple(found["entities"]), tuple(found["relations"]), facts)
        except (OSError, ValueError, TypeError, KeyError) as error:
            remedy = "copy the run again, or train it again"
            raise RunError("the graph cannot be read", got=repr(error), where=path, remedy=remedy) from None

    def save(self, path: Path) -> None:
        """Writes names and facts as JSON, whole or not at all."""
        found = {"entities": self.entities, "relations": self.relations, "facts": self.facts.ravel().tolist()}
        try:
            put_text(path, json.dumps(found, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DataError("the graph cannot be written", got=error.strerror or error, where=path) from None

    # --- names and ids ------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many ids there are."""
        return FIRST + len(self.entities) + 2 * len(self.relations)

    @cached_property
    def _places(self) -> tuple[dict[str, int], dict[str, int]]:
        entities, relations = ({name: i for i, name in enumerate(names)} for names in (self.entities, self.relations))
        return entities, relations

    def entity(self, name: str, where: object = None) -> int:
        """The number of an entity, from 0 on."""
        return _find(name, self._places[0], "entity", where)

    def relation(self, name: str, where: object = None) -> int:
        """The number of a relation, from 0 on."""
        return _find(name, self._places[1], "relation", where)

    def numbers(self, facts: Iterable[Example]) -> Ints:
        """Facts as N x 3 numbers."""
        return np.array([self._numbers(fact) for fact in facts], np.int64).reshape(-1, 3)

    def _numbers(self, fact: Example) -> tuple[int, int, int]:
        head, relation, tail = _cells(fact)
        return self.entity(head, fact.place), self.relation(relation, fact.place), self.entity(tail, fact.place)

    def query(self, text: str, where: object = None) -> tuple[int, int]:
        """The ids of the entity and of the relation of `head<TAB>relation` or `?<TAB>relation<TAB>tail`."""
        cells = [cell.strip() for cell in text.split("\t")]
        if len(cells) == 3 and cells[2] == ASKED:
            cells = cells[:2]
        backward = len(cells) == 3 and cells[0] == ASKED
        if not (backward or len(cells) == 2) or not all(cells):
            raise DataError("a query is not understood", got=text[:80], wanted=QUERY, where=where)
        relation = self.relation(cells[1], where) + (len(self.relations) if backward else 0)
        return FIRST + self.entity(cells[2] if backward else cells[0], where), self.first_relation + relation

    @property
    def first_relation(self) -> int:
        """The id of the first relation."""
        return FIRST + len(self.entities)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The names of ids."""
        backward = [name + BACK for name in self.relations]
        names = ["<pad>", "<mask>", *self.entities, *self.relations, *backward]
        return [names[int(i)] for i in ids]

    # --- what is asked and known --------------------------------------------------------------------------------------

    def asked(self, facts: Ints) -> Ints:
        """Facts both ways, as ids of an entity and a relation, and the number of the right entity: 2N x 3."""
        head, relation, tail = facts.T
        first = self.first_relation
        there = np.stack([FIRST + head, first + relation, tail], 1)
        return np.concatenate([there, np.stack([FIRST + tail, first + len(self.relations) + relation, head], 1)])

    @cached_property
    def edges(self) -> Grouped:
        """The relation and the entity, as ids, of what each entity has with others: the facts of training."""
        asked = self.asked(np.unique(self.facts, axis=0))
        asked = np.random.default_rng(0).permutation(asked)  # of many neighbours some are read
        return Grouped.of(asked[:, 0], np.stack([asked[:, 1], FIRST + asked[:, 2]], 1))

    def known(self, facts: Ints) -> Grouped:
        """The entities that are right for each query by these facts; the group of a query is `key_of` it."""
        asked = np.unique(self.asked(facts), axis=0)
        return Grouped.of(self.key_of(asked), asked[:, 2])

    def key_of(self, asked: Ints) -> Ints:
        """One number for the entity and the relation of a query: of N x 2 or more, N."""
        return (asked[:, 0] - FIRST) * 2 * len(self.relations) + asked[:, 1] - self.first_relation


@dataclass(frozen=True)
class Grouped:
    """Values by the number of their group, those of a group side by side."""

    keys: Ints
    values: Ints

    @classmethod
    def of(cls, keys: Ints, values: Ints) -> Grouped:
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], values[order])

    def counts(self, groups: Ints) -> Ints:
        """How many values each of these groups has."""
        return self.stops(groups) - self.starts(groups)

    def starts(self, groups: Ints) -> Ints:
        return np.searchsorted(self.keys, groups)

    def stops(self, groups: Ints) -> Ints:
        return np.searchsorted(self.keys, groups, side="right")

    def all_of(self, groups: Ints) -> tuple[Ints, Ints]:
        """The values of some groups: the place among `groups` that each belongs to, and the value."""
        starts, counts = self.starts(groups), self.counts(groups)
        rows = np.repeat(np.arange(len(groups)), counts)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self.values[np.repeat(starts, counts) + place]


def _cells(fact: Example) -> tuple[str, str, str]:
    head, relation = fact.source.split("\t")
    return head, relation, fact.targets[0]


def _find(name: str, places: dict[str, int], kind: str, where: object) -> int:
    if name in places:
        return places[name]
    near = nearest(name, places)
    remedy = f'did you mean "{near}"?' if near else None
    wanted = f"one of the {len(places):,} that the run has seen in its files"
    raise DataError(f"no such {kind}", got=name, wanted=wanted, where=where, remedy=remedy)
