"""Extractive summarization: documents and their summaries in, a model that chooses the sentences that matter.

As in BertSum (Liu and Lapata 2019) every sentence of a row begins with a special token, and what the encoder knows
there decides about the sentence: `<s> .. </s> <s> .. </s>`. What it learns to choose are the sentences of which the
summary is best made, found greedily by ROUGE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import key
from regard.data.batching import NONE
from regard.data.cache import Kept, kept, name_of
from regard.data.config import DataConfig
from regard.data.noise import Noise
from regard.data.parts import noise_of, part_of
from regard.data.readers import ReadReport
from regard.data.rows import ARRAYS, Rows, fit
from regard.data.store import Column, Counts, count_unknown, need_room, no_example
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import require, require_positive, require_share
from regard.layers.classifier import Classifier
from regard.models import Sizes
from regard.tasks import summarization
from regard.tasks._sentences import Cut, Offsets, cut_sentences, join_sentences, oracle, select
from regard.tasks.metrics import Evaluation, MetricOptions, Score, find_metric
from regard.tasks.texts import OnBatch, Paths, Stateless, by_length, listed, save_tokenizer, split_paths
from regard.types import Axis, Batch, Example, Prediction, Span

SUMMARY = "documents and their summaries in, a model that chooses the sentences that matter"
KIND = "encoder"
FILES = ("tokenizer.json",)
DECODE = ("batch_tokens",)
TAKES = ("train_share", "noise")
ROUGE = ("rouge1", "rouge2", "rougeL")
KEPT = ARRAYS[:4]  # texts and labels, without what branches off a text
LEAD = 3  # sentences of the baseline that says how a document begins


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of an extractive summarization recipe."""

    cut: Cut = key(
        "rules", "what a sentence is: what punctuation ends (rules), or lines: a line, as the turn of a dialogue"
    )
    sentences: int = key(3, "most sentences that are chosen, by the model and for what it learns")
    threshold: float = key(
        0.1, "sentences of a lower probability are not chosen, but the best one always is", may_change=True
    )
    block_trigrams: bool = key(
        True, "leave out a sentence that repeats three words of one that is chosen", may_change=True
    )
    dropout: float = key(0.1, "dropout of the states that decide", may_change=True)

    def __post_init__(self) -> None:
        require_positive(self, "sentences")
        require_share(self, "dropout")
        require(0 <= self.threshold <= 1, "threshold is a probability", got=self.threshold, wanted="0 <= x <= 1")


