"""The records that travel. (What a State means to a model is tested in tests/models/test_contract.py.)"""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch

from regard.errors import RegardError
from regard.types import Batch, Example, Prediction, Sequences, State


def a_state() -> State:
    """Three rows at 4, 2 and 3 of 6 places: one timed cache, one that begins in memory, one that begins at zero."""
    return State(
        torch.tensor([4, 2, 3]),
        memory={"source": torch.arange(6.0).view(3, 2), "h": torch.full((3, 1), 7.0)},
        cache={
            "k": torch.randn(3, 2, 6, 4),
            "h": torch.randn(3, 1),
            "c": torch.randn(3, 5),
        },
        timed=frozenset({"k"}),
        bound=4,
    )


def test_select_takes_every_tensor_by_row() -> None:
    state, rows = a_state(), torch.tensor([2, 2, 0, 1])
    taken = state.select(rows)
    assert taken.position.tolist() == [3, 3, 4, 2]
    assert taken.bound == 4
    assert taken.timed == {"k"}
    for name, tensor in state.memory.items():
        assert torch.equal(taken.memory[name], tensor[rows])
    assert torch.equal(taken.cache["h"], state.cache["h"][rows])
    assert torch.equal(taken.cache["k"][:, :, :4], state.cache["k"][rows, :, :4])
    assert taken.cache["k"].shape == (4, 2, 6, 4)  # the room stays


def test_rows_that_differ_in_their_last_tokens_are_reordered_in_place() -> None:
    same = torch.randn(1, 2, 6, 4).repeat(3, 1, 1, 1)
    same[:, :, 3:] = torch.randn(3, 2, 3, 4)
    state = State(torch.full((3,), 4), cache={"k": same, "h": torch.randn(3, 1)}, timed=frozenset({"k"}), bound=4)
    rows = torch.tensor([1, 1, 0])
    wanted = state.reorder(rows)
    taken = state.reorder(rows, last=1)
    assert taken.cache["k"] is same
    assert torch.equal(taken.cache["k"][:, :, :4], wanted.cache["k"][:, :, :4])
    assert torch.equal(taken.cache["h"], wanted.cache["h"])


def test_reorder_leaves_memory_alone() -> None:
    state, rows = a_state(), torch.tensor([1, 0, 2])
    taken = state.reorder(rows)
    assert taken.memory is state.memory
    assert taken.position.tolist() == [2, 4, 3]
    assert torch.equal(taken.cache["c"], state.cache["c"][rows])


def test_select_of_no_rows() -> None:
    taken = a_state().select(torch.tensor([], dtype=torch.long))
    assert len(taken.position) == 0
    assert taken.cache["k"].shape == (0, 2, 6, 4)
    assert taken.reset(torch.tensor([], dtype=torch.long)).bound == 0


def test_a_selected_cache_is_a_copy() -> None:
    state = a_state()
    before = state.cache["k"].clone()
    state.select(torch.arange(3)).cache["k"].zero_()
    assert torch.equal(state.cache["k"], before)


def test_advance_moves_the_clock_of_every_row() -> None:
    after = a_state().advance(2)
    assert after.position.tolist() == [6, 4, 5]
    assert after.bound == 6


def test_truncate_never_goes_forward() -> None:
    state = a_state()
    state.cache = {"k": state.cache["k"]}
    after = state.truncate(torch.tensor([1, 9, 3]))
    assert after.position.tolist() == [1, 2, 3]
    assert after.bound == 3
    assert after.cache["k"] is state.cache["k"]


def test_truncate_needs_a_time_axis() -> None:
    with pytest.raises(RegardError) as error:
        a_state().truncate(torch.tensor([1, 1, 1]))
    assert str(error.value) == (
        "this state cannot go back\n  got:    ['c', 'h']\n  wanted: caches with a time axis only"
    )


def test_reset_begins_rows_again() -> None:
    state = a_state()
    after = state.reset(torch.tensor([0, 2]))
    assert after.position.tolist() == [0, 2, 0]
    assert after.bound == 2
    assert after.cache["k"] is state.cache["k"]
    assert after.cache["h"][[0, 2]].tolist() == [[7.0], [7.0]]  # as the memory of that name
    assert not after.cache["c"][[0, 2]].any()
    for name in ("h", "c"):
        assert torch.equal(after.cache[name][1], state.cache[name][1])


def test_what_goes_in_is_not_changed() -> None:
    state = a_state()
    kept = {name: tensor.clone() for name, tensor in state.cache.items()}
    state.reset(torch.tensor([0]))
    state.reorder(torch.tensor([2, 1, 0]))
    state.advance(3)
    assert state.position.tolist() == [4, 2, 3]
    assert all(torch.equal(state.cache[name], tensor) for name, tensor in kept.items())


def test_batches_move_as_a_whole() -> None:
    source = Sequences(torch.ones(2, 3, dtype=torch.long), torch.tensor([3, 1]))
    batch = Batch(source, source, rows=(4, 5), num_tokens=8)
    moved = batch.to("meta")
    assert moved.target is not None
    assert {t.device.type for part in (moved.source, moved.target) for t in (part.ids, part.lengths)} == {"meta"}
    assert (moved.rows, moved.num_tokens) == ((4, 5), 8)
    assert Batch(source).to("meta").target is None


def test_all_parts_of_a_batch_go_along() -> None:
    source = Sequences(*(torch.full(shape, i) for i, shape in enumerate([(2, 3), (2,), (2, 3), (2, 3)])))
    batch = Batch(source, Sequences(torch.full((2, 1), 4), torch.full((2,), 5)), carry=torch.full((2,), 6))
    assert [int(tensor[0].max()) for tensor in batch.tensors()] == list(range(7))
    assert {tensor.device.type for tensor in batch.to("meta").tensors()} == {"meta"}
    assert len(batch.to("meta").tensors()) == 7
    assert [tensor.shape[0] for tensor in batch.twice().tensors()] == [4] * 7


def test_records_are_frozen() -> None:
    example = Example("a", ("b",))
    with pytest.raises(FrozenInstanceError):
        example.source = "c"  # type: ignore[misc]


def test_the_text_of_a_prediction_is_the_best_one() -> None:
    assert Prediction(("yes", "no"), (-0.1, -0.7)).text == "yes"
