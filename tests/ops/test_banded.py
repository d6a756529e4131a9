"""Windows with global tokens: the mask, and the backend that computes them by chunks, against the plain reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import BackendError, RegardError
from regard.ops import banded, flex
from regard.ops.attention import attend, backends_used, choose
from regard.ops.call import Call
from regard.ops.masks import Band, Mask, Sliding, causal, padding, same_segment, visible, window
from regard.ops.terms import Alibi, Buckets, Dense, RelativeKeys, Term, alibi_slopes


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of few rows, so that short texts have many of them."""
    monkeypatch.setattr(banded, "SMALLEST", 3)
    monkeypatch.setattr(banded, "LARGEST", 5)


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def answers(
    backend: str, tensors: list[Tensor], mask: Mask | None, terms: tuple[Term, ...] = (), scale: float | None = None
) -> list[Tensor]:
    """The output, and the gradients of a function of it by q, k and v."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    out = attend(*leaves, mask=mask, terms=terms, scale=scale, backend=backend)
    direction = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * direction).sum(), leaves)]


# --- the mask ---------------------------------------------------------------------------------------------------------


def test_global_tokens_see_all_and_are_seen_by_all() -> None:
    seen = window(1, first=2).block(torch.arange(6), torch.arange(6))[0, 0]
    wanted = [[1] * 6, [1] * 6, [1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 1, 1]]
    assert seen.int().tolist() == wanted


def test_of_a_text_that_goes_on_they_are_those_at_its_beginning() -> None:
    mask, keys = causal() & window(2, 1, first=1), torch.arange(9)
    whole = mask.block(keys, keys)
    assert torch.equal(mask.block(torch.tensor([4, 7]), keys), whole[:, :, [4, 7]])
    assert torch.equal(mask.block(torch.tensor([[4], [7]]), keys)[:, 0, 0], whole[0, 0, [4, 7]])


def test_the_rule_as_flex_asks_it() -> None:
    mask = causal() & window(2, first=2) & padding(torch.tensor([7, 3]))
    b, q, k = torch.meshgrid(torch.arange(2), torch.arange(8), torch.arange(8), indexing="ij")
    found = mask.mask_mod()(b, torch.zeros_like(b), q, k)
    assert torch.equal(found, mask.block(torch.arange(8), torch.arange(8))[:, 0])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_flex_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its compiler, which test_flex.py has."""
    monkeypatch.setattr(flex, "_compiled", lambda function: function)
    monkeypatch.setattr("shutil.which", lambda name: name)
    q, k, v = (torch.randn(2, heads, 40, 16) for heads in (4, 2, 2))
    for mask in (window(3, first=2), causal() & window(5, first=1) & padding(torch.tensor([40, 21]))):
        found, wanted = (attend(q, k, v, mask=mask, backend=backend) for backend in ("flex", "reference"))
        assert_close(found, wanted, rtol=0.0, atol=1e-5)


def test_windows_come_to_one_form() -> None:
    assert window(3, first=0).rules == (Band(3, 3),)
    assert (window(3, first=2) & window(5, 1, first=2)).rules == (Sliding(3, 1, 2),)
    assert (window(3, first=2) & causal()).rules == (causal() & window(3, first=2)).rules
    different = window(3, first=2) & window(5, first=1)
    assert len(different.rules) == 2
    places = torch.arange(9)
    both = window(3, first=2).block(places, places) & window(5, first=1).block(places, places)
    assert torch.equal(different.block(places, places), both)


@pytest.mark.parametrize(
    ("mask", "reach"),
    [
        (causal(), (None, 0, 0)),
        (window(3, 1), (3, 1, 0)),
        (causal() & window(3, first=2), (3, 0, 2)),
        (window(3, first=2) & window(5, 1, first=1), (3, 1, 2)),
        (padding(torch.tensor([3])), (None, None, 0)),
    ],
)
def test_how_far_a_mask_reaches(mask: Mask, reach: tuple[int | None, int | None, int]) -> None:
    assert mask.reach == reach


def test_no_window_is_negative() -> None:
    with pytest.raises(RegardError, match=r"a window cannot be negative\n  got:    \(2, 2, -1\)\n  wanted: 0 or more"):
        window(2, first=-1)


# --- the backend ------------------------------------------------------------------------------------------------------


@given(
    length=st.integers(1, 40),
    keys=st.integers(1, 40),
    left=st.integers(0, 12),
    right=st.integers(0, 12),
    first=st.integers(0, 9),
    is_causal=st.booleans(),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    real=st.lists(st.integers(0, 40), min_size=2, max_size=2),
)
@settings(max_examples=120)
def test_any_shape(
    length: int, keys: int, left: int, right: int, first: int, is_causal: bool, heads: tuple[int, int], real: list[int]
) -> None:
    q, k, v = (torch.randn(2, h, n, 4).double() for h, n in ((heads[0], length), (heads[1], keys), (heads[1], keys)))
    mask = window(left, right, first=first) & padding(torch.tensor(real))
    mask = mask & causal() if is_causal else mask
    before = banded.SMALLEST, banded.LARGEST
    banded.SMALLEST, banded.LARGEST = 3, 5
    try:
        found = answers("banded", [q, k, v], mask)
    finally:
        banded.SMALLEST, banded.LARGEST = before
    assert_close(found, answers("reference", [q, k, v], mask), rtol=0.0, atol=1e-11)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    "term",
    [
        Alibi(alibi_slopes(4)),
        Buckets(torch.randn(8, 4), True, 6),
        Dense(torch.randn(1, 4, 33, 33)),
        RelativeKeys(torch.randn(4, 67, 8), torch.randn(4, 8)),
    ],
    ids=lambda term: type(term).__name__,
)
@pytest.mark.parametrize("first", [0, 2])
def test_terms(term: Any, first: int) -> None:
    q, k, v = (torch.randn(2, heads, 33, 8) for heads in (4, 2, 2))
    mask = window(4, first=first)
    found, wanted = (answers(backend, [q, k, v], mask, (term,), 0.3) for backend in ("banded", "reference"))
    assert_close(found, wanted, rtol=0.0, atol=2e-5)


