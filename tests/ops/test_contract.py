"""Every backend gives what the float64 reference gives: values and gradients, for every mask, term and position.

Tolerances, relative to the largest entry of the compared tensor: float64 1e-12, float32 1e-5, bfloat16 2e-2 (five
steps of its 8 bits). Inputs are rounded to the type first, so that only the computation is judged. FlexAttention, for
which each case costs a compilation, has its own few in test_flex.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.ops.attention import attend, choose, reference
from regard.ops.call import Call
from regard.ops.masks import Mask, branching, causal, padding, prefix, same_segment, visible, window
from regard.ops.terms import Alibi, Buckets, Dense, RelativeKeys, SegmentKeys, Term, alibi_slopes

B, H, K, N, M, D = 2, 4, 2, 5, 9, 8
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def coin(*shape: int) -> Tensor:
    return torch.randint(0, 2, shape).bool()


def with_dead_rows(matrix: Tensor) -> Tensor:
    matrix[..., 2, :] = False
    matrix[-1] = False
    return matrix


MASKS: dict[str, Callable[[], Mask | None]] = {
    "none": lambda: None,
    "causal": causal,
    "padding": lambda: padding(torch.tensor([M, 4])),
    "zero length": lambda: padding(torch.tensor([6, 0])),
    "one length for all": lambda: padding(torch.tensor([3])),
    "window": lambda: window(1, 2),
    "prefix": lambda: prefix(torch.tensor([0, 4])),
    "same_segment": lambda: same_segment(torch.randint(0, 2, (B, M)), torch.randint(0, 2, (B, M))),
    "no such segment": lambda: same_segment(torch.randint(0, 4, (B, M)), torch.randint(0, 2, (B, M))),
    "branching": lambda: branching(torch.tensor([[0, 16, 17, 17, 18, 0, 32, 33, 0], [16, 17, 0, 0, 32, 32, 33, 0, 0]])),
    "visible": lambda: visible(with_dead_rows(coin(M, M)[None].repeat(B, 1, 1))),
    "visible to heads": lambda: visible(with_dead_rows(coin(B, H, M, M))),
    "causal & padding": lambda: causal() & padding(torch.tensor([M, 0])),
    "causal & window & segment": lambda: causal() & window(2) & same_segment(torch.tensor([[0] * 3 + [1] * 6])),
    "prefix & padding & visible": lambda: (
        prefix(torch.tensor([2, 5])) & padding(torch.tensor([8, 3])) & visible(coin(M, M))
    ),
}

TERMS: dict[str, Callable[[], list[Term]]] = {
    "none": list,
    "dense": lambda: [Dense(torch.randn(1, H, M, M))],
    "dense of rows": lambda: [Dense(torch.randn(B, 1, M, M))],
    "alibi": lambda: [Alibi(alibi_slopes(H))],
    "buckets": lambda: [Buckets(torch.randn(8, H), True, 6)],
    "buckets to the left": lambda: [Buckets(torch.randn(6, H), False, 5)],
    "shaw": lambda: [RelativeKeys(torch.randn(1, 5, D))],
    "transformer-xl": lambda: [RelativeKeys(torch.randn(H, 2 * M + 1, D), torch.randn(H, D))],
    "transformer-xl to the left": lambda: [RelativeKeys(torch.randn(H, M + 1, D), torch.randn(H, D), 0)],
    "xlnet with two tables": lambda: [RelativeKeys(torch.randn(B, H, 7, D), torch.randn(H, D))],
    "xlnet's segments": lambda: [
        SegmentKeys(torch.randn(2, H, D), torch.randint(0, 3, (B, M)), torch.randn(H, D)),
        SegmentKeys(torch.randn(2, H, D), torch.tensor([[0] * 4 + [1] * 5])),
    ],
    "two": lambda: [Buckets(torch.randn(8, H), True, 6), RelativeKeys(torch.randn(H, 7, D))],
}

POSITIONS: dict[str, Tensor | int | None] = {
    "first": None,
    "later": torch.arange(N) + 3,
    "from a place on": 4,
    "any": torch.tensor([4, 0, 8, 8, 2]),
    "per row": torch.stack([torch.arange(N), torch.arange(N) + 4]),
}


def in_type(terms: list[Term], dtype: torch.dtype) -> tuple[list[Term], list[Tensor]]:
    """The same terms with their tensors as leaves of this type, and those leaves."""
    made, parameters = [], []
    for term in terms:
        fields = dict(vars(term))
        for name in [n for n, x in fields.items() if isinstance(x, Tensor) and x.is_floating_point()]:
            fields[name] = fields[name].detach().to(dtype).requires_grad_()
            parameters.append(fields[name])
        made.append(type(term)(**fields))
    return made, parameters


def run(
    backend: str,
    dtype: torch.dtype,
    tensors: list[Tensor],
    mask: Mask | None,
    terms: list[Term],
    positions: Tensor | int | None,
    scale: float | None = None,
) -> list[Tensor]:
    """Output, and gradients of a fixed linear function of it by q, k, v and whatever the terms hold."""
    q, k, v = (x.to(dtype).requires_grad_() for x in tensors)
    terms, parameters = in_type(terms, dtype)
    out = attend(q, k, v, mask=mask, terms=terms, positions=positions, scale=scale, backend=backend)
    assert out.dtype == dtype
    direction = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view_as(out)
    grads = torch.autograd.grad(out.double().mul(direction).sum(), [q, k, v, *parameters])
    return [out.detach(), *grads]


def assert_near(got: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=0, atol=tolerance * max(1.0, w.abs().max().item()))


def inputs(dtype: torch.dtype, key_heads: int) -> list[Tensor]:
    shapes = (B, H, N, D), (B, key_heads, M, D), (B, key_heads, M, D)
    return [torch.randn(shape).to(dtype) for shape in shapes]


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_values_and_gradients(backend: str, mask: str, terms: str, positions: str) -> None:
    torch.manual_seed(len(mask) + len(terms))
    a_mask, a_term, places = MASKS[mask](), TERMS[terms](), POSITIONS[positions]
    qkv = inputs(torch.float32, K)
    wanted = run("reference", torch.float64, qkv, a_mask, a_term, places)
    assert_near(run(backend, torch.float32, qkv, a_mask, a_term, places), wanted, TOLERANCE[torch.float32])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_types_scales_and_grouped_queries(
    backend: str, terms: str, key_heads: int, scale: float | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(len(terms))
    qkv = inputs(dtype, key_heads)
    a_term, _ = in_type(TERMS[terms](), dtype)
    mask = causal() & padding(torch.tensor([M, 0]))
    wanted = run("reference", torch.float64, qkv, mask, a_term, None, scale)
    assert_near(run(backend, dtype, qkv, mask, a_term, None, scale), wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("length", [1, 2, 17])
def test_plain_causal_kernel(length: int, dtype: torch.dtype) -> None:
    torch.manual_seed(length)
    qkv = [torch.randn(B, H, length, D).to(dtype) for _ in range(3)]
    wanted = run("reference", torch.float64, qkv, causal(), [], None)
    assert_near(run("fused", dtype, qkv, causal(), [], None), wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("positions", [torch.arange(N).flip(0), torch.tensor([[4, 0, 1, 2, 3], [0, 1, 2, 3, 4]])])
def test_causal_over_positions_is_not_the_causal_of_kernels(positions: Tensor) -> None:
    qkv = [torch.randn(B, H, N, D) for _ in range(3)]
    wanted = run("reference", torch.float64, qkv, causal(), [], positions)
    assert_near(run("fused", torch.float32, qkv, causal(), [], positions), wanted, TOLERANCE[torch.float32])


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_terms_of_a_narrow_type_are_added_in_a_wider_one(backend: str) -> None:
    """In bfloat16 1 + 256 - 256 is 0."""
    q, k, v = inputs(torch.bfloat16, K)
    up, down = (Dense(torch.full((1, 1, M, M), 256.0 * sign, dtype=torch.bfloat16)) for sign in (1, -1))
    assert torch.equal(
        attend(q, k, v, terms=[up, down], backend=backend),
        attend(q, k, v, terms=[Dense(torch.zeros(1, 1, M, M))], backend=backend),
    )


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("shape", [(0, N, M), (B, 0, M), (B, N, 0), (B, 0, 0)], ids=["batch", "rows", "keys", "both"])
@pytest.mark.parametrize("mask", [None, causal(), causal() & window(2)], ids=["none", "causal", "band"])
@pytest.mark.parametrize("terms", ["none", "dense", "alibi", "buckets", "transformer-xl"])
def test_nothing_to_attend_is_no_special_case(
    backend: str, shape: tuple[int, int, int], mask: Mask | None, terms: str
) -> None:
    batch, rows, columns = shape
    q, k = torch.randn(batch, H, rows, D, requires_grad=True), torch.randn(batch, K, columns, D, requires_grad=True)
    out = attend(q, k, k, mask=mask, terms=TERMS[terms](), backend=backend)
    assert out.shape == q.shape
    assert not out.any()
    out.sum().backward()
    assert not q.grad.any()


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("mask", ["none", "zero length", "visible"])
def test_dropout_drops_weights_and_keeps_the_mean(backend: str, mask: str) -> None:
    torch.manual_seed(0)
    rate, v = 0.25, torch.eye(M)[None, None].expand(B, H, M, M)  # values that show the weights as they were used
    q, k = torch.randn(B, H, N, D), torch.randn(B, H, M, D)
    a_mask = MASKS[mask]()
    weights = reference(Call(q, k, v, a_mask, (), D**-0.5, 0.0, None))[1]
    draws = torch.stack([attend(q, k, v, mask=a_mask, dropout=rate, backend=backend) for _ in range(400)])
    kept = draws != 0
    torch.testing.assert_close(draws[kept], (weights / (1 - rate)).expand_as(draws)[kept])
    assert abs(kept[:, weights != 0].float().mean() - (1 - rate)) < 0.01
    assert not kept[:, weights == 0].any()


def test_reference_gives_the_weights_it_used() -> None:
    q, k, v = torch.randn(B, H, N, D), torch.randn(B, K, M, D), torch.randn(B, K, M, 3)
    out, weights = reference(Call(q, k, v, padding(torch.tensor([M, 0])), (), 1.0, 0.0, None))
    torch.testing.assert_close(weights.sum(-1)[0], torch.ones(H, N))
    assert not weights[1].any()
    torch.testing.assert_close(out, weights @ v.repeat_interleave(H // K, dim=1))


def test_values_of_another_width() -> None:
    q, k, v = torch.randn(B, H, N, D), torch.randn(B, K, M, D), torch.randn(B, K, M, 3)
    torch.testing.assert_close(attend(q, k, v), attend(q, k, v, backend="reference"))


@pytest.mark.parametrize("backend", ["reference", "fused"])
@pytest.mark.parametrize("terms", TERMS)
def test_autocast(backend: str, terms: str) -> None:
    torch.manual_seed(0)
    qkv, a_term = inputs(torch.float32, K), TERMS[terms]()
    mask = causal() & padding(torch.tensor([M, 0]))
    wanted = attend(*qkv, mask=mask, terms=a_term, backend="reference")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(*qkv, mask=mask, terms=a_term, backend=backend)
    # Here the rounding of q, k and v counts too.
    torch.testing.assert_close(out.float(), wanted, rtol=0, atol=4e-2 * wanted.abs().max().item())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("mask", "terms"), [*((m, "alibi") for m in MASKS), *(("prefix", t) for t in TERMS)])
def test_a_compiler_can_trace_the_whole_call(mask: str, terms: str, dynamic: bool) -> None:
    qkv, a_mask, a_term = inputs(torch.float32, K), MASKS[mask](), TERMS[terms]()
    assert choose(Call(*qkv, a_mask, tuple(a_term), 1.0, 0.0, None)) == "fused"
    torch.compiler.reset()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, mask=a_mask, terms=a_term)

    traced = torch.compile(call, backend="eager", fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(traced(*qkv), attend(*qkv, mask=a_mask, terms=a_term))
