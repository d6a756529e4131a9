"""What each head of an attention call does, asked for when it is wanted and computed without the matrix of weights.

`Observed` answers from q, k, v, mask and terms; `Weighed` gives the same answers from weights that are there as a
whole; `observe_reference` makes those by the formula and is the oracle of the tests. What the measures are, and how
they are taken in strips of rows, is in strips.py.

Shapes: B batch, H query heads, K key heads, N queries (rows), M keys, R some of the rows, d head width.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ConfigError, require
from regard.ops.attention import score, weigh
from regard.ops.call import Call
from regard.ops.compiling import lacks_for_triton
from regard.ops.masks import rows_first
from regard.ops.strips import (
    BINS,
    TOP,
    Measures,
    Scores,
    bin_width,
    check_top,
    measure,
    plainly,
    pool,
    wide,
    widened,
    within,
)

__all__ = ["Measures", "Observed", "Weighed", "bin_width", "measure", "observe_reference", "value_weighted"]


class _Seen:
    """What Observed and Weighed share."""

    shape: tuple[int, int, int, int]  # B, H, N, M
    _positions: Tensor  # of the queries: N or B x N
    _values: Tensor | None
    _projection: Tensor | None

    def pairs(self, keys: Tensor) -> Tensor:
        """The weight that each row gives to one key of its own (N or B x N; outside 0 .. M-1 = none): B x H x N."""
        raise NotImplementedError

    def weighted_map(self, bins: int | tuple[int, int]) -> Tensor | None:
        """The map of what `value_weighted` makes of each row, in the bins of `map`; None without W_O."""
        raise NotImplementedError

    def diagonal(self, offset: int) -> Tensor:
        """The weight of the key at the row's position + offset, 0 where there is none: B x H x N."""
        return self.pairs(self._positions + offset)

    def first(self) -> Tensor:
        """The weight of key 0, where heads that have nothing to say often rest: B x H x N."""
        return self.pairs(torch.zeros_like(self._positions))

    @cached_property
    def value_norms(self) -> Tensor | None:
        """|W_O^h v_j|, what key j can write to the output where head h reads it: B x H x M, or None without W_O."""
        if self._values is None or self._projection is None:
            return None
        return _value_norms(self._values, self._projection, self.shape[1])


