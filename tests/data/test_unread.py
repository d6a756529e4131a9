"""A line that cannot be read keeps its place, however a task reads its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from regard.data.babi import has_numbers, read_stories
from regard.data.conll import read_to_tag
from regard.data.facts import read_queries
from regard.data.markers import read_marked
from regard.data.readers import ReadReport, read_examples, read_labelled
from regard.data.squad import read_questions
from regard.data.turns import read_contexts
from regard.data.unread import in_place, policy_of
from regard.errors import DataError
from regard.types import Example

Read = Callable[[Path, ReadReport | None], Iterable[object]]
WAYS: dict[str, Read] = {
    "examples": lambda path, to: read_examples([path], need_targets=False, on_bad_line=policy_of(to), report=to),
    "labelled": lambda path, to: read_labelled([path], need_labels=False, on_bad_line=policy_of(to), report=to),
    "marked": lambda path, to: read_marked([path], need_labels=False, on_bad_line=policy_of(to), report=to),
    "questions": lambda path, to: read_questions([path], need_answers=False, on_bad_line=policy_of(to), report=to),
    "stories": lambda path, to: read_stories([path], need_answers=False, on_bad_line=policy_of(to), report=to),
    "queries": read_queries,
    "to tag": lambda path, to: read_to_tag(path, units="words", report=to),
    "contexts": read_contexts,
}

MEND = "\n  try:    mend the line"


@pytest.mark.parametrize("way", WAYS)
def test_a_line_that_is_no_text_keeps_its_place(tmp_path: Path, way: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ttwo\n\xff\n\xff\n" + b"three\tfour\n" + b"\xff\n")
    with pytest.raises(DataError, match=rf"not UTF-8: byte 0xff at column 1\n(.*\n)?  where:  {path}:2"):
        list(WAYS[way](path, None))
    report = ReadReport()
    texts = (source_of(found) for found in WAYS[way](path, report))
    found = list(in_place(texts, report))
    wrong = [
        f"a bad line\n  got:    not UTF-8: byte 0xff at column 1\n  where:  {path}:{line}{MEND}" for line in (2, 3, 5)
    ]
    assert [why for _, why in found] == ["", wrong[0], wrong[1], "", wrong[2]]
    assert [bool(text) for text, _ in found] == [True, False, False, True, False]


def source_of(found: object) -> str:
    return found.source if isinstance(found, Example) else str(found)


def test_where_lines_have_numbers_a_story_has_many(tmp_path: Path) -> None:
    for content, numbered in (("1 Ada went home.\n", True), ("Ada went home.\tWhere?\n", False), ("", False)):
        (tmp_path / "a.txt").write_text(content)
        assert has_numbers(tmp_path / "a.txt") == numbered
