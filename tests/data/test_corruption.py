"""What the objectives hide: the promised shares, whole words, spans that make the text again; drawn by place alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regard.data.corruption import (
    Draw,
    hide,
    most_hidden,
    most_predicted,
    order,
    span_counts,
    spans,
    uniform,
    without_spans,
)

MASK = 4
OTHERS = np.arange(5, 1000)


def rows(number: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ordinary ids, and their places in a text."""
    places = np.arange(number * width).reshape(number, width)
    return np.random.default_rng(seed).choice(OTHERS, (number, width)), places


# --- draws


def test_draws_are_uniform_and_follow_from_key_place_and_purpose_alone() -> None:
    places = np.arange(200_000)
    found = uniform((1, 0), places, Draw.CHOICE)
    counts = np.bincount((found * 50).astype(int), minlength=50)
    assert ((counts - 4000) ** 2 / 4000).sum() < 90  # chi squared of 49 degrees: above 90 once in 4,000 times
    assert 0 <= found.min() < 1e-4
    assert 1 - 1e-4 < found.max() < 1
    assert np.array_equal(uniform((1, 0), places[7:90:3], Draw.CHOICE), found[7:90:3])
    others = [
        ((2, 0), Draw.CHOICE),
        ((1, 1), Draw.CHOICE),
        ((0, 1), Draw.CHOICE),
        ((), Draw.CHOICE),
        ((1, 0), Draw.FATE),
    ]
    for key, purpose in others:
        assert abs(np.corrcoef(found, uniform(key, places, purpose))[0, 1]) < 0.01
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.01
    assert abs(np.corrcoef(found, uniform((1, 0), places + 1, Draw.CHOICE))[0, 1]) < 0.01


# --- masked tokens