class Observed(_Seen):
    """The measures of an attention call, each computed when it is first asked for.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
    >>> seen = Observed(Call(q, k, v, None, (), 8**-0.5, 0.0, None))
    >>> seen.shape, seen.entropy.shape, seen.rows(range(1, 3)).shape
    ((1, 2, 5, 5), torch.Size([1, 2, 5]), torch.Size([1, 2, 2, 5]))
    """

    def __init__(
        self,
        call: Call,
        *,
        row_lengths: Tensor | None = None,
        projection: Tensor | None = None,
    ) -> None:
        """`row_lengths` (B) of real rows; `projection` W_O, model width x H d."""
        # the graph of a training step shall not live as long as what is seen of it
        self.call = replace(call, q=call.q.detach(), k=call.k.detach(), v=call.v.detach())
        self.shape = (*call.q.shape[:3], call.k.shape[2])
        self._row_lengths = row_lengths
        if row_lengths is not None:
            self._within = within(row_lengths, self.shape, call.q.device)
        self._lse: Tensor | None = None
        if call.lse is not None and call.lse.shape == call.q.shape[:3]:  # not where rows of several calls were joined
            lse = call.lse.detach()
            self._lse = lse if row_lengths is None else lse.masked_fill(~self._within, -math.inf)
        self._positions, self._values, self._projection = call.query_positions, self.call.v, projection
        self._maps: dict[tuple[int, int], Tensor] = {}
        self._weighted_maps: dict[tuple[int, int], Tensor | None] = {}

    @property
    def lse(self) -> Tensor:
        """ln of the sum of exp(scores), in nats: B x H x N."""
        return self._measures.lse if self._lse is None else self._lse

    @property
    def entropy(self) -> Tensor:
        """Of the weights of each row, in nats: B x H x N."""
        return self._measures.entropy

    @property
    def confidence(self) -> Tensor:
        """The largest weight of each row: B x H x N."""
        return self._measures.confidence

    @property
    def distance(self) -> Tensor:
        """How far each row looks on average: B x H x N."""
        return self._measures.distance

    @cached_property
    def received(self) -> Tensor:
        """The weight that each key receives from all rows together: B x H x M."""
        found = self._measures.received
        if found is None:  # a kernel has measured, so that there is one for this too
            from regard.ops import gpu

            found = gpu.received(self.call, self.lse)
        assert found is not None
        return found

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The largest weights of each row and their keys, B x H x N x k; key -1 where no weight is left."""
        check_top(k)
        found = self._measures if self._measures.top_keys.shape[-1] >= k else self._strips
        return found.top_weights[..., :k], found.top_keys[..., :k]

    def map(self, bins: int | tuple[int, int]) -> Tensor:
        """The pooled map, B x H x row bins x key bins, at most so many of them: see `bin_width`."""
        both = (bins, bins) if isinstance(bins, int) else bins
        if both == (BINS, BINS):
            return self._measures.map
        if both not in self._maps:
            self._maps[both] = self._measured(both).map
        return self._maps[both]

    def weighted_map(self, bins: int | tuple[int, int]) -> Tensor | None:
        """The map of what `value_weighted` makes of each row, in the bins of `map`; None without W_O.

        By strips on every device; asked for first, in 128 bins, it finds all other measures in the same pass.
        """
        both = (bins, bins) if isinstance(bins, int) else bins
        if both not in self._weighted_maps and self.value_norms is not None:
            usual = both == (BINS, BINS)
            found = self._in_strips(both, TOP if usual else 1, self.value_norms)
            if usual:
                vars(self).setdefault("_strips", found)
            self._weighted_maps[both] = found.weighted
        return self._weighted_maps.get(both)

    def rows(self, rows: range, heads: Sequence[int] | None = None) -> Tensor:
        """The exact weights of these rows and heads (all if not given): B x H x R x M."""
        index, chosen = _indices(rows, heads, self.shape, self.call.q.device)
        with plainly(self.call.q):
            scores = self._scores.rows(index, chosen)
            # a row with nothing to attend is all -inf: it is weighed as zeros, and then not at all
            alive = (scores > -math.inf).any(-1, keepdim=True) & self._within[:, :, index, None]
            return scores.masked_fill_(~alive, 0.0).softmax(-1).mul_(alive)

    def pairs(self, keys: Tensor) -> Tensor:
        """The weight that each row gives to one key of its own (N or B x N; outside 0 .. M-1 = none): B x H x N."""
        keys, there = _places(keys, self.shape)
        if not self.shape[3]:
            return torch.zeros_like(self.lse)
        with plainly(self.call.q):
            weights = (self._scores.pairs(keys) - self.lse).exp()
            return weights.masked_fill_(~there | (self.lse == -math.inf), 0.0)

    @cached_property
    def _within(self) -> Tensor:
        return within(None, self.shape, self.call.q.device)  # where there are lengths, it is set at once

    @property
    def _scores(self) -> Scores:
        return Scores(self.call)  # not kept: of 16-bit queries and keys it holds copies in float32

    @cached_property
    def _measures(self) -> Measures:
        found = self._measured((BINS, BINS))
        self._lse = found.lse
        return found

    def _measured(self, bins: tuple[int, int]) -> Measures:
        fast = _fast(self.call, lse=self._lse, bins=bins, row_lengths=self._row_lengths)
        if fast is not None:
            return fast
        return self._strips if bins == (BINS, BINS) else self._in_strips(bins, 1)

    @cached_property
    def _strips(self) -> Measures:
        return self._in_strips((BINS, BINS), TOP)

    def _in_strips(self, bins: tuple[int, int], k: int, norms: Tensor | None = None) -> Measures:
        return measure(self.call, bins=bins, k=k, row_lengths=self._row_lengths, norms=norms)


def _fast(call: Call, *, lse: Tensor | None, bins: tuple[int, int], row_lengths: Tensor | None) -> Measures | None:
    """What `measure` gives (top 1), by kernels; None where there are none for this call: then it is strips."""
    if not call.q.is_cuda or lacks_for_triton():
        return None
    from regard.ops import gpu

    return gpu.measure(call, lse=lse, bins=bins, row_lengths=row_lengths)


class Weighed(_Seen):
    """The same measures, from weights that are there as a whole: B x H x N x M.

    >>> seen = Weighed(torch.tensor([[[[0.25, 0.75], [1.0, 0.0]]]]))
    >>> seen.received.tolist(), seen.distance.tolist(), seen.top(1)[1].flatten().tolist()
    ([[[1.25, 0.75]]], [[[0.75, 1.0]]], [1, 0])
    """

    def __init__(
        self,
        weights: Tensor,
        *,
        lse: Tensor | None = None,
        positions: Tensor | None = None,
        row_lengths: Tensor | None = None,
        values: Tensor | None = None,
        projection: Tensor | None = None,
        norms: Tensor | None = None,
    ) -> None:
        """Without `lse` the weights are taken for exp(scores): it is 0, and -inf where a row weighs nothing.

        `norms` are the `value_norms` where `values` and `projection` are not there to make them of.
        """
        weights = weights.detach().to(wide(weights.dtype))
        self.shape = (weights.shape[0], weights.shape[1], weights.shape[2], weights.shape[3])
        real = within(row_lengths, self.shape, weights.device)
        self.weights = weights if row_lengths is None else weights * real[..., None]
        self._counted = (self.weights > 0).any(-1)  # B x H x N
        lse = weights.new_zeros(self.shape[:3]) if lse is None else lse
        self.lse = lse.detach().masked_fill(~self._counted, -math.inf)
        self._positions = torch.arange(self.shape[2], device=weights.device) if positions is None else positions
        self._values, self._projection = None if values is None else values.detach(), projection
        if norms is not None:
            self.value_norms = norms

    @cached_property
    def entropy(self) -> Tensor:
        """Of the weights of each row, in nats: B x H x N."""
        each: Tensor = torch.special.entr(self.weights)
        return each.sum(-1)

    @cached_property
    def confidence(self) -> Tensor:
        """The largest weight of each row: B x H x N."""
        return self.top(1)[0].squeeze(-1)

    @cached_property
    def distance(self) -> Tensor:
        """How far each row looks on average: B x H x N."""
        keys = torch.arange(self.shape[3], device=self.weights.device)
        return (self.weights * (keys - rows_first(self._positions)).abs()).sum(-1)

    @cached_property
    def received(self) -> Tensor:
        """The weight that each key receives from all rows together: B x H x M."""
        return self.weights.sum(-2)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The largest weights of each row and their keys, B x H x N x k; key -1 where no weight is left."""
        check_top(k)
        weights, keys = F.pad(self.weights, (0, max(0, k - self.shape[3]))).topk(k)
        return weights, keys.masked_fill(weights == 0, -1)

    def map(self, bins: int | tuple[int, int]) -> Tensor:
        """The pooled map, B x H x row bins x key bins, at most so many of them: see `bin_width`."""
        return self._pooled(self.weights, bins)

    def weighted_map(self, bins: int | tuple[int, int]) -> Tensor | None:
        """The map of what `value_weighted` makes of each row, in the bins of `map`; None without W_O."""
        norms = self.value_norms
        return None if norms is None else self._pooled(value_weighted(self.weights, norms[:, :, None]), bins)

    def _pooled(self, weights: Tensor, bins: int | tuple[int, int]) -> Tensor:
        row_bins, key_bins = (bins, bins) if isinstance(bins, int) else bins
        row_width, key_width = bin_width(self.shape[2], row_bins), bin_width(self.shape[3], key_bins)
        summed = pool(pool(weights, 3, key_width), 2, row_width)
        return summed / pool(self._counted, 2, row_width).clamp(min=1)[..., None]

    def rows(self, rows: range, heads: Sequence[int] | None = None) -> Tensor:
        """The exact weights of these rows and heads (all if not given): B x H x R x M."""
        index, chosen = _indices(rows, heads, self.shape, self.weights.device)
        return self.weights[:, chosen[:, None], index]

    def pairs(self, keys: Tensor) -> Tensor:
        """The weight that each row gives to one key of its own (N or B x N; outside 0 .. M-1 = none): B x H x N."""
        keys, there = _places(keys, self.shape)
        if not self.shape[3]:
            return torch.zeros_like(self.lse)
        index = keys[:, None, :, None].expand(-1, self.shape[1], -1, -1)
        return self.weights.gather(-1, index).squeeze(-1).masked_fill_(~there, 0.0)


