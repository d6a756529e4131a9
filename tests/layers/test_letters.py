"""Token vectors that know their letters, against the definition: a vector and the mean of those of shared runs."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from regard.layers.letters import SpelledTokens, letter_runs

PIECES = ["", "who", "whom", "\u4e0d\u9519", "\u4e0d", "hm", "zzz"]


def test_runs_are_those_that_other_pieces_have_too_and_each_counts_once() -> None:
    assert letter_runs(PIECES, 2) == [
        [],
        ["w", "h", "o", "wh", "ho"],
        ["w", "h", "o", "m", "wh", "ho"],
        ["\u4e0d"],
        ["\u4e0d"],
        ["h", "m"],
        [],
    ]
    assert "who" in letter_runs(PIECES, 3)[2]


def learned() -> SpelledTokens:
    made = SpelledTokens(PIECES, 4, longest=3)
    torch.nn.init.normal_(made.letters)  # the row of what fills up as well: it must not count
    return made


@torch.no_grad()
def test_a_token_is_its_own_vector_and_the_mean_of_its_runs() -> None:
    made = learned()
    found = letter_runs(PIECES, 3)
    row = {run: i for i, run in enumerate(sorted({run for runs in found for run in runs}), 1)}
    assert made.letters.shape == (len(row) + 1, 4)
    ids = torch.tensor([[1, 2, 3], [0, 6, 5]])
    vectors = made(ids)
    assert vectors.shape == (2, 3, 4)
    for i, vector in zip(ids.flatten().tolist(), vectors.flatten(0, 1), strict=True):
        wanted = made.weight[i]
        if found[i]:
            wanted = wanted + torch.stack([made.letters[row[run]] for run in found[i]]).mean(0)
        assert_close(vector, wanted)


def test_letters_begin_at_zero_and_a_token_teaches_those_that_share_them() -> None:
    made = SpelledTokens(PIECES, 4, longest=3)
    ids = torch.tensor([[1]])
    assert_close(made(ids), made.weight[ids])
    before = made(torch.tensor([2])).detach()
    made(ids).sum().backward()
    assert made.letters.grad is not None
    assert not made.letters.grad[0].any()
    with torch.no_grad():
        made.letters -= made.letters.grad
    assert (made(torch.tensor([2])) != before).all()
    assert_close(made(torch.tensor([3, 6])), made.weight[[3, 6]])


@pytest.mark.parametrize("pieces", [["", "ab", "cd"], ["", ""]])
def test_pieces_without_a_run_in_common_are_plain(pieces: list[str]) -> None:
    made = SpelledTokens(pieces, 4, longest=3)
    ids = torch.tensor([[1, 0], [1, 1]])
    assert_close(made(ids), made.weight[ids])
    assert made(ids[:0]).shape == (0, 2, 4)


def test_what_is_saved_are_vectors_and_no_spelling() -> None:
    made, other = learned(), SpelledTokens(PIECES, 4, longest=3)
    assert sorted(made.state_dict()) == ["letters", "weight"]
    other.load_state_dict(made.state_dict())
    ids = torch.arange(len(PIECES))
    assert_close(other(ids), made(ids), rtol=0.0, atol=0.0)
