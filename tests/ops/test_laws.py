"""Laws of attention that hold whatever the shapes, masks and numbers are.

"Exactly" below means bit for bit; elsewhere float64 and 1e-10.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.ops.attention import attend, weigh
from regard.ops.masks import Mask, causal, padding, prefix, same_segment, visible, window
from regard.ops.terms import Alibi, Buckets, Dense, RelativeKeys, Term, alibi_slopes

EXAMPLES = settings(max_examples=40)
BACKENDS = pytest.mark.parametrize("backend", ["reference", "fused"])


@dataclass
class Setting:
    """A call of any shape: keys at positions 0 .. M - 1, queries at `positions`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    terms: list[Term]
    positions: Tensor | None

    def attend(self, backend: str, **changes: object) -> Tensor:
        return attend(**{**vars(self), **changes}, backend=backend)


@st.composite
def settings_of_calls(draw: st.DrawFn) -> Setting:
    torch.manual_seed(draw(st.integers(0, 2**32 - 1)))
    batch, key_heads, groups = (draw(st.integers(1, n)) for n in (3, 2, 3))
    rows, columns, width = (draw(st.integers(1, n)) for n in (6, 7, 4))
    heads = key_heads * groups
    positions = None
    if rows > columns or draw(st.booleans()):
        shape = draw(st.sampled_from([(rows,), (batch, rows)]))
        positions = torch.randint(0, columns, shape)

    rules = {
        "causal": causal(),
        "padding": padding(torch.randint(0, columns + 1, (batch,))),
        "window": window(draw(st.integers(0, 3)), draw(st.integers(0, 3))),
        "prefix": prefix(torch.randint(0, columns + 1, (batch,))),
        "segment": same_segment(torch.randint(0, 3, (batch, columns)), torch.randint(0, 3, (1, columns))),
        "visible": visible(torch.rand(batch, 1, columns, columns) > 0.5),
        "to heads": visible(torch.rand(1, heads, columns, columns) > 0.5),
    }
    mask = None
    for name in draw(st.lists(st.sampled_from(sorted(rules)), max_size=3)):
        mask = rules[name] if mask is None else mask & rules[name]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    terms = {
        "dense": Dense(normal(batch, 1, columns, columns)),
        "alibi": Alibi(alibi_slopes(heads)),
        "buckets": Buckets(normal(8, heads), draw(st.booleans()), 9),
        "shaw": RelativeKeys(normal(1, 5, width)),
        "transformer-xl": RelativeKeys(normal(heads, 2 * columns + 1, width), normal(heads, width)),
    }
    chosen = [terms[name] for name in draw(st.lists(st.sampled_from(sorted(terms)), max_size=2, unique=True))]
    q = normal(batch, heads, rows, width)
    k, v = normal(batch, key_heads, columns, width), normal(batch, key_heads, columns, 3)
    return Setting(q, k, v, mask, chosen, positions)


CALLS = settings_of_calls()


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@EXAMPLES
@given(CALLS)
def test_fused_is_the_reference(call: Setting) -> None:
    assert_same(call.attend("fused"), call.attend("reference"))


@BACKENDS
@EXAMPLES
@given(CALLS, st.data())
def test_a_block_of_rows_is_those_rows_of_the_whole(backend: str, call: Setting, data: st.DataObject) -> None:
    whole = call.attend(backend)
    count = call.q.shape[2]
    rows = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)))
    places = torch.arange(count) if call.positions is None else call.positions
    assert_same(call.attend(backend, q=call.q[:, :, rows], positions=places[..., rows]), whole[:, :, rows])


@BACKENDS
@EXAMPLES
@given(CALLS)
def test_a_row_of_the_batch_is_a_batch_of_one(backend: str, call: Setting) -> None:
    """What one row gets depends on no other row: change them all, and it stays."""
    out = call.attend(backend)
    last = len(out) - 1
    others = {name: getattr(call, name).clone() for name in "qkv"}
    for tensor in others.values():
        tensor[:last].normal_()
    assert_same(call.attend(backend, **others)[last], out[last])


def allowed(call: Setting) -> Tensor:
    """B x H x N x M, true where the call may attend."""
    shape = (*call.q.shape[:3], call.k.shape[2])
    if call.mask is None:
        return torch.ones(shape, dtype=torch.bool)
    places = torch.arange(shape[2]) if call.positions is None else call.positions
    return call.mask.block(places, torch.arange(shape[3])).expand(shape)


