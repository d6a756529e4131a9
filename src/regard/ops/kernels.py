"""The measures of `ops/observe.py` on NVIDIA GPUs: Triton kernels that never hold more of the matrix than a tile.

One pass, query tiles by key tiles, gives entropy, confidence, expected distance, the first key of each row and the
pooled map, and, where asked for, what each key receives. With the log-sum-exp of the forward at hand a tile needs one
product and one exponential an entry:

    x_ij = log2(e) (scale q_i . k_j - lse_i)        p_ij = 2^x_ij        entropy_i = -ln 2 sum_j p_ij x_ij

Left of the diagonal sum_j p_ij (i - j) = sum over tiles of (i - first) r_i - sum_j p_ij (j - first), with r_i the
weight of the tile, and the same with the other sign on the right: only tiles on the diagonal need |i - j| by entry.

What each key receives comes of a pass of its own, `kernel_sums.py`.

Shapes: B batch, H query heads, K key heads, N rows, M keys, d head width.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _far(stride):
    """A stride whose multiples may lie beyond 32 bits."""
    return tl.full((), 1, tl.int64) * stride


@triton.jit
def _place(lines, blocks, together):
    """The line (a head of a text) and the block of this program; the first blocks of `together` lines come first.

    What runs at the same time then reads the same keys, or those of few heads: as much as the cache holds.
    """
    program = tl.program_id(0)
    group = program // (together * blocks)
    size = tl.minimum(together, lines - group * together)
    rest = program - group * together * blocks
    return group * together + rest % size, rest // size


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
def _most_by_lane(x):
    """The largest of the same columns, of either half of them: rows x 8."""
    rows: tl.constexpr = x.shape[0]
    columns: tl.constexpr = x.shape[1]
    halves = tl.max(tl.max(tl.reshape(x, (rows, 2, columns // 16, 4, 2)), 4), 2)
    return tl.reshape(halves, (rows, 8))


@triton.jit
def _tiles(
    acc,
    low,
    high,
    q,
    lse,
    rows,
    k_base,
    k_row: tl.constexpr,
    length,
    left,
    right,
    scale,
    map_base,
    shares,
    masked: tl.constexpr,
    after: tl.constexpr,  # whether the keys come after the rows; only of use where nothing is masked
    width: tl.constexpr,
    padded: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_keys: tl.constexpr,
    key_width: tl.constexpr,
    sub: tl.constexpr,
    key_bins: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
    by_lane: tl.constexpr,
):
    """Adds the keys from `low` to `high`, in whole tiles, to the sums of the rows.

    Of the largest weights the tile is kept, a lane of eight each (`_first_key` finds the key), or, where it is not
    `by_lane`, the key itself, one a row.
    """
    entropy, distance, best, best_place, mass = acc
    offsets = tl.arange(0, padded)
    local = tl.arange(0, tile_keys)
    lane_rows = rows[:, None] - 2 * tl.arange(0, 4)[None, :]
    k_tile = k_base + low * _far(k_row)
    within = local[None, :] * k_row + offsets[:, None]
    for start in range(low, high, tile_keys):
        keys = start + local
        pointers = k_tile + within
        k_tile += tile_keys * k_row
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
            entropy += _by_lane(tl.where(seen, p * x, 0.0))
            distance += _by_lane(p * tl.abs(rows[:, None] - keys[None, :]).to(tl.float32))
        else:
            p = tl.exp2(x)
            entropy += _by_lane(p * x)
        if by_lane:
            most = _most_by_lane(p)
            first = start
        else:
            most = tl.max(p, 1)[:, None]
            first = tl.min(tl.where(p == most, keys[None, :], 2147483647), 1)[:, None]
        better = most > best
        best = tl.where(better, most, best)
        best_place = tl.where(better, first, best_place)
        if key_width >= tile_keys:
            share = _by_lane(p)
            mass += share
            if (start + tile_keys) % key_width == 0:
                _store_mass(mass, shares, map_base + start // key_width, tile_rows, sub, key_bins)
                mass = tl.zeros_like(mass)
        else:
            bins: tl.constexpr = tile_keys // key_width
            parts: tl.constexpr = tile_rows // sub
            if key_width >= 8:
                by_bin = tl.sum(tl.sum(tl.reshape(p, (tile_rows, bins, key_width // 8, 4, 2)), 2), 3)
                share = tl.sum(by_bin, 1)
                pooled = tl.sum(tl.sum(tl.reshape(by_bin, (parts, sub, bins, 4)), 1), 2)
            else:
                share = _by_lane(p)
                by_bin = tl.sum(tl.reshape(p, (tile_rows, bins, key_width)), 2)
                pooled = tl.sum(tl.reshape(by_bin, (parts, sub, bins)), 1)
            place = start // key_width + tl.arange(0, bins)[None, :]
            target = map_base + tl.arange(0, parts)[:, None] * key_bins + place
            tl.store(target, pooled * shares[:, None], mask=place < key_bins)
        if not masked:
            # (local & ~6) is the same number in every lane, which costs no register; the lane's own is added here
            inside = _by_lane(p * (local & ~6)[None, :].to(tl.float32))
            before = (lane_rows - start).to(tl.float32) * share - inside
            distance += -before if after else before
    return entropy, distance, best, best_place, mass


@triton.jit
def _first_key(
    q,
    lse,
    rows,
    k_base,
    k_row: tl.constexpr,
    lane,
    length,
    left,
    right,
    scale,
    offsets,
    shown,
    width: tl.constexpr,
    tile_keys: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
):
    """The largest x of each row, and its key.

    The loop over tiles keeps no places (that would cost as much as the maximum itself), only the tile and the lane of
    the largest: the few keys of that lane are scored once more, each time one for every row. That is the diagonal of a
    product: the rest of it is thrown away, and still a tensor core takes a third of the instructions of a sum.
    """
    place = tl.arange(0, rows.shape[0])
    own = place[:, None] == place[None, :]
    first = lane // 8 + lane // 4 % 2 * (tile_keys // 2) + lane % 4 * 2
    best = tl.full(rows.shape, float("-inf"), tl.float32)
    best_key = first
    for step in tl.range(tile_keys // 8, num_stages=2):
        keys = first + (step // 2) * 8 + step % 2
        seen = keys < length
        if has_left:
            seen = seen & (keys >= rows - left)
        if has_right:
            seen = seen & (keys <= rows + right)
        pointers = k_base + keys.to(tl.int64)[:, None] * k_row + offsets[None, :]
        k = tl.load(pointers, mask=shown & seen[:, None], other=0.0)
        product = tl.dot(q, tl.trans(k), input_precision="ieee")
        x = tl.where(seen, tl.sum(tl.where(own, product, 0.0), 1) * scale - lse, float("-inf"))
        better = x > best
        best = tl.where(better, x, best)
        best_key = tl.where(better, keys, best_key)
    return best, best_key


@triton.jit
def _store_mass(mass, shares, pointer, tile_rows: tl.constexpr, sub: tl.constexpr, key_bins: tl.constexpr):
    """One bin of keys of the map: the mean over each bin of rows."""
    pooled = tl.sum(tl.sum(tl.reshape(mass, (tile_rows // sub, sub, 4)), 1), 1) * shares
    tl.store(pointer + tl.arange(0, tile_rows // sub) * key_bins, pooled)


@triton.jit(do_not_specialize=["lines", "together"])
def row_pass(
    q_pointer,
    k_pointer,
    length_pointer,
    lse_pointer,
    entropy_pointer,
    distance_pointer,
    best_pointer,
    key_pointer,
    map_pointer,
    count_pointer,
    shift_pointer,
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
    row_width: tl.constexpr,
    key_width: tl.constexpr,
    sub: tl.constexpr,
    key_bins: tl.constexpr,
    has_left: tl.constexpr,
    has_right: tl.constexpr,
    has_lengths: tl.constexpr,
):
    """One tile of rows against all keys that any of them can see."""
    blocks = tl.cdiv(num_rows, tile_rows)
    line, turn = _place(lines, blocks, together)
    block = blocks - 1 - turn  # the longest rows of a causal text first
    batch, head = line // heads, line % heads
    first = block * tile_rows
    rows = first + tl.arange(0, tile_rows)
    offsets = tl.arange(0, padded)
    real = rows < num_rows
    q_base = q_pointer + batch.to(tl.int64) * q_batch + head.to(tl.int64) * q_head
    k_base = k_pointer + batch.to(tl.int64) * k_batch + (head // groups).to(tl.int64) * k_head
    place = line.to(tl.int64) * num_rows + rows
    shown = real[:, None] & (offsets[None, :] < width)
    q = tl.load(q_base + rows.to(tl.int64)[:, None] * q_row + offsets[None, :], mask=shown, other=0.0)
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
    # [begin, a) masked; [a, b) whole, left of the rows; [b, c) masked, around them; [c, d) whole; [d, end) masked
    whole = length // tile_keys * tile_keys
    a = begin
    if has_left:
        a = tl.maximum(0, first + tile_rows - 1 - left + tile_keys - 1) // tile_keys * tile_keys
    b = first // tile_keys * tile_keys
    b = tl.maximum(tl.minimum(b, whole), begin)
    a = tl.minimum(a, b)
    c = tl.maximum(tl.cdiv(first + tile_rows, tile_keys) * tile_keys, b)
    c = tl.minimum(c, tl.cdiv(end, tile_keys) * tile_keys)
    d = tl.maximum(c, whole)

    by_lane: tl.constexpr = q_pointer.dtype.element_ty != tl.float32  # whose products no tensor core leaves so
    lanes: tl.constexpr = 8 if by_lane else 1
    zeros = tl.zeros((tile_rows, 4), tl.float32)
    none = tl.full((tile_rows, lanes), -1.0, tl.float32)
    acc = (zeros, zeros, none, tl.zeros((tile_rows, lanes), tl.int32), zeros)
    parts: tl.constexpr = tile_rows // sub
    span: tl.constexpr = max(tile_rows, row_width)
    part = line.to(tl.int64) * (tl.cdiv(num_rows, span) * (span // sub)) + block * parts
    map_base = map_pointer + part * key_bins
    living = tl.sum(tl.reshape(alive.to(tl.float32), (parts, sub)), 1)
    if row_width <= tile_rows:  # whole bins: their means
        bins: tl.constexpr = tile_rows // row_width
        share = 1.0 / tl.maximum(tl.sum(tl.reshape(living, (bins, parts // bins)), 1), 1.0)
        shares = tl.reshape(tl.broadcast_to(share[:, None], (bins, parts // bins)), (parts,))
    else:
        shares = tl.full((parts,), 1.0, tl.float32)
        tl.store(count_pointer + part + tl.arange(0, parts), living)
    if has_left:
        acc = _tiles(
            acc, begin, a, q, lse, rows, k_base, k_row, length, left, right, scale, map_base, shares, True,
            False, width, padded, tile_rows, tile_keys, key_width, sub, key_bins, has_left, has_right, by_lane,
        )  # fmt: skip
    acc = _tiles(
        acc, a, b, q, lse, rows, k_base, k_row, length, left, right, scale, map_base, shares, False, False,
        width, padded, tile_rows, tile_keys, key_width, sub, key_bins, has_left, has_right, by_lane,
    )  # fmt: skip
    acc = _tiles(
        acc, b, tl.minimum(c, end), q, lse, rows, k_base, k_row, length, left, right, scale, map_base, shares,
        True, False, width, padded, tile_rows, tile_keys, key_width, sub, key_bins, has_left, has_right, by_lane,
    )  # fmt: skip
    if not has_right:
        acc = _tiles(
            acc, c, d, q, lse, rows, k_base, k_row, length, left, right, scale, map_base, shares, False, True,
            width, padded, tile_rows, tile_keys, key_width, sub, key_bins, has_left, has_right, by_lane,
        )  # fmt: skip
        acc = _tiles(
            acc, d, end, q, lse, rows, k_base, k_row, length, left, right, scale, map_base, shares, True,
            False, width, padded, tile_rows, tile_keys, key_width, sub, key_bins, has_left, has_right, by_lane,
        )  # fmt: skip
    else:  # no tile at all where the mask is causal
        acc = _tiles(
            acc, c, end, q, lse, rows, k_base, k_row, length, left, right, scale, map_base, shares, True,
            False, width, padded, tile_rows, tile_keys, key_width, sub, key_bins, has_left, has_right, by_lane,
        )  # fmt: skip
    entropies, distances, bests, places, mass = acc
    if key_width > tile_keys:  # the last bin may not be full
        last = tl.cdiv(end, tile_keys) * tile_keys
        if (last % key_width != 0) & (end > begin):
            _store_mass(mass, shares, map_base + last // key_width, tile_rows, sub, key_bins)
    # the lanes of each row become one
    entropy, distance = tl.sum(entropies, 1), tl.sum(distances, 1)
    if by_lane:
        tied = bests == tl.max(bests, 1)[:, None]
        lane = tl.min(tl.where(tied, places * 8 + tl.arange(0, 8)[None, :], 2147483647), 1)
        best, best_key = _first_key(q, lse, rows, k_base, k_row, lane, length, left, right, scale, offsets, shown,
                                    width, tile_keys, has_left, has_right)  # fmt: skip
        confidence = tl.exp2(best)
    else:
        confidence, best_key = tl.sum(bests, 1), tl.sum(places, 1)
    found = alive & (end > begin)
    tl.store(entropy_pointer + place, tl.where(found, entropy * -0.6931471805599453, 0.0), mask=real)
    tl.store(distance_pointer + place, tl.where(found, distance, 0.0), mask=real)
    tl.store(best_pointer + place, tl.where(found, confidence, 0.0), mask=real)
    tl.store(key_pointer + place, tl.where(found, best_key, -1), mask=real)