@pytest.mark.usefixtures("small_chunks")
def test_other_rules() -> None:
    q, k, v = torch.randn(3, 2, 3, 21, 8).double()
    for rule in (same_segment(torch.randint(0, 2, (2, 21))), visible(torch.rand(2, 3, 21, 21) > 0.5)):
        mask = rule & window(3, first=1)
        found, wanted = (answers(backend, [q, k, v], mask) for backend in ("banded", "reference"))
        assert_close(found, wanted, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype: torch.dtype) -> None:
    tensors = list(torch.randn(3, 1, 2, 300, 16).to(dtype))
    found = answers("banded", tensors, window(20, first=1))
    wanted = answers("reference", [tensor.double() for tensor in tensors], window(20, first=1))
    assert all(tensor.dtype == dtype for tensor in found)
    for mine, exact in zip(found, wanted, strict=True):
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype] * max(1.0, float(exact.abs().max()))
        assert_close(mine.double(), exact, rtol=0.0, atol=tolerance)


def test_a_window_as_long_as_the_text_is_full_attention() -> None:
    tensors = list(torch.randn(3, 1, 2, 200, 8).double())
    assert_close(answers("banded", tensors, window(200)), answers("reference", tensors, None), rtol=0.0, atol=1e-12)
    everyone = answers("banded", tensors, window(0, first=200))
    assert_close(everyone, answers("reference", tensors, None), rtol=0.0, atol=1e-12)


def test_dropout_drops_weights() -> None:
    q = k = torch.zeros(1, 1, 400, 8)
    v = torch.ones(1, 1, 400, 8)
    out = attend(q, k, v, mask=window(10), dropout=0.5, backend="banded")
    kept = out[0, 0, 10:-10, 0] * 21 / 2  # of 21 equal weights, those that were kept count twice
    assert_close(kept, kept.round(), rtol=0.0, atol=1e-4)
    assert 9.0 < float(kept.mean()) < 12.0


def test_it_costs_the_window_and_not_the_square() -> None:
    def cost(length: int) -> tuple[float, int]:
        q, k, v = torch.randn(3, 1, 1, length, 16).requires_grad_()
        # of the kernels of attention, the one that is counted
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as flops, Largest() as largest:
            attend(q, k, v, mask=window(64, first=1), backend="banded").sum().backward()
        return flops.get_total_flops(), largest.size

    (short, small), (long, large) = cost(1024), cost(4096)
    assert long < 4.3 * short
    assert large < 4.3 * small
    assert large < 4096 * 256


# --- which calls ------------------------------------------------------------------------------------------------------


def call(mask: Mask | None, length: int = 600, **changes: Any) -> Call:
    q = torch.zeros(1, 1, length, 16)
    return Call(q, q, q, mask, (), 1.0, 0.0, **{"positions": None, **changes})


@pytest.mark.parametrize(
    ("mask", "length", "wanted"),
    [
        (window(16), 600, "banded"),
        (causal() & window(16, first=1) & padding(torch.tensor([3])), 600, "banded"),
        (window(16), 200, "fused"),  # too short to be worth it
        (window(300), 600, "fused"),  # most is seen anyway
        (window(16, first=400), 600, "fused"),
        (causal(), 600, "fused"),
        (padding(torch.tensor([3])), 600, "fused"),
        (None, 600, "fused"),
    ],
)
def test_auto_on_a_cpu(mask: Mask | None, length: int, wanted: str) -> None:
    assert choose(call(mask, length)) == wanted


def test_auto_runs_on_it() -> None:
    q = torch.randn(1, 1, 600, 8)
    with backends_used() as used:
        out = attend(q, q, q, mask=window(16))
    assert used == ["banded"]
    assert_close(out, attend(q, q, q, mask=window(16), backend="reference"))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (lambda: call(None), "a mask that is no window to both sides"),
        (lambda: call(causal()), "a mask that is no window to both sides"),
        (lambda: call(window(2), positions=torch.arange(600)), "queries at positions of their own"),
        (lambda: call(window(2), length=0), "no queries or no keys"),
    ],
)
def test_it_says_what_it_cannot(asked: Any, reason: str) -> None:
    with pytest.raises(BackendError) as caught:
        choose(asked(), "banded")
    assert str(caught.value).splitlines() == [
        'the backend "banded" cannot do this',
        f"  got:    {reason}",
        '  try:    backend = "auto"',
    ]


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_compiles_as_one_graph(dynamic: bool) -> None:
    torch.compiler.reset()
    q = torch.randn(1, 1, 600, 8)

    def call(q: Tensor) -> Tensor:
        return attend(q, q, q, mask=window(16, first=1))

    compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=dynamic)
    assert_close(compiled(q), attend(q, q, q, mask=window(16, first=1)))
