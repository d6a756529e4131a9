"""Permutation language modelling (Yang et al. 2019): a model that predicts the tokens of a text in any order.

Spans of a row are taken to stand last in its order, a sixth of all tokens, others in each epoch; each of their tokens
is predicted from the rest of the row and from those of them that come before it in the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import key
from regard.data.batching import NONE
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.corruption import Corrupted, Pieces, most_predicted, order
from regard.data.text import LineEnds
from regard.data.tokenizers import Tokenizer, TokenizerConfig
from regard.data.windows import Windows
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import ConfigError, require
from regard.models import Sizes
from regard.models.xlnet import seen_in_order
from regard.tasks.gaps import GAP, MARKS, Gaps, fill_texts, fillable, labelled, likely
from regard.tasks.metrics import Evaluation
from regard.tasks.texts import Memory, OnBatch, Paths, Tally, batches_of, of_labels, open_tokenizer, text_of
from regard.types import Axis, Batch, Example, Prediction, Sequences

SUMMARY = "running text in, a model that predicts its tokens in any order"
KIND = "encoder"
FILES = ("tokenizer.json",)
DECODE = ("n_best", "batch_tokens")
TAKES = ("noise",)
WITHOUT = ("data.max_length", "data.too_long", "train.bucket")  # task.context says how much is read at a time
NOT_LOOKED_INTO = "a second stream answers, and maps of the first would show it the answer"


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a permutation language modelling recipe."""

    context: int = key(128, "tokens of a row, its </s> among them")
    part: int = key(6, "one token of so many is predicted: the last ones of each order")
    longest_span: int = key(5, "the tokens that are predicted stand together, from 1 to so many")
    carry: bool = key(False, "a row goes on from the row of the batch before, of which the model has a memory")
    line_ends: LineEnds = key("text", "text: a line's end is text, a space to most tokenizers; token: it is </s>")

    def __post_init__(self) -> None:
        require(self.part > 1, "part is too small", got=self.part, wanted="2 or more")
        require(self.longest_span >= 1, "longest_span is too small", got=self.longest_span, wanted="1 or more")
        require(self.context > self.part, "context is too short", got=self.context, wanted=f"{self.part + 1} or more")


