"""Dropout that is the same along a text, and of whole tokens."""

from __future__ import annotations

import pytest
import torch

from regard.layers.dropout import LockedDropout, WordDropout


def test_locked_dropout_is_one_mask_a_row() -> None:
    found = LockedDropout(0.25)(torch.ones(50, 7, 40))
    assert torch.equal(found, found[:, :1].expand(-1, 7, -1))
    assert sorted(found.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert (found == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert not torch.equal(found[0], found[1])


def test_word_dropout_takes_a_token_wherever_it_stands() -> None:
    ids, x = torch.randint(100, (20, 30)), torch.ones(20, 30, 3)
    found = WordDropout(0.3, 100)(x, ids)
    kept = {int(i): {float(v) for v in found[ids == i].flatten()} for i in ids.unique()}
    assert all(len(values) == 1 for values in kept.values())
    assert {round(values.pop(), 4) for values in kept.values()} == {0.0, round(1 / 0.7, 4)}


def test_neither_acts_outside_training_or_without_a_share() -> None:
    ids, x = torch.randint(9, (2, 3)), torch.randn(2, 3, 4)
    assert torch.equal(LockedDropout(0.5).eval()(x), x)
    assert torch.equal(WordDropout(0.5, 9).eval()(x, ids), x)
    assert torch.equal(LockedDropout(0.0)(x), x)
    assert torch.equal(WordDropout(0.0, 9)(x, ids), x)
