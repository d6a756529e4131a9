"""Scores by distance: at their places by a view where rows and columns follow each other, as by looking each one up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.layers.attention import SelfAttention
from regard.layers.memory import empty_memory, held
from regard.layers.positions import T5Bias, TransformerXLKeys
from regard.ops import fused
from regard.ops.attention import attend
from regard.ops.call import Call
from regard.ops.masks import Mask, branching, causal, padding, prefix, same_segment, visible, window
from regard.ops.terms import Alibi, Buckets, RelativeKeys, SegmentKeys, Term, alibi_slopes, skewed, t5_bucket

MASKS: dict[str, Mask | None] = {"none": None, "causal": causal(), "window": window(1, 2), "global": window(1, first=1)}


def keys_by_looking_up(term: RelativeKeys, q: Tensor, first: int, columns: int, scale: float) -> Tensor:
    """(q_i + shift) . r_(j-i) for each pair alone, from the row of the table that the distance is clipped to."""
    table = term.table if term.table.dim() == 4 else term.table[None]
    table = table.repeat_interleave(len(q) // len(table), dim=0).expand(len(q), q.shape[1], -1, -1)
    ahead = table.shape[2] // 2 if term.ahead is None else term.ahead
    last = table.shape[2] - 1
    q = q if term.shift is None else q + term.shift[:, None]
    found = []
    for i in range(q.shape[2]):
        at = [min(max(j - (first + i) + last - ahead, 0), last) for j in range(columns)]
        found.append((q[:, :, i, None] * table[:, :, at]).sum(-1) * scale)
    return torch.stack(found, dim=2)


def buckets_by_looking_up(term: Buckets, rows: int, first: int, columns: int) -> Tensor:
    ahead = torch.arange(columns) - torch.arange(first, first + rows)[:, None]
    form = {"bidirectional": term.bidirectional, "max_distance": term.max_distance}
    return term.weight[t5_bucket(ahead, len(term.weight), **form)].permute(2, 0, 1)[None]


def call_of(q: Tensor, columns: int, mask: Mask | None, terms: tuple[Term, ...], first: int, scale: float) -> Call:
    k = torch.zeros(*q.shape[:2], columns, q.shape[3], dtype=q.dtype)
    return Call(q, k, k, mask, terms, scale, 0.0, first)


def assert_same(got: Tensor, wanted: Tensor, allowed: Tensor, leaves: list[Tensor]) -> None:
    """Values and gradients where the mask allows; elsewhere nothing but that it is a number."""
    assert got.isfinite().all()
    allowed = allowed.expand_as(got)
    torch.testing.assert_close(got[allowed], wanted[allowed], rtol=0, atol=1e-12)
    weights = torch.randn_like(got) * allowed
    both = [torch.autograd.grad((each * weights).sum(), leaves, retain_graph=True) for each in (got, wanted)]
    for mine, other in zip(*both, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-11)


def allowed_by(call: Call) -> Tensor:
    if call.mask is None:
        return torch.ones((), dtype=torch.bool)
    return call.mask.block(call.query_positions, call.key_positions)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**20),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 9)),
    first=st.integers(-3, 12),
    distances=st.integers(1, 20),
    ahead=st.one_of(st.none(), st.integers(0, 19)),
    parts=st.sampled_from([0, 1, 2, 4]),
    one_head=st.booleans(),
    shift=st.booleans(),
    mask=st.sampled_from(list(MASKS)),
)
def test_relative_keys(
    seed: int,
    sizes: tuple[int, int],
    first: int,
    distances: int,
    ahead: int | None,
    parts: int,
    one_head: bool,
    shift: bool,
    mask: str,
) -> None:
    torch.manual_seed(seed)
    rows, columns = sizes
    shape = (1 if one_head else 3, distances, 5)
    table = torch.randn((parts, *shape) if parts else shape, dtype=torch.float64, requires_grad=True)
    shifts = torch.randn(3, 5, dtype=torch.float64, requires_grad=True) if shift else None
    q = torch.randn(4, rows, 3, 5, dtype=torch.float64, requires_grad=True)
    term = RelativeKeys(table, shifts, None if ahead is None else min(ahead, distances - 1))
    call = call_of(q.transpose(1, 2), columns, MASKS[mask], (term,), first, 0.3)  # in memory as a layer has it
    wanted = keys_by_looking_up(term, call.q, first, columns, 0.3)
    leaves = [q, table] if shifts is None else [q, table, shifts]
    values = fused._values(call, term)
    assert rows == 1 or values.stride(-2) >= columns  # rows that overlap would have slow gradients
    assert_same(values, wanted, allowed_by(call), leaves)
    block = term.block(call.q, call.query_positions, call.key_positions, 0.3)
    torch.testing.assert_close(block, wanted, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 9)),
    first=st.integers(-3, 12),
    bidirectional=st.booleans(),
    mask=st.sampled_from(list(MASKS)),
)
def test_buckets(sizes: tuple[int, int], first: int, bidirectional: bool, mask: str) -> None:
    weight = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    term = Buckets(weight, bidirectional, 6)
    call = call_of(torch.zeros(2, 3, sizes[0], 4, dtype=torch.float64), sizes[1], MASKS[mask], (term,), first, 1.0)
    wanted = buckets_by_looking_up(term, sizes[0], first, sizes[1])
    assert_same(fused._values(call, term), wanted, allowed_by(call), [weight])


def test_places_that_are_given_one_by_one_are_looked_up() -> None:
    """Permuted rows, rows of their own in a batch: the same values, by the block."""
    q, table = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(3, 9, 5, dtype=torch.float64)
    term, k = RelativeKeys(table), torch.zeros(2, 3, 6, 5, dtype=torch.float64)
    straight = fused._values(Call(q, k, k, None, (term,), 0.3, 0.0, 1), term)
    order = torch.tensor([2, 0, 3, 1])
    mixed = fused._values(Call(q[:, :, order], k, k, None, (term,), 0.3, 0.0, order + 1), term)
    torch.testing.assert_close(mixed, straight[:, :, order])
    each = fused._values(Call(q, k, k, None, (term,), 0.3, 0.0, torch.arange(1, 5).expand(2, -1)), term)
    torch.testing.assert_close(each, straight)
    assert Call(q, k, k, None, (), 1.0, 0.0, order).offset is None
    assert Call(q, k, k, None, (), 1.0, 0.0, None, columns=torch.arange(6)).offset is None
    assert Call(q, k, k, None, (), 1.0, 0.0, 7, columns=3).offset == 4


def test_a_skewed_view_has_each_place_once() -> None:
    """Else gradients of two places would meet."""
    values = torch.arange(2 * 3 * 6.0).view(2, 3, 6)
    view = skewed(values, 4)
    assert view.tolist() == [[[row[2 - i + j] for j in range(4)] for i, row in enumerate(part)] for part in values]
    assert view.data_ptr() == values[0, 0, 2].data_ptr()  # nothing is copied
    assert len(skewed(torch.arange(15.0).view(3, 5), 4).unique()) == 12
    assert skewed(torch.arange(4.0)[None], 4).tolist() == [[0, 1, 2, 3]]


class Watch(TorchDispatchMode):
    """Which operators run, and the types of what they make where it has so many entries."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.names: list[str] = []
        self.large, self.types = large, set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.names.append(func.overloadpacket._qualified_op_name)
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor) and x.numel() >= self.large and x.is_floating_point():
                self.types.add(x.dtype)
        return out


