"""Which backend a call runs on, and what is said when it cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.errors import BackendError, RegardError
from regard.ops import flex
from regard.ops.attention import attend, backends_used, choose
from regard.ops.call import Call
from regard.ops.masks import Mask, causal, padding, window
from regard.ops.terms import Alibi, Buckets, RelativeKeys, Term, alibi_slopes


def call(
    mask: Mask | None = None, terms: tuple[Term, ...] = (), width: int = 16, dropout: float = 0.0, **changes: Tensor
) -> Call:
    tensors = {name: torch.zeros(1, 4, 6, width) for name in "qkv"} | changes
    return Call(tensors["q"], tensors["k"], tensors["v"], mask, terms, 1.0, dropout, None)


def test_auto_is_fused_on_a_cpu() -> None:
    for mask in (None, causal(), causal() & window(2)):
        assert choose(call(mask)) == "fused"


def test_every_call_is_recorded() -> None:
    q = torch.randn(1, 1, 2, 4)
    with backends_used() as outer:
        attend(q, q, q)
        with backends_used() as inner:
            attend(q, q, q, backend="reference")
        attend(q, q, q, backend="reference")
    attend(q, q, q)
    assert outer == ["fused", "reference", "reference"]
    assert inner == ["reference"]


def test_recorders_with_equal_contents_are_not_confused() -> None:
    q = torch.randn(1, 1, 2, 4)
    with backends_used() as outer:
        with backends_used() as inner:
            attend(q, q, q)
        attend(q, q, q)
    assert (outer, inner) == (["fused", "fused"], ["fused"])


def test_a_recorder_ends_with_its_block_even_after_an_error() -> None:
    q = torch.randn(1, 1, 2, 4)
    with pytest.raises(ZeroDivisionError), backends_used() as used:
        _ = 1 / 0
    attend(q, q, q)
    assert used == []


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (lambda: call(dropout=0.1), "dropout on the weights"),
        (lambda: call(terms=(RelativeKeys(torch.zeros(1, 3, 16)),)), "a score term that depends on the queries"),
        (lambda: call(width=8), "a head width of 8, under 16"),
        (lambda: call(v=torch.zeros(1, 4, 6, 4)), "a head width of 4, under 16"),
        (lambda: call(k=torch.zeros(1, 4, 0, 16)), "no queries or no keys"),
        (lambda: call(q=torch.zeros(1, 4, 6, 16).double()), "float64"),
        (lambda: call(q=torch.zeros(1, 4, 6, 16, device="meta")), 'a device of type "meta"'),
        (lambda: call(v=torch.zeros(1, 4, 6, 16, requires_grad=True)), "gradients on a CPU"),
        (lambda: call(terms=(Buckets(torch.zeros(8, 4, requires_grad=True), True, 9),)), "gradients on a CPU"),
    ],
)
def test_flex_says_what_it_cannot(asked: object, reason: str) -> None:
    with pytest.raises(BackendError) as caught:
        choose(asked(), "flex")  # type: ignore[operator]
    assert str(caught.value).splitlines() == [
        'the backend "flex" cannot do this',
        f"  got:    {reason}",
        '  try:    backend = "auto"',
    ]


def test_flex_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex.shutil, "which", lambda name: None)
    assert flex.why_not(call()) == "no C++ compiler to compile with"
    monkeypatch.setattr(flex.shutil, "which", lambda name: "/usr/bin/g++")
    assert flex.why_not(call(terms=(Alibi(alibi_slopes(4)),))) is None
    with torch.no_grad():
        assert flex.why_not(call(q=torch.zeros(1, 4, 6, 16, requires_grad=True))) is None


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU, for choices that are made without looking at values."""

    is_cuda = property(lambda self: True)


@pytest.mark.parametrize(
    ("mask", "terms", "rows", "wanted"),
    [
        (causal(), (), 4096, "fused"),
        (None, (), 4096, "fused"),
        (causal() & window(9), (), 4096, "flex"),
        (causal(), (Alibi(torch.ones(1)),), 4096, "flex"),
        (None, (Alibi(torch.ones(1)),), 4096, "flex"),
        (causal() & window(9), (), 2048, "fused"),
        (causal(), (), 4000, "flex"),  # not as many queries as keys: no kernel's own causal
        (causal(), (RelativeKeys(torch.ones(1, 3, 16)),), 4096, "fused"),
    ],
)
def test_auto_on_a_gpu(
    mask: Mask | None, terms: tuple[Term, ...], rows: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "lacks_for_triton", lambda: None)
    q = torch.empty(1, 1, rows, 16, device="meta").as_subclass(OnGpu)
    keys = torch.empty(1, 1, 4096 if rows > 2048 else 2048, 16, device="meta")
    assert choose(Call(q, keys, keys, mask, terms, 1.0, 0.0, None)) == wanted


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (((2, 3, 8), (2, 3, 8), (2, 3, 8)), ["batch x heads x length x width", "(2, 3, 8)"]),
        (((2, 4, 3, 8), (1, 4, 3, 8), (1, 4, 3, 8)), ["do not fit", "q (2, 4, 3, 8), k (1, 4, 3, 8)", "B H N d"]),
        (((2, 4, 3, 8), (2, 4, 3, 6), (2, 4, 3, 6)), ["do not fit"]),
        (((2, 4, 3, 8), (2, 4, 3, 8), (2, 4, 5, 8)), ["do not fit"]),
        (((2, 6, 3, 8), (2, 4, 3, 8), (2, 4, 3, 8)), ["num_heads (6) must be divisible by num_kv_heads (4)"]),
    ],
)
def test_shapes_that_do_not_fit(arguments: tuple[tuple[int, ...], ...], says: list[str]) -> None:
    with pytest.raises(RegardError) as caught:
        attend(*(torch.zeros(shape) for shape in arguments))
    for words in says:
        assert words in str(caught.value)


def test_positions_that_do_not_fit() -> None:
    q = torch.zeros(2, 1, 3, 8)
    with pytest.raises(RegardError, match="positions do not fit q") as caught:
        attend(q, q, q, mask=padding(torch.tensor([1, 2])), positions=torch.arange(4))
    assert "(4,)" in str(caught.value)
    assert "length, or batch x length" in str(caught.value)


def test_an_unknown_backend_is_named() -> None:
    q = torch.zeros(2, 1, 3, 8)
    with pytest.raises(BackendError, match="no such attention backend") as caught:
        attend(q, q, q, backend="flash")
    assert "auto, reference, fused, flex" in str(caught.value)
