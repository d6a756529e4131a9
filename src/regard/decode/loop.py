"""The loop that every search runs in: ask the model, let the search choose, drop the sources that are done.

Shapes: S sources that are still in the batch, K rows of each (beams or samples), V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from regard.decode.rules import Hypothesis, Rules, Step
from regard.errors import RegardError
from regard.types import State

T = TypeVar("T")
# A search under way: after each step what the first row holds so far, and in the end the answers.
Steps = Generator[Tensor, None, list[list[Hypothesis]]]


class Move(NamedTuple):
    """What a search chose: the next token of each row, and whose past it continues."""

    tokens: Tensor  # S x K
    parents: Tensor | None  # S x K: the row of the state that each row goes on from; None: its own
    over: Tensor  # S: nothing is left to search for this source
    possible: Tensor  # S: there was a next token to choose


class Search(Protocol):
    """The part of a search that is its own; the loop below is the rest."""

    history: Tensor  # S x K x T: the output of each row so far
    delay: ClassVar[int]  # 1 where a token is only settled once the model has read it, else 0

    def advance(self, log_probs: Tensor, rules: Rules, time: int) -> Move:
        """Takes log-probabilities S x K x V and chooses token number `time` of each row."""
        ...

    def select(self, sources: Tensor) -> None:
        """Goes on with these sources only."""
        ...

    def collect(self, rules: Rules, sources: Tensor) -> list[list[Hypothesis]]:
        """The answers for these sources, which are over; the best of each first."""
        ...


def run(search: Search, step: Step, state: State, rules: Rules) -> list[list[Hypothesis]]:
    """Steps until every source is over; answers in the order of the state's rows."""
    return finish(steps(search, step, state, rules))


def finish(under_way: Generator[Any, None, T]) -> T:
    """What a generator returns in the end."""
    while True:
        try:
            next(under_way)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def steps(search: Search, step: Step, state: State, rules: Rules) -> Steps:
    """As `run`, one step at a time."""
    answers: list[list[Hypothesis]] = [[] for _ in range(len(rules.start))]
    places, num_rows = list(range(len(answers))), search.history.shape[1]
    logits, state = rules.begin(step, state, num_rows)
    for time in range(rules.first, rules.last + search.delay):
        log_probs = rules.log_probs(logits, search.history, time)
        tokens, parents, over, possible = search.advance(log_probs, rules, time)
        ended, fine = torch.stack([over, possible]).tolist()  # the one wait for the device in a step
        check(fine, places, time)
        yield search.history[0, 0, : time + 1 - search.delay]
        if worth_dropping(ended):
            gone, kept = index(ended, True, over.device), index(ended, False, over.device)
            for row, found in zip(gone.tolist(), search.collect(rules.select(gone), gone), strict=True):
                answers[places[row]] = found
            if not len(kept):
                break
            rows = rows_of(kept, num_rows)
            state = state.select(rows if parents is None else parents.flatten()[rows])
            search.select(kept)
            rules, tokens = rules.select(kept), tokens[kept]
            places = [place for place, out in zip(places, ended, strict=True) if not out]
        elif parents is not None:
            # candidates that wait to be settled share all that is
            state = state.reorder(parents.flatten(), last=search.delay or None)
        logits, state = step(tokens.reshape(-1, 1), state)
        logits = logits[:, -1]
    return answers


def worth_dropping(ended: list[bool]) -> bool:
    """Whether enough sources are over to pay for copying the state of the others.

    >>> worth_dropping([True, False, False]), worth_dropping([True] + [False] * 7)
    (True, False)
    """
    return 4 * sum(ended) >= len(ended)


def rows_of(sources: Tensor, num_rows: int) -> Tensor:
    """The rows of the state that belong to these sources.

    >>> rows_of(torch.tensor([0, 2]), 2).tolist()
    [0, 1, 4, 5]
    """
    return (sources[:, None] * num_rows + torch.arange(num_rows, device=sources.device)).flatten()


def index(flags: list[bool], wanted: bool, device: torch.device) -> Tensor:
    """Where a flag is as wanted."""
    return torch.tensor([i for i, flag in enumerate(flags) if flag is wanted], dtype=torch.long, device=device)


def check(possible: list[bool], places: list[int], time: int) -> None:
    """Raises where a row has no next token: NaN must never become an output."""
    # a search reports it here instead of waiting for the device itself
    if not all(possible):
        raise RegardError(
            "the model gives no possible next token",
            got="logits that are NaN, or -inf for every token allowed here",
            wanted="finite logits",
            where=f"token {time + 1} of the output for row {places[possible.index(False)]} of the batch",
            remedy="look for NaN in the weights; where they are finite, decode in float32",
        )
