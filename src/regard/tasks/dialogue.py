"""Dialogue: conversations in, a model that gives the next reply.

A translation of the last turns into the next one: every turn but the first is an example. What differs is how the files
are read, that who speaks is told, that a conversation which is too long loses its oldest turns, and what is measured.
A test conversation that also stands in training says little: figures are given with such conversations and without.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from regard.config import key
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.noise import Noise
from regard.data.parts import in_split, part_of
from regard.data.readers import ReadReport
from regard.data.store import Store, build_store
from regard.data.tokenizers import TokenizerConfig
from regard.data.turns import (
    SPEAKERS,
    TurnsTokenizer,
    digest,
    joined,
    last_turns,
    read_contexts,
    read_conversations,
    replies,
    turns_of,
)
from regard.decode.config import DecodeConfig
from regard.errors import DataError, RunError, require
from regard.files import put_text
from regard.models import Seq2Seq
from regard.tasks import translation
from regard.tasks.metrics import METRICS, Evaluation, MetricOptions, Score, find_metric, units_of
from regard.tasks.texts import Paths, batches_of, listed, split_paths
from regard.types import Axis, Batch, Example, Prediction

SUMMARY = "conversations in, a model that gives the next reply"
KIND, TAKES = translation.KIND, translation.TAKES
FILES = (*translation.FILES, "conversations.json")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Config(translation.Config):
    """The `[task]` section of a dialogue recipe: translation's keys, and how much of a conversation is read."""

    metrics: tuple[str, ...] = key(
        ("bleu", "distinct1", "distinct2"),
        f"what `evaluate` reports beside perplexity: {', '.join(METRICS)}",
        may_change=True,
    )
    turns: int = key(5, "turns before a reply that are read, the last ones; 0 = all of them")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.turns >= 0, "turns is too small", got=self.turns, wanted="1 or more, or 0 for all")