def value_weighted(weights: Tensor, norms: Tensor) -> Tensor:
    """Weights times the norm of what each key hands on, every row brought back to the sum that it had.

    >>> value_weighted(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0, 3.0])).tolist()
    [[0.25, 0.75]]
    """
    scaled = weights * norms
    total = scaled.sum(-1, keepdim=True)
    return scaled * (weights.sum(-1, keepdim=True) / total.masked_fill(total == 0, 1.0))


def observe_reference(call: Call, *, row_lengths: Tensor | None = None, projection: Tensor | None = None) -> Weighed:
    """The oracle: what the formula gives, with the whole matrix in memory and in the type of q (float32 at least)."""
    with plainly(call.q):
        dtype, groups = wide(call.q.dtype), call.q.shape[1] // call.k.shape[1]
        q, k = call.q.to(dtype), call.k.to(dtype).repeat_interleave(groups, dim=1)
        rows, columns = call.query_positions, call.key_positions
        scores = score(q, k, call.scale)
        for term in call.terms:
            scores = scores + call.fitting(widened(term, dtype).block(q, rows, columns, call.scale), term)
        allowed = None if call.mask is None else call.fitting(call.mask.block(rows, columns), call.mask)
        weights = weigh(scores, allowed)
        lse = (scores if allowed is None else scores.masked_fill(~allowed, -math.inf)).logsumexp(-1)
    return Weighed(weights, lse=lse, positions=rows, row_lengths=row_lengths, values=call.v, projection=projection)


