"""What a backend is asked: one attention call, with the defaults filled in; and weights of a few keys a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.ops.masks import Mask
from regard.ops.terms import Term


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """The arguments of `attend`; `positions` is None where the queries are 0 .. N-1.

    `lse` (B x H x N) is for who observes: the log-sum-exp of the scores, where the kernel that ran has it. `columns`
    are the places of the keys where they are not 0 .. M-1: a backend may so give parts of a call to the fused one.
    Both may be the first place alone, where the others follow it.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    terms: tuple[Term, ...]
    scale: float
    dropout: float
    positions: Tensor | int | None
    lse: Tensor | None = None
    columns: Tensor | int | None = None

    @property
    def plain_causal(self) -> bool:
        """Whether the mask is just what kernels call causal: square, and nothing else is asked."""
        if self.positions is not None or self.columns is not None or self.terms or self.mask is None:
            return False
        return self.mask.is_causal and known(self.q.shape[2] == self.k.shape[2])

    @property
    def grouped(self) -> bool:
        """Whether several heads of q share one of k."""
        return known(self.q.shape[1] != self.k.shape[1])

    def fitting(self, block: Tensor, part: object) -> Tensor:
        """What a mask or term gave for this call, once its batch and heads were seen to be those of q."""
        for axis, got, wanted in zip(("batch", "heads"), block.shape, self.q.shape, strict=False):
            if got != 1 and got != wanted:  # not "in": traced, these are symbols
                raise RegardError(f"{type(part).__name__} does not fit q: {axis}", got=got, wanted=f"1 or {wanted}")
        return block

    @property
    def query_positions(self) -> Tensor:
        return places(self.positions, self.q)

    @property
    def key_positions(self) -> Tensor:
        return places(self.columns, self.k)

    @property
    def offset(self) -> int | None:
        """How far the first query is after the first key, where queries and keys are known to follow each other."""
        if isinstance(self.positions, Tensor) or isinstance(self.columns, Tensor):
            return None
        return (self.positions or 0) - (self.columns or 0)


@dataclass(frozen=True, eq=False, slots=True)
class Scattered:
    """Weights of a few keys each, B x H x N x S, with these keys; what a row gives to a key twice counts together.

    >>> Scattered(torch.tensor([[[[0.5, 0.25, 0.25]]]]), torch.tensor([[[[1, 1, 0]]]]), 3).dense().tolist()
    [[[[0.25, 0.75, 0.0]]]]
    """

    weights: Tensor
    keys: Tensor  # B|1 x H|1 x N x S; one that is not there weighs 0
    num_keys: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of all weights: B, H, N, M."""
        return (*self.weights.shape[:3], self.num_keys)

    def detach(self) -> Scattered:
        return replace(self, weights=self.weights.detach())

    def dense(self) -> Tensor:
        """All weights: B x H x N x M."""
        keys = self.keys.clamp(max=self.num_keys - 1).expand_as(self.weights)
        return self.weights.new_zeros(self.shape).scatter_add_(-1, keys, self.weights)


def places(positions: Tensor | int | None, x: Tensor) -> Tensor:
    """The places of what stands at `positions` (N or B x N, or the first of them), for x of B x H x N x d.

    >>> places(3, torch.zeros(1, 1, 2, 8)).tolist()
    [3, 4]
    """
    if isinstance(positions, Tensor):
        return positions
    at = torch.arange(x.shape[2], device=x.device)
    return at + positions if positions else at


def known(fact: bool) -> bool:
    """The fact itself: where a graph is traced, to compare sizes gives a symbol, which no kernel takes as a flag."""
    return True if fact else False  # noqa: SIM210


def is_captured(x: Tensor) -> bool:
    """Whether what is computed of x becomes a CUDA graph, in which nothing can be asked of the device."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()
