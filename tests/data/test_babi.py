"""bAbI's format: stories that grow, questions between their lines, errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data.babi import StoryTokenizer, newest, read_stories, sentences_of, train_on_stories
from regard.data.readers import ReadReport
from regard.data.tokenizers import TokenizerConfig
from regard.errors import DataError

STORY = """1 Ada walked to the attic.
2 Boris took the drum.
3 Where is Ada? \tattic\t1
4 Ada left.
5 What has Boris? \tdrum,rope\t2 4
1 Emil slept.
2 Who slept?\tEmil\t1
"""


def write(folder: Path, text: str, name: str = "qa1_one_train.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_question_is_about_the_lines_before_it(tmp_path: Path) -> None:
    first, second, third = read_stories([write(tmp_path, STORY)])
    assert first.sentences == ("Ada walked to the attic.", "Boris took the drum.")
    assert (first.question, first.answer, first.facts) == ("Where is Ada?", "attic", (0,))
    assert second.sentences == (*first.sentences, "Ada left.")
    assert (second.answer, second.facts) == ("drum,rope", (1, 2))  # line 4 is the third sentence
    assert (third.sentences, third.facts, third.kind) == (("Emil slept.",), (0,), "qa1_one")
    assert first.story == second.story != third.story
    assert second.place == f"{tmp_path / 'qa1_one_train.txt'}:5"
    assert third.example.source == "Emil slept.\tWho slept?"
    assert third.example.targets == ("Emil",)


def test_each_file_is_a_kind(tmp_path: Path) -> None:
    paths = [write(tmp_path, STORY, name) for name in ("lists_test.txt", "mine.txt")]
    assert [each.kind for each in read_stories(paths)] == ["lists"] * 3 + ["mine"] * 3


@pytest.mark.parametrize(
    ("line", "place", "reason"),
    [
        ("Where is Ada?\tattic\t1", 3, "no number and sentence: Where is Ada?\tattic\t1"),
        ("3 ", 3, "no number and sentence: 3"),
        ("2 Ada sat.", 3, "line 2 after line 2"),
        ("3 Where is Ada?\t\t1", 3, "a question without an answer"),
        ("3 \tattic\t1", 3, "a question without words"),
        ("3 Where is Ada?\tattic\t3", 3, "3 is not the number of a sentence before the question"),
        ("3 Where is Ada?\tattic\tone", 3, "one is not the number of a sentence before the question"),
        ("1 Where is Ada?\tattic\t1", 3, "a question before any sentence"),
        ("3 Where is Ada?\tmoon\t1", 3, 'the answer "moon" is not one of the training split'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, place: int, reason: str) -> None:
    path = write(tmp_path, f"1 Ada came.\n2 Boris came.\n{line}\n1 Ada sat.\n2 Who sat?\tAda\t1\n")
    with pytest.raises(DataError) as caught:
        list(read_stories([path], known=["attic", "Ada"], report=ReadReport()))
    assert str(caught.value) == (
        f"a bad line in a story\n  got:    {reason}\n"
        "  wanted: a number and a sentence; or a number, a question, its answer and the numbers of the lines "
        "that say so\n"
        f"  where:  {path}:{place}\n"
        '  try:    mend the line, or set data.on_bad_line = "skip" to leave such lines out and count them'
    )
    report = ReadReport()
    (kept,) = read_stories([path], known=["attic", "Ada"], on_bad_line="skip", report=report)
    assert kept.answer == "Ada"
    assert report.bad == [(f"{path}:{place}", reason)]


def test_to_be_answered_a_file_may_lack_answers_or_have_a_story_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "1 Ada came.\n2 Who came?\n3 Who came?\tAda\t1\n")
    assert [(each.question, each.answer) for each in read_stories([path], need_answers=False)] == [
        ("Who came?", ""),
        ("Who came?", "Ada"),
    ]
    path = write(tmp_path, "Ada came.\tBoris came.\tWho came?\n\n")
    found = list(read_stories([path], need_answers=False))
    assert [each.example.source for each in found] == ["Ada came.\tBoris came.\tWho came?", ""]


def test_a_story_is_one_row(tmp_path: Path) -> None:
    source = "Ada came .\tBoris came .\tWho came ?"
    tokenizer = train_on_stories(TokenizerConfig(kind="words"), [source])
    (ids,) = tokenizer.encode_batch([source])
    assert tokenizer.tokens(ids) == ["Ada", "came", ".", "</s>", "Boris", "came", ".", "</s>", "Who", "came", "?"]
    spans = tokenizer.offsets(source)
    assert [source[a:b] for a, b in spans] == ["Ada", "came", ".", "\t", "Boris", "came", ".", "\t", "Who", "came", "?"]
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = StoryTokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.encode_batch([source, "Ada"]) == [ids, ids[:1]]
    assert loaded.markers == (3,)


def test_the_oldest_sentences_go_first() -> None:
    ids = [5, 5, 3, 6, 3, 7, 7]
    assert newest(ids, 3, 7) == [0, 1, 2, 3, 4, 5, 6]
    assert newest(ids, 3, 6) == newest(ids, 3, 4) == [3, 4, 5, 6]
    assert newest(ids, 3, 3) == newest(ids, 3, 2) == [5, 6]
    assert newest(ids, 3, 1) == [6]
    assert sentences_of("a\t\tb") == [("a", 0), ("b", 3)]
