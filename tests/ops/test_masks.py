"""The algebra of masks: `&` is a conjunction in a canonical form, and every way to ask a mask gives one answer."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.errors import RegardError
from regard.ops.masks import (
    Band,
    Mask,
    Rule,
    Visible,
    branching,
    causal,
    padding,
    prefix,
    same_segment,
    visible,
    window,
)

EXAMPLES = settings(max_examples=60)


@st.composite
def parts(draw: st.DrawFn, batch: int, heads: int, length: int) -> Mask:
    """A mask of one rule over positions 0 .. length - 1."""

    def integers(count: int, highest: int) -> Tensor:
        return torch.tensor(draw(st.lists(st.integers(0, highest), min_size=count, max_size=count)))

    kind = draw(st.sampled_from(["causal", "padding", "window", "prefix", "same_segment", "branching", "visible"]))
    if kind == "causal":
        return causal()
    if kind == "window":
        return window(draw(st.integers(0, length)), draw(st.none() | st.integers(0, length)))
    rows = draw(st.sampled_from([1, batch]))
    if kind in ("padding", "prefix"):
        return (padding if kind == "padding" else prefix)(integers(rows, length))
    if kind == "same_segment":
        queries, keys = (integers(rows * length, 2).view(rows, length) for _ in range(2))
        return same_segment(queries, draw(st.sampled_from([None, keys])))
    if kind == "branching":
        return branching(integers(rows * length, 35).view(rows, length))
    shape = (rows, draw(st.sampled_from([1, heads])), length, length)
    return visible(integers(shape[0] * shape[1] * length * length, 1).view(shape).bool())


BATCH, HEADS, LENGTH = 2, 3, 5
MASKS = parts(BATCH, HEADS, LENGTH)
WHOLE = torch.arange(LENGTH)


def matrix(mask: Mask) -> Tensor:
    return mask.block(WHOLE, WHOLE).expand(BATCH, HEADS, LENGTH, LENGTH)


def kinds(mask: Mask) -> list[type[Rule]]:
    return [type(rule) for rule in mask.rules]


@EXAMPLES
@given(MASKS, MASKS)
def test_and_is_the_conjunction(a: Mask, b: Mask) -> None:
    torch.testing.assert_close(matrix(a & b), matrix(a) & matrix(b))


@EXAMPLES
@given(MASKS, MASKS)
def test_and_is_commutative(a: Mask, b: Mask) -> None:
    assert kinds(a & b) == kinds(b & a)
    torch.testing.assert_close(matrix(a & b), matrix(b & a))


@EXAMPLES
@given(MASKS, MASKS, MASKS)
def test_and_is_associative(a: Mask, b: Mask, c: Mask) -> None:
    assert kinds((a & b) & c) == kinds(a & (b & c))
    torch.testing.assert_close(matrix((a & b) & c), matrix(a & (b & c)))


@EXAMPLES
@given(MASKS, MASKS)
def test_and_is_idempotent(a: Mask, b: Mask) -> None:
    both = a & b
    assert kinds(both & both) == kinds(both)
    torch.testing.assert_close(matrix(both & both), matrix(both))


@EXAMPLES
@given(MASKS, MASKS, st.data())
def test_a_block_is_the_block_of_the_whole(a: Mask, b: Mask, data: st.DataObject) -> None:
    mask = a & b
    some = st.lists(st.integers(0, LENGTH - 1), min_size=0, max_size=LENGTH)
    rows, columns = (torch.tensor(data.draw(some), dtype=torch.long) for _ in range(2))
    block = mask.block(rows, columns).expand(BATCH, HEADS, len(rows), len(columns))
    torch.testing.assert_close(block, matrix(mask)[:, :, rows][..., columns])


@EXAMPLES
@given(MASKS, MASKS, st.lists(st.lists(st.integers(0, LENGTH - 1), min_size=3, max_size=3), min_size=2, max_size=2))
def test_each_row_of_the_batch_may_have_its_own_positions(a: Mask, b: Mask, positions: list[list[int]]) -> None:
    mask = a & b
    rows = torch.tensor(positions)
    block = mask.block(rows, WHOLE).expand(BATCH, HEADS, 3, LENGTH)
    for i in range(BATCH):
        torch.testing.assert_close(block[i], matrix(mask)[i][:, rows[i]])


def asked_one_by_one(mask: Mask) -> Tensor:
    mod = mask.mask_mod()
    axes = (torch.arange(size) for size in (BATCH, HEADS, LENGTH, LENGTH))
    return torch.stack([mod(*index) for index in product(*axes)]).view(BATCH, HEADS, LENGTH, LENGTH)


@settings(max_examples=20)
@given(MASKS, MASKS)
def test_mask_mod_says_what_block_says(a: Mask, b: Mask) -> None:
    torch.testing.assert_close(asked_one_by_one(a & b), matrix(a & b))


@pytest.mark.parametrize(
    "mask",
    [
        causal(),
        window(2, 1),
        padding(torch.tensor([3, 0])),
        padding(torch.tensor([2])),
        prefix(torch.tensor([0, 3])),
        prefix(torch.tensor([1])),
        same_segment(torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 1, 0]])),
        same_segment(torch.tensor([[0, 0, 1, 1, 2]]), torch.tensor([[0, 1, 1, 1, 0], [2, 2, 0, 1, 1]])),
        branching(torch.tensor([[0, 16, 17, 18, 0], [16, 17, 32, 33, 33]])),
        branching(torch.tensor([[0, 16, 16, 17, 32]])),
        visible(torch.rand(BATCH, HEADS, LENGTH, LENGTH) > 0.5),
        visible(torch.rand(LENGTH, LENGTH) > 0.5),
    ],
    ids=lambda mask: type(mask.rules[0]).__name__,
)
def test_the_mask_mod_of_each_rule(mask: Mask) -> None:
    torch.testing.assert_close(asked_one_by_one(mask), matrix(mask))


def test_bands_merge_into_one() -> None:
    assert (causal() & window(3)).rules == (Band(3, 0),)
    assert (window(3, 5) & window(4, 2) & causal()).rules == (Band(3, 0),)


def test_lengths_merge_into_the_least() -> None:
    (rule,) = (padding(torch.tensor([1, 5])) & padding(torch.tensor([3, 2]))).rules
    assert rule.lengths.tolist() == [1, 2]
    (rule,) = (prefix(torch.tensor([1, 5])) & prefix(torch.tensor([3, 2]))).rules
    assert rule.lengths.tolist() == [1, 2]


def test_visible_matrices_merge_into_one() -> None:
    a, b = torch.rand(4, 4) > 0.5, torch.rand(2, 3, 4, 4) > 0.5
    (rule,) = (visible(a) & visible(b)).rules
    assert isinstance(rule, Visible)
    assert torch.equal(rule.matrix, a & b)


def test_the_rules_come_in_one_order() -> None:
    ids, lengths = torch.zeros(1, 4, dtype=torch.long), torch.tensor([4])
    masks = [causal(), padding(lengths), prefix(lengths), same_segment(ids), branching(ids)]
    masks.append(visible(torch.ones(4, 4).bool()))
    forwards, backwards = masks[0], masks[-1]
    for mask in masks[1:]:
        forwards = forwards & mask
    for mask in masks[-2::-1]:
        backwards = backwards & mask
    assert kinds(forwards) == kinds(backwards)
    assert len(forwards.rules) == len(masks)


@pytest.mark.parametrize(
    ("mask", "is_causal"),
    [
        (causal(), True),
        (causal() & causal(), True),
        (causal() & window(10**6), False),
        (causal() & padding(torch.tensor([2])), False),
        (window(0, 0), False),
        (prefix(torch.tensor([0])), False),
    ],
)
def test_causal_is_recognised(mask: Mask, is_causal: bool) -> None:
    assert mask.is_causal == is_causal


def test_a_window_as_long_as_the_text_is_everything() -> None:
    assert matrix(window(LENGTH - 1)).all()
    torch.testing.assert_close(matrix(causal() & window(LENGTH - 1)), matrix(causal()))


def test_a_prefix_of_nothing_is_causal_and_of_everything_is_everything() -> None:
    torch.testing.assert_close(matrix(prefix(torch.tensor([0, 0]))), matrix(causal()))
    assert matrix(prefix(torch.tensor([LENGTH, LENGTH]))).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: window(-1), ["a window cannot be negative", "0 or more"]),
        (lambda: padding(torch.ones(2, 5).long()), ["these lengths", "(2, 5)", "one length a row: B"]),
        (lambda: padding(torch.ones(5).bool()), ["these lengths", "torch.bool", "whole numbers"]),
        (lambda: prefix(torch.tensor([0.5])), ["these lengths", "torch.float32"]),
        (lambda: same_segment(torch.tensor([0, 1])), ["these segment ids", "B x length"]),
        (lambda: branching(torch.tensor([0, 16])), ["these codes of branches", "B x length"]),
        (lambda: visible(torch.zeros(3, 3)), ["a visible matrix is boolean", "torch.float32", "true = may attend"]),
        (lambda: visible(torch.ones(3).bool()), ["2, 3 or 4 axes", "(3,)"]),
    ],
)
def test_errors_say_what_is_wrong(wrong: object, says: list[str]) -> None:
    with pytest.raises(RegardError) as caught:
        wrong()  # type: ignore[operator]
    for words in says:
        assert words in str(caught.value)


def test_branches_are_seen_as_in_the_paper() -> None:
    """Liu et al. 2020, equation 3: two tokens see each other where they are of one branch; the entity is in both."""
    pick = random.Random(0)
    for _ in range(20):
        codes, branches = [], []  # of each token, and the branches that it is in: 0 is the text itself
        number = 0
        for entity in range(1, pick.randint(2, 5)):
            hanging = [pick.randint(1, 3) for _ in range(pick.randint(0, 3))]
            for _ in range(pick.randint(1, 3)):
                codes.append(16 * entity if hanging else 0)
                branches.append({0, *(number + 1 + j for j in range(len(hanging)))})
            for j, length in enumerate(hanging):
                number += 1
                codes += [16 * entity + j + 1] * length
                branches += [{number}] * length
        wanted = torch.tensor([[bool(one & other) for other in branches] for one in branches])
        places = torch.arange(len(codes))
        mask = branching(torch.tensor([codes]))
        assert torch.equal(mask.block(places, places)[0, 0], wanted)
        some = torch.tensor([[0, len(codes) - 1]])  # asked for rows alone, by batch
        assert torch.equal(mask.block(some, places)[0, 0], wanted[some[0]])


def test_one_rule_of_branches_is_enough() -> None:
    codes = torch.tensor([[0, 16, 17]])
    assert len((branching(codes) & branching(codes)).rules) == 1
    assert len((branching(codes) & branching(codes.clone())).rules) == 2