class Selector(Classifier):
    """An encoder and a linear layer over each of its states, of which those that begin a sentence are asked."""

    def logits(self, batch: Batch) -> Tensor:
        """B x N."""
        return self.classify(self.dropout(self.hidden(batch)))[..., 0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Document:
    """A text in sentences, and as a model reads it."""

    text: str
    spans: list[Offsets]
    ids: list[int]
    starts: list[int]  # where each sentence begins among the ids, of those that are read

    @property
    def sentences(self) -> list[str]:
        return [self.text[start:end] for start, end in self.spans]

    def labels(self, chosen: Sequence[int]) -> list[int]:
        """1 where a chosen sentence begins, 0 where another does, elsewhere nothing."""
        found = [NONE] * len(self.ids)
        for i, place in enumerate(self.starts):
            found[place] = int(i in chosen)
        return found


class Task(Stateless):
    """Documents with their tokenizer: what the loop trains on, and what a run answers with."""

    metrics = tuple(f"{who}{name}" for who in ("", "lead3.", "oracle.") for name in ROUGE)

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer) -> None:
        self.config, self.data, self.paths, self.tokenizer = config, data, paths, tokenizer
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True, pieces=tokenizer.spelled())
        self._plain: dict[str, list[Score]] = {}  # what needs no model, of each split and its mistakes

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizer is loaded, or trained on the documents of the training split."""
        file = folder / FILES[0]
        if not file.exists():
            texts = (example.source for example in read_split(config, data, paths, "train", ReadReport()))
            save_tokenizer(train_tokenizer(tokenizer, texts), file)
        return cls(config, data, paths=paths, tokenizer=Tokenizer.load(file))

    def dress(self, model: Any) -> Selector:
        """The encoder with a layer that says of each sentence whether it is chosen."""
        return Selector(model, num_classes=1, pooling="first", dropout=self.config.dropout, weights=torch.ones(1))

    # --- data ---------------------------------------------------------------------------------------------------------

    def documents(self, texts: Sequence[str]) -> list[Document]:
        """Texts in sentences, as long as they are."""
        spans = [cut_sentences(text, self.config.cut) for text in texts]
        cuts = [text[start:end] for text, own in zip(texts, spans, strict=True) for start, end in own]
        encoded, special = iter(self.tokenizer.encode_batch(cuts)), self.tokenizer.specials
        found = []
        for text, own in zip(texts, spans, strict=True):
            ids: list[int] = []
            starts = []
            for _ in own:
                starts.append(len(ids))
                ids += [special.start, *next(encoded), special.end]
            found.append(Document(text, own, ids, starts))
        return found

    def _fitting(self, document: Document) -> Document:
        """What is read of a document: its beginning, and of its sentences those that have begun by then."""
        most = self.data.max_length
        return replace(document, ids=document.ids[:most], starts=[i for i in document.starts if i < most])

    def _oracle(self, document: Document, references: Sequence[str]) -> list[int]:
        return oracle(document.sentences[: len(document.starts)], references, self.config.sentences)

    def examples(self, name: str) -> list[Example]:
        """The split as text, with every right summary."""
        return list(read_split(self.config, self.data, self.paths, name, ReadReport()))

    def split(self, name: str, cache: Path) -> Rows:
        """The encoded split with the sentences to choose; both are kept in the cache folder."""
        data, config, tokenizer = self.data, self.config, self.tokenizer
        # to leave out what is judged by would flatter
        too_long = "truncate" if name != "train" and data.too_long == "drop" else data.too_long
        policy: dict[str, Any] = {**part_of(data, name), "bad": data.on_bad_line, "extractive": 1}
        paths = split_paths(self.paths, data, name)
        policy |= {"length": [data.max_length, too_long], "cut": config.cut, "sentences": config.sentences}

        def make() -> Kept:
            report, counts = ReadReport(), Counts()
            ids, labels = [], []
            examples = list(read_split(config, data, self.paths, name, report))
            for example, document in zip(examples, self.documents([e.source for e in examples]), strict=True):
                if fit(document.ids, counts, data.max_length, too_long, example.place) is None:
                    continue
                document = self._fitting(document)
                ids.append(document.ids)
                labels.append(document.labels(self._oracle(document, example.targets)))
            counts.bad, counts.bad_lines = report.num_bad, report.bad
            if not ids:
                raise no_example(name, report.path, counts)
            dtype = np.uint16 if tokenizer.size <= 2**16 else np.uint32
            columns = Column.of(ids, dtype), Column.of(labels, np.int32)
            counts.unknown = count_unknown(columns[0].ids, tokenizer)
            arrays = [array for column in columns for array in (column.ids, column.starts)]
            return dict(zip(KEPT, arrays, strict=True)), counts.to_json(paths)

        arrays, about = kept(cache / name_of(paths, [tokenizer], policy), make)
        own, starts, label_ids, label_starts = (arrays[name] for name in KEPT)
        counts = Counts.of_json(about, paths)
        return Rows(Column(own, starts), Column(label_ids, label_starts), counts, tokenizer.specials.pad)

    # --- training and answers -----------------------------------------------------------------------------------------

    def loss(self, model: Selector, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of what each decision about a sentence costs, and how many they are."""
        assert batch.target is not None
        return -self.log_probs(model, batch).sum(), (batch.target.ids >= 0).sum()

    def log_probs(self, model: Selector, batch: Batch) -> Tensor:
        """The log-probability of each decision about a sentence, 0 where none begins: B x N."""
        assert batch.target is not None
        labels, logits = batch.target.ids, model.logits(batch).float()
        return F.logsigmoid(torch.where(labels > 0, logits, -logits)) * (labels >= 0)

    @torch.inference_mode()
    def _probabilities(
        self,
        model: Selector,
        documents: Sequence[Document],
        config: DecodeConfig,
        device: torch.device,
        on_batch: OnBatch | None,
    ) -> list[list[float]]:
        """How likely each sentence that is read is to be chosen."""
        found: list[list[float]] = [[] for _ in documents]
        done = 0
        for group in by_length([document.ids for document in documents], config.batch_tokens):
            rows = pad_rows([documents[i].ids for i in group], self.tokenizer.specials.pad)
            for i, row in zip(group, model.logits(Batch(rows).to(device)).float().sigmoid().cpu(), strict=True):
                found[i] = row[documents[i].starts].tolist()
            done += len(group)
            if on_batch is not None:
                on_batch(done, len(documents))
        return found

    def predict(
        self,
        model: Selector,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """The chosen sentences of each document in their order, where they stand in it, and how likely each was.

        The score is the mean of these probabilities; `ids` are the numbers of the sentences, `tokens` they themselves.
        """
        whole, most = self.documents(sources), self.data.max_length
        for number, document in enumerate(whole, first_index + 1):
            need_room(document.ids, most, self.data.too_long, number)
        documents = [self._fitting(document) for document in whole]
        scored = self._probabilities(model, documents, config, device, on_batch)
        cuts = [max(0, len(document.ids) - most) for document in whole]
        return [self._prediction(*each) for each in zip(documents, scored, cuts, strict=True)]

    def need(self, source: str, number: int) -> None:
        """Raises where a document is longer than is read, if that is an error."""
        (document,) = self.documents([source])
        need_room(document.ids, self.data.max_length, self.data.too_long, number)

    def _prediction(self, document: Document, scores: list[float], cut: int) -> Prediction:
        texts, config = document.sentences, self.config
        read = texts[: len(scores)]
        chosen = select(read, scores, config.sentences, least=config.threshold, block=config.block_trigrams)
        spans = tuple(Span(*document.spans[i], score=scores[i]) for i in chosen)
        mean = sum(span.score for span in spans) / max(1, len(spans))
        said = tuple(texts[i] for i in chosen)
        return Prediction((join_sentences(said),), (mean,), (said,), cut, (tuple(chosen),), spans)

    def evaluate(
        self,
        model: Selector,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """ROUGE of the chosen sentences, of the first three and of the oracle's, against every reference."""
        examples = listed(self.examples(split), split, split_paths(self.paths, self.data, split))
        sources = [example.source for example in examples]
        answers = self.predict(model, sources, config, device=device, on_batch=on_batch)
        known = f"{split}, {noise_of(self.data)}"
        if known not in self._plain:
            documents = [self._fitting(document) for document in self.documents(sources)]
            lead = [join_sentences(document.sentences[:LEAD]) for document in documents]
            best = [
                join_sentences([document.sentences[i] for i in self._oracle(document, example.targets)])
                for document, example in zip(documents, examples, strict=True)
            ]
            self._plain[known] = [*scores_of(lead, examples, "lead3."), *scores_of(best, examples, "oracle.")]
        scores = [*self.score(answers, examples), *self._plain[known]]
        return Evaluation(scores, len(examples), sum(answer.cut > 0 for answer in answers))

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """ROUGE of these answers."""
        return scores_of([prediction.text for prediction in predictions], examples)

    # --- looking ------------------------------------------------------------------------------------------------------

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A document and the sentences that are chosen of it (their numbers; of a summary those it is best made of).

        Along `source` its tokens stand; along `target`, at the place that decides about it, each chosen sentence.
        """
        document = self._fitting(self.documents([source])[0])
        chosen = self._oracle(document, [target]) if isinstance(target, str) else list(target)
        said = join_sentences([document.sentences[i] for i in chosen])
        special, tokens = self.tokenizer.specials, self.tokenizer.tokens(document.ids)
        spans: list[Offsets] = []
        for start, end in document.spans:
            inner = [(start + a, start + b) for a, b in self.tokenizer.offsets(source[start:end])]
            spans += [(start, start), *inner, (end, end)]
        names, places, end = list(tokens), list[Offsets](), 0
        for i, (place, after) in enumerate(pairwise([*document.starts, len(tokens)])):
            start = end
            if i in chosen:
                names[place] = document.sentences[i]
                start = said.index(names[place], end)
                end = start + len(names[place])
            places += [(start, end), *[(end, end)] * (after - place - 1)]
        axes = (
            Axis("source", tuple(tokens), tuple(spans[: len(tokens)]), source),
            Axis("target", tuple(names), tuple(places), said),
        )
        batch = Batch(pad_rows([document.ids], special.pad), pad_rows([document.labels(chosen)], NONE))
        return batch, {axis.name: axis for axis in axes}


def read_split(config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport) -> Iterator[Example]:
    """The examples of a split; where validation has no file, it is a share of the training file by the documents."""

    def noisy(noise: Noise, example: Example) -> Example:
        """Mistakes in each sentence, which stay as many: a line each, whatever became of their ends."""
        text = example.source
        lines = [noise.text(text[start:end]) for start, end in cut_sentences(text, config.cut)]
        return replace(example, source="\n".join(lines))

    return summarization.read_split(summarization.Config(), data, paths, name, report, noisy)


def scores_of(texts: Sequence[str], examples: Sequence[Example], prefix: str = "") -> list[Score]:
    """ROUGE-1, -2 and -L of these summaries."""
    references = [example.targets for example in examples]
    found = [find_metric(name).measure(texts, references, MetricOptions()) for name in ROUGE]
    return [replace(score, name=f"{prefix}{score.name}") for score in found]
