"""Windows over a text: every token is predicted once, by the tokens right before it, however the text is cut.

The texts are 0, 1, 2, ..: an id is its own place.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batching import NONE
from regard.data.store import Column
from regard.data.text import Measures, Text
from regard.data.windows import Windows
from regard.types import Batch

lengths = st.integers(2, 70)
contexts = st.integers(2, 13)


def text_of(length: int) -> Text:
    return Text(Column(np.arange(length, dtype=np.uint16), np.array([0, length])), Measures(1, 1, length, length))


def windows_of(length: int, context: int, stride: int = 0, *, carried: bool = False, num_rows: int = 0) -> Windows:
    return Windows(text_of(length), context, stride or context, carried, num_rows)


def batches(windows: Windows, rows: int, *, shuffle: bool = False, epoch: int = 0) -> list[Batch]:
    plan = windows.plan(batch_tokens=rows * windows.context, multiple=8, seed=1, epoch=epoch, shuffle=shuffle)
    found = [windows.collate(planned) for planned in plan]
    for batch in found:
        check(batch, windows)
    places = sum(batch.source.ids.numel() for batch in found)
    assert windows.padding(plan) == pytest.approx(1 - sum(batch.num_tokens for batch in found) / places)
    return found


def check(batch: Batch, windows: Windows) -> None:
    """What is real is a run of the text, a label is the token after, and padding says nothing."""
    assert batch.target is not None
    ids, labels, length = batch.source.ids, batch.target.ids, batch.source.lengths
    assert ids.shape == labels.shape
    assert ids.dtype == labels.dtype == length.dtype == torch.long
    assert ids.shape[1] <= windows.context
    assert batch.num_tokens == int(length.sum())
    places = torch.arange(ids.shape[1])
    real = places < length[:, None]
    assert torch.equal(ids[real], (ids[:, :1] + places)[real])
    assert not ids[~real].any()
    assert ((labels == NONE) | real & (labels == ids + 1)).all()
    assert torch.equal(batch.target.lengths, length)


def counted(found: list[Batch]) -> list[int]:
    """The labels, in the order of the batches."""
    labels = [batch.target.ids for batch in found if batch.target is not None]
    return [int(label) for rows in labels for label in rows.flatten() if label != NONE]


@given(length=lengths, context=contexts, stride=st.integers(1, 13), rows=st.integers(1, 5))
def test_every_token_counts_exactly_once_for_any_stride(length: int, context: int, stride: int, rows: int) -> None:
    stride = min(stride, context)
    found = batches(windows_of(length, context, stride), rows)
    assert sorted(counted(found)) == list(range(1, length))
    for batch in found:
        assert batch.source.ids.shape[0] <= rows
        assert batch.carry is None
        assert batch.target is not None
        for ids, labels in zip(batch.source.ids, batch.target.ids, strict=True):
            first = labels[labels != NONE][:1]
            # it sees at least context - stride tokens before it and itself, or all that there are
            assert not len(first) or int(first) - int(ids[0]) >= min(int(first), context - stride + 1)


@given(length=lengths, context=contexts, rows=st.integers(1, 9), num_rows=st.integers(0, 3))
def test_streams_are_read_on_and_every_token_counts_once(length: int, context: int, rows: int, num_rows: int) -> None:
    found = batches(windows_of(length, context, carried=True, num_rows=num_rows), rows)
    assert sorted(counted(found)) == list(range(1, length))
    goes_on(found)
    assert all(len(batch.source.ids) == len(found[0].source.ids) <= (num_rows or rows) for batch in found)


@given(length=lengths, context=contexts, rows=st.integers(1, 9))
def test_streams_in_training_are_full_and_lose_less_than_a_token_a_row(length: int, context: int, rows: int) -> None:
    found = batches(windows_of(length, context, carried=True), rows, shuffle=True)
    number = len(found[0].source.ids)
    assert len(set(counted(found))) == len(counted(found)) > length - 1 - number
    assert all(batch.num_tokens == batch.source.ids.numel() for batch in found)
    goes_on(found)


def goes_on(found: list[Batch]) -> None:
    """Each row of a batch begins where it ended in the batch before, and says so."""
    ends = None
    for batch in found:
        starts, real = batch.source.ids[:, 0], batch.source.lengths > 0
        assert batch.carry is not None
        assert batch.carry.tolist() == [int(ends is not None)] * len(starts)
        if ends is not None:
            assert torch.equal(starts[real], ends[real])
        ends = starts + batch.source.lengths


def test_one_stream_is_the_text_from_its_beginning_to_its_end() -> None:
    found = batches(windows_of(12, 4, carried=True, num_rows=1), 7)
    assert [batch.source.ids.tolist() for batch in found] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9, 10]]]
    assert counted(found) == list(range(1, 12))


@given(length=lengths, context=contexts, rows=st.integers(1, 5), epoch=st.integers(0, 3))
def test_shuffled_windows_are_full_and_lie_end_to_end(length: int, context: int, rows: int, epoch: int) -> None:
    found = batches(windows_of(length, context), rows, shuffle=True, epoch=epoch)
    labels = sorted(counted(found))
    assert labels == list(range(labels[0], labels[-1] + 1))
    if length > context:
        whole = [int(n) for batch in found for n in batch.source.lengths if n]
        assert whole == [context] * len(whole)
        assert labels[0] <= context
        assert labels[-1] > length - 1 - context
    else:
        assert labels == list(range(1, length))


def test_each_epoch_is_another_order_and_the_same_one_is_the_same() -> None:
    windows = windows_of(1000, 8)

    def starts(seed: int, epoch: int) -> list[list[int]]:
        plan = windows.plan(batch_tokens=32, multiple=8, seed=seed, epoch=epoch, shuffle=True)
        return [planned.rows.tolist() for planned in plan]

    assert starts(1, 0) == starts(1, 0)
    assert len({str(starts(*which)) for which in ((1, 0), (1, 1), (2, 0))}) == 3
    firsts = {min(min(rows) for rows in starts(1, epoch)) for epoch in range(40)}
    assert firsts == set(range(8))  # every token is once the first of a window


def test_the_last_batch_has_empty_rows() -> None:
    found = batches(windows_of(29, 4), 3)
    assert [batch.source.lengths.tolist() for batch in found] == [[4, 4, 4], [4, 4, 4], [4, 0, 0]]


def test_the_first_rows_for_who_looks() -> None:
    windows = windows_of(23, 4, carried=True)
    batch = windows.first(3)
    assert batch.source.ids.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert batch.carry is None
    assert len(windows.first(99).source.ids) == 5
    short = replace(windows, text=text_of(3)).first(2)
    assert (short.source.ids.tolist(), short.source.lengths.tolist()) == ([[0, 1, 0, 0]], [2])
