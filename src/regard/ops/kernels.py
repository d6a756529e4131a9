"""The measures of `ops/observe.py` on NVIDIA GPUs: Triton kernels that never hold more of the matrix than a tile.

One pass, query tiles by key tiles, gives entropy, confidence, expected distance, the first key of each row and the
pooled map, and, where asked for, what each key receives. With the log-sum-exp of the forward at hand a tile needs one
product and one exponential an entry:

    x_ij = log2(e) (scale q_i . k_j - lse_i)        p_ij = 2^x_ij        entropy_i = -ln 2 sum_j p_ij x_ij

Left of the diagonal sum_j p_ij (i - j) = sum over tiles of (i - first) r_i - sum_j p_ij (j - first), with r_i the weight
of the tile, and the same with the other sign on the right: only tiles on the diagonal need |i - j| by entry.

What each key receives comes of a second pass, key tiles by query tiles, so that nothing is added by two programs at once:
two runs give the same bits.

Shapes: B batch, H query heads, K key heads, N rows, M keys, d head width.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.ops.call import Call
from regard.ops.masks import Band, Lengths
from regard.ops.observe import Measures, bin_width

LOG2E = math.log2(math.e)


@dataclass(frozen=True)
class Tile:
    """Rows and keys of a tile, and how it is run: `registers` a thread, so that enough warps fit."""

    rows: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


@triton.jit
def _by_lane(x):
    """Sums over all columns but for their place 0 .. 3 among eight, in pairs: rows x 4.

    Where a tensor core leaves its product, each lane of four holds such columns: nothing has to move between lanes.
    The four are added up after the last tile.
    """
    rows: tl.constexpr = x.shape[0]
    columns: tl.constexpr = x.shape[1]
    return tl.sum(tl.sum(tl.reshape(x, (rows, columns // 8, 4, 2)), 1), 2)


@triton.jit
def _most_by_lane(p, clear):
    """The largest of the same columns, rows x 4; its last bits made room for which one of its lane's it is.

    So one maximum gives both the weight and its place, and the earlier of equal ones wins.
    """
    rows: tl.constexpr = p.shape[0]
    columns: tl.constexpr = p.shape[1]
    place = 2 * tl.arange(0, columns // 8)[None, :, None, None] + tl.arange(0, 2)[None, None, None, :]
    bits = tl.reshape(p, (rows, columns // 8, 4, 2)).to(tl.int32, bitcast=True) & clear
    bits = bits | (columns // 4 - 1 - place)
    return tl.max(tl.max(bits.to(tl.float32, bitcast=True), 1), 2)


@triton.jit
def _tiles(
    acc,
    low,
    high,
    q,
    lse,
    rows,
    k_base,
    k_row,
    length,
    left,
    right,
    scale,
    clear,
    map_base,
    counts,
    masked: tl.constexpr,
    after: tl.constexpr,  # whether the keys come after the rows; only of use where nothing is masked
    width: tl.constexpr,
    padded: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    key_width: tl.constexpr,
    sub: tl.constexpr,
    key_bins: tl.constexpr,
    exact: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
):
    """Adds the keys from `low` to `high`, in whole tiles, to the sums of the rows."""
    entropy, distance, best, best_key, mass = acc
    offsets = tl.arange(0, padded)
    local = tl.arange(0, tile_keys)
    for start in range(low, high, tile_keys):
        keys = start + local
        pointers = k_base + keys[None, :] * k_row + offsets[:, None]
        if masked:
            k = tl.load(pointers, mask=(keys[None, :] < length) & (offsets[:, None] < width), other=0.0)
        elif padded != width:
            k = tl.load(pointers, mask=offsets[:, None] < width, other=0.0)
        else:
            k = tl.load(pointers)
        x = tl.dot(q, k, input_precision="ieee") * scale - lse[:, None]
        if masked:
            seen = (keys[None, :] < length) & (rows[:, None] >= 0)
            if has_left:
                seen = seen & (keys[None, :] >= rows[:, None] - left)
            if has_right:
                seen = seen & (keys[None, :] <= rows[:, None] + right)
            p = tl.exp2(tl.where(seen, x, float("-inf")))
            share = _by_lane(p)
            entropy += _by_lane(tl.where(seen, p * x, 0.0))
            distance += _by_lane(p * tl.abs(rows[:, None] - keys[None, :]).to(tl.float32))
        else:
            p = tl.exp2(x)
            share = _by_lane(p)
            entropy += _by_lane(p * x)
            inside = _by_lane(p * local[None, :].to(tl.float32))
            before = (rows - start).to(tl.float32)[:, None] * share - inside
            distance += -before if after else before
        if exact:
            most, place = tl.max(p, 1, return_indices=True)
            better = most[:, None] > best
            best = tl.where(better, most[:, None], best)
            best_key = tl.where(better, start + place[:, None], best_key)
        else:
            most = _most_by_lane(p, clear)
            better = most > best
            best = tl.where(better, most, best)
            best_key = tl.where(better, start, best_key)
        if key_width >= tile_keys:
            mass += share
            if (start + tile_keys) % key_width == 0:
                _store_mass(mass, counts, map_base + start // key_width, tile_rows, sub, key_bins)
                mass = tl.zeros_like(mass)
        else:
            bins: tl.constexpr = tile_keys // key_width
            by_bin = tl.sum(tl.reshape(p, (tile_rows, bins, key_width)), 2)
            pooled = tl.sum(tl.reshape(by_bin, (tile_rows // sub, sub, bins)), 1) / counts[:, None]
            place = start // key_width + tl.arange(0, bins)[None, :]
            target = map_base + tl.arange(0, tile_rows // sub)[:, None] * key_bins + place
            tl.store(target, pooled, mask=place < key_bins)
    return entropy, distance, best, best_key, mass


@triton.jit
def _store_mass(mass, counts, pointer, tile_rows: tl.constexpr, sub: tl.constexpr, key_bins: tl.constexpr):
    """One bin of keys of the map: the mean over each bin of rows."""
    pooled = tl.sum(tl.reshape(tl.sum(mass, 1), (tile_rows // sub, sub)), 1) / counts
    tl.store(pointer + tl.arange(0, tile_rows // sub) * key_bins, pooled)


@triton.jit
def _row_pass(
    q_pointer,
    k_pointer,
    lse_pointer,
    length_pointer,
    entropy_pointer,
    distance_pointer,
    best_pointer,
    key_pointer,
    map_pointer,
    count_pointer,
    shift_pointer,
    clear,  # -tile_keys / 4, as a number that the compiler does not know: so one instruction clears bits and sets others
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    heads,
    groups,
    num_rows,
    num_keys,
    scale,
    left,
    right,
    width: tl.constexpr,
    padded: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    key_width: tl.constexpr,
    sub: tl.constexpr,
    key_bins: tl.constexpr,
    exact: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
    has_lengths: tl.constexpr,
    ahead: tl.constexpr,
    mean: tl.constexpr,
):
    """One tile of rows against all keys that any of them can see."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest rows of a causal text first
    line = tl.program_id(1)
    batch, head = line // heads, line % heads
    first = block * tile_rows
    rows = first + tl.arange(0, tile_rows)
    offsets = tl.arange(0, padded)
    real = rows < num_rows
    q_base = q_pointer + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_pointer + batch.to(tl.int64) * k_batch + (head // groups).to(tl.int64) * k_head
    place = line.to(tl.int64) * num_rows + rows
    shown = real[:, None] & (offsets[None, :] < width)
    q = tl.load(q_base + rows[:, None] * q_row + offsets[None, :], mask=shown, other=0.0)
    lse = tl.load(lse_pointer + place, mask=real, other=float("inf")) * 1.4426950408889634
    alive = (lse > float("-inf")) & (lse < float("inf"))
    lse = tl.where(alive, lse, float("inf"))  # rows that attend nowhere weigh nothing: 2^-inf
    tl.store(shift_pointer + place, lse, mask=real)  # for the pass over columns
    length = num_keys
    if has_lengths:
        length = tl.minimum(num_keys, tl.load(length_pointer + batch))

    end = length
    if has_right:
        end = tl.minimum(length, first + tile_rows + right)
    begin = 0
    if has_left:
        begin = tl.maximum(0, first - left) // tile_keys * tile_keys
    # [begin, a) masked, [a, b) whole and left of the rows, [b, c) masked around them, [c, d) whole, right, [d, end) masked
    whole = length // tile_keys * tile_keys
    a = begin
    if has_left:
        a = tl.maximum(0, first + tile_rows - 1 - left + tile_keys - 1) // tile_keys * tile_keys
    b = first // tile_keys * tile_keys
    if has_right:
        b = tl.minimum(b, tl.maximum(0, first + right + 1) // tile_keys * tile_keys)
    b = tl.maximum(tl.minimum(b, whole), begin)
    a = tl.minimum(a, b)
    c = tl.maximum(tl.cdiv(first + tile_rows, tile_keys) * tile_keys, b)
    d = whole
    if has_right:
        d = tl.minimum(whole, tl.maximum(0, first + right + 1) // tile_keys * tile_keys)
    c = tl.minimum(c, tl.cdiv(end, tile_keys) * tile_keys)
    d = tl.maximum(c, d)

    zeros = tl.zeros((tile_rows, 4), tl.float32)
    acc = (zeros, zeros, zeros - 1.0, tl.zeros((tile_rows, 4), tl.int32), zeros)
    parts: tl.constexpr = tile_rows // sub
    part = (line.to(tl.int64) * tl.cdiv(num_rows, tile_rows) + block) * parts
    map_base = map_pointer + part * key_bins
    living = tl.sum(tl.reshape(alive.to(tl.float32), (parts, sub)), 1)
    tl.store(count_pointer + part + tl.arange(0, parts), living)
    counts = tl.maximum(living, 1.0) if mean else tl.full((parts,), 1.0, tl.float32)
    if has_left:
        acc = _tiles(
            acc, begin, a, q, lse, rows, k_base, k_row, length, left, right, scale, clear, map_base, counts, True, False,
            width, padded, tile_rows, tile_keys, key_width, sub, key_bins, exact, has_left, has_right,
        )  # fmt: skip
    acc = _tiles(
        acc, a, b, q, lse, rows, k_base, k_row, length, left, right, scale, clear, map_base, counts, False, False,
        width, padded, tile_rows, tile_keys, key_width, sub, key_bins, exact, has_left, has_right,
    )  # fmt: skip
    acc = _tiles(
        acc, b, tl.minimum(c, end), q, lse, rows, k_base, k_row, length, left, right, scale, clear, map_base, counts, True,
        False, width, padded, tile_rows, tile_keys, key_width, sub, key_bins, exact, has_left, has_right,
    )  # fmt: skip
    if not has_right:
        acc = _tiles(
            acc, c, d, q, lse, rows, k_base, k_row, length, left, right, scale, clear, map_base, counts, False, True,
            width, padded, tile_rows, tile_keys, key_width, sub, key_bins, exact, has_left, has_right,
        )  # fmt: skip
        acc = _tiles(
            acc, d, end, q, lse, rows, k_base, k_row, length, left, right, scale, clear, map_base, counts, True, False,
            width, padded, tile_rows, tile_keys, key_width, sub, key_bins, exact, has_left, has_right,
        )  # fmt: skip
    elif ahead:
        acc = _tiles(
            acc, c, end, q, lse, rows, k_base, k_row, length, left, right, scale, clear, map_base, counts, True, False,
            width, padded, tile_rows, tile_keys, key_width, sub, key_bins, exact, has_left, has_right,
        )  # fmt: skip
    entropies, distances, bests, best_keys, mass = acc
    if key_width > tile_keys:  # the last bin may not be full
        last = tl.cdiv(end, tile_keys) * tile_keys
        if (last % key_width != 0) & (end > begin):
            _store_mass(mass, counts, map_base + last // key_width, tile_rows, sub, key_bins)
    # the four lanes of each row become one
    entropy, distance = tl.sum(entropies, 1), tl.sum(distances, 1)
    if exact:
        best = tl.max(bests, 1)
        best_key = tl.max(best_keys, 1)
    else:
        per_lane: tl.constexpr = tile_keys // 4
        lane_place = per_lane - 1 - (bests.to(tl.int32, bitcast=True) & (per_lane - 1))
        best_keys += (lane_place // 2) * 8 + lane_place % 2 + 2 * tl.arange(0, 4)[None, :]
        weights = (bests.to(tl.int32, bitcast=True) & -per_lane).to(tl.float32, bitcast=True)
        best = tl.max(weights, 1)
        best_key = tl.min(tl.where(weights == best[:, None], best_keys, num_keys), 1)
        # those bits are gone: the weight is computed once more, from its score alone
        chosen = tl.load(k_base + best_key[:, None] * k_row + offsets[None, :], mask=shown & alive[:, None], other=0.0)
        best = tl.exp2(tl.sum(q.to(tl.float32) * chosen.to(tl.float32), 1) * scale - lse)
    found = alive & (end > begin)
    tl.store(entropy_pointer + place, tl.where(found, entropy * -0.6931471805599453, 0.0), mask=real)
    tl.store(distance_pointer + place, tl.where(found, distance, 0.0), mask=real)
    tl.store(best_pointer + place, tl.where(found, best, 0.0), mask=real)
    tl.store(key_pointer + place, tl.where(found, best_key, -1), mask=real)


@triton.jit
def _column_pass(
    q_pointer,
    k_pointer,
    shift_pointer,
    length_pointer,
    received_pointer,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    heads,
    groups,
    num_rows,
    num_keys,
    scale,
    left,
    right,
    width: tl.constexpr,
    padded: tl.constexpr,
    tile_keys: tl.constexpr,
    tile_rows: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
    has_lengths: tl.constexpr,
):
    """What a tile of keys receives from all rows that can see any of them."""
    block, line = tl.program_id(0), tl.program_id(1)  # the keys that most rows of a causal text see first
    batch, head = line // heads, line % heads
    first = block * tile_keys
    keys = first + tl.arange(0, tile_keys)
    offsets = tl.arange(0, padded)
    q_base = q_pointer + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_pointer + batch.to(tl.int64) * k_batch + (head // groups).to(tl.int64) * k_head
    shift_base = shift_pointer + line.to(tl.int64) * num_rows
    real = keys < num_keys
    k = tl.load(
        k_base + keys[:, None] * k_row + offsets[None, :], mask=real[:, None] & (offsets[None, :] < width), other=0.0
    )
    length = num_keys
    if has_lengths:
        length = tl.minimum(num_keys, tl.load(length_pointer + batch))
    begin = 0
    if has_right:
        begin = tl.maximum(0, first - right) // tile_rows * tile_rows
    end = num_rows
    if has_left:
        end = tl.minimum(num_rows, first + tile_keys + left)
    # [begin, a) and [b, end) masked, between them every row sees every key
    a = begin
    if has_right:
        a = tl.maximum(0, first + tile_keys - 1 - right + tile_rows - 1) // tile_rows * tile_rows
    b = num_rows // tile_rows * tile_rows
    if has_left:
        b = tl.minimum(b, tl.maximum(0, first + left + 1) // tile_rows * tile_rows)
    a = tl.minimum(a, tl.cdiv(end, tile_rows) * tile_rows)
    b = tl.maximum(a, b)
    sums = tl.zeros((tile_keys, 4), tl.float32)
    sums = _columns(
        sums, begin, tl.minimum(a, end), k, keys, q_base, q_row, shift_base, num_rows, left, right, scale, True,
        width, padded, tile_rows, has_left, has_right,
    )  # fmt: skip
    sums = _columns(
        sums, a, b, k, keys, q_base, q_row, shift_base, num_rows, left, right, scale, False,
        width, padded, tile_rows, has_left, has_right,
    )  # fmt: skip
    sums = _columns(
        sums, b, end, k, keys, q_base, q_row, shift_base, num_rows, left, right, scale, True,
        width, padded, tile_rows, has_left, has_right,
    )  # fmt: skip
    received = tl.where(keys < length, tl.sum(sums, 1), 0.0)
    tl.store(received_pointer + line.to(tl.int64) * num_keys + keys, received, mask=real)


@triton.jit
def _columns(
    sums,
    low,
    high,
    k,
    keys,
    q_base,
    q_row,
    shift_base,
    num_rows,
    left,
    right,
    scale,
    masked: tl.constexpr,
    width: tl.constexpr,
    padded: tl.constexpr,
    tile_rows: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
):
    offsets = tl.arange(0, padded)
    for start in range(low, high, tile_rows):
        rows = start + tl.arange(0, tile_rows)
        pointers = q_base + rows[None, :] * q_row + offsets[:, None]
        if masked:
            q = tl.load(pointers, mask=(rows[None, :] < num_rows) & (offsets[:, None] < width), other=0.0)
            shift = tl.load(shift_base + rows, mask=rows < num_rows, other=float("inf"))
        else:
            q = tl.load(pointers, mask=offsets[:, None] < width, other=0.0) if padded != width else tl.load(pointers)
            shift = tl.load(shift_base + rows)
        x = tl.dot(k, q, input_precision="ieee") * scale - shift[None, :]
        if masked:
            seen = (rows[None, :] < num_rows) & (keys[:, None] >= 0)
            if has_left:
                seen = seen & (keys[:, None] >= rows[None, :] - left)
            if has_right:
                seen = seen & (keys[:, None] <= rows[None, :] + right)
            x = tl.where(seen, x, float("-inf"))
        sums += _by_lane(tl.exp2(x))
    return sums


@triton.jit
def _lse_pass(
    q_pointer,
    k_pointer,
    length_pointer,
    lse_pointer,
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    heads,
    groups,
    num_rows,
    num_keys,
    scale,
    left,
    right,
    width: tl.constexpr,
    padded: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
    has_lengths: tl.constexpr,
):
    """ln sum_j exp s_ij, where the forward did not give it."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    line = tl.program_id(1)
    batch, head = line // heads, line % heads
    first = block * tile_rows
    rows = first + tl.arange(0, tile_rows)
    offsets = tl.arange(0, padded)
    local = tl.arange(0, tile_keys)
    q_base = q_pointer + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_pointer + batch.to(tl.int64) * k_batch + (head // groups).to(tl.int64) * k_head
    shown = (rows[:, None] < num_rows) & (offsets[None, :] < width)
    q = tl.load(q_base + rows[:, None] * q_row + offsets[None, :], mask=shown, other=0.0)
    length = num_keys
    if has_lengths:
        length = tl.minimum(num_keys, tl.load(length_pointer + batch))
    end = length
    if has_right:
        end = tl.minimum(length, first + tile_rows + right)
    begin = 0
    if has_left:
        begin = tl.maximum(0, first - left) // tile_keys * tile_keys
    most = tl.full((tile_rows,), -1e30, tl.float32)  # a number, so that -inf - most is never NaN
    total = tl.zeros((tile_rows,), tl.float32)
    for start in range(begin, end, tile_keys):
        keys = start + local
        pointers = k_base + keys[None, :] * k_row + offsets[:, None]
        k = tl.load(pointers, mask=(keys[None, :] < length) & (offsets[:, None] < width), other=0.0)
        x = tl.dot(q, k, input_precision="ieee") * scale
        seen = (keys[None, :] < length) & (rows[:, None] >= 0)
        if has_left:
            seen = seen & (keys[None, :] >= rows[:, None] - left)
        if has_right:
            seen = seen & (keys[None, :] <= rows[:, None] + right)
        x = tl.where(seen, x, float("-inf"))
        new = tl.maximum(most, tl.max(x, 1))
        total = total * tl.exp2(most - new) + tl.sum(tl.exp2(x - new[:, None]), 1)
        most = new
    lse = tl.where(total > 0.0, (most + tl.log2(total)) * 0.6931471805599453, float("-inf"))
    tl.store(lse_pointer + line.to(tl.int64) * num_rows + rows, lse, mask=rows < num_rows)


def why_not(call: Call) -> str | None:
    """The reason why these kernels cannot measure a call, or None if they can."""
    if not call.q.is_cuda:
        return "no NVIDIA GPU"
    if call.q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
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


def choose_tile(call: Call, key_width: int) -> Tile:
    """The tile that was fastest on an H200; a small bin of keys wants a small tile."""
    if call.q.dtype == torch.float32:
        return Tile(32, 32, 4, 2) if call.q.shape[-1] > 64 else Tile(64, 32, 4, 2)
    if key_width < 128:
        return Tile(128, 64, 4, 3)
    return Tile(64, 128, 4, 3)


def measure(
    call: Call,
    *,
    lse: Tensor | None = None,
    bins: tuple[int, int],
    row_lengths: Tensor | None = None,
    received: bool = False,
    tile: Tile | None = None,
) -> Measures | None:
    """What `observe.measure` gives with k = 1, or None where `why_not` has a reason."""
    return None if why_not(call) is not None else run(call, lse, bins, row_lengths, received, tile)


def run(
    call: Call,
    lse: Tensor | None,
    bins: tuple[int, int],
    row_lengths: Tensor | None,
    received: bool,
    tile: Tile | None = None,
) -> Measures:
    """The kernels themselves; Triton's interpreter also runs them on a CPU."""
    batch, heads, rows, width = call.q.shape
    keys = call.k.shape[2]
    row_width, key_width = bin_width(rows, bins[0]), bin_width(keys, bins[1])
    tile = tile or choose_tile(call, key_width)
    with torch.cuda.device(call.q.device) if call.q.is_cuda else contextlib.nullcontext():
        if lse is None:
            lse = log_sum_exp(call)
        lse = lse.float().contiguous()
        if row_lengths is not None:
            places = torch.arange(rows, device=lse.device)
            lse = lse.masked_fill(places >= row_lengths[:, None, None], -math.inf)
        blocks, sub = -(-rows // tile.rows), min(tile.rows, row_width)
        row_bins, key_bins = -(-rows // row_width), -(-keys // key_width)
        whole = sub == row_width  # a bin of rows is the work of one tile
        entropy, distance, best, shift = torch.empty((4, *lse.shape), device=lse.device)
        best_key = torch.empty(lse.shape, dtype=torch.int64, device=lse.device)
        parts = torch.zeros((batch, heads, blocks * tile.rows // sub, key_bins), device=lse.device)
        counts = torch.empty(parts.shape[:3], device=lse.device)
        q, k, lengths = _inputs(call)
        _row_pass[(blocks, batch * heads)](
            q, k, lse, lengths, entropy, distance, best, best_key, parts, counts, shift, -(tile.keys // 4),
            *_numbers(call, q, k),
            width=width, padded=max(16, triton.next_power_of_2(width)), tile_rows=tile.rows, tile_keys=tile.keys,
            key_width=key_width, sub=sub, key_bins=key_bins, exact=call.q.dtype == torch.float32, **_forms(call),
            ahead=bool(_band(call).right), mean=whole, num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
        )  # fmt: skip
        if not whole:
            parts = _gathered(parts, row_bins) / _gathered(counts[..., None], row_bins).clamp(min=1)
        return Measures(
            lse=lse,
            entropy=entropy,
            confidence=best,
            distance=distance,
            top_weights=best[..., None],
            top_keys=best_key[..., None],
            map=parts[:, :, :row_bins],
            received=received_by(call, shift) if received else None,
        )


def received_by(call: Call, shift: Tensor, tile: Tile | None = None) -> Tensor:
    """The sum of the weights that each key receives, by a pass of its own: B x H x M.

    `shift` is log2(e) lse, and inf for rows that do not count.
    """
    batch, heads, _, width = call.q.shape
    tile = tile or (Tile(32, 32, 4, 2) if call.q.dtype == torch.float32 else Tile(64, 128, 4, 3))
    received = torch.empty((batch, heads, call.k.shape[2]), device=shift.device)
    q, k, lengths = _inputs(call)
    _column_pass[(-(-call.k.shape[2] // tile.keys), batch * heads)](
        q, k, shift, lengths, received, *_numbers(call, q, k), width=width,
        padded=max(16, triton.next_power_of_2(width)), tile_keys=tile.keys, tile_rows=tile.rows, **_forms(call),
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
    )  # fmt: skip
    return received


def log_sum_exp(call: Call) -> Tensor:
    """ln sum_j exp s_ij, by a pass of its own: B x H x N."""
    batch, heads, rows, width = call.q.shape
    tile = Tile(32, 32, 4, 2) if call.q.dtype == torch.float32 else Tile(128, 64, 4, 3)
    lse = torch.empty((batch, heads, rows), device=call.q.device)
    q, k, lengths = _inputs(call)
    _lse_pass[(-(-rows // tile.rows), batch * heads)](
        q, k, lengths, lse, *_numbers(call, q, k), width=width, padded=max(16, triton.next_power_of_2(width)),
        tile_rows=tile.rows, tile_keys=tile.keys, **_forms(call), num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
    )  # fmt: skip
    return lse


def _inputs(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys with their numbers side by side, and the lengths (or anything, where there are none)."""
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (call.q, call.k))
    rules = () if call.mask is None else call.mask.rules
    lengths = [rule.lengths for rule in rules if isinstance(rule, Lengths)]
    if not lengths:
        return q, k, q
    return q, k, lengths[0].expand(q.shape[0]).to(q.device, torch.int32).contiguous()


def _band(call: Call) -> Band:
    rules = () if call.mask is None else call.mask.rules
    return next((rule for rule in rules if isinstance(rule, Band)), Band(None, None))


def _numbers(call: Call, q: Tensor, k: Tensor) -> tuple[float, ...]:
    band = _band(call)
    shape = (q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2])
    return (*q.stride()[:3], *k.stride()[:3], *shape, call.scale * LOG2E, band.left or 0, band.right or 0)


def _forms(call: Call) -> dict[str, bool]:
    band = _band(call)
    has_lengths = call.mask is not None and any(isinstance(rule, Lengths) for rule in call.mask.rules)
    return {"has_left": band.left is not None, "has_right": band.right is not None, "has_lengths": has_lengths}


def _gathered(parts: Tensor, bins: int) -> Tensor:
    """The sums over the parts of each bin."""
    per_bin = triton.next_power_of_2(-(-parts.shape[2] // bins))
    parts = torch.nn.functional.pad(parts, (0, 0, 0, bins * per_bin - parts.shape[2]))
    return parts.unflatten(2, (bins, per_bin)).sum(3)
