"""Many texts: means over them, words from tokens, and the alignment error of heads that are known to align."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.errors import DataError
from regard.look.collect import LayerView
from regard.look.corpus import Summary, read_gold, word_of
from regard.types import Axis, Trace

SOURCE = Axis("source", ("ab", "c", "_d", "</s>"), ((0, 2), (2, 3), (3, 5), (5, 5)), "abc d")
TARGET = Axis("target", ("x", "_y", "z", "</s>"), ((0, 1), (1, 3), (3, 4), (4, 4)), "x yz")


def trace_of(*keys: list[int]) -> Trace:
    """One cross-attention whose heads read, row by row, exactly these keys."""
    weights = torch.stack([torch.eye(4)[row] for row in keys])[None]
    view = LayerView("decoder.blocks.0.cross.body", "cross", ("target", "source"), None)
    view.add_weights(weights, weights[:, :1].mT, weights[:, :1].mT, None)
    return Trace((view,), {"source": SOURCE, "target": TARGET})


def scores(*values: float | None) -> list[list[dict[str, float | None]]]:
    return [[{"entropy": value, "first": 0.5} for value in values]]


def test_tokens_belong_to_words() -> None:
    assert word_of(SOURCE) == [0, 0, 1, None]
    assert word_of(TARGET) == [0, 1, 1, None]
    assert word_of(Axis("source", ("猫", " "), ((0, 1), (1, 2)), "猫 ")) == [0, None]


def test_numbers_are_means_over_texts() -> None:
    summary = Summary()
    summary.add(trace_of([0, 1, 2, 3], [0, 0, 0, 0]), scores(1.0, None))
    summary.add(trace_of([0, 1, 2, 3], [0, 0, 0, 0]), scores(3.0, 5.0))
    first, second = summary.rows()
    assert first["scores"] == {"entropy": 2.0, "first": 0.5}
    assert second["scores"]["entropy"] == 5.0  # of the one text that has it
    assert (first["label"], first["layer"], second["head"]) == ("decoder 1, cross", 0, 1)
    assert first["kinds"] == ["first"]
    assert first["alignment_error"] is None
    assert summary.document()["texts"] == 2


def test_alignment_errors() -> None:
    gold = read_gold("0-0 1-1", source="abc d", target="x yz", where="here")
    summary = Summary()
    # the first head reads a word as it writes it; the second one a row later; the third rests on </s>
    summary.add(trace_of([1, 2, 2, 3], [3, 0, 2, 2], [3, 3, 3, 3]), scores(1.0, 1.0, 1.0), gold)
    written = [row["alignment_error"] for row in summary.rows()]
    read = [row["alignment_error_read"] for row in summary.rows()]
    assert written[0] == 0.0
    assert read[1] == 0.0
    assert written[1] == pytest.approx(1 - 2 * 1 / (2 + 2))  # y is said to be of abc, z of d: one of two links is right
    assert written[2] == read[2] == 1.0


def test_possible_links_do_no_harm() -> None:
    gold = read_gold("0-0 1?1 1p0", source="abc d", target="x yz", where="here")
    assert (gold.sure, gold.possible) == ({(0, 0)}, {(1, 1), (1, 0)})
    summary = Summary()
    summary.add(trace_of([1, 2, 2, 3]), scores(1.0), gold)
    assert summary.rows()[0]["alignment_error"] == 0.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "0:0",
            "a bad alignment\n  got:    0:0\n  wanted: links source-target, as in 0-0 1-2, and 1?2 "
            "for one that is possible, not sure\n  where:  here",
        ),
        ("2-0", "an alignment names a word that is not there\n  got:    2-0\n  wanted: 2 source and 2 target words"),
        ("0-2", "an alignment names a word that is not there\n  got:    0-2"),
    ],
)
def test_gold_that_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(DataError) as refused:
        read_gold(text, source="abc d", target="x yz", where="here")
    assert str(refused.value).startswith(message)


def test_table_and_page() -> None:
    summary = Summary()
    gold = read_gold("0-0 1-1", source="abc d", target="x yz", where="here")
    summary.add(trace_of([1, 2, 2, 3]), scores(1.0), gold)
    summary.importance = {"decoder.blocks.0.cross.body": [0.25]}
    verdict: Any = {"en": "<b>good</b>", "zh": "好"}
    summary.card = {"verdict": verdict}
    header, rows = summary.table()
    assert header == [
        "head",
        "layer",
        "entropy",
        "confidence",
        "distance",
        "first",
        "importance",
        "error",
        "error, read",
        "kinds",
    ]
    assert rows == [["1.1", "decoder 1, cross", "1.00", "", "", "0.50", "0.25", "0", "0.50", "first"]]
    text = summary.html("<script>")
    assert '<th>entropy<br><span lang="zh">熵</span></th>' in text
    assert text.count("<th>") == text.count('<span lang="zh">') == len(summary.table()[0])
    assert "<h1>&lt;script&gt;</h1>" in text
    assert "&lt;b&gt;good&lt;/b&gt; 好" in text
    assert "<td>decoder 1, cross</td>" in text
    assert "http" not in text.replace("http-equiv", "")
    assert "max_length" not in text
    cut = trace_of([1, 2, 2, 3])
    cut.info["cut"] = 3
    summary.add(cut, scores(1.0), gold)
    assert "1 of 2 texts were too long (data.max_length)" in summary.html("a")
    assert "2 段文本中有 1 段过长" in summary.html("a")
    assert summary.document()["cut"] == 1