@contextmanager
def watched(large: int = 1) -> Iterator[Watch]:
    with Watch(large) as watch:
        yield watch


@pytest.mark.parametrize("over", [False, True], ids=["from the first on", "after a memory"])
def test_what_follows_in_order_is_not_looked_up_one_by_one(over: bool) -> None:
    layer = SelfAttention(12, 3, relative=TransformerXLKeys(12, 3, causal=True))
    x, memory = torch.randn(2, 6, 12, requires_grad=True), empty_memory(2, 1, 4, torch.zeros(12))
    mask = causal() & held(memory, 6) if over else causal()
    given = {"over": torch.cat([memory.cache["0"], x], dim=1), "positions": 4} if over else {}
    with watched() as watch:
        layer(x, mask=mask, **given).sum().backward()
    assert not {"aten::scatter_add", "aten::scatter_add_", "aten::masked_fill"} & set(watch.names)
    assert watch.names.count("aten::gather") == (1 if over else 0)  # of the memory's mask, B x R


def narrow(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


@pytest.mark.parametrize("terms", ["transformer-xl", "xlnet", "t5", "alibi"])
def test_nothing_that_is_as_large_as_the_scores_is_wide_under_autocast(terms: str) -> None:
    batch, heads, rows, columns, width = 8, 4, 16, 32, 8
    given: dict[str, list[Term]] = {
        "transformer-xl": [RelativeKeys(narrow(torch.randn(heads, 33, width)), torch.randn(heads, width), 0)],
        "xlnet": [
            RelativeKeys(narrow(torch.randn(heads, 65, width)), torch.randn(heads, width)),
            SegmentKeys(torch.randn(2, heads, width), torch.ones(batch, columns).long(), torch.randn(heads, width)),
        ],
        "t5": [Buckets(torch.randn(8, heads), True, 16)],
        "alibi": [Alibi(alibi_slopes(heads))],
    }
    q, k = torch.randn(batch, heads, rows, width), torch.randn(batch, heads, columns, width)
    mask = padding(torch.randint(1, columns, (batch,)))
    call = Call(narrow(q), narrow(k), narrow(k), mask, tuple(given[terms]), 0.3, 0.0, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16), watched(batch * heads * rows * columns) as watch:
        bias, _ = fused._dense(call)
    assert bias is not None
    assert watch.types == {torch.bfloat16}


def test_masks_whose_form_says_that_every_query_sees_itself() -> None:
    segments, codes = torch.randint(0, 3, (2, 6)), torch.tensor([[0, 16, 17, 17, 18, 0], [16, 17, 0, 32, 33, 0]])
    yes = [causal(), window(2), window(0, 1, first=2), prefix(torch.tensor([0, 4])), same_segment(segments)]
    yes += [branching(codes), causal() & window(1) & same_segment(segments)]
    no = [padding(torch.tensor([3, 6])), same_segment(segments, segments + 0), visible(torch.eye(6, dtype=torch.bool))]
    places, x = torch.arange(6), torch.zeros(2, 1, 6, 8)
    for mask in yes:
        assert mask.sees_itself
        assert mask.block(places, places).diagonal(dim1=-2, dim2=-1).all()
        assert fused._all_attend(Call(x, x, x, mask, (), 1.0, 0.0, None))
    for mask in [*no, causal() & no[0]]:
        assert not mask.sees_itself
        assert not fused._all_attend(Call(x, x, x, mask, (), 1.0, 0.0, None))
    for positions in (1, -1, places):  # beyond the keys, before them, and who knows where
        assert not fused._all_attend(Call(x, x, x, window(0), (), 1.0, 0.0, positions))
    assert fused._all_attend(Call(x[:, :, :2], x, x, window(0), (), 1.0, 0.0, 4))


def test_what_cudas_kernels_add_begins_at_a_place_that_they_can_read() -> None:
    """They ask for multiples of eight: PyTorch copies where strides are others, and does not look where it begins."""

    class OnGpu(Tensor):
        is_cuda = True  # type: ignore[assignment]

    q, k = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 10, 16)  # 17 distances: rows of the view are 16 apart
    call = call_of(q, 10, None, (RelativeKeys(torch.randn(2, 21, 16)),), 0, 0.25)
    plain, _ = fused._dense(call)
    assert plain is not None
    assert plain.storage_offset() % 8
    assert not any(stride % 8 for stride in plain.stride()[:-1])
    added, _ = fused._dense(replace(call, q=q.as_subclass(OnGpu), k=k.as_subclass(OnGpu)))
    assert added is not None
    assert added.storage_offset() % 8 == 0
    torch.testing.assert_close(added.as_subclass(Tensor), plain)


