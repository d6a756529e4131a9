"""Several models that answer as one, an ensemble: each token is as likely as they find it on average.

    p(y | x) = 1/K sum_k p_k(y | x)

Shapes: B rows, N tokens of a row, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.types import Batch, Sequences, State


class Said(nn.Module):
    """The head of an ensemble, whose states are log-probabilities already: B x N x V -> B x N x V."""

    def forward(self, log_probs: Tensor) -> Tensor:
        return log_probs

    def loss(self, log_probs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of the cross-entropies of T x V log-probabilities; labels under 0 count nothing."""
        chosen = log_probs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        each = (1 - smoothing) * chosen + (smoothing * log_probs.mean(-1) if smoothing else 0.0)
        total: Tensor = -(each * (labels >= 0)).sum()
        return total


class Together(nn.Module):
    """Models with one vocabulary, decoded as if they were one; of each family that can be decoded."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models, self.head = nn.ModuleList(models), Said()

    @property
    def longest(self) -> int | None:
        """How many tokens of a target all of them can read; None: any number."""
        return min((most for model in self.models if (most := getattr(model, "longest", None))), default=None)

    def hidden(self, batch: Batch) -> Tensor:
        """What all of them find likely at each place of the target: B x (N - 1) x V."""
        models: Any = self.models
        return mean_log_probs([model.head(model.hidden(batch)) for model in models])

    def start(self, source: Sequences, max_length: int) -> State:
        models: Any = self.models
        return _joined([model.start(source, max_length) for model in models])

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the log-probabilities after each of them, B x n x V, and the state after."""
        models: Any = self.models
        parts = (_part(state, i) for i in range(len(models)))
        found = [model.step(tokens, part) for model, part in zip(models, parts, strict=True)]
        return mean_log_probs([logits for logits, _ in found]), _joined([after for _, after in found])


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities.

    >>> even, sure = torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]])
    >>> mean_log_probs([even, sure]).exp().tolist()
    [[0.75, 0.25]]
    """
    each = torch.stack([x.float() if x.dtype.itemsize < 4 else x for x in logits]).log_softmax(-1)
    return each.logsumexp(0) - math.log(len(logits))


def _joined(states: Sequence[State]) -> State:
    """The states of all models as one: each keeps what it remembers under its own number."""
    memory = {f"{i}/{name}": tensor for i, state in enumerate(states) for name, tensor in state.memory.items()}
    cache = {f"{i}/{name}": tensor for i, state in enumerate(states) for name, tensor in state.cache.items()}
    timed = frozenset(f"{i}/{name}" for i, state in enumerate(states) for name in state.timed)
    return State(states[0].position, memory, cache, timed, states[0].bound)


def _part(state: State, number: int) -> State:
    """What one model remembers of it."""
    start = f"{number}/"
    memory, cache = (
        {name.removeprefix(start): tensor for name, tensor in held.items() if name.startswith(start)}
        for held in (state.memory, state.cache)
    )
    timed = frozenset(name.removeprefix(start) for name in state.timed if name.startswith(start))
    return State(state.position, memory, cache, timed, state.bound)
