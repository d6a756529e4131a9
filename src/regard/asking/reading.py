"""From passages to an answer: words of a passage that a reader points at, or words that a model writes after it.

Every passage is read by itself, and a passage further down must be surer: what it says counts 1 / rank. A reader that
met texts without an answer says how probable each span is against "nothing here", and these odds compare across
passages, as those of a text's windows do. One that always had the answer before it can only say which span of a passage
it would be: there the probability within the passage is shared out over the passages, and an answer is always given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from regard.asking.finding import Hit
from regard.data.readers import data_suffix
from regard.data.squad import TAB, as_prompt
from regard.errors import RunError
from regard.run import Run
from regard.tasks import question_answering, text_to_text, translation

LEARNED = 0.05  # share of the training rows without an answer from which on "nothing here" means something


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and where it comes from."""

    text: str
    score: float  # the probability of words that were extracted; of those that were written, mean log a token
    hit: Hit
    place: tuple[int, int] | None  # from which to which character of the passage it stands there; None: nowhere

    @property
    def span(self) -> tuple[int, int] | None:
        """From which to which character of the file."""
        start = self.hit.passage.start
        return None if self.place is None else (start + self.place[0], start + self.place[1])

    @property
    def line(self) -> int:
        """The line of the file that it begins in, or else that its passage begins in."""
        return self.hit.passage.line_of(self.place[0] if self.place else 0)


class Reading(Protocol):
    """What answers a question from passages."""

    writes: bool  # and does not extract

    def answers(self, question: str, hits: Sequence[Hit], number: int, **decode: Any) -> list[Answer]:
        """The best answers, the best first, no two of the same words; none where the passages have none."""

    def source(self, question: str, hit: Hit) -> str:
        """What the run reads of one passage."""


class Extracts:
    """The words of a passage, by a run of question answering."""

    writes = False

    def __init__(self, run: Run) -> None:
        self.run = run

    def answers(self, question: str, hits: Sequence[Hit], number: int, **decode: Any) -> list[Answer]:
        """The best spans of all passages, and their probabilities."""
        subject = self.run.subject(decode | {"n_best": number})
        pairs = [(question, hit.passage.text) for hit in hits]
        places = ["the question"] * len(pairs)
        read = subject.task.answers(subject.model, pairs, subject.decode, device=subject.device, places=places)
        known = subject.task.known
        learned = known.unanswerable > 0 or known.empty >= LEARNED
        less = [math.log(rank) + (0.0 if learned else each.total) for rank, each in enumerate(read, 1)]
        totals = [each.total - by for each, by in zip(read, less, strict=True)] + ([0.0] if learned else [])
        total = float(torch.tensor(totals, dtype=torch.float64).logsumexp(0))
        spans = [
            (span.odds - by, span, hit) for each, by, hit in zip(read, less, hits, strict=True) for span in each.found
        ]
        spans.sort(key=lambda row: -row[0])
        if not spans or (learned and spans[0][0] < known.threshold):
            return []
        return _distinct(
            [
                Answer(hit.passage.text[span.start : span.end], math.exp(odds - total), hit, (span.start, span.end))
                for odds, span, hit in spans
            ],
            number,
        )

    def source(self, question: str, hit: Hit) -> str:
        """Question and passage with a tab between."""
        return f"{question.replace(TAB, ' ')}{TAB}{hit.passage.text}"


class Writes:
    """Words of its own, by a run that learned to answer `question: .. context: ..`."""

    writes = True

    def __init__(self, run: Run, prefix: str) -> None:
        self.run, self.prefix = run, prefix

    def answers(self, question: str, hits: Sequence[Hit], number: int, **decode: Any) -> list[Answer]:
        """One answer a passage, by their scores and ranks; an empty one says that the passage has none."""
        said = self.run.predict([self.source(question, hit) for hit in hits], **{**decode, "n_best": 1})
        found = []
        for rank, (hit, each) in enumerate(zip(hits, said, strict=True), 1):
            if each.text.strip():
                place = hit.passage.text.find(each.text)
                where = None if place < 0 else (place, place + len(each.text))
                found.append((each.scores[0] - math.log(rank), Answer(each.text, each.scores[0], hit, where)))
        found.sort(key=lambda pair: -pair[0])
        return _distinct([answer for _, answer in found], number)

    def source(self, question: str, hit: Hit) -> str:
        """The prompt that it was trained with."""
        return self.prefix + as_prompt(question, hit.passage.text)


def reading_of(run: Run) -> Reading:
    """How a run answers; an error for one that cannot."""
    task, recipe = run.task, run.recipe
    if isinstance(task, question_answering.Task):
        return Extracts(run)
    if isinstance(task, text_to_text.Task):
        prefixes = [part.prefix for part in task.parts if _is_squad(part.train)]
    else:
        prefixes = [""] if type(task) is translation.Task and _is_squad(recipe.data.train) else []
    if not prefixes:
        raise RunError(
            "this run cannot answer questions",
            got=recipe.task_name,
            wanted="a run of question-answering, or one of text-to-text with a part that trained on SQuAD's .json",
            where=run.folder,
            remedy="docs/ask.md trains a small one",
        )
    return Writes(run, prefixes[0])


def _is_squad(files: Sequence[str]) -> bool:
    return len(files) == 1 and data_suffix(Path(files[0])) == ".json"


def _distinct(answers: Sequence[Answer], number: int) -> list[Answer]:
    best: dict[str, Answer] = {}
    for answer in answers:
        best.setdefault(answer.text, answer)
    return list(best.values())[:number]
