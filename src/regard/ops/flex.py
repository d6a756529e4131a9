"""The FlexAttention backend: masks and terms inside a compiled kernel, nothing of the size of the matrix in memory.

PyTorch compiles one kernel for each form of call (shapes, kinds of rules and terms), not for each value of their
tensors. Asked for too many forms it would go back, with no more than a log line, to a form that builds the whole
matrix: here that is an error.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from regard.ops.call import Call
from regard.ops.compiling import lacks_for_triton
from regard.ops.masks import Mask, MaskMod
from regard.ops.terms import ScoreMod, Term

DENSE_LIMIT = 2**22  # scores a head, 2,048 x 2,048: below it a dense mask costs less than compiling
# With the tiles that PyTorch chooses for 16-bit types, a kernel that also loads a mask or a bias needs more shared
# memory than an H200 has.
SMALL_TILES = {"fwd_BLOCK_N": 64, "fwd_num_stages": 2, "bwd_num_stages": 1}
FORMS_LIMIT = 4096  # kernels that one process may compile; PyTorch's own limits are 8 and 256


def why_not(call: Call) -> str | None:
    """The reason why this call cannot run here, or None if it can."""
    if call.dropout:
        return "dropout on the weights"
    if any(term.score_mod() is None for term in call.terms):
        return "a score term that depends on the queries"
    if min(call.q.shape[-1], call.v.shape[-1]) < 16:
        return f"a head width of {min(call.q.shape[-1], call.v.shape[-1])}, under 16"
    if call.q.numel() == 0 or call.k.numel() == 0:
        return "no queries or no keys"
    if call.q.dtype == torch.float64:
        return "float64"
    if not (call.q.is_cuda or call.q.is_cpu):
        return f'a device of type "{call.q.device.type}"'
    if not call.q.is_cuda and _wants_gradients(call):
        return "gradients on a CPU"
    if torch.compiler.is_compiling():
        return None  # whoever compiles has what it takes
    if call.q.is_cuda:
        return f"no {lacks} to compile with" if (lacks := lacks_for_triton()) else None
    return None if shutil.which("g++") or shutil.which("clang++") else "no C++ compiler to compile with"


def pays(call: Call) -> bool:
    """Whether the dense mask that `fused` would build is large enough to be worth compiling a kernel."""
    dense = len(call.terms) > 0 or call.mask is not None
    return dense and not call.plain_causal and call.q.is_cuda and call.q.shape[2] * call.k.shape[2] > DENSE_LIMIT


def attend(call: Call) -> Tensor:
    """The output of `attention.reference`, without the weights."""
    if torch.compiler.is_compiling():  # as part of what the caller compiles
        return _attend(call, _make_block_mask, _flex)
    # A patch and not a setting: what else runs in this process keeps PyTorch's limits.
    with torch._dynamo.config.patch(recompile_limit=FORMS_LIMIT, accumulated_recompile_limit=FORMS_LIMIT):
        return _attend(call, _compiled(_make_block_mask), _compiled(_flex))


def _attend(call: Call, make_block_mask: Callable[..., Any], flex: Callable[..., Tensor]) -> Tensor:
    # a number would be a part of the form, and compiled anew for each
    place = _place(None if call.positions is None else call.query_positions)
    block_mask = None
    if call.mask is not None:
        mod = call.mask.mask_mod()
        extent = _corner(call, call.mask).shape[:2]  # 1 where all rows of the batch, or all heads, have one mask
        block_mask = make_block_mask(
            lambda b, h, q, k: mod(b, h, place(b, q), k), *extent, call.q.shape[2], call.k.shape[2], call.q.device
        )
    return flex(call.q, call.k, call.v, _score_mod(call, place), block_mask, call.scale, call.grouped)


def _make_block_mask(mod: MaskMod, batch: int, heads: int, rows: int, columns: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(mod, batch, heads, rows, columns, device=device)


def _flex(q: Tensor, k: Tensor, v: Tensor, mod: ScoreMod | None, mask: Any, scale: float, grouped: bool) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    options: Any = SMALL_TILES if q.is_cuda and q.dtype.itemsize < 4 else None
    return flex_attention(
        q, k, v, score_mod=mod, block_mask=mask, scale=scale, enable_gqa=grouped, kernel_options=options
    )


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # fullgraph raises at the limit, and at whatever cannot be compiled
    return torch.compile(function, dynamic=False, fullgraph=True)


def _place(positions: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """From a row of q to its position."""
    if positions is None:
        return lambda b, q: q
    return (lambda b, q: positions[q]) if positions.dim() == 1 else (lambda b, q: positions[b, q])


def _score_mod(call: Call, place: Callable[[Tensor, Tensor], Tensor]) -> ScoreMod | None:
    for term in call.terms:
        _corner(call, term)
    mods = [cast(ScoreMod, term.score_mod()) for term in call.terms]
    if not mods:
        return None

    def mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        for each in mods:
            score = each(score, b, h, place(b, q), k)
        return score

    return mod


def _corner(call: Call, part: Mask | Term) -> Tensor:
    """What a mask or term says of the last query and key, which fails if it is too small: a kernel would not notice."""
    row, column = call.query_positions[..., -1:], call.key_positions[-1:]
    if isinstance(part, Mask):
        corner = part.block(row, column)
    else:
        corner = part.block(call.q[:, :, -1:], row, column, call.scale)
    return call.fitting(corner, part)


def _wants_gradients(call: Call) -> bool:
    asked = any(x.requires_grad for x in (call.q, call.k, call.v))
    return torch.is_grad_enabled() and (asked or any(_corner(call, term).requires_grad for term in call.terms))