class Task:
    """A permutation language model's tokenizer and texts."""

    metrics: Sequence[str] = ()

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer) -> None:
        self.config, self.data, self.paths, self.tokenizer = config, data, paths, tokenizer
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True)
        self.special = np.isin(np.arange(tokenizer.size), tokenizer.special_ids)
        self.most = most_predicted(config.context - 1, config.part)
        self.memory = Memory()

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizer is loaded, or trained on the training split and saved there."""
        found = open_tokenizer(folder / FILES[0], tokenizer, data, paths, line_ends=config.line_ends)
        return cls(config, data, paths=paths, tokenizer=found)

    @cached_property
    def gaps(self) -> Gaps:
        return Gaps(self.tokenizer, MARKS)

    def dress(self, model: Any) -> Any:
        """The model as it is, seen to be one that can predict in any order."""
        if not hasattr(model, "predict"):
            raise ConfigError(
                "the model cannot predict the tokens of a text in any order",
                got=type(model).__name__,
                wanted='family = "xlnet", which has two streams',
                remedy='task.name = "masked-language-modeling" takes any family that reads a text',
            )
        if self.config.carry and not model.memory:
            got = "model.memory = 0"
            raise ConfigError("a row that goes on needs a memory", got=got, wanted="model.memory = 128 or so")
        return model

    def split(self, name: str, cache: Path) -> Corrupted:
        """The split as rows with an order."""
        config = self.config
        text = text_of(name, self.tokenizer, self.data, self.paths, cache, line_ends=config.line_ends)
        size = config.context - 1
        return Corrupted(Windows(text, size, size, carried=config.carry), config.context, self.ordered)

    def ordered(self, pieces: Pieces) -> tuple[Sequences, Sequences]:
        """Windows as `.. </s>`, and beside them the labels of what is predicted, with the order of each row."""
        special, rows = self.tokenizer.specials, np.flatnonzero(pieces.lengths)
        free = (np.arange(pieces.ids.shape[1]) < pieces.lengths[:, None]) & ~self.special[pieces.ids]
        ranks, labels = order(
            pieces.ids,
            free,
            pieces.lengths,
            pieces.places,
            pieces.key,
            part=self.config.part,
            longest=self.config.longest_span,
        )
        ids = np.pad(pieces.ids, ((0, 0), (0, 1)), constant_values=special.pad)
        ids[rows, pieces.lengths[rows]] = special.end
        lengths = torch.from_numpy(np.where(pieces.lengths, pieces.lengths + 1, 0))
        ranks, labels = (np.pad(x, ((0, 0), (0, 1)), constant_values=y) for x, y in ((ranks, -1), (labels, NONE)))
        target = Sequences(torch.from_numpy(labels), lengths, torch.from_numpy(ranks))
        return Sequences(torch.from_numpy(ids), lengths), target

    def loss(self, model: Any, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of what is predicted, and how much that is."""
        states, labels = self._read(model, batch)
        return model.head.loss(states.flatten(0, 1), labels.flatten(), smoothing or 0.0), (labels >= 0).sum()

    def _read(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """The states that predict, and what they should: B x most x D and B x most."""
        assert batch.target is not None
        labels, places = batch.target.ids.topk(min(self.most, batch.target.ids.shape[1]), dim=1)
        seen = seen_in_order(_ranks(batch.target))
        if batch.carry is None:
            return model.predict(batch, seen, places)[0], labels
        states, memory = model.predict(batch, seen, places, self.memory.of(model, batch.carry))
        self.memory.keep(model, memory)
        return states, labels

    @torch.inference_mode()
    def evaluate(
        self,
        model: Any,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Loss, perplexity and accuracy of what is predicted of a split, which is always the same."""
        found = Tally()
        for batch in batches_of(self.split(split, cache_folder()), config.batch_tokens, device, on_batch):
            states, labels = self._read(model, batch)
            found.add(model.head(states), labels)
        carried = "from segment to segment" if self.config.carry else "none"
        signature = f"context:{self.config.context}|predicted:1/{self.config.part}|memory:{carried}"
        return Evaluation(list(found.scores(signature)), examples=int(found.count))

    def predict(
        self,
        model: Any,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """Each text with its `<mask>`s filled in, and the mean log-probability of what was filled in."""
        return fill_texts(
            self.gaps,
            sources,
            lambda rows: self._candidates(model, rows, device),
            config,
            most=self.config.context - 1,
            on_batch=on_batch,
            first_index=first_index,
        )

    def need(self, source: str, number: int) -> None:
        """Raises where a text has nothing to fill in, or too much to read."""
        fillable(self.gaps, source, number, self.config.context - 1)

    @torch.inference_mode()
    def _candidates(self, model: Any, rows: list[list[int]], device: torch.device) -> list[Tensor]:
        special = self.tokenizer.specials
        # what stands at a gap is seen by nobody
        source = pad_rows([[*(special.pad if i == GAP else i for i in row), special.end] for row in rows], special.pad)
        places = [[place for place, i in enumerate(row) if i == GAP] for row in rows]
        ranks = torch.full_like(source.ids, -1)
        for row, at in zip(ranks, places, strict=True):
            row[at] = 0  # all alike: no gap sees another
        asked = pad_rows(places, 0)
        states, _ = model.predict(Batch(source).to(device), seen_in_order(ranks.to(device)), asked.ids.to(device))
        real = torch.cat([row[: len(at)] for row, at in zip(states, places, strict=True)])
        return list(likely(model.head(real), self.tokenizer.special_ids).split(list(map(len, places))))

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text with gaps and what fills them (the whole text, or an id for each gap), and what stands along it."""
        special, row = self.tokenizer.specials, self.gaps.pair(source, target)
        labels = [*row.labels(NONE), NONE]
        batch = Batch(pad_rows([[*row.ids, special.end]], special.pad), pad_rows([labels], NONE))
        return batch, row.axes(self.tokenizer, row.ids, [], special.end)

    def log_probs(self, model: Any, batch: Batch) -> Tensor:
        """The log-probability of each label, 0 where none counts: B x N."""
        assert batch.target is not None
        labels = batch.target.ids
        places = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
        states, _ = model.predict(batch, seen_in_order(_ranks(batch.target)), places)
        return of_labels(model.head(states), labels)

    def examples(self, name: str) -> list[Example]:
        """Rows of the split as text with gaps, and the text without."""
        batches = batches_of(self.split(name, cache_folder()), 4096, torch.device("cpu"))
        return self.gaps.examples(labelled(batches), lambda number: "<mask>")

    def tensors(self) -> dict[str, Tensor]:
        """The memory of the training."""
        return self.memory.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes up what `tensors` gave."""
        self.memory.restored = tensors


def _ranks(target: Sequences) -> Tensor:
    """The place of each token in the order, -1 for the context; where none is given, labels come from left to right."""
    if target.segments is not None:
        return target.segments
    labelled = target.ids >= 0
    return torch.where(labelled, labelled.cumsum(1) - 1, -1)