def test_hidden_tokens_have_the_promised_shares() -> None:
    ids, places = rows(2000, 64)
    changed, labels = hide(ids, np.ones_like(ids, bool), places, (1, 3), share=0.15, mask=MASK, others=OTHERS)
    hidden = labels >= 0
    assert hidden.mean() == pytest.approx(0.15, abs=1e-3)
    assert set(hidden.sum(1)) == {9, 10}  # of 9.6: each row has its share
    assert np.array_equal(labels[hidden], ids[hidden])
    assert np.array_equal(changed[~hidden], ids[~hidden])
    fates = changed[hidden], ids[hidden]
    assert (fates[0] == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (fates[0] == fates[1]).mean() == pytest.approx(0.1, abs=0.01)
    drawn = fates[0][(fates[0] != MASK) & (fates[0] != fates[1])]
    assert len(drawn) / hidden.sum() == pytest.approx(0.1, abs=0.01)
    assert np.isin(drawn, OTHERS).all()
    assert len(np.unique(drawn)) > 800
    assert hidden.mean(0) == pytest.approx(0.15, abs=0.04)  # every place alike


def test_what_is_hidden_of_a_row_is_its_own_matter() -> None:
    ids, places = rows(20, 32)
    words: dict[str, Any] = {"share": 0.2, "mask": MASK, "others": OTHERS}
    free = np.ones_like(ids, bool)
    together = hide(ids, free, places, (1, 0), **words)
    alone = [hide(ids[[i]], free[[i]], places[[i]], (1, 0), **words) for i in range(20)]
    for part in range(2):
        assert np.array_equal(together[part], np.concatenate([row[part] for row in alone]))
    assert not np.array_equal(together[1], hide(ids, free, places, (1, 1), **words)[1])
    assert not np.array_equal(together[1], hide(ids, free, places, (2, 0), **words)[1])


def test_what_is_not_free_is_not_hidden() -> None:
    ids, places = rows(50, 40)
    free = np.random.default_rng(1).random(ids.shape) < 0.5
    free[0] = False
    free[1], free[1, 3] = False, True
    changed, labels = hide(ids, free, places, (), share=0.15, mask=MASK, others=OTHERS)
    assert not (labels >= 0)[~free].any()
    assert np.array_equal(changed[~free], ids[~free])
    assert (labels >= 0).sum(1)[:2].tolist() == [0, 1]  # at least one, where there is one
    assert (labels >= 0).sum() / free.sum() == pytest.approx(0.15, abs=0.03)


def test_whole_words_are_hidden_whole() -> None:
    ids, places = rows(2000, 64)
    starts = np.random.default_rng(2).random(ids.shape) < 0.6
    free = np.ones_like(ids, bool)
    free[:, [0, -1]], starts[:, [0, 1, -1]] = False, True
    _, labels = hide(ids, free, places, (1, 0), share=0.15, mask=MASK, others=OTHERS, word_starts=starts)
    hidden = labels >= 0
    inside = ~starts[:, 1:]
    assert inside.sum() > 10_000
    assert np.array_equal(hidden[:, 1:][inside], hidden[:, :-1][inside])
    assert hidden[free].mean() == pytest.approx(0.15, abs=2e-3)
    assert hidden.sum(1).max() <= most_hidden(64, 0.15)
    in_long = np.minimum.reduce([inside[:, i : i + 60] for i in range(3)])  # tokens of words of four and more
    assert 0.11 < hidden[:, 1:61][in_long].mean() < 0.16  # long words too, though fewer of them find room


def test_a_word_longer_than_the_share_is_hidden_seldom_and_never_in_part() -> None:
    ids, places = rows(300, 20)
    starts = np.zeros_like(ids, bool)
    starts[:, [0, 12]] = True
    _, labels = hide(ids, np.ones_like(starts), places, (), share=0.3, mask=MASK, others=OTHERS, word_starts=starts)
    assert {tuple(row) for row in (labels >= 0).astype(int)} <= {(0,) * 20, (0,) * 12 + (1,) * 8, (1,) * 12 + (0,) * 8}


# --- orders


def test_a_sixth_of_each_row_stands_last_in_its_order() -> None:
    ids, places = rows(500, 120)
    lengths = np.full(500, 120)
    lengths[:3] = 0, 5, 60
    free = np.arange(120) < lengths[:, None]
    ranks, labels = order(ids, free, lengths, places, (1, 0), part=6, longest=5)
    chosen = labels >= 0
    assert np.array_equal(chosen, ranks >= 0)
    assert np.array_equal(labels[chosen], ids[chosen])
    counts = chosen.sum(1)
    assert counts[:2].tolist() == [0, 0]
    assert counts[2] in (9, 10)
    assert counts[3:].min() >= 19
    assert counts.max() == most_predicted(120, 6) == 20
    for row, number in zip(ranks, counts, strict=True):
        assert sorted(row[row >= 0]) == list(range(number))  # an order of its own
    runs = [len(run) for row in chosen[3:] for run in "".join(map(str, row.astype(int))).replace("0", " ").split()]
    assert np.isin([1, 2, 3, 4, 5], runs).all()
    assert np.mean(runs) > 2
    first = [row[row >= 0][0] for row in ranks[3:]]
    assert np.mean(first) == pytest.approx(9.5, abs=0.8)  # places and order do not know of each other
    assert chosen[3:].mean(0)[:114] == pytest.approx(1 / 6, abs=0.1)


# --- spans


@pytest.mark.parametrize("length", [1, 2, 3, 7, 40, 256])
@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 1.0), (0.9, 8.0)])
def test_spans_and_sentinels_make_the_text_again(length: int, density: float, mean: float) -> None:
    ids, places = rows(60, length)
    lengths = np.full(60, length)
    hidden = spans(lengths, places, (1, 0), density=density, mean=mean)
    tokens, number = span_counts(length, density, mean)
    assert (hidden.sum(1) == tokens).all()
    first = hidden & ~np.pad(hidden, ((0, 0), (1, 0)))[:, :-1]
    assert (first.sum(1) == number).all()
    sentinels = np.arange(2000, 2000 + number)
    for row, source, target in zip(ids, *without_spans(ids, hidden, lengths, sentinels), strict=True):
        assert len(source) == length - tokens + number
        assert len(target) == tokens + number
        assert target[0] == 2000
        assert [i for i in source if i >= 2000] == [i for i in target if i >= 2000] == sentinels.tolist()
        parts = np.split(target, np.flatnonzero(target >= 2000))[1:]
        known = {part[0]: part[1:].tolist() for part in parts}
        assert [each for i in source.tolist() for each in known.get(i, [i])] == row.tolist()


def test_spans_are_spread_over_the_row() -> None:
    _, places = rows(4000, 100)
    hidden = spans(np.full(4000, 100), places, (1, 0), density=0.15, mean=3.0)
    assert hidden.mean() == 0.15
    assert hidden.mean(0)[5:-5] == pytest.approx(0.15, abs=0.04)
    assert 0.05 < hidden[:, 0].mean() < 0.25
    assert 0.05 < hidden[:, -1].mean() < 0.25


def test_spans_of_rows_of_several_lengths_are_their_own_matter() -> None:
    _, places = rows(30, 50)
    lengths = np.array([50, 20, 0] * 10)
    together = spans(lengths, places, (3, 1), density=0.3, mean=2.0)
    assert not together[np.arange(50) >= lengths[:, None]].any()
    for i in range(30):
        alone = spans(lengths[[i]], places[[i]], (3, 1), density=0.3, mean=2.0)
        assert np.array_equal(together[[i]], alone)
