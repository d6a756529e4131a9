"""Pairs of sentences: half of them follow each other, the others come from another document."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regard.data.sentences import PairPlan, Sentences
from regard.data.text import build_text
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError

DOCUMENTS = [[f"d{i}s{j} " + f"d{i}w " * (j % 4) for j in range(1 + i % 9)] for i in range(40)]


def sentences_of(folder: Path, text: str) -> tuple[Sentences, Tokenizer]:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train([text], kind="words")
    found = build_text(
        [folder / "text.txt"], tokenizer, cache_dir=folder / "cache", line_ends="none", split="train", words=True
    )
    return Sentences(found), tokenizer


@pytest.fixture
def made(tmp_path: Path) -> tuple[Sentences, Tokenizer]:
    return sentences_of(tmp_path, "\n \n\n".join("\n".join(document) for document in DOCUMENTS) + "\n\n")


def test_sentences_know_their_documents(made: tuple[Sentences, Tokenizer]) -> None:
    found, tokenizer = made
    assert found.documents.tolist() == [i for i, document in enumerate(DOCUMENTS) for _ in document]
    for i, line in enumerate(line for document in DOCUMENTS for line in document):
        assert tokenizer.decode(found.text.lines.ids[found.starts[i] : found.starts[i + 1]]) == line.strip()
    assert found.begins.sum() == sum(len(document) - 1 for document in DOCUMENTS)
    assert found.text.starts is not None
    assert found.text.starts.all()  # words are whole tokens here


@pytest.mark.parametrize("room", [3, 8, 60])
def test_half_of_the_pairs_follow(made: tuple[Sentences, Tokenizer], room: int) -> None:
    found, tokenizer = made
    rows, num_pairs, num_follow, at_seam = np.flatnonzero(found.begins), 0, 0, 0
    for epoch in range(5):
        for row, pair in zip(rows, found.pairs(rows, room, (1, epoch)), strict=True):
            first, second = (
                tokenizer.decode(found.text.lines.ids[list(side)]).split() for side in (pair.first, pair.second)
            )
            documents = [{word[: word.find("s") if "s" in word else -1] for word in side} for side in (first, second)]
            assert all(len(each) == 1 for each in documents)
            assert 1 <= len(first) + len(second) <= room
            assert min(len(first), len(second)) >= 1
            assert (documents[0] == documents[1]) == pair.follows
            assert not pair.follows or pair.first.stop == pair.second.start
            assert documents[0] == {f"d{found.documents[row]}"}
            at_seam += pair.first.start == found.starts[row]
            num_pairs, num_follow = num_pairs + 1, num_follow + pair.follows
    assert num_follow / num_pairs == pytest.approx(0.5, abs=0.05)
    assert room < 60 or at_seam == num_pairs  # only what is too long is cut


def test_rows_are_laid_with_segments(made: tuple[Sentences, Tokenizer]) -> None:
    found, tokenizer = made
    plan = PairPlan(found, 16)
    batches = plan.plan(batch_tokens=16 * 8, seed=1, epoch=0, shuffle=True)
    assert {planned.shape for planned in batches} == {(8, 16, 16)}
    assert len({i for planned in batches for i in planned.rows}) == sum(len(planned.rows) for planned in batches)
    other = plan.plan(batch_tokens=16 * 8, seed=1, epoch=1, shuffle=True)
    assert [planned.rows.tolist() for planned in batches] != [planned.rows.tolist() for planned in other]
    rows = plan.lay(batches[-1], tokenizer.specials)
    special = tokenizer.specials
    for i, length in enumerate(rows.lengths):
        ids, segments = rows.ids[i, :length].tolist(), rows.segments[i]
        if not length:
            assert i >= len(batches[-1].rows)
            assert (rows.ids[i] == special.pad).all()
            assert rows.follows[i] == -100
            continue
        seam = ids.index(special.end)
        assert (ids[0], ids[-1], ids.count(special.end)) == (special.start, special.end, 2)
        assert segments.tolist() == [0] * (seam + 1) + [1] * (length - seam - 1) + [0] * (16 - length)
        assert np.flatnonzero(rows.free[i]).tolist() == [*range(1, seam), *range(seam + 1, length - 1)]
        assert np.array_equal(found.text.lines.ids[rows.places[i][rows.free[i]]], rows.ids[i][rows.free[i]])
        assert rows.follows[i] in (0, 1)


def test_small_texts_have_a_row_and_those_without_pairs_are_refused(tmp_path: Path) -> None:
    found, _ = sentences_of(tmp_path, "a b\nc d\n\ne\n")
    for epoch in range(20):
        assert found.chunks(9, np.random.default_rng(epoch)).tolist() == [0]
    for text, got in (("a\n\nb\n\nc\n", "3 sentences in 3 documents"), ("a\nb\nc\n", "3 sentences in 1 documents")):
        with pytest.raises(DataError) as error:
            sentences_of(tmp_path, text)
        assert str(error.value).startswith(
            f"there are no two documents of which one has two sentences\n  got:    {got}\n"
        )