class Task(translation.Task):
    """A translation of the last turns of a conversation into the next one."""

    config: Config
    known: frozenset[str]  # what the conversations of the training are known by

    @classmethod
    def open(  # type: ignore[override]
        cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path
    ) -> Task:
        """The task of a run folder: its tokenizers are loaded, or trained on the training split and saved there.

        So is what its conversations are known by: a run judges without its training data, which may be gone or changed.
        """

        def found() -> list[Example]:
            return listed(read_whole(data, paths, "train", ReadReport()), "train", paths("train"))

        def turns() -> list[Example]:
            """Each turn once for each tokenizer, also those that no example begins or ends with."""
            return [Example(turn, () if tokenizer.shared else (turn,)) for each in found() for turn in each.targets]

        if not (folder / FILES[-1]).exists():
            _save(sorted({digest(each.targets) for each in found()}), folder / FILES[-1])
        _, target = translation.open_tokenizers(tokenizer, folder, turns, lambda examples: SPEAKERS)
        source = TurnsTokenizer.load(folder / FILES[0])
        task = cls(config, data, paths=paths, source=source, target=target, shared=tokenizer.shared)
        task.known, task.metrics = _load(folder / FILES[-1]), ("perplexity", "word_perplexity", *config.metrics)
        return task

    def examples(self, name: str) -> list[Example]:
        """The replies of the split, each with the turns before it."""
        return list(read_split(self.config, self.data, self.paths, name, ReadReport()))

    def read(self, path: Path, report: ReadReport | None = None) -> Iterator[Example]:
        """The conversations of a file that are to be answered or looked at."""
        return read_contexts(path, report)

    def split(self, name: str, cache: Path) -> translation.Pairs:
        """The encoded split; the encoding is kept in the cache folder."""
        return self._pairs(name, cache, judged=name != "train")

    def _pairs(self, name: str, cache: Path, *, judged: bool) -> translation.Pairs:
        data, config = self.data, self.config
        store = build_store(
            split_paths(self.paths, data, name),
            self.source,
            self.target,
            cache_dir=cache,
            max_length=data.max_length,
            # to leave out what is judged by would flatter
            too_long="truncate" if judged and data.too_long == "drop" else data.too_long,
            on_bad_line=data.on_bad_line,
            split=name,
            read=lambda report: read_split(config, data, self.paths, name, report),
            places=self.kept,
            more={"turns": config.turns, **part_of(data, name)},
        )
        return translation.Pairs(store, self.source.specials, self.target.specials)

    def kept(self, ids: Sequence[int]) -> list[int]:
        """Which places of a conversation are read where it is longer than `data.max_length`: its last turns."""
        return last_turns(ids, self.source.markers, self.data.max_length)

    def _read(self, sources: Sequence[str], words: int = 0) -> list[list[int]]:
        return super()._read([self._context(source) for source in sources], words)

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """The turns that are read and the reply as one row, and what stands along it: see `translation`."""
        return super().pair(self._context(source), target)

    def _context(self, source: str) -> str:
        """The turns that are read of a conversation so far."""
        return joined(turns_of(source)[-self.config.turns :])

    def evaluate(
        self,
        model: Seq2Seq,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Evaluation:
        """Perplexity and the task's metrics, of all conversations and of those that do not stand in training."""
        files = split_paths(self.paths, self.data, split)
        conversations = listed(read_whole(self.data, self.paths, split, ReadReport()), split, files)
        groups = [list(replies(each, self.config.turns)) for each in conversations]
        examples = [example for group in groups for example in group]
        new = [digest(each.targets) not in self.known for each in conversations]
        sources = [example.source for example in examples]
        answers = self.predict(model, sources, config, device=device, on_batch=on_batch)
        judged = Judged(examples, answers, *self._losses(model, split, examples, config, device))
        way = f"|conversations:{len(new)}|in training:{new.count(False)}"
        scores = [replace(score, signature=score.signature + way) for score in self._scores(judged)]
        if 0 < sum(new) < len(new):
            rows = np.repeat(new, [len(group) for group in groups]).nonzero()[0]
            way = f"|conversations:{sum(new)}, none of them in training"
            scores += [
                replace(score, name=f"unseen.{score.name}", signature=score.signature + way)
                for score in self._scores(judged.only(rows))
            ]
        return Evaluation(scores, len(examples), sum(answer.cut > 0 for answer in answers))

    @torch.inference_mode()
    def _losses(
        self, model: Seq2Seq, split: str, examples: Sequence[Example], config: DecodeConfig, device: torch.device
    ) -> tuple[Floats, Floats, Floats]:
        """Of each right reply: the sum of its tokens' losses, its tokens and its words, its end counted in both."""
        pairs = self._pairs(split, cache_folder(), judged=True)
        store, loss = pairs.store, np.zeros(len(examples))
        for batch in batches_of(pairs, config.batch_tokens, device):
            found = -self.log_probs(model, batch).double().sum(1)
            loss[list(batch.rows)] = found[: len(batch.rows)].cpu().numpy()
        words = [len(units_of(self._said(store, i, example.targets[0]))) + 1 for i, example in enumerate(examples)]
        return loss, store.target_lengths.astype(np.float64) + 1, np.array(words, np.float64)

    def _said(self, store: Store, row: int, reply: str) -> str:
        """What is judged of a reply: all of it, or its beginning where it is too long."""
        whole = store.target_lengths[row] < self.data.max_length
        return reply if whole else self.target.decode(store.target(row))

    def _scores(self, judged: Judged) -> Iterator[Score]:
        total, tokens, words = (float(column.sum()) for column in (judged.loss, judged.tokens, judged.words))
        yield Score("perplexity", math.exp(min(total / tokens, 700.0)), f"tokens:{tokens:.0f}, ends counted")
        yield Score("word_perplexity", math.exp(min(total / words, 700.0)), f"words:{words:.0f}, ends counted")
        yield from self.score(judged.answers, judged.examples)
        options = MetricOptions(self.config.tokenize, self.config.lowercase)
        references = [example.targets for example in judged.examples]
        for name in self.config.metrics:
            if name.startswith("distinct"):
                score = find_metric(name).measure([texts[0] for texts in references], references, options)
                yield replace(score, name=f"references.{name}")


@dataclass(frozen=True)
class Judged:
    """Replies, what the model said instead, and of each right one its loss, its tokens and its words."""

    examples: Sequence[Example]
    answers: Sequence[Prediction]
    loss: Floats
    tokens: Floats
    words: Floats

    def only(self, rows: npt.NDArray[np.int64]) -> Judged:
        """Some of them."""
        examples, answers = ([each[i] for i in rows] for each in (self.examples, self.answers))
        return Judged(examples, answers, self.loss[rows], self.tokens[rows], self.words[rows])


def read_split(config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport) -> Iterator[Example]:
    """The replies of a split, each with the turns before it; all of a conversation are in the same split."""
    for conversation in read_whole(data, paths, name, report):
        yield from replies(conversation, config.turns)


def read_whole(data: DataConfig, paths: Paths, name: str, report: ReadReport) -> Iterator[Example]:
    """The conversations of a split: the source is what is read, perhaps with mistakes, the targets are the turns."""
    files = split_paths(paths, data, name)
    return in_split(read_conversations(files, on_bad_line=data.on_bad_line, report=report), data, name, _with_noise)


def _with_noise(noise: Noise, conversation: Example) -> Example:
    """Mistakes in what is read: a turn has the same ones for every reply after it, and is itself learned as it was."""
    return replace(conversation, source=joined([noise.text(turn) for turn in conversation.targets]))


def _save(digests: list[str], path: Path) -> None:
    try:
        put_text(path, json.dumps(digests))
    except OSError as error:
        raise DataError("the list of conversations cannot be written", got=error.strerror, where=path) from None


def _load(path: Path) -> frozenset[str]:
    try:
        return frozenset(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        remedy = "copy the run again, or train it again"
        raise RunError("the list of conversations cannot be read", got=error, where=path, remedy=remedy) from None
