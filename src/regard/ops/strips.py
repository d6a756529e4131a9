"""Every measure of an attention call in one pass over strips of its rows: exact, and never with the whole matrix.

Shapes: B batch, H query heads, K key heads (H is a multiple of K), N queries (rows), M keys, d head width;
a strip is R rows of queries, and the C keys that any of them can see.

    s_ij        = scale q_i . k_j + terms_ij, and -inf where the mask forbids
    lse_i       = ln sum_j exp s_ij                         p_ij = exp(s_ij - lse_i), the weights
    confidence  = p_i* = max_j p_ij                         so that lse_i = s_i* - ln p_i*
    entropy_i   = sum_j p_ij (lse_i - s_ij) = -ln p_i* + sum_j p_ij (s_i* - s_ij)      two sums of what is positive
    distance_i  = sum_j p_ij |i - j|                        received_j = sum_i p_ij
    map         = mean over a bin of rows of the weight on a bin of keys: its rows sum to 1
    weighted    = the same of p_ij n_j / sum_j p_ij n_j, where n_j are norms of what the keys hand on

A row that may attend nowhere, or lies beyond `row_lengths`, has weights, entropy, confidence and distance 0 and lse
-inf, and counts nowhere. Measures are float32 (float64 where q is) and have no gradient.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import require
from regard.ops.call import Call
from regard.ops.masks import Band, rows_first
from regard.ops.terms import RelativeKeys, SegmentKeys, Term

BINS = 128  # of a map that nobody asked for by size
TOP = 8  # the most keys a row that are kept
FOLD = 16  # keys fall into C / FOLD classes: each of a row's top 8 lies in one of its 8 best classes
PAIRS = {"cpu": 32, "cuda": 512}  # rows whose pairs are looked up together; a GPU is waited for each time
FLOOR = -1e30  # stands for -inf where it meets a weight of 0, because their product is no number
CPU_STRIP, GPU_STRIP = 1 << 21, 1 << 26  # entries: what stays in the caches of a CPU; what keeps a GPU busy


@dataclass(frozen=True, slots=True)
class Measures:
    """All that one pass gives. `received` is None where a kernel was not asked for it, `weighted` without norms."""

    lse: Tensor  # B x H x N, as are the next three
    entropy: Tensor
    confidence: Tensor
    distance: Tensor
    top_weights: Tensor  # B x H x N x k, descending
    top_keys: Tensor  # int64; -1 where the weight is 0
    map: Tensor  # B x H x row bins x key bins
    received: Tensor | None  # B x H x M
    weighted: Tensor | None = None  # as the map


def measure(
    call: Call,
    *,
    bins: int | tuple[int, int] = BINS,
    k: int = TOP,
    row_lengths: Tensor | None = None,
    norms: Tensor | None = None,
) -> Measures:
    """Every measure of the call, with a map of at most so many bins (see `bin_width`) and the top k of each row.

    With `norms` (B x H x M) also the map that is weighted by them.

    >>> q, k, v = torch.randn(3, 1, 2, 300, 8)
    >>> found = measure(Call(q, k, v, None, (), 8**-0.5, 0.0, None), k=2)
    >>> found.entropy.shape, found.top_keys.shape, found.map.shape
    (torch.Size([1, 2, 300]), torch.Size([1, 2, 300, 2]), torch.Size([1, 2, 75, 75]))
    """
    check_top(k)
    with plainly(call.q):
        return _Pass(call, (bins, bins) if isinstance(bins, int) else bins, k, row_lengths, norms).run()


def bin_width(length: int, bins: int) -> int:
    """The smallest power of two that cuts this length into at most so many bins.

    >>> bin_width(8192, 128), bin_width(129, 128), bin_width(5, 128)
    (64, 2, 1)
    """
    require(bins >= 1, "a map needs bins", got=bins, wanted="1 or more")
    return 1 << max(-(-length // bins) - 1, 0).bit_length()


class Scores:
    """A call made ready to be asked for its scores: in the type of the measures, terms and mask as one bias."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.dtype = wide(call.q.dtype)
        self.q, self.k = call.q.detach().to(self.dtype), call.k.detach().to(self.dtype)
        self.groups = call.q.shape[1] // call.k.shape[1]
        self.positions = call.query_positions
        self.terms = [widened(term, self.dtype) for term in call.terms]

    def bias(self, rows: Tensor, keys: Tensor) -> Tensor | None:
        """What is added to scale q.k in this block, -inf where the mask forbids: B|1 x H|1 x R|1 x C."""
        positions, bias = self.positions[..., rows], None
        for term in self.terms:
            block = self.call.fitting(term.block(self.q[:, :, rows], positions, keys, self.call.scale), term)
            bias = block.to(self.dtype) if bias is None else bias + block
        if self.call.mask is None:
            return bias
        allowed = self.call.fitting(self.call.mask.block(positions, keys), self.call.mask)
        if bias is None:
            return torch.zeros_like(allowed, dtype=self.dtype).masked_fill_(~allowed, -math.inf)
        return torch.where(allowed, bias, -math.inf)

    def rows(self, rows: Tensor, heads: Tensor) -> Tensor:
        """The scores of these rows and heads against every key: B x H x R x M."""
        q = self.q[:, heads[:, None], rows] * self.call.scale
        scores = q @ self.k[:, heads // self.groups].transpose(-1, -2)
        bias = self.bias(rows, self.call.key_positions)
        if bias is not None:
            scores += bias if bias.shape[1] == 1 else bias[:, heads]
        return scores

    def pairs(self, keys: Tensor) -> Tensor:
        """The score of each row against one key of its own (keys: B x N): B x H x N."""
        num_kv, width = self.k.shape[1], self.k.shape[3]
        taken = self.k.gather(2, keys[:, None, :, None].expand(-1, num_kv, -1, width))
        scores = (self.q * self.call.scale * taken.repeat_interleave(self.groups, dim=1)).sum(-1)
        if self.terms or self.call.mask is not None:
            for rows in torch.arange(scores.shape[2], device=keys.device).split(PAIRS.get(keys.device.type, 512)):
                scores[:, :, rows] += self._bias_of_pairs(rows, keys[:, rows])
        return scores

    def _bias_of_pairs(self, rows: Tensor, keys: Tensor) -> Tensor:
        # Only the keys from the first that is wanted to the last: few, where they lie on a diagonal.
        low, high = (int(bound) for bound in keys.aminmax()) if keys.numel() else (0, 0)
        bias = self.bias(rows, torch.arange(low, high + 1, device=keys.device))
        assert bias is not None
        bias = bias.expand(len(keys), -1, len(rows), -1)
        return bias.gather(-1, (keys - low)[:, None, :, None].expand(-1, bias.shape[1], -1, -1)).squeeze(-1)

    def seen(self, start: int, stop: int) -> tuple[int, int, int]:
        """Of the keys: the first that any of these rows can see, the one after the last, and where the bias begins.

        Only a band can tell. Of what is just causal the edge alone needs a bias, and the keys beyond it no work.
        """
        num_keys, rules = self.k.shape[2], () if self.call.mask is None else self.call.mask.rules
        bands = [rule for rule in rules if isinstance(rule, Band)]
        if not bands:
            return 0, num_keys, 0
        ahead = self.call.offset or 0
        first, last = ahead + start, ahead + stop - 1
        if isinstance(self.call.positions, Tensor):  # which a GPU is waited for
            first, last = (int(bound) for bound in self.positions[..., start:stop].aminmax())
        left, right = bands[0].left, bands[0].right
        low, high = 0 if left is None else first - left, num_keys if right is None else last + right + 1
        alone = not self.terms and len(rules) == 1 and left is None
        return low, high, first + right + 1 if alone and right is not None else 0


@dataclass(frozen=True, slots=True)
class _Strip:
    """What all heads share in a strip."""

    rows: slice
    keys: slice
    bias: Tensor | None  # B|1 x H|1 x R|1 x the keys from `biased` on
    biased: int  # counted from the first key of the strip
    distances: Tensor  # B|1 x 1 x R x C


class _Pass:
    """One pass over strips: its sizes, its buffers, and what it has found so far."""

    def __init__(
        self, call: Call, bins: tuple[int, int], k: int, row_lengths: Tensor | None, norms: Tensor | None
    ) -> None:
        self.scores = Scores(call)
        self.shape = batch, heads, rows, keys = (*call.q.shape[:3], call.k.shape[2])
        self.row_width, self.key_width = bin_width(rows, bins[0]), bin_width(keys, bins[1])
        self.within = within(row_lengths, self.shape, call.q.device).expand(batch, heads, rows)
        # Keys in whole bins and folds, so that no strip has a remainder; those too many are masked.
        self.unit = max(self.key_width, FOLD)
        self.keys = max(-(-keys // self.unit), 1) * self.unit
        self.k = F.pad(self.scores.k, (0, 0, 0, self.keys - keys))
        self.size = GPU_STRIP if call.q.is_cuda else CPU_STRIP
        self.rows, copies = self._strip_sizes()

        def zeros(*shape: int, dtype: torch.dtype = self.k.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=call.q.device)

        self.lse, self.entropy, self.confidence, self.distance = zeros(4, batch, heads, rows)
        self.top_weights, self.top_keys = zeros(batch, heads, rows, k), zeros(batch, heads, rows, k, dtype=torch.long)
        self.received = zeros(batch, heads, self.keys)
        self.map, self.weighted = zeros(2, batch, heads, -(-rows // self.row_width), self.keys // self.key_width)
        self.norms = None if norms is None else F.pad(norms, (0, self.keys - keys))[:, :, None]
        most = min(max(self.size, self.scores.groups * self.rows * self.keys), batch * heads * self.rows * self.keys)
        self.score_buffer, self.weight_buffer = self.k.new_empty(2, most)
        self.distance_buffer = self.k.new_empty(copies * self.rows * self.keys)

    def _strip_sizes(self) -> tuple[int, int]:
        """Rows of a strip, a power of two as bins of rows are; and how many rows of positions there are."""
        probe = torch.zeros(min(1, *self.shape[2:]), dtype=torch.long, device=self.k.device)
        bias = self.scores.bias(probe, probe) if len(probe) else None
        copies = self.shape[0] if self.scores.positions.dim() == 2 else 1
        # what the heads of a strip share, distances and bias, may be larger than one chunk of it, within bounds
        shared = copies if bias is None else max(copies, bias.shape[0] * bias.shape[1])
        most = max(self.size // (self.keys * max(self.scores.groups, shared // 8)), 1)
        return min(1 << (most.bit_length() - 1), bin_width(self.shape[2], 1)), copies

    def run(self) -> Measures:
        num_rows, num_keys = self.shape[2:]
        for start in range(0, num_rows, self.rows):
            self._strip(start, min(start + self.rows, num_rows))
        dead = self.lse == -math.inf
        for found in (self.entropy, self.confidence, self.distance):
            found.masked_fill_(dead, 0.0)
        self.top_weights.masked_fill_(dead[..., None], 0.0)
        self.top_keys.masked_fill_(self.top_weights == 0, -1)
        for pooled in (self.map, self.weighted):
            pooled /= pool(~dead, 2, self.row_width).clamp(min=1)[..., None]
        bins = -(-num_keys // self.key_width)
        return Measures(
            lse=self.lse,
            entropy=self.entropy,
            confidence=self.confidence,
            distance=self.distance,
            top_weights=self.top_weights,
            top_keys=self.top_keys,
            map=self.map[..., :bins].contiguous(),
            received=self.received[..., :num_keys].contiguous(),
            weighted=None if self.norms is None else self.weighted[..., :bins].contiguous(),
        )

    def _strip(self, start: int, stop: int) -> None:
        """All heads of the whole batch for these rows: as many at a time as fit the buffers."""
        batch, num_kv = self.k.shape[:2]
        strip = self._prepared(start, stop)
        entries = self.scores.groups * (stop - start) * (strip.keys.stop - strip.keys.start)
        num_heads, num_batch = (max(self.size // wanted, 1) for wanted in (entries, entries * num_kv))
        for b in range(0, batch, num_batch):
            for h in range(0, num_kv, num_heads):
                self._chunk(strip, slice(b, b + num_batch), slice(h, h + num_heads))

    def _prepared(self, start: int, stop: int) -> _Strip:
        num_keys, unit = self.shape[3], self.unit
        low, high, biased = self.scores.seen(start, stop)
        low = max(min(low // unit * unit, self.keys - unit), 0)
        high = max(min(-(-high // unit) * unit, self.keys), low + unit)
        biased = min(max(biased, low), num_keys)
        rows, keys = (torch.arange(*span, device=self.k.device) for span in ((start, stop), (low, high)))
        bias = self.scores.bias(rows, keys[biased - low : num_keys - low])
        if high > num_keys:
            biased = num_keys if bias is None else biased
            bias = F.pad(self.k.new_zeros(1, 1, 1, 0) if bias is None else bias, (0, high - num_keys), value=-math.inf)
        places = rows_first(self.scores.positions[..., rows]).to(self.k.dtype)
        distances = _part(self.distance_buffer, (len(places), 1, len(rows), len(keys)))
        torch.sub(keys.to(self.k.dtype), places, out=distances).abs_()
        return _Strip(slice(start, stop), slice(low, high), bias, biased - low, distances)

    def _chunk(self, strip: _Strip, batch: slice, kv: slice) -> None:
        """Every measure of some heads of a strip. Here time is spent: each line on a whole strip is a pass over it."""
        keys, groups = strip.keys, self.scores.groups
        heads = slice(kv.start * groups, kv.stop * groups)
        here = batch, heads, strip.rows
        q, k = self.scores.q[here] * self.scores.call.scale, self.k[batch, kv, keys].flatten(0, 1)
        shape = (*q.shape[:3], k.shape[1])
        scores, weights = (_part(buffer, shape) for buffer in (self.score_buffer, self.weight_buffer))
        # the queries of all heads that share a key head are rows of one product
        torch.bmm(q.reshape(len(k), -1, q.shape[3]), k.transpose(1, 2), out=scores.view(len(k), -1, k.shape[1]))
        biased = scores[..., strip.biased :]
        if strip.bias is not None:
            biased += _own(_own(strip.bias, 0, batch), 1, heads)

        best, top = _top(scores, self.top_keys.shape[-1])
        best = best[..., :1]
        alive = best > -math.inf
        scores.sub_(best.where(alive, 0.0))
        if strip.bias is not None:
            biased.clamp_(min=FLOOR)
        torch.softmax(scores, -1, out=weights)
        counted = alive.squeeze(-1) & self.within[here]

        self.top_keys[here] = top + keys.start
        self.top_weights[here] = weights.gather(-1, top)
        self.confidence[here] = self.top_weights[here][..., 0]
        surprise = -self.confidence[here].log()
        self.lse[here] = (best.squeeze(-1) + surprise).where(counted, -math.inf)
        self.entropy[here] = surprise - scores.mul_(weights).sum(-1)
        self.distance[here] = torch.mul(weights, _own(strip.distances, 0, batch), out=scores).sum(-1)

        ones = counted.to(weights.dtype)
        self.received[batch, heads, keys] += (ones[..., None, :] @ weights).squeeze(-2)
        self._add(self.map, pool(weights, 3, self.key_width), ones, strip, batch, heads)
        if self.norms is not None:
            mass = pool(torch.mul(weights, self.norms[batch, heads, :, keys], out=scores), 3, self.key_width)
            total = mass.sum(-1)
            self._add(self.weighted, mass, (ones / total).where(total > 0, 0.0), strip, batch, heads)

    def _add(self, map: Tensor, mass: Tensor, factor: Tensor, strip: _Strip, batch: slice, heads: slice) -> None:
        """Adds the mass of some rows, each times its factor, to the bins of rows that they are in."""
        mass = pool(mass * factor[..., None], 2, self.row_width)
        at, first = strip.rows.start // self.row_width, strip.keys.start // self.key_width
        map[batch, heads, at : at + mass.shape[2], first : first + mass.shape[3]] += mass


def _top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)`, but that the best of each class of keys is found first: sorting is what costs."""
    num_keys = scores.shape[-1]
    if num_keys < FOLD * FOLD:
        return scores.topk(k)
    classes = num_keys // FOLD  # key j is in class j mod classes
    _, chosen = scores.view(*scores.shape[:-1], FOLD, classes).amax(-2).topk(k)
    candidates = (chosen[..., None] + torch.arange(0, num_keys, classes, device=scores.device)).flatten(-2)
    best, index = scores.gather(-1, candidates).topk(k)
    return best, candidates.gather(-1, index)


def pool(x: Tensor, dim: int, width: int) -> Tensor:
    """Sums of `width` consecutive places along an axis; the last may be of fewer."""
    missing = -x.shape[dim] % width
    if missing:
        x = torch.cat([x, x.new_zeros((*x.shape[:dim], missing, *x.shape[dim + 1 :]))], dim)
    return torch.unflatten(x, dim, (x.shape[dim] // width, width)).sum(dim + 1)


def _part(buffer: Tensor, shape: tuple[int, ...]) -> Tensor:
    return buffer[: math.prod(shape)].view(shape)


def _own(x: Tensor, axis: int, part: slice) -> Tensor:
    """This part of an axis, or all of it where one serves everybody."""
    return x if x.shape[axis] == 1 else x[(slice(None),) * axis + (part,)]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type of measures for inputs of this one."""
    return torch.promote_types(torch.float32, dtype)


def widened(term: Term, dtype: torch.dtype) -> Term:
    """Terms that multiply the queries need their tables in the same type; others are added as they are."""
    if not isinstance(term, RelativeKeys | SegmentKeys):
        return term
    return replace(term, table=term.table.to(dtype), shift=None if term.shift is None else term.shift.to(dtype))


@contextlib.contextmanager
def plainly(q: Tensor) -> Iterator[None]:
    """Without gradients, and in the types that are written here: no autocast, and no TF32 for float32."""
    precision = torch.get_float32_matmul_precision()
    try:
        if q.is_cuda:
            torch.set_float32_matmul_precision("highest")
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            yield
    finally:
        if q.is_cuda:
            torch.set_float32_matmul_precision(precision)


def within(row_lengths: Tensor | None, shape: tuple[int, int, int, int], device: torch.device) -> Tensor:
    """Which rows are real: B|1 x 1 x N."""
    rows = torch.arange(shape[2], device=device)
    if row_lengths is None:
        return (rows >= 0)[None, None]
    require(row_lengths.shape == shape[:1], "row_lengths do not fit", got=tuple(row_lengths.shape), wanted=shape[:1])
    return rows < row_lengths.to(device)[:, None, None]


def check_top(k: int) -> None:
    require(1 <= k <= TOP, "that many keys are not kept", got=k, wanted=f"1 .. {TOP}")
