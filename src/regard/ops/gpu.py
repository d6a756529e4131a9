"""Runs the kernels that measure attention on an NVIDIA GPU; `ops/observe.py` asks here first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.call import Call
from regard.ops.masks import Band, Lengths
from regard.ops.strips import Measures, bin_width, within

LOG2E = math.log2(math.e)
CACHE = 2**25  # bytes of keys that programs which run at the same time may read: about what an H200's cache holds


@dataclass(frozen=True)
class Tile:
    """Rows and keys of a tile, and how it is run: `registers` a thread, so that enough warps fit."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


def why_not(call: Call) -> str | None:
    """The reason why these kernels cannot measure a call, or None if they can."""
    if not call.q.is_cuda or torch.version.hip is not None:
        return "no NVIDIA GPU"
    if torch.cuda.get_device_capability(call.q.device) < (8, 0):
        return "a GPU that is older than Ampere"
    if call.q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"{call.q.dtype}"
    if call.terms:
        return "terms in the scores"
    if call.positions is not None:
        return "queries at positions of their own"
    rules = () if call.mask is None else call.mask.rules
    if not all(isinstance(rule, Band | Lengths) for rule in rules):
        return "a mask that is not a band or lengths"
    if call.q.shape[-1] > 256 or 0 in (*call.q.shape, *call.k.shape):
        return "a shape that has no tiles"
    return None


def row_tile(call: Call) -> Tile:
    """The tile of the pass over rows that was fastest on an H200, or next to it."""
    width = call.q.shape[-1]
    if call.q.dtype == torch.float32:
        return Tile(32, 32, 4, 2) if width > 64 else Tile(64, 32, 4, 2)
    if width > 128:
        return Tile(64, 64, 4, 2)
    return Tile(64, 64, 4, 3, 96) if width <= 64 else Tile(64, 64, 4, 2, 128)


def column_tile(call: Call) -> Tile:
    """The tile of the pass over columns."""
    if call.q.dtype == torch.float32:
        return Tile(32, 32, 4, 2)
    if call.q.shape[-1] > 128:
        return Tile(64, 64, 4, 2)
    if call.q.shape[-1] <= 64:
        return Tile(128, 64, 4, 3, 128)
    return Tile(128, 128, 8, 2, 128) if _is_roomy(call) else Tile(128, 64, 4, 2, 128)


def _is_roomy(call: Call) -> bool:
    """Whether the GPU has the shared memory of a data centre's (A100: 163 KiB, H200: 227; others 99)."""
    if not call.q.is_cuda:
        return True
    properties: Any = torch.cuda.get_device_properties(call.q.device)  # whose type does not know all of them
    return bool(properties.shared_memory_per_block_optin >= 160 * 1024)


def lse_tile(call: Call) -> Tile:
    """The tile of the pass that finds the log-sum-exp."""
    if call.q.dtype == torch.float32:
        return Tile(32, 32, 4, 2)
    return Tile(128, 64, 4, 3) if call.q.shape[-1] <= 128 else Tile(64, 64, 4, 2)


def measure(
    call: Call,
    *,
    lse: Tensor | None = None,
    bins: tuple[int, int],
    row_lengths: Tensor | None = None,
    received: bool = False,
) -> Measures | None:
    """What `strips.measure` gives with k = 1, or None where `why_not` has a reason."""
    if why_not(call) is not None:
        return None
    with torch.cuda.device(call.q.device):
        return run(call, lse=lse, bins=bins, row_lengths=row_lengths, received=received)


def received(call: Call, lse: Tensor) -> Tensor | None:
    """What each key receives, B x H x M, where the lse (-inf for rows that do not count) is known already."""
    if why_not(call) is not None:
        return None
    with torch.cuda.device(call.q.device):
        return received_by(call, lse.nan_to_num(posinf=math.inf, neginf=math.inf).mul_(LOG2E))


