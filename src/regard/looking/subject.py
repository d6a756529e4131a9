"""The model that is looked into, and single passes over a text and its answer.

Everything that is said of a text is said of one teacher-forced pass over its answer, the one that won the search: row
i of the decoder has read <s> and the first i tokens (the axis `prefix`) and writes token i (the axis `target`). A model
that only reads has one axis, `source`; its `target` is the label, a row that is read from the states of the text. A
model of one text says something at some of its places, those with a label: how the text goes on after each (`target`),
or what was hidden there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.batching import NONE
from regard.data.tokenizers import PAD
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import ConfigError
from regard.look.collect import NoAttention, observe
from regard.types import Axis, Batch, Example, Sequences, Trace

BATCH_TOKENS = 8192  # of passes that are made together
OnStep = Callable[[int, int], None]  # told how many are done, of how many


@dataclass(frozen=True, eq=False)
class Subject:
    """The trained model that is looked into."""

    model: Any  # with the contract of `regard.models`
    task: Any
    device: torch.device
    decode: DecodeConfig
    folder: Path  # of the run
    family: str
    purpose: str  # the name of the task
    kind: str = "seq2seq"  # of the model, see `regard.models`

    @property
    def name(self) -> str:
        return str(self.folder)

    @property
    def about(self) -> str:
        """One sentence."""
        return f"{self.family}, {self.num_parameters:,} parameters, trained for {self.purpose}"

    @property
    def only_reads(self) -> bool:
        """Whether it answers with a label, and not with a text."""
        return hasattr(self.task, "places")

    @property
    def speaks_in_place(self) -> bool:
        """Whether its answers are labels of places of its one text: how it goes on, or what is hidden there."""
        return self.kind != "seq2seq" and not self.only_reads

    def reads_units(self, axis: str) -> bool:
        """Whether the keys of an attention are what the task calls its units: sentences, not tokens."""
        return axis == getattr(self.task, "units_axis", None)

    @property
    def marks(self) -> set[int]:
        """The ids that stand in a text and are none of its words, as those of its gaps."""
        tokenizer = self.task.tokenizer if hasattr(self.task, "tokenizer") else self.task.source
        return {*tokenizer.markers, *getattr(self.task, "sentinels", ())}

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def log_probs(self, batch: Batch) -> Tensor:
        """The log-probability of each token that the rows write."""
        found: Tensor = self.task.log_probs(self.model, batch.to(self.device))
        return found

    def count(self, batch: Batch) -> int:
        """Of how many answers `log_probs` speaks: tokens, or labelled texts."""
        if self.speaks_in_place:
            return int((target_of(batch).ids >= 0).sum())
        return len(batch.source.ids) if self.only_reads else int((target_of(batch).lengths - 1).sum())

    def pair(self, example: Example) -> Batch:
        """A text and its first right answer as one row, or all of its labels."""
        target = ",".join(example.targets) if self.only_reads else example.targets[0]
        batch: Batch = self.task.pair(example.source, target)[0]
        return batch

    def answer(self, text: str) -> tuple[str, tuple[int, ...]]:
        """What the model says: the best text, and the tokens that it is made of."""
        prediction = self.task.predict(self.model, [text], self.decode, device=self.device)[0]
        return prediction.text, tuple(prediction.ids[0])


def observed(subject: Subject, batch: Batch, axes: dict[str, Axis]) -> Trace:
    """What the attentions weigh in one teacher-forced pass, with the tokens that stand along them."""
    try:
        with torch.no_grad(), observe(subject.model) as trace:
            subject.model.hidden(batch.to(subject.device))
    except NoAttention:
        raise ConfigError(
            "this model has no attention to look at",
            got=subject.about,
            wanted="a family with attention",
            where=subject.name,
            remedy='train it again with model.attention = "additive" or "multiplicative"'
            if subject.kind == "seq2seq"
            else "another model.family, as gpt or bert",
        ) from None
    if not any(view.shape[-1] for view in trace):  # hops of a memory network, which read sentences
        raise ConfigError(
            "there is nothing that the attention could read",
            got=f"{subject.about}, and one text alone",
            wanted="a story and a question, with a tab between each sentence",
            where=subject.name,
            remedy="another model.family for this task, as bert",
        )
    for view in trace:
        if subject.kind != "seq2seq" and view.keys_axis in ("", "source", "target"):
            view.rows_axis = "target" if subject.kind == "causal" else "source"  # type: ignore[misc]
            view.keys_axis = "source"  # type: ignore[misc]
        elif subject.kind != "seq2seq" and not view.rows_axis:  # which reads no text, but is one
            view.rows_axis = "target" if subject.kind == "causal" else "source"  # type: ignore[misc]
        # a decoder's rows are named by what they write, its keys by what it has read
        elif view.kind == "self" and view.rows_axis == "target":
            view.keys_axis = "prefix"  # type: ignore[misc]
    info = {"run": subject.name, "model": subject.about, "text": axes["source"].text, "answer": axes["target"].text}
    if subject.kind == "causal":  # what was given, and how it goes on from there
        given = axes["target"].offsets[int((target_of(batch).ids[0] >= 0).int().argmax())][0]
        info |= {"text": info["text"][:given], "answer": info["answer"][given:]}
    cut = None if subject.kind == "causal" else cut_to(axes["source"])
    return replace(trace, axes=axes, info=info if cut is None else {**info, "cut": cut})


def cut_to(axis: Axis) -> int | None:
    """The tokens that were read of a text that was too long (data.max_length), None where all of it was read.

    >>> cut_to(Axis("source", ("a", "</s>"), ((0, 1), (3, 3)), "a b")), cut_to(Axis("source", ("</s>",), ((0, 0),), ""))
    (1, None)
    >>> cut_to(Axis("source", ("b", "</s>"), ((2, 3), (3, 3)), "a b"))  # of a conversation the end is read
    1
    """
    *tokens, _ = axis.offsets  # </s> stands at the end of the whole text
    begin, end = (tokens[0][0], tokens[-1][1]) if tokens else (0, 0)
    return len(tokens) if (axis.text[:begin] + axis.text[end:]).strip() else None


def losses(subject: Subject, batch: Batch) -> Tensor:
    """The loss of each row: the negative log-probability of its target."""
    return -subject.log_probs(batch).sum(1)


def rows_at_once(batch: Batch) -> int:
    """How many copies of a batch's one row are run together."""
    return max(1, BATCH_TOKENS // (batch.source.ids.shape[1] + target_of(batch).ids.shape[1]))


def repeated(batch: Batch, number: int) -> Batch:
    """The one row of a batch, so many times."""

    def many(one: Sequences) -> Sequences:
        return one.each(lambda tensor: tensor.expand(number, *tensor.shape[1:]))

    return replace(batch, source=many(batch.source), target=many(target_of(batch)))


def joined(subject: Subject, batches: Sequence[Batch]) -> Batch:
    """Batches of one row each as one, padded."""

    def stacked(rows: Sequence[Sequences], pad: int) -> Sequences:
        branches = [row.branches[0].tolist() for row in rows if row.branches is not None]
        return pad_rows([row.ids[0].tolist() for row in rows], pad, branches or None)

    targets = stacked([target_of(batch) for batch in batches], NONE if subject.speaks_in_place else PAD)
    return Batch(stacked([batch.source for batch in batches], PAD), targets)


def target_of(batch: Batch) -> Sequences:
    assert batch.target is not None
    return batch.target
