"""Link prediction: facts of a head, a relation and a tail in; a model that says which entity is missing from one.

Every name is one token. A fact is asked both ways, as `entity relation <mask>`, and with `neighbours` the row also
holds some of what training knows of the entity, as HittER (Chen et al. 2021) reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import key
from regard.data.asked import FEWEST, Asked, together
from regard.data.batching import NONE
from regard.data.config import DataConfig
from regard.data.facts import ASKED, FIRST, MASK, Graph, Grouped, read_facts, read_queries
from regard.data.parts import in_split
from regard.data.readers import ReadReport
from regard.data.store import Counts, no_example
from regard.data.tokenizers import TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, require, require_share
from regard.layers.links import LinkPredictor, labels_of
from regard.models import Sizes
from regard.tasks.metrics import Evaluation, Score, filtered_ranks, rank_scores
from regard.tasks.texts import OnBatch, Paths, Stateless, listed, split_paths
from regard.types import Axis, Batch, Example, Prediction

SUMMARY = "facts of a head, a relation and a tail in, a model that says which entity is missing from one"
KIND = "encoder"
FILES = ("graph.json",)
DECODE = ("n_best", "known")
TAKES = ("train_share",)
WITHOUT = ("data.max_length", "data.too_long", "tokenizer")  # a fact is two names of a graph
SCORES = 2**24  # of rows against all entities, alive at a time


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a link prediction recipe."""

    neighbours: int = key(0, "facts of the training split that are read beside each entity, at most; 0: none")
    hide: float = key(
        0.0,
        "with neighbours: share of the entities that are hidden in training, so that neighbours count",
        may_change=True,
    )
    dropout: float = key(
        0.3, "dropout of the names' vectors, where they are read and where they are scored", may_change=True
    )
    negatives: int = key(
        0, "entities that the right one is told from in training, drawn for each batch; 0: all", may_change=True
    )
    label_smoothing: float = key(
        0.1, "share of the probability that is spread over all entities in training", may_change=True
    )
    answers: int = key(1, "answers of a question that are learned from at once, at most: the same loss for less work")

    def __post_init__(self) -> None:
        require_share(self, "dropout", "label_smoothing", "hide")
        require(self.negatives >= 0, "negatives is too small", got=self.negatives, wanted="0 (all) or for example 4096")
        require(self.neighbours >= 0, "neighbours is too small", got=self.neighbours, wanted="0 (none) or more")
        alone = self.answers == 1 or not (self.negatives or self.neighbours)
        require(self.answers > 0, "answers is too small", got=self.answers, wanted="1 or more, for example 8")
        require(
            alone,
            "several answers at once are told from all entities, and nothing is read beside the question",
            got=f"answers = {self.answers}, negatives = {self.negatives}, neighbours = {self.neighbours}",
            wanted="answers = 1, or both others 0",
        )
        hides = bool(self.hide and not self.neighbours)
        require(
            not hides, "an entity that is hidden is told by its neighbours", got="neighbours = 0", wanted="1 or more"
        )


