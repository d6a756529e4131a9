"""Beam search with a pool of finished outputs a source, exact about when nothing better can come.

Shapes: S sources, K beams of each, N outputs to keep of each, T most tokens of an output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Unpack

import torch
from torch import Tensor

from regard.decode.greedy import greedy
from regard.decode.loop import Move, Search, run
from regard.decode.rules import Hypothesis, RuleOptions, Rules, Step, make_rules, rank
from regard.types import State


@torch.inference_mode()
def beam_search(
    step: Step,
    state: State,
    *,
    beam: int = 5,
    n_best: int = 1,
    early_stop: bool = False,
    **options: Unpack[RuleOptions],
) -> list[list[Hypothesis]]:
    """The best outputs that `beam` open hypotheses lead to, at most `n_best` of each source, best first.

    A hypothesis that ends leaves its beam to the next best open one. A source is over when no open one can
    still beat the worst output kept, whatever comes; with `early_stop`, when `beam` outputs have ended.
    A beam of one is greedy search: it is over at its first end.
    """
    rules = make_rules(state, **options)
    return run(beams(rules, beam=beam, n_best=n_best, early_stop=early_stop), step, state, rules)


def beams(rules: Rules, *, beam: int, n_best: int, early_stop: bool) -> Search:
    """The search that `beam_search` runs."""
    return greedy(rules) if beam == 1 else _Beams.make(rules, beam, n_best, early_stop=early_stop)


@dataclass(slots=True)
class _Pool:
    """The N best outputs of each source so far; a score of -inf marks a free place."""

    ids: Tensor  # S x N x T
    log_prob: Tensor  # S x N
    score: Tensor  # S x N, descending

    @classmethod
    def make(cls, rules: Rules, size: int) -> _Pool:
        ids = rules.history(size)
        free = torch.full(ids.shape[:2], -torch.inf, device=ids.device)
        return cls(ids, free, free)

    def add(self, ids: Tensor, log_prob: Tensor, score: Tensor) -> None:
        """Takes in candidates S x M; those at -inf are none."""
        size = self.score.shape[1]
        self.score, best = torch.cat([self.score, score], dim=1).topk(size)
        self.log_prob = torch.cat([self.log_prob, log_prob], dim=1).gather(1, best)
        self.ids = _take(torch.cat([self.ids, ids], dim=1), best)

    def select(self, sources: Tensor) -> _Pool:
        return _Pool(self.ids[sources], self.log_prob[sources], self.score[sources])


@dataclass(slots=True)
class _Beams:
    delay: ClassVar[int] = 0
    history: Tensor  # S x K x T
    open: Tensor  # S x K: log-probability of each open hypothesis, descending; -inf: no hypothesis
    done: Tensor  # S
    num_ended: Tensor  # S
    ended: _Pool  # what the model ended
    cut: _Pool  # what the limit cut off: the answer only where too few have ended
    early_stop: bool

    @classmethod
    def make(cls, rules: Rules, beam: int, n_best: int, *, early_stop: bool) -> _Beams:
        history = rules.history(beam)
        open_ = torch.full(history.shape[:2], -torch.inf, device=history.device)
        open_[:, 0] = 0.0  # all beams begin alike: only one may count
        ended, cut = _Pool.make(rules, n_best), _Pool.make(rules, n_best)
        num_ended = torch.zeros_like(rules.start)
        return cls(history, open_, num_ended.bool(), num_ended, ended, cut, early_stop)

    def advance(self, log_probs: Tensor, rules: Rules, time: int) -> Move:
        num_sources, beam, vocab_size = log_probs.shape
        # At most one continuation of each beam is its end, so that 2 K candidates hold K open ones.
        candidates = log_probs.add_(self.open[..., None]).flatten(1)
        values, index = candidates.topk(min(2 * beam, beam * vocab_size))
        possible = self.done | (values[:, 0] > -torch.inf)  # false for NaN too: it sorts first
        parents, tokens = index // vocab_size, index % vocab_size
        ids = _take(self.history, parents)
        ids[..., time] = tokens

        is_end, at_limit = tokens == rules.eos, (time + 1 >= rules.end)[:, None]
        among_best = torch.arange(values.shape[1], device=values.device) < beam
        length, live = (time + 1 - rules.start)[:, None], ~self.done[:, None]
        # An end counts among the K best candidates only, as an open hypothesis does; at the limit it has no other
        # chance. What comes after a source is done must not change its answer.
        ends = values.masked_fill(~(is_end & (among_best | at_limit) & live), -torch.inf)
        self.ended.add(ids, ends, rules.score(ends, length))
        self.num_ended = self.num_ended + (ends > -torch.inf).sum(1)
        if time + 1 in rules.ends:
            cut = values.masked_fill(is_end | ~at_limit | ~live, -torch.inf)
            self.cut.add(ids, cut, rules.score(cut, length))
        self.open, best = values.masked_fill(is_end, -torch.inf).topk(beam)
        self.history, tokens = _take(ids, best), tokens.gather(1, best)

        self.done = self.done | at_limit[:, 0] | ~self._can_improve(rules)
        first_rows = torch.arange(num_sources, device=parents.device)[:, None] * beam
        return Move(tokens, first_rows + parents.gather(1, best), self.done, possible)

    def _can_improve(self, rules: Rules) -> Tensor:
        # Log-probabilities only fall, and the same sum counts least at the greatest length.
        bound = rules.score(self.open[:, 0], rules.end - rules.start)
        better = bound > self.ended.score[:, -1]
        return better & (self.num_ended < self.open.shape[1]) if self.early_stop else better

    def select(self, sources: Tensor) -> None:
        self.history, self.open = self.history[sources], self.open[sources]
        self.done, self.num_ended = self.done[sources], self.num_ended[sources]
        self.ended, self.cut = self.ended.select(sources), self.cut.select(sources)

    def collect(self, rules: Rules, sources: Tensor) -> list[list[Hypothesis]]:
        ended, cut = self.ended.select(sources), self.cut.select(sources)
        pools = [rules.hypotheses(pool.ids, pool.log_prob) for pool in (ended, cut)]
        return [sorted(a + b, key=rank)[: ended.score.shape[1]] for a, b in zip(*pools, strict=True)]


def _take(ids: Tensor, rows: Tensor) -> Tensor:
    return ids.gather(1, rows[..., None].expand(-1, -1, ids.shape[2]))
