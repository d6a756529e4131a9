"""Masked language modelling (Devlin et al. 2019): running text in, a model that says what is hidden of it.

A share of the tokens is hidden, others in each epoch. With `next_sentence` a row is two texts, and the model also says
whether the second follows the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import key
from regard.data.batching import NONE, Planned
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.corruption import Corrupted, Key, Pieces, hide, most_hidden
from regard.data.sentences import Laid, PairPlan, Sentences
from regard.data.text import Ends, LineEnds, Text
from regard.data.tokenizers import MASK, Tokenizer, TokenizerConfig
from regard.data.windows import Windows
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import ConfigError, require
from regard.layers.output import NoHead
from regard.models import Sizes
from regard.tasks.gaps import GAP, MARKS, Gaps, fill_texts, fillable, labelled, likely
from regard.tasks.metrics import Evaluation, Score
from regard.tasks.texts import (
    OnBatch,
    Paths,
    Stateless,
    Tally,
    at_labels,
    batches_of,
    of_labels,
    open_tokenizer,
    text_of,
)
from regard.types import Axis, Batch, Example, Prediction, Sequences

SUMMARY = "running text in, a model that says what is hidden of it"
KIND = "encoder"
FILES = ("tokenizer.json",)
DECODE = ("n_best", "batch_tokens")
TAKES = ("noise",)
WITHOUT = ("data.max_length", "data.too_long", "train.bucket")  # task.context says how much is read at a time


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a masked language modelling recipe."""

    context: int = key(128, "tokens of a row, <s> and </s> among them")
    share: float = key(0.15, "share of the tokens that is hidden: 80 % masked, 10 % exchanged, 10 % left as they are")
    whole_word: bool = key(False, "hide whole words, as the tokenizer cuts text into words")
    next_sentence: bool = key(
        False,
        "rows are two texts, and the model also says whether the second follows the first; then a line is a sentence, "
        "and an empty line parts two documents",
    )
    line_ends: LineEnds = key("text", "text: a line's end is text, a space to most tokenizers; token: it is </s>")

    def __post_init__(self) -> None:
        require(self.context > 4, "context is too short", got=self.context, wanted="5 or more")
        require(0 < self.share < 1, "share is a share", got=self.share, wanted="0 < x < 1, as 0.15")

    @property
    def ends(self) -> Ends:
        """What is made of the ends of lines."""
        return "none" if self.next_sentence else self.line_ends


