"""What every search shares: the step contract, the rules for an output, and the hypotheses that come out.

Shapes: S sources, K rows of each (beams or samples), V tokens of the vocabulary, T most tokens of an output.
A search counts time in output tokens: at time t it chooses token t, and a prefix fills the first ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Protocol, TypedDict

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.types import Sequences, State

# Tokens B x n in, logits B x n x V out; the last position's logits say what comes next.
Step = Callable[[Tensor, State], tuple[Tensor, State]]


class Model(Protocol):
    """What decoding asks of a model: a state for the sources, and steps from there.

    It may also have `read(tokens, state) -> hidden, state` and `head(hidden) -> logits`, which together are `step`, and
    `longest`: how many tokens it can read of an output, or None for any number.
    """

    def start(self, source: Sequences, max_length: int) -> State: ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


def last_logits(model: Any, tokens: Tensor, state: State, number: int = 1) -> tuple[Tensor, State]:
    """A step's logits after the last `number` tokens, B x number x V; a model that can `read` makes no others."""
    if not hasattr(model, "read"):
        logits, state = model.step(tokens, state)
        return logits[:, -number:], state
    hidden, state = model.read(tokens, state)
    return model.head(hidden[:, -number:]), state


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An output: its ids (prefix included, end excluded), and what the model thinks of all that it chose itself.

    `log_prob` sums over the chosen tokens, the end included and a forced prefix excluded; `score` is
    `log_prob / length**length_penalty` over the same tokens. `finished` says that the model ended it.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """What an output may be: where each one starts and ends, and which tokens may come next."""

    bos: int | None  # None: an output begins with its prefix
    eos: int
    never: tuple[int, ...]  # tokens that no output may hold
    min_length: int
    no_repeat_ngram: int
    length_penalty: float
    forced: Tensor  # S x (longest prefix)
    start: Tensor  # S: tokens of the prefix; the search chooses from here on
    end: Tensor  # S: most tokens, the end token counted
    first: int  # the shortest prefix
    ends: frozenset[int]  # every value in `end`, known without asking the device

    @property
    def last(self) -> int:
        return max(self.ends)

    def select(self, sources: Tensor) -> Rules:
        """The rules of these sources."""
        return replace(self, forced=self.forced[sources], start=self.start[sources], end=self.end[sources])

    def history(self, num_rows: int) -> Tensor:
        """S x K x T, room for the output of each row, with the prefixes in their place."""
        history = self.forced.new_full((len(self.start), num_rows, self.last), self.eos)
        history[:, :, : self.forced.shape[1]] = self.forced[:, None]
        return history

    def begin(self, step: Step, state: State, num_rows: int) -> tuple[Tensor, State]:
        """Consumes bos and what all prefixes have room for, once a source; then K rows of each."""
        given = self.forced[:, : self.first]
        if self.bos is not None:
            given = torch.cat([self.forced.new_full((len(self.start), 1), self.bos), given], dim=1)
        logits, state = step(given, state)
        rows = torch.arange(len(self.start), device=logits.device).repeat_interleave(num_rows)
        return logits[:, -1].index_select(0, rows), state.select(rows) if num_rows > 1 else state

    def log_probs(self, logits: Tensor, history: Tensor, time: int) -> Tensor:
        """S x K x V log-probabilities of the next token, -inf where these rules forbid it."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        log_probs = logits.log_softmax(-1).view(*history.shape[:2], -1)
        for token in self.never:
            log_probs[..., token] = -torch.inf
        if self.min_length or self.no_repeat_ngram:
            self._forbid(log_probs, history[..., :time], time)
        if time < self.forced.shape[1]:
            given = torch.full_like(log_probs, -torch.inf)
            given.scatter_(-1, self.forced[:, time, None, None].expand(*history.shape[:2], 1), 0.0)
            log_probs = torch.where((time < self.start)[:, None, None], given, log_probs)
        return log_probs

    def _forbid(self, log_probs: Tensor, history: Tensor, time: int) -> None:
        ending = log_probs[..., self.eos].clone()
        early = (time - self.start < self.min_length)[:, None]
        log_probs[..., self.eos].masked_fill_(early, -torch.inf)
        if 0 < self.no_repeat_ngram <= time:
            log_probs.masked_fill_(repeats(history, self.no_repeat_ngram, log_probs.shape[-1]), -torch.inf)
        # Where nothing else is left, an output may end before its time.
        stuck = log_probs.amax(-1) == -torch.inf
        log_probs[..., self.eos] = torch.where(stuck, ending, log_probs[..., self.eos])

    def score(self, log_prob: Tensor, length: Tensor) -> Tensor:
        """log_prob / length**length_penalty; the length counts the end token."""
        return log_prob / length.clamp(min=1).to(log_prob.dtype) ** self.length_penalty

    def hypotheses(self, history: Tensor, log_prob: Tensor) -> list[list[Hypothesis]]:
        """The outputs in a history, the best of each source first; a log-probability of -inf marks an empty place."""
        answers = []
        ranges = zip(self.start.tolist(), self.end.tolist(), strict=True)
        for (start, end), rows, sums in zip(ranges, history.tolist(), log_prob.tolist(), strict=True):
            found = [self._cut(ids[:end], x, start) for ids, x in zip(rows, sums, strict=True) if x > -torch.inf]
            answers.append(sorted(found, key=rank))
        return answers

    def _cut(self, ids: list[int], log_prob: float, start: int) -> Hypothesis:
        finished = self.eos in ids
        length = ids.index(self.eos) if finished else len(ids)
        score = log_prob / (length - start + finished) ** self.length_penalty
        return Hypothesis(tuple(ids[:length]), log_prob, score, finished)


def rank(hypothesis: Hypothesis) -> tuple[bool, float]:
    """Sorts the best first: what the model ended comes before what a limit cut off."""
    return not hypothesis.finished, -hypothesis.score


class RuleOptions(TypedDict):
    """The keywords that every search takes, beside its own."""

    bos: int | None
    eos: int
    pad: int  # as bos, never part of an output
    max_length: int | Sequence[int]  # most tokens of an output (or of each), its end counted, from the prefix on
    min_length: NotRequired[int]  # fewest tokens, the end not counted, from the prefix on
    length_penalty: NotRequired[float]  # score = log_prob / length**length_penalty; the length counts the end
    no_repeat_ngram: NotRequired[int]  # no run of so many tokens comes twice; 0: allowed
    prefixes: NotRequired[Sequence[Sequence[int]] | None]  # what each output has to begin with


def make_rules(
    state: State,
    *,
    bos: int | None,
    eos: int,
    pad: int,
    max_length: int | Sequence[int],
    min_length: int = 0,
    length_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> Rules:
    """The rules for the rows of a state."""
    num_sources, device = len(state.position), state.position.device
    limits = [max_length] * num_sources if isinstance(max_length, int) else list(max_length)
    prefixes = [()] * num_sources if prefixes is None else prefixes
    if not len(limits) == len(prefixes) == num_sources:
        got = f"{len(limits)} limits and {len(prefixes)} prefixes for {num_sources} sources"
        raise RegardError("each source needs one limit and one prefix", got=got, wanted=f"{num_sources} of each")
    if not limits:
        raise RegardError("there is nothing to decode", got="a state without rows", wanted="one row a source")
    if min(limits) < 1:
        raise RegardError("an output needs room", got=f"max_length {min(limits)}", wanted="at least 1, its end")
    for row, prefix in enumerate(prefixes):
        if eos in prefix:
            raise RegardError("a forced prefix cannot hold the end token", got=list(prefix), where=f"row {row}")
    starts = [len(prefix) for prefix in prefixes]
    if bos is None and min(starts) == 0:
        raise RegardError("an output needs a token to begin with", got="no bos, and an empty prefix", wanted="either")
    ends = [start + limit for start, limit in zip(starts, limits, strict=True)]
    longest = max(starts)
    padded = [[*prefix, *[eos] * (longest - len(prefix))] for prefix in prefixes]
    return Rules(
        bos=bos,
        eos=eos,
        never=tuple(token for token in {bos, pad} - {eos} if token is not None),
        min_length=min_length,
        no_repeat_ngram=no_repeat_ngram,
        length_penalty=length_penalty,
        forced=torch.tensor(padded, dtype=torch.long, device=device).view(num_sources, longest),
        start=torch.tensor(starts, dtype=torch.long, device=device),
        end=torch.tensor(ends, dtype=torch.long, device=device),
        first=min(starts),
        ends=frozenset(ends),
    )


def repeats(history: Tensor, size: int, vocab_size: int) -> Tensor:
    """True for each token that would complete an n-gram of this size for the second time.

    >>> repeats(torch.tensor([[1, 2, 0, 1]]), 2, 3).tolist()
    [[False, False, True]]
    """
    ngrams = history.unfold(-1, size, 1)
    recent = history[..., history.shape[-1] - size + 1 :]
    again = (ngrams[..., :-1] == recent[..., None, :]).all(-1)
    counts = torch.zeros(*history.shape[:-1], vocab_size, device=history.device)
    return counts.scatter_add_(-1, ngrams[..., -1], again.float()) > 0
