"""Linear attention against the explicit n x n construction: whole, causal, by chunks and by steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import BackendError
from regard.ops.attention import observing
from regard.ops.call import Call
from regard.ops.linear import attend_linear, features, new_state
from regard.ops.masks import Mask, causal, padding, same_segment, visible, window
from regard.ops.observe import Observed

EXACT = {"rtol": 0.0, "atol": 1e-9}


def explicit_weights(q: Tensor, k: Tensor, mask: Mask | None) -> Tensor:
    """phi(q_i) phi(k_j) / sum, with the whole matrix: B x H x N x M."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    similar = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    if mask is not None:
        similar = similar * mask.block(torch.arange(q.shape[2]), torch.arange(k.shape[2]))
    total = similar.sum(-1, keepdim=True)
    return similar / torch.where(total == 0, 1.0, total)


def explicit(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
    return explicit_weights(q, k, mask) @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def inputs(length: int, heads: tuple[int, int] = (4, 2), width: int = 6, batch: int = 2) -> list[Tensor]:
    return [torch.randn(batch, h, length, width, dtype=torch.float64) for h in (heads[0], heads[1], heads[1])]


def segments(length: int, cuts: list[int]) -> Tensor:
    """A row of texts that begin at these places, and a row of one."""
    places = torch.arange(length)
    return torch.stack([sum((places >= cut).long() for cut in cuts) + places * 0, places * 0 + 7])


def assert_same(tensors: list[Tensor], mask: Mask | None) -> None:
    leaves = [tensor.requires_grad_() for tensor in tensors]
    found, wanted = attend_linear(*leaves, mask=mask), explicit(leaves[0], leaves[1], leaves[2], mask)
    assert_close(found, wanted, **EXACT)
    direction = torch.linspace(-1, 2, found.numel(), dtype=torch.float64).view_as(found)
    gradients = [torch.autograd.grad((out * direction).sum(), leaves) for out in (found, wanted)]
    assert_close(gradients[0], gradients[1], **EXACT)


@given(
    length=st.integers(1, 200),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    is_causal=st.booleans(),
    real=st.one_of(st.none(), st.lists(st.integers(0, 200), min_size=2, max_size=2)),
    cuts=st.one_of(st.none(), st.lists(st.integers(1, 199), max_size=5)),
)
@settings(max_examples=60)
def test_any_shape(
    length: int, heads: tuple[int, int], is_causal: bool, real: list[int] | None, cuts: list[int] | None
) -> None:
    mask = causal() if is_causal else None
    if real is not None:
        mask = padding(torch.tensor(real)) if mask is None else mask & padding(torch.tensor(real))
    if mask is not None and is_causal and cuts is not None:
        mask = mask & same_segment(segments(length, cuts))
    assert_same(inputs(length, heads), mask)


@pytest.mark.parametrize("length", [63, 64, 65, 128, 129])
def test_around_a_chunk(length: int) -> None:
    assert_same(inputs(length), causal())
    assert_same(inputs(length), causal() & same_segment(segments(length, [60, 64, 65])))


def test_as_many_keys_as_one_likes() -> None:
    q, (k, v) = inputs(5)[0], inputs(9)[1:]
    assert_close(attend_linear(q, k, v), explicit(q, k, v, None), **EXACT)


def test_one_row_of_segments_serves_all() -> None:
    q, k, v = inputs(130)
    ids = segments(130, [3, 70])[:1]
    mask = causal() & same_segment(ids)
    assert_close(attend_linear(q, k, v, mask=mask), explicit(q, k, v, mask), **EXACT)


@pytest.mark.parametrize("steps", [[1] * 12, [130], [70, 1, 1, 64, 3], [64, 64]], ids=str)
def test_by_steps_is_as_the_whole(steps: list[int]) -> None:
    q, k, v = inputs(sum(steps))
    state, found = new_state(2, 2, 6, q), []
    for parts in zip(*(x.split(steps, dim=2) for x in (q, k, v)), strict=True):
        found.append(attend_linear(*parts, mask=causal(), state=state))
    assert state.shape == (2, 2, 6, 7)
    assert_close(torch.cat(found, dim=2), explicit(q, k, v, causal()), **EXACT)


def test_later_keys_are_not_seen() -> None:
    q, k, v = inputs(150)
    before = attend_linear(q, k, v, mask=causal())
    k, v = k.clone(), v.clone()
    k[:, :, 100:], v[:, :, 100:] = 1e6, float("inf")
    after = attend_linear(q, k, v, mask=causal())
    assert torch.equal(after[:, :, :64], before[:, :, :64])  # what stands in the same chunk as an inf is 0 times it
    k, v = k.clamp(max=10), v.clamp(max=10)
    assert_close(attend_linear(q, k, v, mask=causal())[:, :, :100], before[:, :, :100], rtol=0.0, atol=1e-12)


def test_a_row_that_reads_nothing_gives_zeros_and_finite_gradients() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(7))
    out = attend_linear(q, k, v, mask=padding(torch.tensor([7, 0])))
    assert (out[1] == 0).all()
    out.square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def test_features() -> None:
    x = torch.tensor([-3.0, -0.1, 0.0, 0.1, 3.0], dtype=torch.float64)
    assert_close(features(x), F.elu(x) + 1)
    # adding 1 rounds this away
    assert_close(features(torch.tensor([-30.0])), torch.tensor([-30.0]).exp(), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype: torch.dtype) -> None:
    """Sums are made in float32 at least: what is lost is the rounding of the output."""
    tensors = [tensor.to(dtype) for tensor in inputs(500, (2, 1), 16)]
    wanted = explicit(*(tensor.double() for tensor in tensors), causal())  # type: ignore[misc]
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = attend_linear(*tensors, mask=causal())
    assert found.dtype == dtype
    assert new_state(1, 1, 4, tensors[0]).dtype == torch.float32
    assert_close(found.double(), wanted, rtol=0.0, atol={torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype])