def run(
    call: Call,
    *,
    lse: Tensor | None,
    bins: tuple[int, int],
    row_lengths: Tensor | None = None,
    received: bool = False,
    tile: Tile | None = None,
) -> Measures:
    """The kernels themselves, whatever the device: Triton's interpreter also runs them on a CPU."""
    from regard.ops import kernels

    rows, keys = call.q.shape[2], call.k.shape[2]
    lse = (log_sum_exp(call) if lse is None else lse).float().contiguous()
    if row_lengths is not None:
        lse = lse.masked_fill(~within(row_lengths, (*call.q.shape[:3], keys), lse.device), -math.inf)
    tile = tile or row_tile(call)
    row_width, key_width = bin_width(rows, bins[0]), bin_width(keys, bins[1])
    blocks, row_bins, key_bins = -(-rows // tile.rows), -(-rows // row_width), -(-keys // key_width)
    sub = min(16, row_width)  # rows of a bin that are added up in the kernel: those of one warp, so that none waits
    span = max(tile.rows, row_width)
    entropy, distance, confidence, shift = torch.empty((4, *lse.shape), device=lse.device)
    best_key = torch.empty(lse.shape, dtype=torch.int64, device=lse.device)
    parts = torch.zeros((*lse.shape[:2], -(-rows // span) * span // sub, key_bins), device=lse.device)
    counts = torch.zeros(parts.shape[:3], device=lse.device) if row_width > tile.rows else lse
    inputs = _inputs(call)
    kernels.row_pass[(lse.shape[0] * lse.shape[1] * blocks,)](
        *inputs.tensors, lse, entropy, distance, confidence, best_key, parts, counts, shift,
        *inputs.numbers, **inputs.forms, tile_rows=tile.rows, tile_keys=tile.keys, row_width=row_width,
        key_width=key_width, sub=sub, key_bins=key_bins, **_options(tile),
    )  # fmt: skip
    if row_width > sub:
        parts = parts.unflatten(2, (-1, row_width // sub)).sum(3)
    if row_width > tile.rows:  # otherwise these are means
        parts /= counts.unflatten(2, (-1, row_width // sub)).sum(3).clamp_(min=1)[..., None]
    return Measures(
        lse=lse,
        entropy=entropy,
        confidence=confidence,
        distance=distance,
        top_weights=confidence[..., None],
        top_keys=best_key[..., None],
        map=parts[:, :, :row_bins],
        received=received_by(call, shift) if received else None,
    )


def received_by(call: Call, shift: Tensor, tile: Tile | None = None) -> Tensor:
    """The sum of the weights that each key receives, by a pass of its own: B x H x M.

    `shift` is log2(e) lse, and inf for rows that do not count.
    """
    from regard.ops import kernel_sums

    tile = tile or column_tile(call)
    received = torch.empty((*shift.shape[:2], call.k.shape[2]), device=shift.device)
    inputs = _inputs(call)
    kernel_sums.column_pass[(shift.shape[0] * shift.shape[1] * -(-call.k.shape[2] // tile.keys),)](
        *inputs.tensors, shift, received, *inputs.numbers, **inputs.forms, tile_keys=tile.keys, tile_rows=tile.rows,
        **_options(tile),
    )  # fmt: skip
    return received


def log_sum_exp(call: Call) -> Tensor:
    """ln sum_j exp s_ij, by a pass of its own: B x H x N."""
    from regard.ops import kernel_sums

    tile = lse_tile(call)
    lse = torch.empty(call.q.shape[:3], device=call.q.device)
    inputs = _inputs(call)
    kernel_sums.lse_pass[(lse.shape[0] * lse.shape[1] * -(-lse.shape[2] // tile.rows),)](
        *inputs.tensors, lse, *inputs.numbers, **inputs.forms, tile_rows=tile.rows, tile_keys=tile.keys,
        **_options(tile),
    )  # fmt: skip
    return lse


class _Inputs(NamedTuple):
    """What every kernel is given."""

    tensors: tuple[Tensor, Tensor, Tensor]  # queries, keys, and lengths (or anything, where there are none)
    numbers: tuple[float, ...]
    forms: dict[str, int | bool]


def _inputs(call: Call) -> _Inputs:
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (call.q, call.k))
    rules = () if call.mask is None else call.mask.rules
    lengths = [rule.lengths.expand(len(q)).to(q.device, torch.int32) for rule in rules if isinstance(rule, Lengths)]
    band = next((rule for rule in rules if isinstance(rule, Band)), Band(None, None))
    batch, heads, rows, width = q.shape
    keys, read = k.shape[2], max(rows, k.shape[2]) * width * q.element_size()  # bytes that a head's programs read
    shape = (heads, heads // k.shape[1], batch * heads, max(1, CACHE // read), rows, keys)
    numbers = (*q.stride()[:3], *k.stride()[:3], *shape, call.scale * LOG2E, band.left or 0, band.right or 0)
    forms: dict[str, int | bool] = {"width": width, "padded": max(16, 1 << (width - 1).bit_length())}
    forms |= {"has_left": band.left is not None, "has_right": band.right is not None, "has_lengths": bool(lengths)}
    return _Inputs((q, k, lengths[0].contiguous() if lengths else q), numbers, forms)


def _options(tile: Tile) -> dict[str, int | None]:
    return {"num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers}