def _indices(
    rows: range, heads: Sequence[int] | None, shape: tuple[int, int, int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    chosen = range(shape[1]) if heads is None else heads
    for name, wanted, size in (("row", rows, shape[2]), ("head", chosen, shape[1])):
        try:
            wrong = [i for i in wanted if not 0 <= operator.index(i) < size]
        except TypeError:  # a slice, or one number
            got, meant = repr(wanted)[:80], f"numbers from 0 to {size - 1}, as range(0, {min(size, 3)})"
            raise ConfigError(f"these {name}s are not understood", got=got, wanted=meant) from None
        require(not wrong, f"there is no such {name}", got=wrong[:3], wanted=f"0 .. {size - 1}")
    return torch.tensor(rows, dtype=torch.long, device=device), torch.tensor(chosen, dtype=torch.long, device=device)


def _places(keys: Tensor, shape: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """Keys that can be looked up, B x N, and where they are meant, B x 1 x N."""
    fits = keys.shape in (shape[2:3], (shape[0], shape[2]))
    require(fits, "keys do not fit the rows", got=tuple(keys.shape), wanted=f"{shape[2]}, or {shape[0]} x {shape[2]}")
    keys = keys.expand(shape[0], shape[2])
    return keys.clamp(0, max(shape[3] - 1, 0)), ((keys >= 0) & (keys < shape[3]))[:, None]


def _value_norms(values: Tensor, projection: Tensor, num_heads: int) -> Tensor:
    """|W_O^h v_j| by the d x d factor of each W_O^h = Q R: |W v| = |R v|, and R^T R is the Gram matrix of W_O^h."""
    num_kv, width = values.shape[1], values.shape[3]
    require(
        projection.dim() == 2 and projection.shape[1] == num_heads * width,
        "the projection does not fit the values",
        got=tuple(projection.shape),
        wanted=f"model width x {num_heads * width} ({num_heads} heads of {width})",
    )
    with plainly(values):
        dtype = wide(values.dtype)
        by_head = torch.unflatten(projection.to(dtype), 1, (num_heads, width)).transpose(0, 1)  # H x model width x d
        factor = torch.unflatten(torch.linalg.qr(by_head, mode="r").R, 0, (num_kv, num_heads // num_kv))
        written = values.to(dtype)[:, :, None] @ factor.transpose(-1, -2)  # B x K x H/K x M x d
        return written.square().sum(-1).sqrt().flatten(1, 2)