class Task(Stateless):
    """A masked language model's tokenizer and texts."""

    metrics: Sequence[str] = ()

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer) -> None:
        self.config, self.data, self.paths, self.tokenizer = config, data, paths, tokenizer
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True, pieces=tokenizer.spelled())
        if tokenizer.specials.mask is None:
            raise ConfigError("the tokenizer has no piece that stands for what is hidden", wanted=f"{MASK} or [MASK]")
        self.mask = tokenizer.specials.mask
        self.special = np.isin(np.arange(tokenizer.size), tokenizer.special_ids)
        self.others = np.flatnonzero(~self.special)
        self.most = most_hidden(config.context, config.share)

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizer is loaded, or trained on the training split and saved there."""
        found = open_tokenizer(folder / FILES[0], tokenizer, data, paths, line_ends=config.ends, extra=(MASK,))
        return cls(config, data, paths=paths, tokenizer=found)

    @cached_property
    def gaps(self) -> Gaps:
        return Gaps(self.tokenizer, MARKS)

    def dress(self, model: Any) -> Any:
        """The model as it is, seen to have the heads that are trained."""
        if isinstance(model.head, NoHead):
            raise ConfigError("the model has no head that says what is hidden", got="none", wanted="masked_head = true")
        head = getattr(model, "next_sentence", None)
        if self.config.next_sentence and (head is None or isinstance(head, NoHead)):
            raise ConfigError(
                "the model has no head that says whether a text follows another",
                got="task.next_sentence = true",
                wanted='family = "bert" with next_sentence = true',
                remedy="or task.next_sentence = false",
            )
        return model

    def split(self, name: str, cache: Path) -> Corrupted | Pairs:
        """The split as rows of which a part is hidden."""
        config = self.config
        text = text_of(
            name, self.tokenizer, self.data, self.paths, cache, line_ends=config.ends, words=config.whole_word
        )
        if config.next_sentence:
            return Pairs(PairPlan(Sentences(text), config.context), self)
        size = config.context - 2
        return Corrupted(Windows(text, size, size, carried=False), config.context, partial(self._framed, text))

    def _framed(self, text: Text, pieces: Pieces) -> tuple[Sequences, Sequences]:
        """Windows as `<s> .. </s>`, with a part of them hidden."""
        special, rows = self.tokenizer.specials, np.flatnonzero(pieces.lengths)
        ids = np.full((len(pieces.ids), self.config.context), special.pad, np.int64)
        ids[rows, 0] = special.start
        ids[:, 1:-1] = pieces.ids
        ids[rows, pieces.lengths[rows] + 1] = special.end
        inside = np.arange(self.config.context) - 1
        free = (inside >= 0) & (inside < pieces.lengths[:, None])
        lengths = np.where(pieces.lengths, pieces.lengths + 2, 0)
        return self.hide(text, Laid(ids, np.pad(pieces.places, ((0, 0), (1, 1))), free, lengths), pieces.key)

    def hide(self, text: Text, rows: Laid, key: Key) -> tuple[Sequences, Sequences]:
        """Rows with a part of them hidden, and the labels; that of <s>, which is never hidden, is for the whole row."""
        known = None
        if text.starts is not None:
            inside = np.minimum(rows.places, len(text.starts) - 1)  # the last row of a text may reach beyond its end
            known = ~rows.free | text.starts[inside]
            known[:, 1:] |= ~rows.free[:, :-1]  # what is left of a word that a row cuts is a word of its own
        ids, labels = hide(
            rows.ids,
            rows.free & ~self.special[rows.ids],
            rows.places,
            key,
            share=self.config.share,
            mask=self.mask,
            others=self.others,
            word_starts=known,
        )
        if rows.follows is not None:
            labels[:, 0] = rows.follows
        segments = None if rows.segments is None else torch.from_numpy(rows.segments)
        lengths = torch.from_numpy(rows.lengths)
        return Sequences(torch.from_numpy(ids), lengths, segments), Sequences(torch.from_numpy(labels), lengths)

    def loss(self, model: Any, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of what is hidden, and how much that is.

        What the next sentence costs is added as if each row had as much hidden as is usual: for both a mean is what is
        meant, and so several batches still are the same as a large one.
        """
        hidden, states, labels = self._read(model, batch)
        loss = model.head.loss(states.flatten(0, 1), labels.flatten(), smoothing or 0.0)
        if self.config.next_sentence:
            logits, follows = self._follows(model, batch, hidden)
            usual = self.config.share * (self.config.context - 3)
            loss = loss + usual * F.cross_entropy(logits.float(), follows, ignore_index=NONE, reduction="sum")
        return loss, (labels >= 0).sum()

    def _read(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """All states, and the states and labels of hidden places: B x N x D, B x most x D and B x most."""
        assert batch.target is not None
        hidden, labels = model.hidden(batch), batch.target.ids
        return hidden, *at_labels(hidden[:, 1:], labels[:, 1:], min(self.most, labels.shape[1] - 1))

    def _follows(self, model: Any, batch: Batch, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the model says of each row's two texts (B x 2), and what is so."""
        assert batch.target is not None
        return model.next_sentence(model.pooled(hidden, batch.source.lengths)), batch.target.ids[:, 0]

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
        """Loss, perplexity and accuracy of what is hidden of a split (always the same), and of next sentences."""
        hidden, whole = Tally(), Tally()
        for batch in batches_of(self.split(split, cache_folder()), config.batch_tokens, device, on_batch):
            states, at_hidden, labels = self._read(model, batch)
            hidden.add(model.head(at_hidden), labels)
            if self.config.next_sentence:
                whole.add(*self._follows(model, batch, states))
        units = "words" if self.config.whole_word else "tokens"
        signature = f"context:{self.config.context}|hidden:{self.config.share} of {units}|line-ends:{self.config.ends}"
        scores = list(hidden.scores(signature))
        if self.config.next_sentence:
            *_, score = whole.scores(signature)
            scores.append(Score("next_sentence_accuracy", score.value, score.signature))
        return Evaluation(scores, examples=int(hidden.count))

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
            most=self.config.context - 2,
            on_batch=on_batch,
            first_index=first_index,
        )

    def need(self, source: str, number: int) -> None:
        """Raises where a text has nothing to fill in, or too much to read."""
        fillable(self.gaps, source, number, self.config.context - 2)

    @torch.inference_mode()
    def _candidates(self, model: Any, rows: list[list[int]], device: torch.device) -> list[Tensor]:
        special = self.tokenizer.specials
        masked = [[special.start, *(self.mask if i == GAP else i for i in row), special.end] for row in rows]
        hidden = model.hidden(Batch(pad_rows(masked, special.pad)).to(device))
        places = [[place + 1 for place, i in enumerate(row) if i == GAP] for row in rows]
        states = torch.cat([states[at] for states, at in zip(hidden, places, strict=True)])
        return list(likely(model.head(states), self.tokenizer.special_ids).split(list(map(len, places))))

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text with gaps and what fills them (the whole text, or an id for each gap), and what stands along it."""
        special, row = self.tokenizer.specials, self.gaps.pair(source, target)
        read = [self.mask if gap >= 0 else i for i, gap in zip(row.ids, row.gaps, strict=True)]
        labels = [NONE, *row.labels(NONE), NONE]
        batch = Batch(pad_rows([[special.start, *read, special.end]], special.pad), pad_rows([labels], NONE))
        return batch, row.axes(self.tokenizer, read, [special.start], special.end)

    def log_probs(self, model: Any, batch: Batch) -> Tensor:
        """The log-probability of each label, 0 where none counts: B x N."""
        assert batch.target is not None
        return of_labels(model.head(model.hidden(batch)), batch.target.ids)

    def examples(self, name: str) -> list[Example]:
        """Rows of the split as text with gaps, and the text without."""
        batches = batches_of(self.split(name, cache_folder()), 4096, torch.device("cpu"))
        return self.gaps.examples(labelled(batches), lambda number: "<mask>")


@dataclass(frozen=True)
class Pairs:
    """A split of pairs of texts: the batches of an epoch, planned and then made one by one."""

    pairs: PairPlan
    task: Task

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]:
        return self.pairs.plan(batch_tokens=batch_tokens, seed=seed, epoch=epoch, shuffle=shuffle)

    def collate(self, planned: Planned) -> Batch:
        rows = self.pairs.lay(planned, self.task.tokenizer.specials)
        source, target = self.task.hide(self.pairs.sentences.text, rows, planned.key)
        return Batch(source, target, rows=planned.rows.tolist(), num_tokens=int(rows.lengths.sum()))

    def first(self, number: int) -> Batch:
        """The first rows as one batch."""
        plan = self.pairs.plan(batch_tokens=number * self.pairs.context, seed=0, epoch=0, shuffle=False)
        return self.collate(plan[0])

    def padding(self, plan: list[Planned]) -> float:
        places = sum(planned.shape[0] * planned.shape[1] for planned in plan)
        pairs = (
            pair for planned in plan for pair in self.pairs.sentences.pairs(planned.rows, self.pairs.room, planned.key)
        )
        return 1 - sum(len(pair.first) + len(pair.second) + 3 for pair in pairs) / places

    def describe(self) -> str:
        text = self.pairs.sentences
        return f"{text.text.describe()}; {len(text.documents):,} sentences in {text.documents[-1] + 1:,} documents"
