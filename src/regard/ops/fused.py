"""The fused backend: PyTorch's scaled_dot_product_attention. It supports every call.

Masks that are exactly causal go to the kernel as such; others become a boolean or, with terms, an additive tensor.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.ops.call import Call, known


def attend(call: Call) -> Tensor:
    """The output of `attention.reference`, without the weights."""
    mask, somewhere = (None, None) if call.plain_causal else _dense(call)
    out = F.scaled_dot_product_attention(
        call.q,
        call.k,
        call.v,
        attn_mask=mask,
        dropout_p=call.dropout,
        is_causal=call.plain_causal and known(call.q.shape[2] > 1),
        scale=call.scale,
        enable_gqa=call.grouped,
    )
    return out if somewhere is None else out * somewhere


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
    rows, columns = call.query_positions, call.key_positions
    allowed = None if call.mask is None else call.fitting(call.mask.block(rows, columns), call.mask)
    somewhere = None
    if allowed is not None and call.q.is_cuda:
        somewhere = allowed.any(-1, keepdim=True)
        allowed = allowed | ~somewhere
    shape = (call.q.shape[0], -1, call.q.shape[2], call.k.shape[2])
    if not call.terms:
        assert allowed is not None
        return allowed.expand(shape), somewhere
    bias = torch.zeros((), dtype=call.q.dtype, device=call.q.device)
    for term in call.terms:
        bias = bias + call.fitting(term.block(call.q, rows, columns, call.scale), term)
    if allowed is not None:
        bias = bias.masked_fill(~allowed, -math.inf)
    return bias.to(call.q.dtype).expand(shape), somewhere
