"""Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): a small model guesses, the large one checks.

The draft guesses a few tokens, one after the other; the model checks all of them in one step, keeps those that it
could have said itself, and says the next one itself. What comes out is what the model alone would say: the same tokens
where it is greedy, the same distribution where it draws.

The papers let the model draw one more token after guesses that were all taken. Here the draft guesses that one too, so
that a token depends on those before it and on its own random numbers only, and rows are alike in every batch.

Shapes: R rows (sources x samples), G guesses, V tokens of the vocabulary, T most tokens of an output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decode.loop import Steps, check, index
from regard.decode.rules import Hypothesis, Model, Rules, last_logits, rank
from regard.decode.sampling import Sharpen, draw
from regard.errors import RegardError
from regard.types import State


@dataclass(slots=True)
class Draft:
    """A model that guesses for another one with the same vocabulary, and what became of its guesses."""

    model: Model
    proposed: int = 0
    accepted: int = 0

    @property
    def share(self) -> float:
        """How many of the guesses were taken, of 1."""
        return self.accepted / max(1, self.proposed)


def speculate(
    model: Model,
    state: State,
    draft: Draft,
    draft_state: State,
    rules: Rules,
    *,
    guesses: int,
    sharpen: Sharpen,
    uniform: Tensor,
) -> Steps:
    """Decodes with at most `guesses` tokens of the draft in a step; K outputs of each source.

    Both models draw from their `sharpen`ed log-probabilities, by the numbers `uniform` (3 x S x K x T): one to guess,
    one to take the guess or not, one to draw where it is not taken.
    """
    num_sources, num_samples = len(rules.start), uniform.shape[2]
    rows = torch.arange(num_sources, device=uniform.device).repeat_interleave(num_samples)
    rules, uniform = rules.select(rows), uniform.flatten(1, 2)
    large = _Reader.make(model, state, rows, "the model's")
    small = _Reader.make(draft.model, draft_state, rows, "the draft's")
    text = _Text.make(rules)
    found: list[list[Hypothesis]] = [[] for _ in range(num_sources)]
    places = rows.tolist()
    while True:
        # no row may read beyond its end, where there is no room: the first to come there sets the pace
        number = min(guesses, *(end - known for end, known in zip(text.ends, text.known, strict=True)))
        guessed = torch.stack([_guess(small, text, rules, i, sharpen, uniform[0]) for i in range(number)], dim=1)
        logits = large.logits(text, number - 1, number)
        own = torch.stack([text.log_probs(rules, logits[:, i], i) for i in range(number)], dim=1)
        chosen, taken = _decide(text, sharpen(own).exp(), guessed, uniform)
        gains = own.gather(2, chosen[..., None])[..., 0]
        ended = text.extend(chosen.tolist(), taken.tolist(), gains.tolist(), rules.eos, draft)
        check([total > -torch.inf for total in text.totals], places, min(text.known))
        yield text.history[0, 0, : text.known[0]]
        if not any(ended):
            continue
        gone, kept = index(ended, True, rows.device), index(ended, False, rows.device)
        totals = torch.tensor(text.totals, dtype=torch.float64, device=rows.device)[gone, None]
        outputs = rules.select(gone).hypotheses(text.history[gone], totals)
        for row, hypotheses in zip(gone.tolist(), outputs, strict=True):
            found[places[row]] += hypotheses
        if not len(kept):
            return [sorted(hypotheses, key=rank) for hypotheses in found]
        rules, uniform = rules.select(kept), uniform[:, kept]
        places = [place for place, out in zip(places, ended, strict=True) if not out]
        for part in (large, small, text):
            part.select(kept)


def accept(wanted: Tensor, guessed: Tensor, tokens: Tensor, uniform: Tensor) -> Tensor:
    """Whether each guess is taken: with probability min(1, p / q), for probabilities .. x V and tokens of q.

    >>> p, q = torch.tensor([0.2, 0.8]), torch.tensor([0.8, 0.2])
    >>> [bool(accept(p, q, torch.tensor(0), torch.tensor(u))) for u in (0.24, 0.26)]
    [True, False]
    """
    p, q = (probs.gather(-1, tokens[..., None])[..., 0] for probs in (wanted, guessed))
    return uniform.to(q.dtype) * q < p


def rest(wanted: Tensor, guessed: Tensor) -> Tensor:
    """Log-probabilities of what is drawn where a guess was not taken: max(0, p - q), to sum 1 (.. x V).

    >>> rest(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.75, 0.0])).exp().tolist()
    [0.5, 0.0, 0.5]
    """
    left = (wanted - guessed).clamp(min=0)
    # p = q but for rounding: there is nothing left, and nothing to mend
    return torch.where(left.sum(-1, keepdim=True) > 0, left, wanted).log().log_softmax(-1)


def certain(log_probs: Tensor) -> Tensor:
    """All probability for the likeliest token: to draw from this is greedy search."""
    best = log_probs.argmax(-1, keepdim=True)
    return torch.full_like(log_probs, -torch.inf).scatter_(-1, best, 0.0)


@dataclass(slots=True)
class _Text:
    """What each row holds: every row is at a place of its own."""

    ids: Tensor  # R x (lead + T)
    lead: int  # tokens before the output: 1 where there is a bos
    known: list[int]  # R: how many output tokens are settled
    ends: list[int]  # R
    totals: list[float]  # R: log-probability of what was chosen

    @classmethod
    def make(cls, rules: Rules) -> _Text:
        ids = rules.history(1)[:, 0]
        if rules.bos is not None:
            ids = torch.cat([ids.new_full((len(ids), 1), rules.bos), ids], dim=1)
        ends = rules.end.tolist()
        return cls(ids, int(rules.bos is not None), [rules.first] * len(ends), ends, [0.0] * len(ends))

    @property
    def history(self) -> Tensor:
        return self.ids[:, None, self.lead :]

    def places(self, ahead: int) -> Tensor:
        """R: the place of the output token that comes `ahead` tokens after the settled ones."""
        return torch.tensor(self.known, device=self.ids.device) + ahead

    def put(self, tokens: Tensor, places: Tensor) -> None:
        self.ids.scatter_(1, places[:, None] + self.lead, tokens[:, None])

    def log_probs(self, rules: Rules, logits: Tensor, ahead: int) -> Tensor:
        """R x V, by the rules for the time at which each row is."""
        times = [known + ahead for known in self.known]
        if len(set(times)) == 1:
            return rules.log_probs(logits, self.history, times[0])[:, 0]
        parts = {t: index([time == t for time in times], True, logits.device) for t in set(times)}
        found = [rules.select(rows).log_probs(logits[rows], self.history[rows], t)[:, 0] for t, rows in parts.items()]
        return torch.cat(found)[torch.cat(list(parts.values())).argsort()]

    def extend(
        self,
        chosen: list[list[int]],
        taken: list[int],
        gains: list[list[float]],
        eos: int,
        draft: Draft,
    ) -> list[bool]:
        """Settles the guesses that were taken and the token after them; says which rows that ends."""
        ended = []
        for row, tokens in enumerate(chosen):
            tokens = tokens[: taken[row] + 1]
            number = tokens.index(eos) + 1 if eos in tokens else len(tokens)
            self.known[row] += number
            self.totals[row] += sum(gains[row][:number])
            ended.append(eos in tokens or self.known[row] >= self.ends[row])
            draft.proposed += number if ended[row] else len(gains[row])  # guesses after the end were none
            draft.accepted += min(taken[row], number)
        return ended

    def select(self, rows: Tensor) -> None:
        kept = rows.tolist()
        self.ids, self.totals = self.ids[rows], [self.totals[row] for row in kept]
        self.known, self.ends = [self.known[row] for row in kept], [self.ends[row] for row in kept]


@dataclass(slots=True)
class _Reader:
    """A model, and how much of each row it has read."""

    model: Model
    state: State
    read: list[int]

    @classmethod
    def make(cls, model: Model, state: State, rows: Tensor, whose: str) -> _Reader:
        stuck = sorted(set(state.cache) - state.timed)
        if stuck:
            raise RegardError(
                "speculative decoding takes guesses back, which a recurrent state cannot",
                got=f"{whose} {', '.join(stuck)}",
                wanted="two models whose states are attention caches only",
                remedy="decode without a draft",
            )
        return cls(model, state.select(rows) if len(rows) > len(state.position) else state, [0] * len(rows))

    def logits(self, text: _Text, ahead: int, number: int) -> Tensor:
        """Reads each row up to `ahead` tokens after the settled ones; the logits after the last `number` of all."""
        lengths = [text.lead + known + ahead for known in text.known]
        # what was read beyond the settled tokens were guesses: they are forgotten, and rows step in one width
        behind = max(length - min(read, length - number) for length, read in zip(lengths, self.read, strict=True))
        begins = torch.tensor(lengths, device=text.ids.device) - behind
        if any(read > length - behind for length, read in zip(lengths, self.read, strict=True)):
            self.state = self.state.truncate(begins)
        tokens = text.ids.gather(1, begins[:, None] + torch.arange(behind, device=begins.device))
        found, self.state = last_logits(self.model, tokens, self.state, number)
        self.read = lengths
        return found

    def select(self, rows: Tensor) -> None:
        state = self.state.select(rows)
        # the furthest row may have gone: the bound is that of the others, or steps would outgrow the cache
        self.state, self.read = state.truncate(state.position), [self.read[row] for row in rows.tolist()]


def _guess(small: _Reader, text: _Text, rules: Rules, ahead: int, sharpen: Sharpen, uniform: Tensor) -> Tensor:
    """Puts the next guess into each row; the probabilities that it was drawn from, R x V."""
    log_probs = sharpen(text.log_probs(rules, small.logits(text, ahead, 1)[:, 0], ahead))
    places = text.places(ahead)
    text.put(draw(log_probs, uniform.gather(1, places[:, None])[:, 0]), places)
    return log_probs.exp()


def _decide(text: _Text, wanted: Tensor, guessed: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of each row, R x G, and how many of them are guesses that were taken. After these comes one of the
    model's own, which is put into the row too; what follows it counts for nothing."""
    number = guessed.shape[1]
    places = text.places(0)[:, None] + torch.arange(number, device=guessed.device)
    tokens = text.ids.gather(1, places + text.lead)
    fine = accept(wanted, guessed, tokens, uniform[1].gather(1, places))
    taken = fine.long().cumprod(1).sum(1)
    rows, at = torch.arange(len(taken), device=taken.device), taken.clamp(max=number - 1)
    own = draw(rest(wanted[rows, at], guessed[rows, at]), uniform[2].gather(1, places)[rows, at])
    own = torch.where(taken < number, own, tokens[rows, at])
    text.put(own, places[rows, at])
    return tokens.scatter(1, at[:, None], own[:, None]), taken
