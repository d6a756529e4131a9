"""The FlexAttention backend: masks and terms inside a compiled kernel, nothing of the size of the matrix in memory."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from regard.ops.call import Call
from regard.ops.terms import ScoreMod

DENSE_LIMIT = 2**22  # scores a head, 2,048 x 2,048: below it a dense mask costs less than compiling


def why_not(call: Call) -> str | None:
    """The reason why this call cannot run here, or None if it can."""
    tensors = (call.q, call.k, call.v)
    if call.dropout:
        return "dropout on the weights"
    if any(term.score_mod() is None for term in call.terms):
        return "a score term that depends on the queries"
    if call.q.shape[-1] < 16 or call.v.shape[-1] < 16:
        return f"a head width of {call.q.shape[-1]}, under 16"
    if call.q.is_cuda:
        return None if call.q.dtype != torch.float64 else "float64 on a GPU"
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return "gradients on a CPU"
    return None if shutil.which("g++") or shutil.which("clang++") else "no C++ compiler to compile with"


def pays(call: Call) -> bool:
    """Whether the dense mask that `fused` would build is large enough to be worth compiling a kernel."""
    dense = call.terms or (call.mask is not None and not (call.mask.is_causal and call.positions is None))
    return bool(dense) and call.q.is_cuda and call.q.shape[2] * call.k.shape[2] > DENSE_LIMIT


def attend(call: Call) -> Tensor:
    """The output of `attention.reference`, without the weights."""
    from torch.nn.attention.flex_attention import create_block_mask

    (batch, _, rows, _), columns = call.q.shape, call.k.shape[2]
    place = _place(call.positions)
    block_mask = None
    if call.mask is not None:
        mod = call.mask.mask_mod()
        block_mask = create_block_mask(
            lambda b, h, q, k: mod(b, h, place(b, q), k), batch, None, rows, columns, device=call.q.device.type
        )
    out = _compiled()(
        call.q,
        call.k,
        call.v,
        score_mod=_score_mod(call, place),
        block_mask=block_mask,
        scale=call.scale,
        enable_gqa=call.q.shape[1] != call.k.shape[1],
    )
    return cast(Tensor, out)


def _place(positions: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """From a row of q to its position."""
    if positions is None:
        return lambda b, q: q
    return (lambda b, q: positions[q]) if positions.dim() == 1 else (lambda b, q: positions[b, q])


def _score_mod(call: Call, place: Callable[[Tensor, Tensor], Tensor]) -> ScoreMod | None:
    mods = [cast(ScoreMod, term.score_mod()) for term in call.terms]
    if not mods:
        return None

    def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        for each in mods:
            score = each(score, b, h, place(b, q), k)
        return score

    return mod


@functools.cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