def test_heads_that_are_widened_by_zeros_attend_as_before() -> None:
    """Only CUDA's kernels want it."""
    q, k, v = torch.randn(2, 3, 4, 10), torch.randn(2, 3, 6, 10), torch.randn(2, 3, 6, 8)
    wide = [fused.widened(x) for x in (q, k, v)]
    assert [x.shape[-1] for x in wide] == [16, 16, 8]
    mask = padding(torch.tensor([4, 6]))
    torch.testing.assert_close(attend(*wide, mask=mask, scale=0.3), attend(q, k, v, mask=mask, scale=0.3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiler_can_trace_what_follows_from_a_place_on(dynamic: bool) -> None:
    q, k = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 9, 8)
    table = torch.randn(3, 7, 8, requires_grad=True)
    terms = [RelativeKeys(table), T5Bias(3, bidirectional=True).terms(9)[0]]
    torch.compiler.reset()

    def call(q: Tensor, k: Tensor) -> Tensor:
        return attend(q, k, k, mask=causal(), terms=terms, positions=5)

    traced = torch.compile(call, backend="eager", fullgraph=True, dynamic=dynamic)
    found = [torch.autograd.grad(each(q, k).square().sum(), table) for each in (traced, call)]
    torch.testing.assert_close(traced(q, k), call(q, k))
    torch.testing.assert_close(*found)
