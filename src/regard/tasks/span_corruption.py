"""Span corruption (Raffel et al. 2020): a text of which spans were taken out in, a model that writes the spans.

    read:    Thank you <extra_0> me to your party <extra_1> week .
    written: <extra_0> for inviting <extra_1> last

A share of the tokens is taken out, others in each epoch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.config import key
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.corruption import Corrupted, Pieces, pad, span_counts, spans, without_spans
from regard.data.text import Ends
from regard.data.tokenizers import Tokenizer, TokenizerConfig
from regard.data.windows import Windows
from regard.decode.config import DecodeConfig
from regard.decode.rules import Hypothesis
from regard.decode.search import decode, pad_rows
from regard.errors import ConfigError, DataError, require
from regard.models import Seq2Seq, Sizes
from regard.tasks.gaps import GAP, Gaps
from regard.tasks.metrics import Evaluation
from regard.tasks.texts import OnBatch, Paths, Stateless, Tally, batches_of, of_labels, open_tokenizer, text_of
from regard.tasks.translation import labels_of, sum_loss
from regard.types import Axis, Batch, Example, Prediction, Sequences

SUMMARY = "running text in, a model that writes the spans that were taken out of it"
KIND = "seq2seq"
FILES = ("tokenizer.json",)
TAKES = ("noise",)
WITHOUT = ("data.max_length", "data.too_long", "train.bucket")  # task.context says how much is read at a time
ENDS: Ends = "text"  # a line's end is a character as any other: </s> is what ends an output
MARKS = r"<extra_(?:id_)?(\d+)>"  # as we write a sentinel, and as T5 does


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a span corruption recipe."""

    context: int = key(256, "tokens of running text of which spans are taken out at a time")
    density: float = key(0.15, "share of the tokens that is taken out")
    mean_span: float = key(3.0, "tokens of a span, on average")

    def __post_init__(self) -> None:
        require(self.context > 1, "context is too short", got=self.context, wanted="2 or more")
        require(0 < self.density < 1, "density is a share", got=self.density, wanted="0 < x < 1, as 0.15")
        require(self.mean_span >= 1, "mean_span is too small", got=self.mean_span, wanted="1 or more, as 3.0")

    @property
    def counts(self) -> tuple[int, int]:
        """How many tokens of a whole window are taken out, and in how many spans."""
        return span_counts(self.context, self.density, self.mean_span)


