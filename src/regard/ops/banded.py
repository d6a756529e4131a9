"""The banded backend: windows by chunks of rows, each against the keys that it can reach and no others.

    rows  i .. i + C      see at most keys  i - left .. i + C + right, and the first (global) tokens

so that n queries cost n (C + left + right + first) and not n n. The first tokens see all keys: they are a chunk of
their own. Within a chunk it is the fused backend, with the call's own mask and terms.

Shapes: B batch, H query heads, K key heads, N queries, M keys, C rows of a chunk, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from regard.ops import flex, fused
from regard.ops.call import Call

SMALLEST, LARGEST = 64, 512  # rows of a chunk: enough to keep the cores busy, few enough not to widen the band much
CPU_LIMIT = 2**16  # scores a head, 256 x 256: below it one call costs less than several


def why_not(call: Call) -> str | None:
    """The reason why this call cannot run here, or None if it can."""
    if _reach(call) is None:
        return "a mask that is no window to both sides"
    if call.positions is not None:
        return "queries at positions of their own"
    return "no queries or no keys" if call.q.numel() == 0 or call.k.numel() == 0 else None


def pays(call: Call) -> bool:
    """Whether the window leaves out at least half of a matrix that is worth cutting up."""
    reach, rows, keys = _reach(call), call.q.shape[2], call.k.shape[2]
    if reach is None or rows * keys <= (flex.DENSE_LIMIT if call.q.is_cuda else CPU_LIMIT):
        return False
    return 2 * (sum(reach) + _chunk(reach)) <= keys


def attend(call: Call) -> Tensor:
    """The output of `attention.reference`, without the weights."""
    reach = _reach(call)
    assert reach is not None
    first = min(reach[2], call.q.shape[2])
    outputs = [fused.attend(replace(call, q=call.q[:, :, :first]))] if first else []
    return torch.cat([*outputs, *(fused.attend(part) for part in _parts(call, first, reach))], dim=2)


def _parts(call: Call, begin: int, reach: tuple[int, int, int]) -> Iterator[Call]:
    """The rows from `begin` on, chunk by chunk, with the keys that they reach."""
    (left, right, first), size = reach, _chunk(reach)
    # split, and not slices, of which the gradient of each would be as long as all keys
    pieces = list(zip(*(x.split(size, dim=2) for x in (call.k, call.v)), strict=True))
    begins = call.k[:, :, :first], call.v[:, :, :first]
    places = torch.arange(call.k.shape[2], device=call.k.device)
    starts, queries = range(begin, call.q.shape[2], size), call.q[:, :, begin:].split(size, dim=2)
    for start, q in zip(starts, queries, strict=False):  # no rows at all are still one piece
        stop = start + q.shape[2]
        low, high = max(start - left, 0) // size, -(-(stop + right) // size)
        low = 0 if low * size < first else min(low, len(pieces) - 1)
        found = pieces[low:high]
        columns: Tensor | int = low * size
        if low and first:
            found = [begins, *found]
            columns = torch.cat([places[:first], places[low * size : high * size]])
        k, v = (torch.cat(each, dim=2) for each in zip(*found, strict=True))
        yield replace(call, q=q, k=k, v=v, positions=start, columns=columns)


def _reach(call: Call) -> tuple[int, int, int] | None:
    left, right, first = (None, None, 0) if call.mask is None else call.mask.reach
    return None if left is None or right is None else (left, right, first)


def _chunk(reach: tuple[int, int, int]) -> int:
    return min(max(reach[0], reach[1], SMALLEST), LARGEST)
