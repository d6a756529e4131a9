"""Questions about texts, as SQuAD's JSON holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.readers import read_whole
from regard.errors import DataError

WANTED = 'SQuAD\'s {"data": [{"paragraphs": [{"context": .., "qas": [{"question": .., "answers": [..]}]}]}]}'


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the text that answers it, and its answers with the places where they begin, if it has any."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    place: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """The different answers."""
        return tuple(dict.fromkeys(text for text, _ in self.answers))


def read_squad(path: Path) -> Iterator[Question]:
    """Every question of a file, in its order."""
    try:
        table = json.loads(read_whole(path))
    except ValueError as error:
        raise DataError("not valid JSON", got=error, wanted=WANTED, where=path) from None
    try:
        articles = [(article, i) for i, article in enumerate(table["data"])]
    except (KeyError, TypeError):
        raise DataError("this JSON holds no questions", got=_shown(table), wanted=WANTED, where=path) from None
    for article, i in articles:
        yield from _questions(article, path, f"data[{i}]")


def _questions(article: Any, path: Path, place: str) -> Iterator[Question]:
    try:
        for j, paragraph in enumerate(article["paragraphs"]):
            where = f"{place}.paragraphs[{j}]"
            for k, entry in enumerate(paragraph["qas"]):
                where = f"{place}.paragraphs[{j}].qas[{k}]"
                answers = tuple((str(a["text"]), int(a["answer_start"])) for a in entry.get("answers", []))
                name = str(entry.get("id", where))
                yield Question(name, str(entry["question"]), str(paragraph["context"]), answers, f"{path}: {where}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError("a question cannot be read", got=error, wanted=WANTED, where=f"{path}: {place}") from None


def _shown(table: object) -> str:
    return f"an object with {', '.join(map(str, table))}" if isinstance(table, dict) else type(table).__name__
