"""Heads off, one at a time or for good, judged by examples with their right answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.look import intervene, relevance
from regard.looking.subject import BATCH_TOKENS, OnStep, Subject, joined, losses, target_of
from regard.types import Batch, Example


def heads_to_switch(model: Any) -> list[intervene.Head]:
    """The heads that can be switched off; none where a family has no such heads."""
    try:
        return intervene.all_heads(model)
    except RegardError:
        return []


def ablate(
    subject: Subject,
    examples: Sequence[Example],
    heads: Sequence[intervene.AnyHead] | None = None,
    *,
    mode: intervene.Mode = "mask",
    answers: bool = True,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """What changes in loss, metrics and answers while each of these heads (all without them) is off."""
    judge = Judge(subject, examples, answers=answers)
    chosen = intervene.all_heads(subject.model) if heads is None else intervene.named(subject.model, heads)
    means = judge.means() if mode == "mean" else None
    score = counted(judge.score, 1 + len(chosen), on_step)
    return intervene.ablate(subject.model, score, chosen, mode, means)


def prune_curve(
    subject: Subject,
    examples: Sequence[Example],
    keep: int,
    *,
    chosen_by: Sequence[Example],
    answers: bool = True,
    on_step: OnStep | None = None,
) -> list[dict[str, Any]]:
    """What the model is worth as its least important heads go, one after the other, until `keep` are left.

    `examples` judge, and `chosen_by` say which heads are the least important.
    """
    judge, chooser = (Judge(subject, some, answers=answers) for some in (examples, chosen_by))
    total = 1 + len(intervene.all_heads(subject.model)) - keep
    score = counted(judge.score, total, on_step)
    return intervene.prune_curve(subject.model, score, chooser.importance, keep=keep)


class Judge:
    """What a model is worth on some examples: the loss a token, and the task's metrics of its answers."""

    def __init__(self, subject: Subject, examples: Sequence[Example], *, answers: bool) -> None:
        # answers that no metric judges are not worth their time
        self.subject, self.examples, self.answers = subject, examples, answers and hasattr(subject.task, "score")
        self.rows = [subject.pair(example) for example in examples]
        self.batches = [joined(subject, rows) for rows in by_length(self.rows)]
        self.first: list[str] | None = None  # the answers of the first call, of the whole model

    def score(self) -> dict[str, Any]:
        """The loss; where wanted the answers, their metrics, and how many percent are not what they were at first."""
        with torch.no_grad():
            total = sum(float(losses(self.subject, batch).sum(dtype=torch.float64)) for batch in self.batches)
        count = sum(map(self.subject.count, self.batches))
        found: dict[str, Any] = {"loss": total / count}
        if self.answers:
            subject, sources = self.subject, [example.source for example in self.examples]
            predictions = subject.task.predict(subject.model, sources, subject.decode, device=subject.device)
            answers = [prediction.text for prediction in predictions]
            self.first = self.first or answers
            changed = sum(old != new for old, new in zip(self.first, answers, strict=True))
            found |= {score.name: score.value for score in subject.task.score(predictions, self.examples)}
            found |= {"answers": answers, "changed": 100 * changed / len(answers)}
        return found

    def importance(self) -> dict[str, Tensor]:
        """How much the loss depends on each head."""
        runs = (partial(losses, self.subject, batch) for batch in self.batches)
        return relevance.head_importance(self.subject.model, runs)

    def means(self) -> dict[str, Tensor]:
        """What each head gives on average."""

        def run() -> None:
            for row in self.rows:  # one by one: padding would count
                self.subject.model.hidden(row.to(self.subject.device))

        return intervene.mean_outputs(self.subject.model, run)


def by_length(rows: Sequence[Batch]) -> list[list[Batch]]:
    """Rows of like length together, each group within the budget of tokens."""

    def length(row: Batch) -> int:
        return row.source.ids.shape[1] + target_of(row).ids.shape[1]

    groups: list[list[Batch]] = []
    for row in sorted(rows, key=length, reverse=True):
        if not groups or (len(groups[-1]) + 1) * length(groups[-1][0]) > BATCH_TOKENS:
            groups.append([])
        groups[-1].append(row)
    return groups


def counted(score: Callable[[], dict[str, Any]], total: int, on_step: OnStep | None) -> Callable[[], dict[str, Any]]:
    """The same, and after each call it is said how many were made."""
    done = 0

    def call() -> dict[str, Any]:
        nonlocal done
        found = score()
        done += 1
        if on_step is not None:
            on_step(done, total)
        return found

    return call
