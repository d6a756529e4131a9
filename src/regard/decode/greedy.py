"""One token after the other, each chosen once and for all: greedy search, and what sampling shares with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from regard.decode.loop import Move, run
from regard.decode.rules import Hypothesis, RuleOptions, Rules, Step, make_rules
from regard.types import State

# (log-probabilities S x K x V, the rows' places in the first batch S, time) -> tokens S x K
Choose = Callable[[Tensor, Tensor, int], Tensor]


@torch.inference_mode()
def greedy_search(
    step: Step,
    state: State,
    **options: Unpack[RuleOptions],
) -> list[list[Hypothesis]]:
    """The likeliest next token, again and again, until the end token or `max_length` tokens."""
    rules = make_rules(state, **options)
    return run(greedy(rules), step, state, rules)


def greedy(rules: Rules) -> SinglePass:
    """Always the likeliest token."""
    return SinglePass.make(rules, lambda log_probs, places, time: log_probs.argmax(-1), num_rows=1)


@dataclass(slots=True)
class SinglePass:
    """K rows of each source that never look back; `choose` names the next token of every row."""

    delay: ClassVar[int] = 0
    choose: Choose
    history: Tensor  # S x K x T
    total: Tensor  # S x K: log-probability of what was chosen
    done: Tensor  # S x K
    places: Tensor  # S

    @classmethod
    def make(cls, rules: Rules, choose: Choose, *, num_rows: int) -> SinglePass:
        history = rules.history(num_rows)
        total = torch.zeros(history.shape[:2], device=history.device)
        places = torch.arange(len(history), device=history.device)
        return cls(choose, history, total, total.bool(), places)

    def advance(self, log_probs: Tensor, rules: Rules, time: int) -> Move:
        tokens = self.choose(log_probs, self.places, time)
        gain = log_probs.gather(-1, tokens[..., None])[..., 0]
        possible = self.done | (gain > -torch.inf)  # false for NaN too
        self.total = self.total + gain.masked_fill(self.done, 0.0)
        self.history[..., time] = tokens  # what comes after a row's end is cut off by `collect`
        self.done = self.done | (tokens == rules.eos) | (time + 1 >= rules.end)[:, None]
        return Move(tokens, None, self.done.all(-1), possible.all(-1))

    def select(self, sources: Tensor) -> None:
        self.history, self.total = self.history[sources], self.total[sources]
        self.done, self.places = self.done[sources], self.places[sources]

    def collect(self, rules: Rules, sources: Tensor) -> list[list[Hypothesis]]:
        return rules.hypotheses(self.history[sources], self.total[sources])
