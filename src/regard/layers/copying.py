"""Copying from the source (See et al. 2017): a word is said out of the vocabulary, or taken from where it stands.

    p(w) = p_gen p_vocabulary(w) + (1 - p_gen) sum of the weights of the places i of the source with w_i = w

`Copying` is the attention that weighs the places: one head over what the decoder is about to say. It puts what it would
copy beside the decoder's states, so that a state still is all that its head needs; `CopyHead` mixes the two.

Shapes: B batch, S source length, T target length, D width of the states, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.embedding import Head
from regard.ops.attention import is_observed, record_weights, score, weigh
from regard.ops.masks import padding
from regard.types import Sequences, State


class Copying(nn.Module):
    """An attention of one head to the source, whose values are the tokens that stand there."""

    attends = "cross"

    def __init__(self, dim: int, memory_dim: int, size: int) -> None:
        super().__init__()
        self.query, self.keys = nn.Linear(dim, memory_dim), nn.Linear(memory_dim, memory_dim, bias=False)
        self.size = size

    def forward(self, states: Tensor, keys: Tensor, source: Sequences) -> Tensor:
        """States B x T x D and projected keys B x S x .. -> each state and what it copies, B x T x (D + V)."""
        places = torch.arange(keys.shape[1], device=keys.device)
        scores = score(self.query(states), keys)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = weigh(scores, padding(source.lengths).block(places[:1], places)[:, 0])[:, None]  # B x 1 x T x S
        copied = weights.new_zeros(*weights.shape[:3], self.size)
        copied = copied.scatter_add(3, source.ids[:, None, None].expand_as(weights), weights)
        if is_observed():
            record_weights(weights, F.one_hot(source.ids, self.size)[:, None].to(weights.dtype), copied)
        return torch.cat([states.to(copied.dtype), copied[:, 0]], dim=-1)

    def remember(self, state: State, memory: Tensor, source: Sequences) -> None:
        """Puts what is copied from into the state of a decoding."""
        state.memory |= {"copying.keys": self.keys(memory), "copying.ids": source.ids, "lengths": source.lengths}

    def recall(self, states: Tensor, state: State) -> Tensor:
        """As `forward`, by what the state remembers of the source."""
        source = Sequences(state.memory["copying.ids"], state.memory["lengths"])
        return self(states, state.memory["copying.keys"], source)  # type: ignore[no-any-return]


class CopyHead(Head):
    """The logarithm of p(w), which is normalised as it is, of states with what they copy: .. x (D + V) -> .. x V."""

    def __init__(self, dim: int, size: int, tokens: nn.Embedding | None = None, *, bias: bool = False) -> None:
        super().__init__(dim, size, tokens, bias=bias)
        self.gate = nn.Linear(dim, 1)  # p_gen = sigmoid(w . state + b)

    def forward(self, hidden: Tensor) -> Tensor:
        """.. x (D + V) -> .. x V."""
        state, copied = hidden.split([self.gate.in_features, len(self.weight)], dim=-1)
        said, gate = super().forward(state).log_softmax(-1, dtype=hidden.dtype), self.gate(state).to(hidden.dtype)
        # what stands nowhere has a logarithm that changes nothing, and a gradient that is no number were it 0
        taken = copied.clamp(min=torch.finfo(copied.dtype).tiny).log()
        return torch.logaddexp(said + F.logsigmoid(gate), taken + F.logsigmoid(-gate))

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of the cross-entropies of T x (D + V) states; labels under 0 count nothing."""
        if not hidden.is_cuda:  # there a choice of rows would wait for the device, and could not be captured
            hidden, labels = hidden[labels >= 0], labels[labels >= 0]
        log_p = self(hidden)
        chosen = log_p.gather(1, labels.clamp(min=0)[:, None])[:, 0]
        each = (1 - smoothing) * chosen + (smoothing * log_p.mean(-1) if smoothing else 0.0)
        total: Tensor = -(each * (labels >= 0)).sum()
        return total
