"""SQuAD's JSON: questions, their texts, their answers; what is not so is named with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard.data.readers import read_examples
from regard.data.squad import read_squad
from regard.errors import DataError

QAS: list[dict[str, Any]] = [
    {
        "id": "a",
        "question": "Who?",
        "answers": [{"text": "Ada", "answer_start": 0}, {"text": "Ada", "answer_start": 9}],
    },
    {"question": "When?", "answers": []},
]
TABLE = {"data": [{"title": "t", "paragraphs": [{"context": "Ada and Ada.", "qas": QAS}]}]}


def test_questions_come_with_their_texts_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(TABLE), encoding="utf-8")
    first, second = read_squad(path)
    assert (first.id, first.question, first.context) == ("a", "Who?", "Ada and Ada.")
    assert first.answers == (("Ada", 0), ("Ada", 9))
    assert first.texts == ("Ada",)
    assert second.answers == ()
    assert second.place == f"{path}: data[0].paragraphs[0].qas[1]"


def test_they_are_examples_of_text_to_text(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(TABLE).encode()))
    first, second = read_examples([path])
    assert (first.source, first.targets) == ("question: Who? context: Ada and Ada.", ("Ada",))
    assert second.targets == ("",)


@pytest.mark.parametrize(
    ("text", "what", "got"),
    [
        ("{", "not valid JSON", "Expecting"),
        ("[1]", "this JSON holds no questions", "list"),
        ('{"version": 2}', "this JSON holds no questions", "an object with version"),
        ('{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "a question cannot be read", "'question'"),
    ],
)
def test_what_is_not_so_is_named(text: str, what: str, got: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(read_squad(path))
    assert caught.value.what == what
    assert got in str(caught.value.got)
    assert str(path) in str(caught.value.where)
