"""FlexAttention on a CPU: it compiles, gives what the reference gives, and never falls back in silence.

A form of call costs seconds to compile, so there are few of them here; benchmarks/gpu_contract.py has more, and
gradients, on a GPU.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit

from regard.errors import RegardError
from regard.ops import flex
from regard.ops.attention import attend, backends_used
from regard.ops.masks import Mask, causal, padding, prefix, same_segment, visible, window
from regard.ops.terms import Alibi, Buckets, Dense, Term, alibi_slopes

pytestmark = [
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # PyTorch's compiler uses what PyTorch deprecates
]

B, H, K, N, M, D = 2, 4, 2, 7, 150, 16  # keys in two blocks of FlexAttention's 128


@pytest.fixture
def qkv() -> list[Tensor]:
    return [torch.randn(B, heads, n, D) for heads, n in ((H, N), (K, M), (K, M))]


@pytest.fixture(scope="module", autouse=True)
def pytorch_gives_up_at_once() -> object:
    """PyTorch's own limit is one form here: all that compiles after the first does so because flex raised it."""
    with torch._dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=1):
        yield


def check(
    qkv: list[Tensor],
    mask: Mask | None,
    terms: list[Term],
    positions: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    tolerance: float = 1e-5,
) -> Tensor:
    qkv = [x.to(dtype) for x in qkv]
    wanted = attend(
        *(x.double() for x in qkv), mask=mask, terms=terms, scale=0.3, positions=positions, backend="reference"
    )
    with backends_used() as used:
        out = attend(*qkv, mask=mask, terms=terms, scale=0.3, positions=positions, backend="flex")
    assert used == ["flex"]
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=tolerance)
    return out


def forms() -> int:
    """How many forms of call have been compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_bands_lengths_positions_and_learned_terms(qkv: list[Tensor]) -> None:
    """One compiled form serves every value of its tensors."""
    for lengths, step in (([M, 0], 1), ([90, 40], 2)):
        mask = causal() & window(70) & padding(torch.tensor(lengths))
        places = torch.stack([torch.arange(N) * step, torch.arange(N) + 60 * step])
        terms = [Buckets(torch.randn(8, H), True, 20), Alibi(alibi_slopes(H))]
        before = forms()
        out = check(qkv, mask, terms, places)
        if step == 1:
            assert not out[1].any()
        else:
            assert forms() == before


def form_for_heads(qkv: list[Tensor]) -> Tensor:
    """Head 0 sees nothing, head 1 what the rest of the mask allows: what is true of the first head is not of all."""
    matrix = torch.rand(1, H, N, M) > 0.5
    matrix[:, 0], matrix[:, 1] = False, True
    segments = same_segment(torch.randint(0, 2, (B, N)), torch.randint(0, 2, (1, M)))
    mask = visible(matrix) & prefix(torch.tensor([130])) & segments
    return check(qkv, mask, [Dense(torch.randn(B, 1, N, M))], dtype=torch.bfloat16, tolerance=2e-2)


def test_prefixes_segments_and_masks_that_differ_between_heads_in_bfloat16(qkv: list[Tensor]) -> None:
    assert not form_for_heads(qkv)[:, 0].any()


def test_what_is_too_small_is_refused_before_a_kernel_reads_beyond_it(qkv: list[Tensor]) -> None:
    with torch.no_grad(), pytest.raises(IndexError):
        attend(*qkv, terms=[Dense(torch.randn(1, 1, N, M - 1))], backend="flex")
    with pytest.raises(RegardError, match="Mask does not fit q: batch") as caught:
        attend(*qkv, mask=padding(torch.tensor([1, 2, 3])), backend="flex")
    assert "1 or 2" in str(caught.value)


def test_at_its_limit_it_raises(qkv: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    form_for_heads(qkv)
    monkeypatch.setattr(flex, "FORMS_LIMIT", 1)
    form_for_heads(qkv)  # is there already
    with pytest.raises(FailOnRecompileLimitHit):
        attend(*qkv, backend="flex")


def test_it_is_part_of_what_a_caller_compiles(qkv: list[Tensor]) -> None:
    lengths = torch.tensor([M, 30])

    def model(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(2 * q, k, v, mask=padding(lengths), backend="flex") + 1

    with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=8):
        out = torch.compile(model, backend="aot_eager", fullgraph=True)(*qkv)
    torch.testing.assert_close(out, attend(2 * qkv[0], *qkv[1:], mask=padding(lengths)) + 1)
