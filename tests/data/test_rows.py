"""Encoded texts with labels: what is said of a split."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data.rows import build_rows
from regard.data.tokenizers import Tokenizer
from regard.types import Example


@pytest.mark.parametrize("num_shapes", [1, 3])
def test_what_the_vocabulary_has_not_is_counted_and_kept(tmp_path: Path, num_shapes: int) -> None:
    """Also where a piece has an id for each shape that its word may have."""
    path = tmp_path / "a.tsv"
    path.write_text("the file that the cache goes by\n")
    words = Tokenizer.train(["low lower"], kind="words")
    examples = [Example("low new lower", ("x",)), Example("newer", ("y",))]

    def encode(chunk: list[Example]) -> list[list[int]]:
        found = words.encode_batch([example.source for example in chunk])
        return [[i + (place % num_shapes) * words.size for place, i in enumerate(ids)] for ids in found]

    for _ in range(2):  # made, and found again
        rows = build_rows(
            [path],
            words,
            lambda report: examples,
            lambda example: [1],
            split="train",
            policy={},
            cache_dir=tmp_path / "cache",
            max_length=9,
            label_width=1,
            encode=encode if num_shapes > 1 else None,
            num_ids=words.size * num_shapes if num_shapes > 1 else 0,
        )
        assert rows.describe() == ("2 texts, 8 tokens; 0 truncated, 0 dropped, 0 bad lines; 25.0% unknown tokens")
