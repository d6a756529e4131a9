"""The optimiser's groups, and the learning rate at steps where it can be said in one's head."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from regard.train.config import TrainConfig
from regard.train.optim import learning_rate, make_optimizer, set_learning_rate


def rates(steps: list[int], **words: Any) -> list[float]:
    config = TrainConfig(**{"learning_rate": 8.0, "warmup_steps": 4, "max_steps": 24, **words})
    return [learning_rate(step, config) for step in steps]


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "constant"])
def test_warm_up_is_a_straight_line_to_the_highest(schedule: str) -> None:
    assert rates([1, 2, 3, 4], schedule=schedule) == [2.0, 4.0, 6.0, 8.0]
    everything = rates(list(range(1, 25)), schedule=schedule)
    assert max(everything) == 8.0
    assert all(a >= b for a, b in itertools.pairwise(everything[3:]))  # and never up again


def test_inverse_square_root() -> None:
    assert rates([16, 36, 64, 400], schedule="inverse-sqrt") == pytest.approx([4.0, 8 / 3, 2.0, 0.8])


def test_inverse_square_root_does_not_look_at_the_end() -> None:
    assert rates([16], schedule="inverse-sqrt", max_steps=16) == rates([16], schedule="inverse-sqrt", max_steps=99)


def test_cosine() -> None:
    quarter = 4 * (1 + math.cos(math.pi / 4))
    assert rates([9, 14, 24, 30], schedule="cosine") == pytest.approx([quarter, 4.0, 0.0, 0.0])


def test_constant_with_a_decay_at_the_end() -> None:
    found = rates([4, 10, 18, 20, 22, 24, 30], schedule="constant", decay_share=0.25)  # the last 6 of 24
    assert found == pytest.approx([8.0, 8.0, 8.0, 16 / 3, 8 / 3, 0.0, 0.0])
    assert rates([6, 12, 24], schedule="constant", decay_share=1.0) == pytest.approx([6.0, 4.0, 0.0])


def test_without_warm_up_the_first_update_has_the_highest() -> None:
    assert rates([1], warmup_steps=0, schedule="inverse-sqrt") == [8.0]
    assert rates([1], warmup_steps=0, schedule="constant") == [8.0]


def test_a_warm_up_longer_than_the_training() -> None:
    assert rates([1, 24], warmup_steps=48, schedule="cosine") == pytest.approx([8 / 48, 4.0])


def test_weight_decay_pulls_matrices_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Embedding(4, 2), nn.Conv1d(2, 2, 3))
    model[2].requires_grad_(False)
    config = TrainConfig(weight_decay=0.3, betas=(0.8, 0.95), learning_rate=0.5)
    optimizer = make_optimizer(model, config, torch.device("cpu"))
    decayed, free = optimizer.param_groups
    assert decayed["weight_decay"] == 0.3
    assert free["weight_decay"] == 0.0
    assert [tuple(p.shape) for p in decayed["params"]] == [(2, 3), (2, 2, 3)]
    assert [tuple(p.shape) for p in free["params"]] == [(2,), (2,), (2,), (2,)]
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.95)}

    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        pull = 1 - 0.5 * 0.3 if p.requires_grad and p.dim() > 1 else 1.0  # w - rate x decay x w
        torch.testing.assert_close(p.detach(), before[name] * pull)


def test_the_learning_rate_is_set_for_all_groups_also_where_it_is_a_tensor() -> None:
    model = nn.Linear(2, 2)
    optimizer = make_optimizer(model, TrainConfig(), torch.device("cpu"))
    set_learning_rate(optimizer, 0.125)
    assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.125]
    place = torch.tensor(1.0)
    for group in optimizer.param_groups:
        group["lr"] = place
    set_learning_rate(optimizer, 0.25)
    assert all(group["lr"] is place for group in optimizer.param_groups)  # in place, for a captured step
    assert place == 0.25
