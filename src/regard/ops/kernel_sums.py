"""The passes over tiles that only add up: what each key receives, and the log-sum-exp where the forward gave none.

What a key receives is summed by key tiles over query tiles, so that nothing is added by two programs at once: two runs
give the same bits. `kernels.py` has the measures of rows, and the shapes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.ops.kernels import _by_lane, _far, _place


@triton.jit(do_not_specialize=["lines", "together"])
def column_pass(
    q_pointer,
    k_pointer,
    length_pointer,
    shift_pointer,
    received_pointer,
    q_batch,
    q_head,
    q_row: tl.constexpr,
    k_batch,
    k_head,
    k_row: tl.constexpr,
    heads,
    groups,
    lines,
    together,
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
    # the keys that most rows of a causal text see first
    line, block = _place(lines, tl.cdiv(num_keys, tile_keys), together)
    batch, head = line // heads, line % heads
    first = block * tile_keys
    keys = first + tl.arange(0, tile_keys)
    offsets = tl.arange(0, padded)
    q_base = q_pointer + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_pointer + batch.to(tl.int64) * k_batch + (head // groups).to(tl.int64) * k_head
    shift_base = shift_pointer + line.to(tl.int64) * num_rows
    real = keys < num_keys
    k = tl.load(
        k_base + keys.to(tl.int64)[:, None] * k_row + offsets[None, :],
        mask=real[:, None] & (offsets[None, :] < width),
        other=0.0,
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
    q_row: tl.constexpr,
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
    local = tl.arange(0, tile_rows)
    q_tile = q_base + low * _far(q_row)
    within = local[None, :] * q_row + offsets[:, None]
    for start in range(low, high, tile_rows):
        rows = start + local
        pointers = q_tile + within
        q_tile += tile_rows * q_row
        if masked:
            q = tl.load(pointers, mask=(rows[None, :] < num_rows) & (offsets[:, None] < width), other=0.0)
            shift = tl.load(shift_base + rows, mask=rows < num_rows, other=float("inf"))
        else:
            shift = tl.load(shift_base + rows)
            q = tl.load(pointers, mask=offsets[:, None] < width, other=0.0) if padded != width else tl.load(pointers)
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


@triton.jit(do_not_specialize=["lines", "together"])
def lse_pass(
    q_pointer,
    k_pointer,
    length_pointer,
    lse_pointer,
    q_batch,
    q_head,
    q_row: tl.constexpr,
    k_batch,
    k_head,
    k_row: tl.constexpr,
    heads,
    groups,
    lines,
    together,
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
    blocks = tl.cdiv(num_rows, tile_rows)
    line, turn = _place(lines, blocks, together)
    block = blocks - 1 - turn
    batch, head = line // heads, line % heads
    first = block * tile_rows
    rows = first + tl.arange(0, tile_rows)
    offsets = tl.arange(0, padded)
    local = tl.arange(0, tile_keys)
    q_base = q_pointer + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_pointer + batch.to(tl.int64) * k_batch + (head // groups).to(tl.int64) * k_head
    shown = (rows[:, None] < num_rows) & (offsets[None, :] < width)
    q = tl.load(q_base + rows.to(tl.int64)[:, None] * q_row + offsets[None, :], mask=shown, other=0.0)
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
    k_far = _far(k_row)
    for start in range(begin, end, tile_keys):
        keys = start + local
        pointers = k_base + start * k_far + local[None, :] * k_row + offsets[:, None]
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
