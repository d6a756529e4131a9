"""Relation extraction: texts in which two entities are marked, in; how the two relate, out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import key
from regard.data.config import DataConfig
from regard.data.markers import (
    MARKS,
    MarkedTokenizer,
    changed_around,
    need_marked,
    places_to_keep,
    read_marked,
    train_marked,
)
from regard.data.noise import Noise
from regard.data.parts import in_split
from regard.data.readers import ReadReport
from regard.data.unread import policy_of
from regard.decode.config import DecodeConfig
from regard.errors import require
from regard.layers.classifier import Classifier, Pooling
from regard.layers.relation import RelationClassifier
from regard.tasks import classification
from regard.tasks.metrics import Score
from regard.tasks.texts import OnBatch, Paths, split_paths
from regard.types import Axis, Batch, Example, Prediction

SUMMARY = "texts with two marked entities in, a model that says how the two relate"
KIND, FILES, TAKES = classification.KIND, classification.FILES, classification.TAKES
DECODE = classification.DECODE
DIRECTION = re.compile(r"\((e1,e2|e2,e1)\)$")


@dataclass(frozen=True, kw_only=True)
class Config(classification.Config):
    """The `[task]` section of a relation recipe: classification's keys, and one more."""

    pooling: Pooling = key(
        "first",
        "what stands for the whole text beside its entities: the first state, the mean, the largest (max), both, "
        "the last, or the family's own (pooled)",
    )
    ignore: tuple[str, ...] = key(
        ("Other",), "relations that macro_f1 leaves out: those that mean none", may_change=True
    )


def read_split(
    config: classification.Config,
    data: DataConfig,
    paths: Paths,
    name: str,
    report: ReadReport,
    known: Sequence[str] = (),
) -> Iterator[Example]:
    """The examples of a split; where validation has no file, it is a share of the training file by their texts."""
    examples = read_marked(
        split_paths(paths, data, name),
        multi_label=config.multi_label,
        known=known,
        on_bad_line=data.on_bad_line,
        report=report,
    )
    return in_split(examples, data, name, _with_noise)


def _with_noise(noise: Noise, example: Example) -> Example:
    """Mistakes around the entities, typos in them: marks stay, and no entity is left out."""
    return replace(example, source=changed_around(example.source, noise.text, noise.typos))


class Task(classification.Task):
    """A classification of texts by how their two entities relate."""

    config: Config
    read_split = staticmethod(read_split)
    train_tokenizer = staticmethod(train_marked)
    load_tokenizer = staticmethod(MarkedTokenizer.load)

    def __init__(self, config: Config, data: DataConfig, **words: Any) -> None:
        fewest = 2 * len(MARKS)
        require(
            data.max_length >= fewest,
            "data.max_length has no room for two entities and their marks",
            got=data.max_length,
            wanted=f"{fewest} or more",
        )
        super().__init__(config, data, **words)

    def dress(self, model: Any) -> Classifier:
        """The encoder with the layers that read the text and its entities, and say the label."""
        self._need_branches(model)
        return RelationClassifier(
            model,
            markers=self.tokenizer.markers,
            num_classes=len(self.classes.labels),
            pooling=self.config.pooling,
            dropout=self.config.dropout,
            weights=self._weights(),
            ngrams=self._ngrams(),
        )

    def read(self, path: Path, report: ReadReport | None = None) -> Iterator[Example]:
        """The texts of a file that is to be answered or looked at, with the labels that it has."""
        multi, policy = self.config.multi_label, policy_of(report)
        return read_marked([path], multi_label=multi, need_labels=False, on_bad_line=policy, report=report)

    def kept(self, ids: Sequence[int]) -> list[int]:
        """Which places of a text are read where it is longer than `data.max_length`: its entities, and what is near."""
        return places_to_keep(ids, self.tokenizer.markers, self.data.max_length)

    def predict(
        self,
        model: Classifier,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """The relation of each text's two entities with its probability; an empty text has none."""
        need_marked(sources, first_index)
        return super().predict(model, sources, config, device=device, on_batch=on_batch, first_index=first_index)

    def need(self, source: str, number: int) -> None:
        """Raises where a text does not have its two entities marked, or is longer than is read."""
        need_marked([source], number - 1)
        super().need(source, number)

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text and its label as one row, and what stands along it: `source`, `target`."""
        need_marked([source])
        return super().pair(source, target)

    def _scores(
        self, said: Tensor, right: Tensor, sure: Tensor | None = None, hit: Tensor | None = None
    ) -> list[Score]:
        scores = super()._scores(said, right, sure, hit)
        macro = relation_f1(said, right, self.classes.labels, self.config.ignore)
        return [macro if score.name == macro.name else score for score in scores]


def relation_f1(said: Tensor, right: Tensor, labels: Sequence[str], ignore: Sequence[str]) -> Score:
    """The mean F1 of the relations that are right anywhere, in percent, of N x C decisions; some may be left out.

    As the official scorer of SemEval-2010 task 8 (version 1.2) has it: both directions of a relation, `(e1,e2)` and
    `(e2,e1)` at the end of a label, are one relation, and an answer with the wrong direction is a wrong one. Labels
    without a direction are relations as they are.

    >>> labels = ["Cause(e1,e2)", "Cause(e2,e1)", "Other"]
    >>> said, right = torch.eye(3)[[0, 0, 2]], torch.eye(3)[[0, 1, 2]]  # the second has the wrong direction
    >>> relation_f1(said, right, labels, ["Other"]).value
    50.0
    """
    names = [DIRECTION.sub("", label) for label in labels]
    found = {name: [i for i, own in enumerate(names) if own == name] for name in names if name not in ignore}
    said, right = said.bool(), right.bool()
    scores = []
    for columns in found.values():
        said_here, right_here = said[:, columns], right[:, columns]
        if right_here.any():
            scores.append(200 * float((said_here & right_here).sum()) / float(said_here.sum() + right_here.sum()))
    directed = "yes" if any(name != label for name, label in zip(names, labels, strict=True)) else "none"
    without = ",".join(ignore) or "none"
    signature = f"examples:{len(said)}|relations:{len(scores)}|direction:{directed}|without:{without}"
    return Score("macro_f1", sum(scores) / max(1, len(scores)), signature)
