"""Attention, as the papers write it, and the one door to its fast forms.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V                      (Vaswani et al. 2017, eq. 1)

in three verbs: **score** a query against keys, **weigh** the scores, **read** the values. Additive attention brings
its own score and shares the other two. `attend` gives the same values by the fastest backend that can do what is
asked; `reference` is the plain form, supports everything and is the oracle of the tests.

Shapes: B batch, H query heads, K key heads (H is a multiple of K), N queries, M keys, d head width.
q is B x H x N x d, k and v are B x K x M x d; one layout everywhere.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from regard.errors import BackendError, RegardError
from regard.ops import banded, flex, fused
from regard.ops.call import Call, Scattered
from regard.ops.masks import Mask
from regard.ops.terms import Term


def score(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """Scaled dot products, Q K^T / sqrt(d_k): B x H x N x M."""
    return q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)


def score_additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """v . tanh(q_i + k_j) for projected queries and keys: B x H x N x M (Bahdanau et al. 2015)."""
    return torch.tanh(q[..., :, None, :] + k[..., None, :, :]) @ v


def weigh(scores: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Softmax over the allowed keys. A row that may attend nowhere weighs nothing, and so do its gradients.

    >>> weigh(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]])).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """
    if allowed is None:
        return scores.softmax(-1)
    somewhere = allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~allowed, -math.inf).masked_fill(~somewhere, 0.0)
    return scores.softmax(-1) * somewhere


def read(weights: Tensor, v: Tensor) -> Tensor:
    """The weighted sum of the values."""
    return weights @ v


def reference(call: Call) -> tuple[Tensor, Tensor]:
    """Output and weights, by the formula and with the whole matrix in memory."""
    groups = call.q.shape[1] // call.k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (call.k, call.v))
    rows, columns = call.query_positions, call.key_positions
    scores = score(call.q, k, call.scale)
    scores = scores.float() if scores.dtype.itemsize < 4 else scores
    for term in call.terms:
        scores = scores + call.fitting(term.block(call.q, rows, columns, call.scale), term)
    allowed = None if call.mask is None else call.fitting(call.mask.block(rows, columns), call.mask)
    weights = weigh(scores, allowed).to(v.dtype)
    return read(torch.dropout(weights, call.dropout, train=True), v), weights


_RUN: dict[str, Callable[[Call], Tensor]] = {
    "reference": lambda call: reference(call)[0],
    "fused": fused.attend,
    "flex": flex.attend,
    "banded": banded.attend,
}
_WHY_NOT: dict[str, Callable[[Call], str | None]] = {"flex": flex.why_not, "banded": banded.why_not}
BACKENDS = ("auto", *_RUN)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | None = None,
    terms: Sequence[Term] = (),
    scale: float | None = None,
    dropout: float = 0.0,
    positions: Tensor | int | None = None,
    backend: str = "auto",
    projection: Tensor | None = None,
) -> Tensor:
    """softmax(scale q k^T + terms, where the mask allows) v, by the fastest backend that can: B x H x N x d.

    `positions` (N or B x N) are the places of the queries among the keys, 0 .. N-1 if not given: masks and terms
    speak of them. Where they follow each other, the first of them (a number) is enough, and terms of distances cost
    less. `dropout` is applied to the weights. A backend asked for by name that cannot do this raises.
    `projection` (model width x H d) is the W^O that the output goes through: only who observes looks at it.

    >>> q = k = v = torch.randn(1, 2, 5, 8)
    >>> attend(q, k, v).shape
    torch.Size([1, 2, 5, 8])
    """
    _check_shapes(q, k, v, positions)
    places = positions if isinstance(positions, Tensor) else positions or None  # from 0 on is what is not given
    call = Call(q, k, v, mask, tuple(terms), q.shape[-1] ** -0.5 if scale is None else scale, dropout, places)
    name = choose(call, backend)
    for used in _recorders:
        used.append(name)
    observers = _present()
    if observers and name == "fused":
        out, lse = fused.attend_and_lse(call)
        call = replace(call, lse=lse)
    else:
        out = _RUN[name](call)
    for observer in observers:
        observer.saw(call, projection, out)
    return out


def choose(call: Call, backend: str = "auto") -> str:
    """The name of the backend that this call runs on; raises if the one asked for cannot."""
    if backend not in BACKENDS:
        raise BackendError("no such attention backend", got=backend, wanted=", ".join(BACKENDS))
    if backend == "auto":
        if flex.pays(call) and flex.why_not(call) is None:
            return "flex"
        return "banded" if banded.why_not(call) is None and banded.pays(call) else "fused"
    reason = _WHY_NOT[backend](call) if backend in _WHY_NOT else None
    if reason is not None:
        raise BackendError(f'the backend "{backend}" cannot do this', got=reason, remedy='backend = "auto"')
    return backend


_recorders: list[list[str]] = []


@contextlib.contextmanager
def backends_used() -> Iterator[list[str]]:
    """Collects the name of the backend of every `attend` inside the block.

    >>> with backends_used() as names:
    ...     _ = attend(*torch.randn(3, 1, 1, 2, 4))
    >>> names
    ['fused']
    """
    used: list[str] = []
    _recorders.append(used)
    try:
        yield used
    finally:
        _recorders[:] = [other for other in _recorders if other is not used]  # lists of equal names are not the same


class Recorder(Protocol):
    """Who observes: it is told of each attention after its output was computed."""

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        """An `attend`: the call, the W^O that its output goes through where the layer said it, and the output."""

    def saw_weights(self, weights: Tensor | Scattered, values: Tensor, projection: Tensor | None, out: Tensor) -> None:
        """A layer that weighed by itself: B x H x N x M weights of B x K x M x d values, and what it read by them."""


# of this thread or task only: what others run at the same time is not observed
_observers: ContextVar[tuple[Recorder, ...]] = ContextVar("observers", default=())


@contextlib.contextmanager
def observing(recorder: Recorder) -> Iterator[None]:
    """Inside the block the recorder is told of every attention; no output changes by it."""
    token = _observers.set((*_observers.get(), recorder))
    try:
        yield
    finally:
        _observers.reset(token)


def is_observed() -> bool:
    """Whether somebody observes here and now."""
    return bool(_present())


def record_call(call: Call, out: Tensor, projection: Tensor | None = None) -> None:
    """Tells who observes of an attention that was computed in another way than by `attend`, but is what it would be."""
    for observer in _present():
        observer.saw(call, projection, out)


def record_weights(weights: Tensor | Scattered, values: Tensor, out: Tensor, projection: Tensor | None = None) -> None:
    """Tells who observes what a layer weighed and read that does not call `attend`."""
    for observer in _present():
        observer.saw_weights(weights, values, projection, out)


def _present() -> tuple[Recorder, ...]:
    # a compiler would keep the answer of the day that it compiled on
    return () if torch.compiler.is_compiling() else _observers.get()


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, positions: Tensor | int | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise RegardError("attend takes batch x heads x length x width", got=shapes)
    if q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3] or q.shape[-1] != k.shape[-1]:
        raise RegardError("q, k and v do not fit each other", got=shapes, wanted="B H N d, B K M d, B K M d")
    if q.shape[1] % k.shape[1]:
        raise RegardError(f"num_heads ({q.shape[1]}) must be divisible by num_kv_heads ({k.shape[1]})", got=shapes)
    if isinstance(positions, Tensor) and positions.shape not in (q.shape[2:3], (q.shape[0], q.shape[2])):
        raise RegardError("positions do not fit q", got=tuple(positions.shape), wanted="length, or batch x length")
