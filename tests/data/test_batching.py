"""Plans: every row once, few shapes, the budget kept, little padding. Batches: whole tensors against a plain loop."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import batching
from regard.data.batching import (
    Ints,
    Planned,
    collate,
    padding_share,
    plan_batches,
    prefetch,
)
from regard.data.store import Column, Counts, Store
from regard.data.tokenizers import BOS, EOS, PAD
from regard.errors import ConfigError

pairs = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=300)


def caption_lengths(n: int = 29_000) -> tuple[Ints, Ints]:
    """Lengths spread like those of captions in two languages, in pieces of a joint vocabulary of 8,000."""
    random = np.random.default_rng(0)
    source = np.clip(random.lognormal(2.55, 0.36, n), 3, 47).astype(np.int64)
    target = np.clip(source * random.lognormal(0.03, 0.2, n), 3, 55).astype(np.int64)
    return source, target


@given(
    pairs,
    st.integers(1, 500),
    st.sampled_from([1, 4, 8]),
    st.integers(1, 16),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_row_once_in_a_shape_that_covers_it(
    lengths: list[tuple[int, int]], batch_tokens: int, multiple: int, max_shapes: int, epoch: int, shuffle: bool
) -> None:
    source, target = np.array(lengths, np.int64).reshape(-1, 2).T
    plan = plan_batches(
        source,
        target,
        batch_tokens=batch_tokens,
        multiple=multiple,
        max_shapes=max_shapes,
        seed=7,
        epoch=epoch,
        shuffle=shuffle,
    )
    assert sorted(itertools.chain(*(planned.rows.tolist() for planned in plan))) == list(range(len(lengths)))
    assert len({planned.shape for planned in plan}) <= max_shapes
    for planned in plan:
        num_rows, source_width, target_width = planned.shape
        assert 0 < len(planned.rows) <= num_rows
        assert source[planned.rows].max() + 1 <= source_width
        assert target[planned.rows].max() + 1 <= target_width
        assert source_width % multiple == target_width % multiple == 0
        assert num_rows == 1 or num_rows * max(source_width, target_width) <= batch_tokens
    assert 0 <= padding_share(plan, source, target) < 1


@given(pairs, st.integers(0, 5))
def test_a_plan_follows_from_its_seed_and_epoch(lengths: list[tuple[int, int]], epoch: int) -> None:
    source, target = np.array(lengths, np.int64).reshape(-1, 2).T
    first, second = (plan_batches(source, target, batch_tokens=200, seed=3, epoch=epoch) for _ in range(2))
    assert [(p.rows.tolist(), p.shape) for p in first] == [(p.rows.tolist(), p.shape) for p in second]


def test_epochs_differ_in_order_and_company_but_not_in_shapes() -> None:
    lengths = caption_lengths(5000)
    plans = [plan_batches(*lengths, batch_tokens=1024, seed=1, epoch=epoch) for epoch in range(2)]
    shapes = [sorted(planned.shape for planned in plan) for plan in plans]
    assert shapes[0] == shapes[1]
    assert [planned.shape for planned in plans[0]] != [planned.shape for planned in plans[1]]
    companies = [{tuple(sorted(planned.rows.tolist())) for planned in plan} for plan in plans]
    assert len(companies[0] & companies[1]) < 0.05 * len(plans[0])
    other_seed = plan_batches(*lengths, batch_tokens=1024, seed=2, epoch=0)
    assert [p.rows.tolist() for p in other_seed] != [p.rows.tolist() for p in plans[0]]


def test_without_shuffling_rows_go_by_length() -> None:
    source, target = caption_lengths(5000)
    plan = plan_batches(source, target, batch_tokens=1024, seed=1, epoch=0, shuffle=False)
    means = [float((source + target)[planned.rows].mean()) for planned in plan]
    assert np.corrcoef(means, np.arange(len(means)))[0, 1] > 0.9


@pytest.mark.parametrize(("batch_tokens", "real"), [(1024, 0.87), (4096, 0.87), (16_384, 0.85), (65_536, 0.75)])
def test_few_shapes_hold_little_padding(batch_tokens: int, real: float) -> None:
    lengths = caption_lengths()
    plan = plan_batches(*lengths, batch_tokens=batch_tokens, seed=1, epoch=0)
    assert 1 - padding_share(plan, *lengths) >= real
    assert len({planned.shape for planned in plan}) <= 16
    full = [planned.shape[0] * max(planned.shape[1:]) / batch_tokens for planned in plan]
    assert np.mean(full) > 0.8  # nor is padding avoided by batches that are too small


def test_a_set_smaller_than_a_batch_is_one_batch_of_its_own_size() -> None:
    plan = plan_batches([3] * 8, [3] * 8, batch_tokens=4096, seed=0, epoch=0)
    assert [planned.shape for planned in plan] == [(8, 4, 4)]
    assert padding_share(plan, [3] * 8, [3] * 8) == 0


def test_long_texts_do_not_make_planning_slow() -> None:
    needs = np.random.default_rng(0).integers(1, 2000, (50_000, 2))
    cell_of_row, cells, counts = batching._count_cells(needs, 4)  # planning takes the square of their number
    assert len(cells) <= batching.MAX_CELLS + 1
    assert counts.sum() == len(needs)
    assert (needs <= cells[cell_of_row]).all()


def test_no_rows_no_plan() -> None:
    assert plan_batches([], [], batch_tokens=100, seed=0, epoch=0) == []
    assert padding_share([], [], []) == 0
    with pytest.raises(ConfigError, match="batch_tokens must be positive"):
        plan_batches([1], [1], batch_tokens=0, seed=0, epoch=0)


def small_store(n: int = 40) -> Store:
    random = np.random.default_rng(0)
    rows = [[random.integers(4, 90, random.integers(0, 12)).tolist() for _ in range(n)] for _ in range(2)]
    return Store(Column.of(rows[0], np.uint16), Column.of(rows[1], np.uint16), Counts())


def test_a_batch_is_what_a_plain_loop_makes() -> None:
    store = small_store()
    plan = plan_batches(store.source_lengths, store.target_lengths, batch_tokens=64, seed=0, epoch=0)
    plan.append(Planned(np.array([7, 3]), (5, 12, 16)))  # with missing rows
    for planned in plan:
        num_rows, source_width, target_width = planned.shape
        source = torch.full((num_rows, source_width), PAD)
        target = torch.full((num_rows, target_width + 1), PAD)
        lengths = torch.zeros(2, num_rows, dtype=torch.int64)
        for i, row in enumerate(planned.rows):
            ids = [*store.source(row).tolist(), EOS]
            source[i, : len(ids)] = torch.tensor(ids)
            lengths[0, i] = len(ids)
            ids = [BOS, *store.target(row).tolist(), EOS]
            target[i, : len(ids)] = torch.tensor(ids)
            lengths[1, i] = len(ids)
        batch = collate(store, planned)
        assert batch.target is not None
        torch.testing.assert_close(batch.source.ids, source, rtol=0, atol=0)
        torch.testing.assert_close(batch.target.ids, target, rtol=0, atol=0)
        torch.testing.assert_close(torch.stack([batch.source.lengths, batch.target.lengths]), lengths, rtol=0, atol=0)
        assert list(batch.rows) == planned.rows.tolist()
        assert batch.num_tokens == int(lengths.sum()) - len(planned.rows)


def test_the_share_of_padding_is_what_the_batches_hold() -> None:
    store = small_store()
    plan = plan_batches(store.source_lengths, store.target_lengths, batch_tokens=64, seed=0, epoch=0)
    batches = [collate(store, planned) for planned in plan]
    places = sum(b.source.ids.numel() + b.target.ids[:, 1:].numel() for b in batches if b.target is not None)
    real = sum(batch.num_tokens for batch in batches)
    assert padding_share(plan, store.source_lengths, store.target_lengths) == pytest.approx(1 - real / places)


def test_missing_rows_are_empty() -> None:
    batch = collate(small_store(), Planned(np.array([3]), (3, 12, 12)))
    assert batch.target is not None
    assert batch.source.lengths[1:].tolist() == batch.target.lengths[1:].tolist() == [0, 0]
    assert bool((batch.source.ids[1:] == PAD).all() and (batch.target.ids[1:] == PAD).all())


def test_prefetch_keeps_items_and_order() -> None:
    assert list(prefetch(range(100))) == list(range(100))
    assert list(prefetch(iter([]))) == []
    assert list(prefetch([None, 1, None])) == [None, 1, None]


def test_prefetch_works_ahead_on_another_thread() -> None:
    made: list[int] = []
    names: set[str] = set()

    def items() -> Iterator[int]:
        for n in range(10):
            names.add(threading.current_thread().name)
            made.append(n)
            yield n

    consumer = prefetch(items(), depth=3)
    assert next(consumer) == 0
    wait_until(lambda: len(made) == 5)  # one used, three ready, one that waits for its place
    time.sleep(0.05)
    assert len(made) == 5
    assert names == {"prefetch"}
    assert list(consumer) == list(range(1, 10))


def test_prefetch_raises_where_the_item_would_have_been() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("no second item")

    consumer = prefetch(items())
    assert next(consumer) == 1
    with pytest.raises(ValueError, match="no second item"):
        next(consumer)
    wait_until(lambda: not running())


def test_a_consumer_that_stops_stops_the_thread() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.set()

    consumer = prefetch(items())
    next(consumer)
    begun = time.perf_counter()
    consumer.close()  # type: ignore[attr-defined]
    assert time.perf_counter() - begun < 5
    assert not running()
    assert closed.is_set()
    for n in prefetch(itertools.count()):
        if n == 3:
            break
    wait_until(lambda: not running())


def running() -> bool:
    return any(thread.name == "prefetch" for thread in threading.enumerate())


def wait_until(condition: object) -> None:
    for _ in range(500):
        if condition():  # type: ignore[operator]
            return
        time.sleep(0.01)
    pytest.fail("waited in vain")