@BACKENDS
@EXAMPLES
@given(CALLS)
def test_what_is_masked_changes_nothing(backend: str, call: Setting) -> None:
    """Keys that no query may see, in any head of their group, can hold any number: exactly the same comes out."""
    heads, key_heads = call.q.shape[1], call.k.shape[1]
    seen = allowed(call).unflatten(1, (key_heads, heads // key_heads)).any(2).any(2)[..., None]  # B x K x M x 1
    out = call.attend(backend)
    for number in (1e4, -1e30):
        k, v = (torch.where(seen, x, number) for x in (call.k, call.v))
        assert torch.equal(call.attend(backend, k=k, v=v), out)


@BACKENDS
@EXAMPLES
@given(CALLS)
def test_no_gradient_comes_from_where_the_mask_forbids(backend: str, call: Setting) -> None:
    """The output of query i depends on key and value j exactly where the mask allows it."""
    heads, key_heads, count = call.q.shape[1], call.k.shape[1], call.q.shape[2]
    may = allowed(call).unflatten(1, (key_heads, heads // key_heads)).any(2)  # B x K x N x M
    v = call.v.requires_grad_()
    k = call.k.requires_grad_()
    out = call.attend(backend, k=k, v=v)
    for i in range(count):
        by_k, by_v = torch.autograd.grad(out[:, :, i].sum(), (k, v), retain_graph=True, allow_unused=True)
        assert torch.equal(by_v.abs().sum(-1) > 0, may[:, :, i])
        assert not by_k[~may[:, :, i]].any()


@BACKENDS
@EXAMPLES
@given(CALLS)
def test_rows_that_may_attend_nowhere_are_zero_with_finite_gradients(backend: str, call: Setting) -> None:
    dead = ~allowed(call).any(-1)  # B x H x N
    learned = [x.requires_grad_() for x in (call.q, call.k, call.v)]
    learned += [x.requires_grad_() for t in call.terms for x in vars(t).values() if isinstance(x, Tensor)]
    out = call.attend(backend)
    assert not out[dead].any()
    grads = torch.autograd.grad(out.square().sum() + out.sum(), learned, allow_unused=True)
    assert all(g.isfinite().all() for g in grads if g is not None)
    assert not grads[0][dead].any()


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("terms", [[], [Alibi(alibi_slopes(2))]], ids=["plain", "alibi"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_call_that_may_attend_nowhere_at_all(
    backend: str, dtype: torch.dtype, terms: list[Term], dropout: float
) -> None:
    q, k, v = (torch.randn(2, 2, 40, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    out = attend(q, k, v, mask=padding(torch.zeros(2).long()), terms=terms, dropout=dropout, backend=backend)
    assert torch.equal(out, torch.zeros_like(q))
    out.sum().backward()
    assert not q.grad.any()
    assert not k.grad.any()
    assert not v.grad.any()


@BACKENDS
@given(CALLS)
@settings(max_examples=20)
def test_a_window_as_long_as_the_text_is_full_attention(backend: str, call: Setting) -> None:
    wide = window(call.k.shape[2])
    mask = wide if call.mask is None else call.mask & wide
    assert_same(call.attend(backend, mask=mask), call.attend(backend))


@BACKENDS
def test_a_future_key_gives_no_gradient(backend: str) -> None:
    q, k, v = (torch.randn(1, 2, 6, 8, requires_grad=True) for _ in range(3))
    out = attend(q, k, v, mask=causal(), backend=backend)
    for i in range(6):
        for grad in torch.autograd.grad(out[:, :, i].sum(), (k, v), retain_graph=True):
            assert not grad[:, :, i + 1 :].any()
            assert grad[:, :, : i + 1].abs().sum((0, 1, 3)).all() or i == 0  # alone, a key has no weight to gain


@BACKENDS
def test_padding_may_hold_anything(backend: str) -> None:
    """As a batch has it: short rows are padded at the right, and what stands there is never read."""
    lengths = torch.tensor([7, 3, 0])
    q, k, v = (torch.randn(3, 2, 7, 8) for _ in range(3))
    mask = causal() & padding(lengths)
    wanted = attend(q, k, v, mask=mask, backend=backend)
    real = (torch.arange(7) < lengths[:, None])[:, None, :, None]
    garbage = torch.where(real, k, 1e30), torch.where(real, v, -1e30)
    assert torch.equal(attend(q, *garbage, mask=mask, backend=backend), wanted)
    alone = attend(q[1:2, :, :3], k[1:2, :, :3], v[1:2, :, :3], mask=causal(), backend=backend)
    torch.testing.assert_close(wanted[1:2, :, :3], alone)


def test_a_cached_step_is_a_row_of_the_whole() -> None:
    """One query at a time over a cache longer than the text, each row of the batch at its own place."""
    q, k, v = (torch.randn(2, 2, 6, 8) for _ in range(3))
    terms = [Buckets(torch.randn(8, 2), False, 5)]
    whole = attend(q, k, v, mask=causal(), terms=terms)
    cache = [torch.cat([x, torch.full((2, 2, 3, 8), 1e30)], dim=2) for x in (k, v)]
    for clock in ([0, 5], [3, 2], [4, 4]):
        at = torch.tensor(clock)[:, None]
        step = q.take_along_dim(at[:, None, :, None], dim=2)
        out = attend(step, *cache, mask=causal(), terms=terms, positions=at)
        torch.testing.assert_close(out, whole.take_along_dim(at[:, None, :, None], dim=2))


def test_weights_sum_to_one_or_nothing() -> None:
    scores = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    may = torch.rand(3, 1, 5, 6) > 0.7
    weights = weigh(scores, may)
    assert not weights[~may.expand_as(weights)].any()
    torch.testing.assert_close(weights.sum(-1), may.any(-1).expand(3, 4, 5).double())