class Task(Stateless):
    """A span corruption's tokenizer and texts."""

    metrics: Sequence[str] = ()

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer) -> None:
        self.config, self.data, self.paths, self.tokenizer = config, data, paths, tokenizer
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True)
        self.sentinels = sentinels_of(tokenizer)
        needed = config.counts[1]
        if len(self.sentinels) < needed:
            raise ConfigError(
                "the tokenizer has too few sentinels",
                got=len(self.sentinels),
                wanted=f"{needed}, one for each span of {config.context} tokens",
                remedy="a smaller task.context, or a larger task.mean_span",
            )

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizer is loaded, or trained on the training split and saved there."""
        extra = tuple(f"<extra_{i}>" for i in range(config.counts[1]))
        found = open_tokenizer(folder / FILES[0], tokenizer, data, paths, line_ends=ENDS, extra=extra)
        return cls(config, data, paths=paths, tokenizer=found)

    @cached_property
    def gaps(self) -> Gaps:
        return Gaps(self.tokenizer, MARKS)

    def split(self, name: str, cache: Path) -> Corrupted:
        """The split as rows without some spans, and the spans."""
        config = self.config
        text = text_of(name, self.tokenizer, self.data, self.paths, cache, line_ends=ENDS)
        return Corrupted(Windows(text, config.context, config.context, carried=False), self._widths[0], self.corrupted)

    @property
    def _widths(self) -> tuple[int, int]:
        """Of what is read, </s> counted, and of what is written, <s> and </s> counted."""
        hidden, number = self.config.counts
        return self.config.context - hidden + number + 1, hidden + number + 2

    def corrupted(self, pieces: Pieces) -> tuple[Sequences, Sequences]:
        """Windows with sentinels for spans, and the spans: `.. </s>` and `<s> .. </s>`."""
        special, (width, written) = self.tokenizer.specials, self._widths
        hidden = spans(
            pieces.lengths, pieces.places, pieces.key, density=self.config.density, mean=self.config.mean_span
        )
        sources, targets = without_spans(pieces.ids, hidden, pieces.lengths, np.array(self.sentinels))
        ends = [[special.end] if length else [] for length in pieces.lengths]
        starts = [[special.start] if length else [] for length in pieces.lengths]
        source = [[*row, *end] for row, end in zip(sources, ends, strict=True)]
        target = [[*start, *row, *end] for start, row, end in zip(starts, targets, ends, strict=True)]
        return pad(source, width, special.pad), pad(target, written, special.pad)

    def loss(self, model: Seq2Seq, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of what is to be written, and how much that is."""
        return sum_loss(model, batch, smoothing or 0.0)

    @torch.inference_mode()
    def evaluate(
        self,
        model: Seq2Seq,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Loss, perplexity and accuracy of each token that is to be written, after the right ones before it."""
        found = Tally()
        for batch in batches_of(self.split(split, cache_folder()), config.batch_tokens, device, on_batch):
            found.add(model.head(model.hidden(batch).flatten(0, 1)), labels_of(batch))
        c = self.config
        signature = f"context:{c.context}|density:{c.density}|mean-span:{c.mean_span}"
        return Evaluation(list(found.scores(signature)), examples=int(found.count))

    def predict(
        self,
        model: Seq2Seq,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """Each text with what the model writes for its `<extra_0>`, `<extra_1>` .. in their places."""
        special = self.tokenizer.specials
        rows = [self._row(text, number) for number, text in enumerate(sources, first_index + 1)]
        found = decode(
            model,
            [[*row, special.end] for row in rows],
            config,
            bos=special.start,
            eos=special.end,
            pad=special.pad,
            device=device,
            on_batch=on_batch,
            first_index=first_index,
        )
        return [self._prediction(*each) for each in zip(sources, found, strict=True)]

    def need(self, source: str, number: int) -> None:
        """Raises where a text has nothing to fill in, or too much to read."""
        self._row(source, number)

    def _prediction(self, source: str, answers: Sequence[Hypothesis]) -> Prediction:
        """The different texts among the answers: a model may write spans that nobody asked for."""
        texts: dict[str, Hypothesis] = {}
        for answer in answers:
            spans = list(self._spans(answer.ids).values())[: len(self.gaps.cut(source)[1])]
            texts.setdefault(self.gaps.fill_in(source, spans) if source.strip() else "", answer)
        return Prediction(
            texts=tuple(texts),
            scores=tuple(answer.score for answer in texts.values()),
            tokens=tuple(tuple(self.tokenizer.tokens(answer.ids)) for answer in texts.values()),
            ids=tuple(answer.ids for answer in texts.values()),
        )

    def _row(self, text: str, number: int) -> list[int]:
        """The ids of a text with sentinels in its gaps; none of an empty line."""
        where = f"text {number:,}"
        if not text.strip():
            return []
        _, marks = self.gaps.cut(text)
        if not marks:
            raise DataError(
                f"{where} has no gap to fill in",
                got=text[:80],
                wanted="<extra_0>",
                remedy="as in: thank <extra_0> much",
            )
        self._check_marks(marks, where)
        ids = self._marked(text)
        if len(ids) > self.config.context:
            got, wanted = f"{len(ids)} tokens", f"at most {self.config.context} (task.context)"
            raise DataError(f"{where} is too long", got=got, wanted=wanted, remedy="cut what is far from the gaps")
        return ids

    def _check_marks(self, marks: list[re.Match[str]], where: str) -> None:
        numbers = [int(mark[1]) for mark in marks]
        if numbers != list(range(len(numbers))):
            got = ", ".join(mark[0] for mark in marks)
            raise DataError(f"{where} does not count its gaps", got=got, wanted="<extra_0>, then <extra_1> and so on")
        if len(numbers) > len(self.sentinels):
            got, wanted = f"{len(numbers)} gaps", f"at most {len(self.sentinels)}"
            raise DataError(f"{where} has more gaps than there are sentinels", got=got, wanted=wanted)

    def _marked(self, text: str) -> list[int]:
        read = self.gaps.read(text)
        return [self.sentinels[gap] if i == GAP else i for i, gap in zip(read.ids, read.gaps, strict=True)]

    def filled(self, row: Sequence[int], written: Sequence[int]) -> list[int]:
        """A row with what was written after each sentinel in its place, and nothing where that never came."""
        return [i for i, _ in self._joined(row, written)]

    def _joined(self, row: Sequence[int], written: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Each token of the whole text, and whether it was taken out."""
        known = self._spans(written)
        for i in row:
            yield from ((each, True) for each in known[i]) if i in known else [(i, False)]

    def _spans(self, written: Sequence[int]) -> dict[int, list[int]]:
        """What was written after each sentinel."""
        known: dict[int, list[int]] = {i: [] for i in self.sentinels}
        into: list[int] = []  # what comes before the first sentinel has no place
        for i in written:
            if i in known:
                into = known[i]
            else:
                into.append(i)
        return known

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text with gaps and what is written for them: the filled text, or the ids that a search found.

        The axes: `source`; `prefix`, what the decoder has read at each of its places; `target`, what it writes there.
        """
        special = self.tokenizer.specials
        if isinstance(target, str):
            row = self.gaps.pair(source, target)
            read, offsets, ids = [], [], []
            for gap, run in itertools.groupby(zip(row.ids, row.gaps, row.offsets, strict=True), lambda each: each[1]):
                tokens = list(run)
                read += [i for i, _, _ in tokens] if gap < 0 else [self.sentinels[gap]]
                offsets += [span for _, _, span in tokens[: None if gap < 0 else 1]]
                ids += [] if gap < 0 else [self.sentinels[gap], *(i for i, _, _ in tokens)]
        else:
            read, offsets, ids = self._row(source, 1), self.gaps.read(source).offsets, list(target)
        text, written = self.tokenizer.spans(ids)
        whole, read = [special.start, *ids, special.end], [*read, special.end]
        tokens_of, end = self.tokenizer.tokens(whole), (len(text), len(text))
        axes = (
            Axis("source", tuple(self.tokenizer.tokens(read)), (*offsets, (len(source), len(source))), source),
            Axis("prefix", tuple(tokens_of[:-1]), ((0, 0), *written), text),
            Axis("target", tuple(tokens_of[1:]), (*written, end), text),
        )
        return Batch(pad_rows([read], special.pad), pad_rows([whole], special.pad)), {axis.name: axis for axis in axes}

    def log_probs(self, model: Seq2Seq, batch: Batch) -> Tensor:
        """The log-probability of each target token after <s>, 0 for padding: B x (T - 1)."""
        labels = labels_of(batch)
        hidden = model.hidden(batch)
        return of_labels(model.head(hidden), labels.view(hidden.shape[:2]))

    def examples(self, name: str) -> list[Example]:
        """Rows of the split as text with gaps, and the text without."""
        batches = batches_of(self.split(name, cache_folder()), 4096, torch.device("cpu"))
        rows = (row for batch in batches for row in zip(batch.source.ids.tolist(), _written(batch), strict=True))
        return self.gaps.examples((self._joined(*row) for row in rows), lambda number: f"<extra_{number}>")


def _written(batch: Batch) -> list[list[int]]:
    assert batch.target is not None
    found: list[list[int]] = batch.target.ids.tolist()
    return found


def sentinels_of(tokenizer: Tokenizer) -> list[int]:
    """The ids of a tokenizer's sentinels, from the first on."""
    names = dict(zip(tokenizer.tokens(tokenizer.special_ids), tokenizer.special_ids, strict=True))
    found = {int(match[1]): i for name, i in names.items() if (match := re.fullmatch(MARKS, name))}
    return [found[number] for number in range(len(found))]
