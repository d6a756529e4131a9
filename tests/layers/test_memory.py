"""Segment memory: what a row holds after segments of any length, and who may see it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.layers.memory import empty_memory, held, length_of, remembered, with_memory
from regard.types import State


def read_on(memory: State, x: Tensor, lengths: list[int]) -> State:
    """One layer reads a segment."""
    return remembered(memory, [with_memory(memory, 0, x)], torch.tensor(lengths))


def numbers(first: int, last: int) -> Tensor:
    """Two rows of one-number states: first .. last, and the same plus 100."""
    x = torch.arange(first, last + 1, dtype=torch.get_default_dtype())
    return torch.stack([x, x + 100])[..., None]


def holds(memory: State) -> list[list[float]]:
    return memory.cache["0"][..., 0].tolist()


def test_it_holds_the_last_real_states_of_each_row() -> None:
    memory = empty_memory(2, 1, 4, torch.zeros(1))
    assert (length_of(memory), memory.position.tolist(), memory.bound) == (4, [0, 0], 0)
    memory = read_on(memory, numbers(1, 3), [3, 2])  # the second row has one place of padding
    assert holds(memory) == [[0, 1, 2, 3], [0, 0, 101, 102]]
    memory = read_on(memory, numbers(4, 6), [3, 3])
    assert holds(memory) == [[3, 4, 5, 6], [102, 104, 105, 106]]
    memory = read_on(memory, numbers(7, 12), [6, 0])
    assert holds(memory) == [[9, 10, 11, 12], [102, 104, 105, 106]]
    assert (memory.position.tolist(), memory.bound) == ([12, 5], 12)


def test_only_what_was_written_is_seen() -> None:
    memory = empty_memory(2, 1, 4, torch.zeros(1))
    memory = read_on(memory, numbers(1, 3), [3, 1])
    seen = held(memory, 2).block(torch.tensor([4, 5]), torch.arange(6))
    assert seen[:, 0].int().tolist() == [[[0, 1, 1, 1, 1, 1]] * 2, [[0, 0, 0, 1, 1, 1]] * 2]
    again = held(memory.reset(torch.tensor([0])), 2).block(torch.tensor([4]), torch.arange(6))
    assert again[:, 0].int().tolist() == [[[0, 0, 0, 0, 1, 1]], [[0, 0, 0, 1, 1, 1]]]


def test_rows_are_selected_and_no_gradient_flows_in() -> None:
    x = numbers(1, 3).requires_grad_()
    memory = read_on(empty_memory(2, 1, 2, torch.zeros(1)), x, [3, 3])
    assert not memory.cache["0"].requires_grad
    assert holds(memory.select(torch.tensor([1, 1]))) == [[102, 103]] * 2


def test_no_memory_at_all() -> None:
    memory = read_on(empty_memory(2, 1, 0, torch.zeros(1)), numbers(1, 3), [3, 2])
    assert holds(memory) == [[], []]
    assert held(memory, 3).block(torch.arange(3), torch.arange(3)).all()
