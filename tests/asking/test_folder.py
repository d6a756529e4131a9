"""Passages of a folder: nothing is lost, every place is true, what cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.asking.folder import Passage, cut, read_folder, read_text
from regard.errors import DataError

LINES = st.lists(
    st.sampled_from(["One two. ", "three!", "四五。六", "\n", "\n\n", " ", "\r\n\r\n", "x" * 30, "“七？”"])
)


@given(text=LINES.map("".join), size=st.integers(4, 60), share=st.floats(0, 0.9))
def test_every_character_is_in_a_passage_and_every_place_is_true(text: str, size: int, share: float) -> None:
    passages = list(cut(Path("a.txt"), text, size, int(size * share)))
    covered = set[int]()
    for passage in passages:
        assert passage.text == passage.text.strip() != ""
        assert text[passage.start : passage.end] == passage.text
        assert passage.line == text.count("\n", 0, passage.start) + 1
        covered |= set(range(passage.start, passage.end))
    assert all(text[place].isspace() for place in set(range(len(text))) - covered)
    ends = [passage.end for passage in passages]
    assert ends == sorted(set(ends))  # no passage lies inside the one before it
    longest = max((len(passage.text.encode()) for passage in passages), default=0)
    assert longest <= size + 2 * len("”".encode())  # a sentence is cut by characters, of which some are wider


def test_short_paragraphs_come_together_and_long_ones_in_parts() -> None:
    short = list(cut(Path("a"), "# Title\n\nA paragraph.\n\nAnother one.\n", 100, 20))
    assert [passage.text for passage in short] == ["# Title\n\nA paragraph.\n\nAnother one."]
    text = "First sentence. Second sentence. Third sentence. Fourth sentence."
    long = [passage.text for passage in cut(Path("a"), text, 36, 18)]
    assert long == [
        "First sentence. Second sentence.",
        "Second sentence. Third sentence.",
        "Third sentence. Fourth sentence.",
    ]
    assert Passage(Path("a"), 9, 3, "one\ntwo").line_of(5) == 4


def test_texts_are_read_in_order_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "b" / ".git").mkdir(parents=True)
    for name, data in {
        "b/a.MD": b"markdown",
        "a.txt": "\ufeffbegins with a mark".encode(),
        "c.txt": "in UTF-16".encode("utf-16"),
        "d.txt": b"ok \xff\xff",
        "e.txt": b"a\0b",
        "f.pdf": b"no text",
        "empty.txt": b" \n",
        "b/.git/x.txt": b"hidden",
    }.items():
        (tmp_path / name).write_bytes(data)
    library = read_folder(tmp_path)
    assert [passage.text for passage in library.passages] == ["begins with a mark", "markdown", "in UTF-16"]
    assert library.num_files == 6
    reasons = [(tmp_path / "d.txt", "not UTF-8: byte 0xff at 3"), (tmp_path / "e.txt", "a NUL byte: not text")]
    assert library.left_out == tuple(reasons)


def test_a_folder_without_texts(tmp_path: Path) -> None:
    def error(folder: Path) -> list[str]:
        with pytest.raises(DataError) as caught:
            read_folder(folder)
        return str(caught.value).splitlines()

    nothing = ["the folder holds no text", "  got:    no such file"]
    assert error(tmp_path)[:2] == nothing
    assert error(tmp_path)[2:] == [
        "  wanted: .txt or .md files with words in them, in UTF-8",
        f"  where:  {tmp_path}",
    ]
    (tmp_path / "a.txt").write_bytes(b"\xff")
    assert error(tmp_path)[1] == "  got:    1 such files, 1 of them unreadable"
    assert error(tmp_path)[-1] == f"  try:    {tmp_path / 'a.txt'}: not UTF-8: byte 0xff at 0"
    assert error(tmp_path / "a.txt")[:2] == ["no folder of texts", f"  got:    {tmp_path / 'a.txt'}, a file"]
    assert error(tmp_path / "b")[1] == f"  got:    {tmp_path / 'b'}, which is not there"


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_text("words")
    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(DataError, match="Permission denied"):
        read_folder(tmp_path)
    with pytest.raises(PermissionError):
        read_text(tmp_path / "a.txt")
