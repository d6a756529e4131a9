"""The fused backend: PyTorch's scaled_dot_product_attention. It supports every call.

Masks that are exactly causal go to the kernel as such; others become a boolean or, with terms, an additive tensor.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.ops.call import Call, known
from regard.ops.terms import Term, skewed


def attend(call: Call) -> Tensor:
    """The output of `attention.reference`, without the weights."""
    mask, somewhere = (None, None) if call.plain_causal else _dense(call)
    q, k, v = call.q, call.k, call.v
    if mask is not None and q.is_cuda:
        q, k, v = widened(q), widened(k), widened(v)
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=call.dropout,
        is_causal=call.plain_causal and known(call.q.shape[2] > 1),
        scale=call.scale,
        enable_gqa=call.grouped,
    )
    out = out[..., : call.v.shape[3]]
    return out if somewhere is None else out * somewhere


def widened(x: Tensor) -> Tensor:
    """A width brought to a multiple of eight by zeros: others CUDA's kernels for masks leave to the plain formula."""
    return F.pad(x, (0, -x.shape[-1] % 8)) if x.shape[-1] % 8 else x


def attend_and_lse(call: Call) -> tuple[Tensor, Tensor | None]:
    """The same output, to the bit, and the log-sum-exp (B x H x N) where the kernel that PyTorch chooses has it."""
    plain = not call.terms and (call.mask is None or call.plain_causal) and not call.grouped
    if not (plain and call.q.is_cuda) or call.dropout or call.q.shape[-1] % 8 or call.q.shape[-1] != call.v.shape[-1]:
        return attend(call), None
    causal = call.plain_causal and call.q.shape[2] > 1
    qkv, aten = (call.q, call.k, call.v), torch.ops.aten
    choice = torch._fused_sdp_choice(*qkv, is_causal=causal, scale=call.scale)
    if choice == SDPBackend.CUDNN_ATTENTION.value:
        found = aten._scaled_dot_product_cudnn_attention(*qkv, None, True, 0.0, causal, False, scale=call.scale)
    elif choice == SDPBackend.FLASH_ATTENTION.value:
        found = aten._scaled_dot_product_flash_attention(*qkv, 0.0, causal, False, scale=call.scale)
    else:
        return attend(call), None
    return found[0], found[1].detach().reshape(call.q.shape[:3])


def _dense(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """The mask and terms as one tensor that the kernel takes, and, on CUDA, which rows attend somewhere.

    Kernels differ in what they make of a row that may attend nowhere: the CPU's give zeros; for CUDA's such a row
    attends everywhere and its output is multiplied by zero.
    """
    if call.mask is None and not call.terms:
        return None, None
    allowed = None
    if call.mask is not None:
        allowed = call.fitting(call.mask.block(call.query_positions, call.key_positions), call.mask)
    somewhere = None
    if allowed is not None and call.q.is_cuda and not _all_attend(call):
        somewhere = allowed.any(-1, keepdim=True)
        allowed = allowed | ~somewhere
    shape = (call.q.shape[0], -1, call.q.shape[2], call.k.shape[2])
    if not call.terms:
        assert allowed is not None
        return allowed.expand(shape), somewhere
    bias = reduce(torch.add, [call.fitting(_values(call, term), term) for term in call.terms]).to(call.q.dtype)
    if allowed is not None:
        # The mask is added: it is the same for all heads, and of a sum gradients come back without a pass. The kernel
        # gives none to what it was told not to see.
        nothing = torch.zeros((), dtype=bias.dtype, device=bias.device)
        bias = bias + torch.where(allowed, nothing, -math.inf)
    elif call.q.is_cuda:
        bias = bias.contiguous()  # of a view by distance CUDA's kernels look at the strides and refuse where it begins
    return bias.expand(shape), somewhere


def _values(call: Call, term: Term) -> Tensor:
    """What a term adds to this call: by distance where queries and keys follow each other and it can, or its block."""
    if call.offset is None or 0 in (call.q.shape[2], call.k.shape[2]):
        return term.block(call.q, call.query_positions, call.key_positions, call.scale)
    rows, columns = call.q.shape[2], call.k.shape[2]
    # The distances of the last query, from its first key on, and then those that only earlier ones have: as far as the
    # mask sees, and so far that no two rows share a place.
    width = rows + columns - 1
    _, right, first = (None, None, 0) if call.mask is None else call.mask.reach
    if right is not None and not first:
        width = min(width, max(columns + 1, rows + call.offset + right))
    least = -(call.offset + rows - 1)
    values = term.by_distance(call.q, least, width, call.scale)
    if values is None:
        return term.block(call.q, call.query_positions, call.key_positions, call.scale)
    return skewed(values.expand(-1, -1, rows, -1), columns)


def _all_attend(call: Call) -> bool:
    """Whether the form of the mask alone says that every query attends somewhere: to the key at its own place."""
    if call.mask is None or call.offset is None or not call.mask.sees_itself:
        return False
    return known(call.offset >= 0 and call.offset + call.q.shape[2] <= call.k.shape[2])