class Task(Stateless):
    """Link prediction with its names and the facts of training: what the loop trains on, what a run answers with."""

    metrics = ("mrr", "hits1", "hits3", "hits10", "mrr_tails", "hits10_tails", "mrr_heads", "hits10_heads")

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, graph: Graph) -> None:
        self.config, self.data, self.paths, self.graph = config, data, paths, graph
        self.tokenizer = graph  # whose ids stand in the rows
        self.sizes = Sizes(graph.size, graph.size, shared=True)

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: names and training facts are loaded, or read from the splits and saved.

        Of validation and test the names alone are taken, so that all are ranked that may be right.
        """
        file = folder / FILES[0]
        if not file.exists():
            facts = listed(read_split(config, data, paths, "train", ReadReport()), "train", paths("train"))
            everything = replace(data, val=data.val or data.train, val_share=0.0, train_share=1.0)
            splits = [name for name in ("train", "val", "test") if data.files(name)]
            others = (fact for name in splits for fact in read_split(config, everything, paths, name, ReadReport()))
            Graph.of(facts, others).save(file)
        return cls(config, data, paths=paths, graph=Graph.load(file))

    def dress(self, model: Any) -> LinkPredictor:
        """The encoder, of which a state is held against all entities."""
        source = getattr(model, "source", None)
        if not (hasattr(source, "dropout") and isinstance(getattr(source, "tokens", None), torch.nn.Embedding)):
            raise ConfigError("the model has no vector for each name", got=type(model).__name__, wanted="as bert")
        number, dropout = len(self.graph.entities), self.config.dropout
        return LinkPredictor(model, first=FIRST, num_entities=number, dropout=dropout)

    # --- data ---------------------------------------------------------------------------------------------------------

    def read(self, path: Path, report: ReadReport | None = None) -> Iterator[Example]:
        """The queries of a file that is to be answered or looked at; of facts the tails are asked for."""
        return read_queries(path, report)

    def examples(self, name: str) -> list[Example]:
        """The split as queries, both ways, each with its answer."""
        facts = list(read_split(self.config, self.data, self.paths, name, ReadReport()))
        return [asked for fact in facts for asked in (fact, _turned(fact))]

    def split(self, name: str, cache: Path) -> Asked:
        """The split, asked both ways; in training up to `answers` facts that ask the same are one question."""
        asked = self._asked(name)
        if name != "train" or self.config.answers == 1:
            return asked
        return replace(asked, queries=together(asked.queries, self.config.answers))

    def _asked(self, name: str) -> Asked:
        report = ReadReport()
        facts = self.graph.numbers(read_split(self.config, self.data, self.paths, name, report))
        if not len(facts):
            raise no_example(name, report.path, Counts(bad=report.num_bad, bad_lines=report.bad))
        return Asked(self.graph, self.graph.asked(facts), self.config.neighbours, report)

    def _judged_with(self, split: str) -> list[str]:
        """The splits that are read for what is known when one is judged; a test is of no use to validation."""
        names = {"train": ("train",), "val": ("val",), "test": ("val", "test")}[split]
        return [name for name in names if self.data.files(name) or (name == "val" and self.data.val_share)]

    def _known(self, split: str) -> Grouped:
        """What is known when a split is judged: the facts of training, and of the splits above."""
        read = (read_split(self.config, self.data, self.paths, n, ReadReport()) for n in self._judged_with(split))
        return self.graph.known(np.concatenate([self.graph.facts, *map(self.graph.numbers, read)]))

    # --- training -----------------------------------------------------------------------------------------------------

    def loss(self, model: LinkPredictor, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies over all entities, and how many facts were asked."""
        if smoothing is not None:  # of validation, where each fact is asked alone
            return model.loss(batch, smoothing)
        if self.config.hide:
            ids = batch.source.ids
            hidden = torch.rand(len(ids), device=ids.device) < self.config.hide
            hidden = hidden & (batch.source.lengths > FEWEST)  # what has no neighbours would be told by nothing
            first = torch.where(hidden, MASK, ids[:, 0])[:, None]
            batch = replace(batch, source=replace(batch.source, ids=torch.cat([first, ids[:, 1:]], 1)))
        return model.loss(batch, self.config.label_smoothing, self.config.negatives, several=self.config.answers > 1)

    # --- answers ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def evaluate(
        self,
        model: LinkPredictor,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Filtered mean reciprocal rank and hits, over both ways and of each; among equals the rank is the mean."""
        questions, known = self._asked(split), self._known(split)
        ranks = torch.zeros(len(questions), dtype=torch.double)
        for batch, scores in self._scored(model, questions, device, on_batch):
            rows, columns = known.all_of(self.graph.key_of(questions.queries[batch.rows]))
            right = labels_of(batch)[: len(batch.rows)]
            ranks[batch.rows] = filtered_ranks(scores, right, torch.from_numpy(rows), torch.from_numpy(columns)).cpu()
        half = len(ranks) // 2
        values = rank_scores(ranks)
        for way, own in {"tails": ranks[:half], "heads": ranks[half:]}.items():
            values |= {f"{name}_{way}": value for name, value in rank_scores(own).items()}
        known_of = ",".join(dict.fromkeys(("train", *self._judged_with(split))))
        signature = f"facts:{half}|entities:{len(self.graph.entities)}|filtered:{known_of}|ties:mean"
        return Evaluation([Score(name, values[name], signature) for name in self.metrics], half)

    def _scored(
        self, model: LinkPredictor, questions: Asked, device: torch.device, on_batch: OnBatch | None = None
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Some questions at a time, and what each entity is worth as their answer: rows x entities."""
        places = max(1, SCORES // len(self.graph.entities)) * (FEWEST + 2 * self.config.neighbours)
        plan = questions.plan(batch_tokens=places, multiple=8, seed=0, epoch=0, shuffle=False)
        for done, planned in enumerate(plan, 1):
            batch = questions.collate(planned).to(device)
            yield batch, model.logits(batch)[: len(batch.rows)].float()
            if on_batch is not None:
                on_batch(done, len(plan))

    @torch.inference_mode()
    def predict(
        self,
        model: LinkPredictor,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """The `n_best` entities that answer each query, with their probabilities; an empty line has none."""
        answers = [EMPTY] * len(sources)
        asked = [i for i, source in enumerate(sources) if source.strip()]
        queries = [(*self.graph.query(sources[i], f"source {first_index + i + 1:,}"), NONE) for i in asked]
        questions = Asked(self.graph, np.array(queries, np.int64).reshape(-1, 3), self.config.neighbours)
        for batch, scores in self._scored(model, questions, device, on_batch) if asked else ():
            if not config.known:
                rows, columns = self.known.all_of(self.graph.key_of(questions.queries[batch.rows]))
                scores[torch.from_numpy(rows), torch.from_numpy(columns)] = -torch.inf
            best, left = scores.softmax(-1).sort(descending=True, stable=True), (scores > -torch.inf).sum(1).tolist()
            ids, worth = (part[:, : config.n_best].tolist() for part in (best.indices, best.values))
            for place, row in enumerate(batch.rows):
                if left[place]:  # what was left out stands at the end, and is no answer
                    answers[asked[row]] = self._prediction(ids[place][: left[place]], worth[place][: left[place]])
        return answers

    def need(self, source: str, number: int) -> None:
        """Raises where a source that is not empty is no query, or names what is in no fact."""
        if source.strip():
            self.graph.query(source, f"source {number:,}")

    @cached_property
    def known(self) -> Grouped:
        """What the training facts answer."""
        return self.graph.known(self.graph.facts)

    def _prediction(self, ids: list[int], worth: list[float]) -> Prediction:
        names = tuple(self.graph.entities[i] for i in ids)
        return Prediction(names, tuple(worth), tuple((name,) for name in names), ids=tuple((i,) for i in ids))

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """Hits of the best answers alone."""
        right = [answer.text in example.targets for answer, example in zip(predictions, examples, strict=True)]
        return [Score("hits1", 100 * sum(right) / max(1, len(right)), f"queries:{len(right)}|unfiltered")]

    # --- looking ------------------------------------------------------------------------------------------------------

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A query and its answer (a name, or its number) as one row, and what stands along it: `source`, `target`."""
        answer = self.graph.entity(target.strip()) if isinstance(target, str) else target[0]
        questions = Asked(self.graph, np.array([(*self.graph.query(source), answer)]), self.config.neighbours)
        plan = questions.plan(batch_tokens=1, multiple=1, seed=0, epoch=0, shuffle=False)
        batch = questions.collate(plan[0])
        assert batch.target is not None
        tokens = self.graph.tokens(batch.source.ids[0])
        said = [*("" for _ in tokens[1:]), self.graph.entities[answer]]
        return batch, {"source": _axis("source", tokens, tokens[:-1]), "target": _axis("target", said, said)}

    def log_probs(self, model: LinkPredictor, batch: Batch) -> Tensor:
        """The log-probability of each label, 0 where none counts: B x N."""
        assert batch.target is not None
        labels = batch.target.ids
        found = model.logits(batch).float().log_softmax(-1)[:, None].expand(-1, labels.shape[1], -1)
        return found.gather(-1, labels.clamp(min=0)[:, :, None])[:, :, 0] * (labels >= 0)


EMPTY = Prediction(("",), (0.0,), ((),), ids=((),))


def read_split(config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport) -> Iterator[Example]:
    """The facts of a split; where validation has no file, it is a share of the training facts."""
    facts = read_facts(split_paths(paths, data, name), on_bad_line=data.on_bad_line, report=report)
    whole = (replace(fact, source=f"{fact.source}\t{fact.targets[0]}") for fact in facts)  # what a share is drawn by
    for fact in in_split(whole, data, name):
        yield replace(fact, source=fact.source.rpartition("\t")[0])


def _turned(fact: Example) -> Example:
    """The same fact with its head asked for."""
    head, relation = fact.source.split("\t")
    return replace(fact, source=f"{ASKED}\t{relation}\t{fact.targets[0]}", targets=(head,))


def _axis(name: str, tokens: Sequence[str], spelled: Sequence[str]) -> Axis:
    """Tokens with spaces between them; those after the last that is spelled have no surface."""
    text, offsets = "", []
    for token in spelled:
        text += " " * bool(text and token)
        offsets.append((len(text), len(text) + len(token)))
        text += token
    return Axis(name, tuple(tokens), (*offsets, *[(len(text), len(text))] * (len(tokens) - len(spelled))), text)
