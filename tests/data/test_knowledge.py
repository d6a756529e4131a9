"""Triples and texts: which entities stand in a text, and what is hung at them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.data.knowledge import Branched, Knowledge, read_triples
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError, RunError
from regard.ops.positions import soft_positions

CITIES = [("Tim Cook", "CEO", "Apple"), ("Beijing", "capital", "China"), ("Beijing", "is_a", "City")]
TEXT = "Tim Cook is visiting Beijing now"
BRANCHES = ["CEO Apple", "capital China", "is_a City"]


def words(*texts: str) -> Tokenizer:
    return Tokenizer.train([*texts, *BRANCHES], kind="words")


def grown(known: Knowledge, text: str, tokenizer: Tokenizer, most: int = 99) -> Branched:
    """A text with its branches, between <s> and </s>."""
    ids = [2, *tokenizer.encode_batch([text])[0], 3]
    spans = [(0, 0), *tokenizer.offsets(text), (len(text), len(text))]
    return known.grow(text, ids, spans, tokenizer, most)


def found(known: Knowledge, text: str) -> list[str]:
    return [text[entity.start : entity.end] for entity in known.entities(text)]


# --- files


def test_a_file_of_triples_is_read(tmp_path: Path) -> None:
    file = tmp_path / "some.spo"
    file.write_text("北京\t是\t首都\n\n Paris \tis in\tFrance\r\n", encoding="utf-8")
    assert list(read_triples(str(file))) == [("北京", "是", "首都"), ("Paris", "is in", "France")]


@pytest.mark.parametrize("line", ["Paris\tFrance", "Paris\t\tFrance", "Paris\tis\tin\tFrance"])
def test_a_line_that_is_no_triple_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "some.spo"
    file.write_text(f"Rome\tis in\tItaly\n{line}\n")
    with pytest.raises(DataError) as caught:
        list(read_triples(str(file)))
    assert str(caught.value) == (
        f"a line is no triple\n  got:    {line}\n  wanted: subject, predicate, object, with tabs between them\n"
        f"  where:  {file}:2"
    )


def test_a_file_without_triples_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.spo"
    file.write_text("\n")
    with pytest.raises(DataError, match="there is no triple to know\n  got:    an empty file"):
        Knowledge(read_triples(str(file)), most=2)


def test_the_triples_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, file in (("hownet", "HowNet.spo"), ("sst2", "train.tsv")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("图书馆\t义原\t场所\n", encoding="utf-8")
    assert list(read_triples("hownet")) == [("图书馆", "义原", "场所")]
    with pytest.raises(DataError, match=r"the set has no triples\n  got:    sst2\n  wanted: one with an \.spo file"):
        list(read_triples("sst2"))


def test_what_is_kept_is_what_is_known(tmp_path: Path) -> None:
    known = Knowledge([*CITIES, CITIES[1], ("Beijing", "is", "large")], most=2)
    assert known.triples == CITIES  # each once, and of an entity the first two
    known.save(tmp_path / "knowledge.tsv")
    again = Knowledge.load(tmp_path / "knowledge.tsv")
    assert again.triples == known.triples
    assert again.sum == known.sum != Knowledge(CITIES, most=1).sum
    assert list(again.entities(TEXT)) == list(known.entities(TEXT))
    (tmp_path / "knowledge.tsv").unlink()
    with pytest.raises(RunError, match=r"the run has lost its knowledge\n  got:    no knowledge\.tsv"):
        Knowledge.load(tmp_path / "knowledge.tsv")


# --- entities


def test_entities_are_whole_words() -> None:
    known = Knowledge([("Rome", "is", "old"), ("New York", "is", "new"), ("York", "is", "old")], most=1)
    assert found(known, "Rome, Romeo, New  York; York rome new York New") == ["Rome", "New  York", "York", "York"]


def test_chinese_entities_are_the_longest_from_the_left() -> None:
    known = Knowledge([(word, "是", "词") for word in ("图书", "图书馆", "馆长", "时间很长", "3D电影")], most=1)
    assert found(known, "图书馆长看图书") == ["图书馆", "图书"]  # 馆长 begins inside of the first
    assert found(known, "看3D电影时间很") == ["3D电影"]  # a text may end before an entity does


# --- rows


def test_soft_positions_and_codes_are_those_of_the_figure() -> None:
    """Figure 2 of Liu et al. 2020: the sentence tree of this text."""
    tokenizer = words(TEXT)
    row = grown(Knowledge(CITIES, most=2), TEXT, tokenizer)
    assert " ".join(tokenizer.tokens(row.ids)) == (
        "<s> Tim Cook CEO Apple is visiting Beijing capital China is_a City now </s>"
    )
    positions = soft_positions(torch.tensor([row.codes]))[0].tolist()
    assert positions[:-1] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 6, 7, 6]
    assert row.codes == [0, 16, 16, 17, 17, 0, 0, 32, 33, 33, 34, 34, 0, 0]
    surface = [TEXT[start:end] for start, end in row.spans]
    assert surface == ["", "Tim", "Cook", "", "", "is", "visiting", "Beijing", "", "", "", "", "now", ""]
    assert row.spans[3] == (8, 8)  # where its entity ends


def test_branches_stay_within_their_room() -> None:
    tokenizer = words(TEXT)
    known = Knowledge([("Tim Cook", "CEO", "Apple"), ("Beijing", "is", "a large City"), ("now", "is", "City")], most=2)
    row = grown(known, TEXT, tokenizer, most=8 + 5)
    assert len(row.ids) == 8 + 4  # the four tokens of the second branch are too many, the last has room
    assert [code for code in row.codes if code] == [16, 16, 17, 17, 48, 49, 49]
    assert grown(known, TEXT, tokenizer, most=8).codes == [0] * 8
    assert grown(known, TEXT, tokenizer, most=5).ids == [2, *tokenizer.encode_batch([TEXT])[0], 3]


def test_an_entity_that_was_cut_off_has_no_branches() -> None:
    tokenizer = words(TEXT)
    ids, spans = tokenizer.encode_batch([TEXT])[0], tokenizer.offsets(TEXT)
    row = Knowledge(CITIES, most=2).grow(TEXT, ids[:1], spans[:1], tokenizer, 99)
    assert row.codes == [16, 17, 17]  # half of Tim Cook is there


def test_pieces_that_hold_more_than_an_entity_are_of_the_first_one() -> None:
    tokenizer = Tokenizer.train(["图书馆长好 是人 是楼"], kind="words")  # one piece
    row = grown(Knowledge([("图书馆", "是", "楼"), ("好", "是", "人")], most=1), "图书馆长好", tokenizer)
    assert tokenizer.tokens(row.ids) == ["<s>", "图书馆长好", "是楼", "</s>"]
    assert row.codes == [0, 16, 17, 0]


def test_nothing_is_changed_where_nothing_is_known() -> None:
    text = "nobody is visiting"
    tokenizer = words(text)
    row = grown(Knowledge(CITIES, most=2), text, tokenizer)
    assert row.ids == [2, *tokenizer.encode_batch([text])[0], 3]
    assert row.codes == [0] * 5
