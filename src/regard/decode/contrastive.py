"""Contrastive search (Su et al. 2022): of the likeliest tokens, one that does not lead back to what was said.

Shapes: S sources, K candidates of each, V tokens of the vocabulary, D width of the hidden states, n tokens read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.decode.loop import Move
from regard.decode.rules import Hypothesis, Rules
from regard.errors import RegardError
from regard.types import State


@dataclass(slots=True)
class Contrastive:
    """Greedy search by (1 - penalty) p(v) - penalty max_j cos(h_v, h_j), over the K likeliest tokens v.

    h_v is the state of the model after v, so that a candidate is settled once the model has read it: the K rows of a
    source are its candidates, and all go on from the one that won.
    """

    delay: ClassVar[int] = 1
    model: Any
    penalty: float
    history: Tensor  # S x K x (T + 1): what is settled, and each row's candidate after it
    log_prob: Tensor  # S x K: of the candidates; -inf: there is none
    total: Tensor  # S: of what is settled
    done: Tensor  # S
    past: Tensor | None = None  # S x n x D: the states, of length 1, of all that is settled
    states: Tensor | None = None  # S x K x D: those of the candidates

    @classmethod
    def make(cls, rules: Rules, model: Any, *, top_k: int, penalty: float) -> Contrastive:
        """The search for a model that can `read`."""
        if not hasattr(model, "read"):
            raise RegardError(
                "contrastive search compares hidden states, which this model does not give",
                got=type(model).__name__,
                wanted="a model with `read` beside `step`",
                remedy='method = "sample" or "greedy"',
            )
        history = F.pad(rules.history(top_k), (0, 1), value=rules.eos)
        total = torch.zeros(len(history), device=history.device)
        return cls(model, penalty, history, total[:, None].expand(-1, top_k), total, total.bool())

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The model's step, whose states are looked at in passing."""
        hidden, state = self.model.read(tokens, state)
        units = F.normalize(hidden if hidden.dtype == torch.float64 else hidden.float(), dim=-1)
        if self.past is None:
            self.past = units
        else:
            self.states = units.view(*self.history.shape[:2], -1)
        return self.model.head(hidden[:, -1:]), state

    def advance(self, log_probs: Tensor, rules: Rules, time: int) -> Move:
        num_candidates = self.history.shape[1]
        sources = torch.arange(len(log_probs), device=log_probs.device)
        best = torch.zeros_like(sources) if self.states is None else self._settle(sources, rules, time)
        values, tokens = log_probs[sources, best].topk(min(num_candidates, log_probs.shape[-1]))
        spare = (0, num_candidates - values.shape[1])  # of a vocabulary with fewer tokens
        self.log_prob, tokens = F.pad(values, spare, value=-torch.inf), F.pad(tokens, spare)
        self.history[..., time] = tokens
        possible = self.done | (self.log_prob[:, 0] > -torch.inf)  # false for NaN too: it sorts first
        parents = (sources * num_candidates + best)[:, None].expand_as(tokens)
        return Move(tokens, parents, self.done, possible)

    def _settle(self, sources: Tensor, rules: Rules, time: int) -> Tensor:
        """Chooses among the candidates for token `time - 1`: S rows."""
        assert self.past is not None
        assert self.states is not None
        similar = (self.states @ self.past.transpose(1, 2)).amax(-1)
        scores = (1 - self.penalty) * self.log_prob.exp() - self.penalty * similar
        best = scores.masked_fill(self.log_prob == -torch.inf, -torch.inf).argmax(-1)
        self.past = torch.cat([self.past, self.states[sources, best][:, None]], dim=1)
        self.history = self.history[sources, best][:, None].repeat(1, self.history.shape[1], 1)
        self.total = self.total + self.log_prob[sources, best].masked_fill(self.done, 0.0)
        self.done = self.done | (self.history[:, 0, time - 1] == rules.eos) | (time >= rules.end)
        return best

    def select(self, sources: Tensor) -> None:
        assert self.past is not None
        self.history, self.log_prob, self.past = self.history[sources], self.log_prob[sources], self.past[sources]
        self.total, self.done = self.total[sources], self.done[sources]

    def collect(self, rules: Rules, sources: Tensor) -> list[list[Hypothesis]]:
        return rules.hypotheses(self.history[sources, :1], self.total[sources, None])
