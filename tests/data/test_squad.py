"""SQuAD's JSON: questions, their texts, their answers; what is not so is named with its place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regard.data.readers import ReadReport, read_examples
from regard.data.squad import read_questions, read_squad
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


# --- every file of questions


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        ("a.jsonl", '{"question": "Who?", "context": "It was Ada.", "answers": ["Ada"]}', (("Ada", 7),)),
        ("a.jsonl", '{"question": "Who?", "context": "It was Ada.", "answer": "Ada"}', (("Ada", 7),)),
        ("a.jsonl", '{"question": "Who?", "context": "It was Ada.", "answers": []}', ()),
        (
            "a.jsonl",
            '{"question": "Who?", "context": "Ada or Ada", "answers": {"text": ["Ada"], "answer_start": [7]}}',
            (("Ada", 7),),
        ),
        (
            "a.jsonl",
            '{"question": "Who?", "context": "Ada or Ada", "answers": [{"text": "Ada", "answer_start": 7}]}',
            (("Ada", 7),),
        ),
        ("a.jsonl", '{"source": "Who?\\tIt was Ada.", "target": "Ada"}', (("Ada", 7),)),
        ("a.tsv", "question\tcontext\tanswer\nWho?\tIt was Ada.\tAda\tIt", (("Ada", 7), ("It", 0))),
        ("a.tsv", "Who?\tIt was Ada.\t", ()),
    ],
)
def test_questions_of_other_files(name: str, content: str, wanted: object, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content + "\n", encoding="utf-8")
    (found,) = read_questions([tmp_path / name])
    assert (found.question, found.answers) == ("Who?", wanted)
    assert found.context.startswith(("It was", "Ada or"))
    assert found.source == f"Who?\t{found.context}"


def test_articles_have_their_titles(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(TABLE), encoding="utf-8")
    assert [question.article for question in read_squad(tmp_path / "a.json")] == ["t", "t"]
    impossible = {**QAS[0], "is_impossible": True}
    table = {"data": [{"paragraphs": [{"context": "Ada and Ada.", "qas": [impossible]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(table), encoding="utf-8")
    assert [(q.article, q.answers) for q in read_squad(tmp_path / "a.json")] == [("data[0]", ())]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", json.dumps(TABLE), 'the answer "Ada" does not stand in the text at 9'),
        ("a.tsv", "Who?", "one column; wanted question, tab, text"),
        (
            "a.tsv",
            "Who?\tIt was Ada.",
            "no answer; wanted question, text, answers, an empty one where the text has none",
        ),
        ("a.tsv", "Who?\tIt was Ada.\tBob", 'the answer "Bob" does not stand in the text'),
        ("a.tsv", "\tIt was Ada.\tAda", "the question is empty"),
        ("a.tsv", "Who?\t \tAda", "the text is empty"),
        ("a.jsonl", '{"question": "Who?"}', "no key 'context'; there are: question"),
        ("a.jsonl", '{"question": "Who?", "context": "Ada"}', 'no key "answers"; [] where the text has none'),
        ("a.jsonl", "[1]", "not a JSON object with question, context and answers"),
        ("a.jsonl", "{", "not a JSON object with question, context and answers"),
    ],
)
def test_bad_questions(name: str, content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content + "\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(read_questions([path]))
    assert caught.value.what == "a bad question"
    assert str(caught.value.got).startswith(message)
    assert str(caught.value.where).startswith(str(path))
    report = ReadReport()
    list(read_questions([path], on_bad_line="skip", report=report))
    assert report.num_bad == 1


def test_questions_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"Who?\tIt was Ada.\n\nWhen?\tToday.\nNo tab.\n")
    found = list(read_questions([path], need_answers=False))
    assert [(question.question, question.context) for question in found] == [
        ("Who?", "It was Ada."),
        ("", ""),  # an empty line has an empty answer
        ("When?", "Today."),
        ("No tab.", ""),  # the task says what it misses
    ]
    with pytest.raises(DataError, match=r"a file without answers\n  got:    .*a.txt\n  wanted: one .json as SQuAD"):
        list(read_questions([path]))
    with pytest.raises(DataError, match="questions are one file\n  got:    2 files"):
        list(read_questions([path, path]))
    path.write_bytes(b"Who?\t\xff\n")
    with pytest.raises(DataError, match="a bad question\n  got:    not UTF-8: byte 0xff at column 6") as error:
        list(read_questions([path], need_answers=False))
    assert error.value.remedy == "mend the line"  # no key of training
