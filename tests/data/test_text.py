"""Running text: what a line's end is, what is counted, and where a text is cut in two."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.readers import ReadReport
from regard.data.text import WHOLE, LineEnds, Measures, Span, Text, build_text, read_lines_of
from regard.data.tokenizers import EOS, Kind, Tokenizer
from regard.errors import DataError

LINES = "low  lower\n\nlé lowest\n"


def text_of(
    folder: Path, line_ends: LineEnds, *, content: str = LINES, kind: Kind = "characters", span: Span = WHOLE
) -> tuple[Text, Tokenizer]:
    (folder / "a.txt").write_bytes(content.encode())
    tokenizer = Tokenizer.train([LINES], kind=kind, vocab_size=400)
    paths = [folder / "a.txt"]
    return build_text(
        paths, tokenizer, cache_dir=folder / "cache", line_ends=line_ends, split="val", span=span
    ), tokenizer


def test_a_line_end_is_a_character_as_any_other(tmp_path: Path) -> None:
    text, tokenizer = text_of(tmp_path, "text")
    assert tokenizer.decode(text.lines.ids) == LINES
    assert len(text) == len(LINES) == 22
    assert text.measures == Measures(lines=3, words=4, characters=22, bytes=23)
    assert text.lines.starts.tolist() == [0, 11, 12, 22]
    assert text.describe() == "22 tokens, 3 lines, 4 words, 22 characters"


def test_a_line_end_is_a_token_and_a_word(tmp_path: Path) -> None:
    text, tokenizer = text_of(tmp_path, "token", kind="words")
    assert tokenizer.tokens(text.lines.ids) == ["low", "lower", "</s>", "</s>", "lé", "lowest", "</s>"]
    assert text.measures == Measures(lines=3, words=7, characters=22, bytes=23)
    assert len(text) == text.measures.words  # so that both perplexities are the same
    assert text.lines.row(1).tolist() == [EOS]


def test_the_last_line_may_lack_its_end_and_windows_is_read_as_the_rest(tmp_path: Path) -> None:
    wanted, _ = text_of(tmp_path, "text")
    assert (
        text_of(tmp_path, "text", content=LINES.removesuffix("\n"))[0].lines.ids.tolist() == wanted.lines.ids.tolist()
    )
    assert text_of(tmp_path, "text", content=LINES.replace("\n", "\r\n"))[0].measures == wanted.measures


@given(
    lines=st.lists(st.text("ab\r\u2028\x0b ", max_size=5), min_size=1, max_size=6),
    share=st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 0.8, 0.9]),
)
def test_two_parts_are_the_whole_cut_at_a_character(lines: list[str], share: float) -> None:
    whole = [f"{line}\n" for line in lines]
    first, last = (list(Span(part, share).of(iter(whole))) for part in ("first", "last"))  # type: ignore[arg-type]
    assert "".join(first + last) == "".join(whole)
    kept = round(len("".join(whole)) * (1 - share), 6)
    assert len("".join(first)) == int(kept)
    # only at \n does a line end
    assert all(line.count("\n") == line.endswith("\n") for line in first + last)
    assert all(line.endswith("\n") for line in [*first[:-1], *last])


def test_the_cut_of_nanogpt(tmp_path: Path) -> None:
    """Its data is text[: int(n * 0.9)] and the rest."""
    content = "".join(f"{n} bottles\n" for n in range(997))
    (tmp_path / "a.txt").write_text(content)
    for part, wanted in (("first", content[: int(len(content) * 0.9)]), ("last", content[int(len(content) * 0.9) :])):
        span = Span(part, 0.1)  # type: ignore[arg-type]
        found = read_lines_of([tmp_path / "a.txt"], span, on_bad_line="error", report=ReadReport())
        assert "".join(found) == wanted


def test_a_line_that_the_cut_goes_through_has_one_end(tmp_path: Path) -> None:
    parts: list[list[int]] = []
    for part in ("first", "last"):
        text, tokenizer = text_of(tmp_path, "token", content="low low low\nlow low\n", span=Span(part, 0.5))  # type: ignore[arg-type]
        parts.append(text.lines.ids.tolist())
        assert text.measures.characters == 10
    assert tokenizer.tokens(parts[0]) == [*"low▁low▁lo"]
    assert tokenizer.tokens(parts[1]) == ["w", "</s>", *"low▁low", "</s>"]


def test_files_follow_each_other_and_bad_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"low\nl\xffow\n")
    (tmp_path / "b.txt").write_bytes(b"lower")
    tokenizer = Tokenizer.train([LINES], kind="characters")
    paths, cache = [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "cache"
    for _ in range(2):  # made, and then found
        text = build_text(paths, tokenizer, cache_dir=cache, line_ends="text", split="val", on_bad_line="skip")
        assert tokenizer.decode(text.lines.ids) == "low\nlower\n"
        assert text.describe() == "10 tokens, 2 lines, 2 words, 10 characters; 1 bad lines left out"
    with pytest.raises(DataError, match=r"a bad line\n  got:    not UTF-8: byte 0xff at column 2"):
        build_text(paths, tokenizer, cache_dir=cache, line_ends="text", split="val")


def test_what_the_vocabulary_has_not_is_counted_and_kept(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("low new\nnewer\n")
    tokenizer = Tokenizer.train([LINES], kind="words")
    for _ in range(2):  # made, and found again
        text = build_text(
            [tmp_path / "a.txt"], tokenizer, cache_dir=tmp_path / "cache", line_ends="token", split="train"
        )
        assert text.describe() == "5 tokens, 2 lines, 5 words, 14 characters; 40.0% unknown tokens"


def test_there_is_no_text(tmp_path: Path) -> None:
    for content, tokens in (("", 0), ("\n", 1)):
        with pytest.raises(DataError) as error:
            text_of(tmp_path, "text", content=content)
        assert str(error.value) == (
            f"the validation split has no text to read\n  got:    {tokens} tokens\n  wanted: two or more\n"
            f"  where:  {tmp_path / 'a.txt'}\n  try:    put more text into it, or name another file under val"
        )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "label\ttext\n1\tlow lower\n0\tlowest\n"),
        ("b.jsonl", '{"label": 1, "text": "low lower\\nlowest"}\n'),
    ],
)
def test_labelled_texts_are_running_text_without_their_labels(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    lines = read_lines_of([tmp_path / name], WHOLE, on_bad_line="error", report=ReadReport())
    assert list(lines) == ["low lower\n", "lowest\n"]


def test_a_bad_labelled_line_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "low"}\n{"words": "low"}\n')
    report = ReadReport()
    assert list(read_lines_of([tmp_path / "a.jsonl"], WHOLE, on_bad_line="skip", report=report)) == ["low\n"]
    assert [place for place, _ in report.bad] == [f"{tmp_path / 'a.jsonl'}:2"]