@pytest.mark.parametrize("mask", [None, causal(), causal() & padding(torch.tensor([3]))], ids=str)
def test_it_costs_the_length_and_not_its_square(mask: Mask | None) -> None:
    def cost(length: int) -> float:
        q, k, v = torch.randn(3, 1, 1, length, 16).requires_grad_()
        with FlopCounterMode(display=False) as flops:
            attend_linear(q, k, v, mask=mask).sum().backward()
        return flops.get_total_flops()

    assert cost(4096) <= 4 * cost(1024)


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (window(3), "Band"),
        (causal() & window(3), "Band"),
        (visible(torch.ones(5, 5).bool()), "Visible"),
        (same_segment(torch.zeros(1, 5).long()), "Segments"),
    ],
)
def test_masks_that_sums_cannot_keep(mask: Mask, got: str) -> None:
    with pytest.raises(BackendError) as caught:
        attend_linear(*inputs(5), mask=mask)
    assert str(caught.value) == (
        "linear attention sums over keys, and cannot leave out some of them for each query\n"
        f"  got:    {got}\n"
        "  wanted: causal(), padding(lengths), and with causal() also same_segment(ids)"
    )


class Heard:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, Tensor]] = []

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        self.calls.append((call, out))

    def saw_weights(self, weights: Tensor, values: Tensor, projection: Tensor | None, out: Tensor) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    "mask",
    [None, causal(), padding(torch.tensor([70, 31])), causal() & same_segment(segments(70, [30]))],
    ids=["all", "causal", "padding", "packed"],
)
def test_who_observes_sees_exact_weights(mask: Mask | None) -> None:
    q, k, v = inputs(70)
    heard = Heard()
    plain = attend_linear(q, k, v, mask=mask)
    with observing(heard):
        assert torch.equal(attend_linear(q, k, v, mask=mask), plain)
    ((call, out),) = heard.calls
    seen, wanted = Observed(call), explicit_weights(q, k, mask)
    assert torch.equal(out, plain)
    assert_close(seen.rows(range(70)), wanted, **EXACT)
    assert_close(seen.rows(range(3, 9), [2]), wanted[:, 2:3, 3:9], **EXACT)
    assert_close(seen.received, wanted.sum(2), **EXACT)
    assert_close(seen.confidence, wanted.amax(-1), **EXACT)
    assert_close(seen.entropy, torch.special.entr(wanted).sum(-1), **EXACT)
    assert_close(seen.rows(range(70)) @ v.repeat_interleave(2, dim=1), plain, **EXACT)


def test_a_state_cannot_be_observed() -> None:
    q, k, v = inputs(1)
    with observing(Heard()), pytest.raises(BackendError, match="goes on from a state cannot be observed") as caught:
        attend_linear(q, k, v, mask=causal(), state=new_state(2, 2, 6, q))
    assert "try:    observe one forward pass over the finished text" in str(caught.value)
