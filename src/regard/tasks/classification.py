"""Classification: texts with a label, or with several, in; a model that says the label, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import key
from regard.data.batching import NONE
from regard.data.cache import cache_folder
from regard.data.config import DataConfig
from regard.data.knowledge import Branched, Knowledge, is_set, read_triples
from regard.data.parts import in_split, part_of
from regard.data.readers import ReadReport, read_labelled
from regard.data.rows import Rows, build_rows, framed
from regard.data.store import Column, Counts, need_room
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer
from regard.data.unread import policy_of
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import ConfigError, DataError, require, require_share
from regard.layers.classifier import Classifier, Pooling
from regard.layers.ngrams import NgramWeights
from regard.models import Sizes
from regard.tasks._calibration import fit_temperature, likelihood_loss
from regard.tasks._classes import Classes
from regard.tasks.metrics import Evaluation, Score, calibration_error, f1_scores
from regard.tasks.texts import OnBatch, Paths, Stateless, save_tokenizer, split_paths, with_unknown
from regard.types import BRANCHES, Axis, Batch, Example, Prediction

SUMMARY = "texts and their labels in, a model that says the label and how sure it is"
KIND = "encoder"
FILES = ("tokenizer.json", "labels.json")
DECODE = ("n_best", "batch_tokens")
KNOWLEDGE = "knowledge.tsv"  # in the run folder of one that has any
TAKES = ("train_share", "noise")
Ids = list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a classification recipe."""

    multi_label: bool = key(False, "whether a text may have several labels, or none; in a .tsv commas part them")
    pooling: Pooling = key(
        "mean",
        "what a text's states become: their mean, their largest (max), both, the first, the last, or the family's own",
    )
    dropout: float = key(0.1, "dropout of that state", may_change=True)
    label_smoothing: float = key(
        0.0, "share of the probability that is spread over all labels in training", may_change=True
    )
    word_dropout: float = key(
        0.0, "share of a text's tokens that are unknown to the model in training, others each time", may_change=True
    )
    consistency: float = key(
        0.0, "R-Drop: weight of how far two passes with other dropout lie apart, as 1; 0: off", may_change=True
    )
    class_weights: Literal["none", "balanced"] = key(
        "none", "balanced: in training the examples of a rare class count for more, so that all classes count alike"
    )
    threshold: float = key(0.5, "multi_label: labels of at least this probability are said", may_change=True)
    calibrate: bool = key(
        True, "after training, fit a temperature to validation, so that probabilities mean something", may_change=True
    )
    ngrams: int = key(
        0,
        "runs of 1 to this many tokens also speak for labels themselves, by weights that runs share by chance; 0: none",
    )
    ngram_rows: int = key(100000, "ngrams: how many weights a label has for the runs of each length")
    knowledge: str = key(
        "", "K-BERT: a file of triples (subject, predicate, object; tabs between) on what texts speak of, or a set"
    )
    knowledge_branches: int = key(2, "how many triples of an entity are put into a text, at most: the first")

    def __post_init__(self) -> None:
        require_share(self, "dropout", "label_smoothing", "word_dropout")
        require(self.consistency >= 0, "consistency is a weight", got=self.consistency, wanted="0 (off) or more")
        require(self.ngrams >= 0, "ngrams is a length", got=self.ngrams, wanted="0 (none) or more")
        apart = not (self.ngrams and self.knowledge)
        require(apart, "knowledge would stand in the runs of a text", got="ngrams and knowledge", wanted="one of them")
        require(self.ngram_rows > 0, "ngram_rows is too small", got=self.ngram_rows, wanted="1 or more")
        require(0 < self.threshold < 1, "threshold is a probability", got=self.threshold, wanted="0 < x < 1")
        most, number = BRANCHES - 1, self.knowledge_branches
        require(1 <= number <= most, "knowledge_branches is out of range", got=number, wanted=f"1 to {most}")

    def settled(self, resolve: Callable[[DataConfig], dict[str, tuple[Path, ...]]]) -> Self:
        """The same with a user's own file of knowledge by its whole path."""
        if not self.knowledge or is_set(self.knowledge):
            return self
        try:
            (found,) = resolve(DataConfig(test=(self.knowledge,)))["test"]
        except DataError as error:
            where = "task.knowledge"
            raise DataError(error.what, got=error.got, wanted=error.wanted, where=where, remedy=error.remedy) from None
        return replace(self, knowledge=str(found.resolve()))


def read_split(
    config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport, known: Sequence[str] = ()
) -> Iterator[Example]:
    """The examples of a split; where validation has no file, it is a share of the training file by their texts."""
    examples = read_labelled(
        split_paths(paths, data, name),
        multi_label=config.multi_label,
        known=known,
        on_bad_line=data.on_bad_line,
        report=report,
    )
    return in_split(examples, data, name)


class Task(Stateless):
    """A classification with its tokenizer and labels: what the loop trains on, and what a run answers with."""

    # what a task of texts with more to them does its own way
    read_split = staticmethod(read_split)
    train_tokenizer = staticmethod(train_tokenizer)
    load_tokenizer = staticmethod(Tokenizer.load)

    def __init__(
        self,
        config: Config,
        data: DataConfig,
        *,
        paths: Paths,
        tokenizer: Tokenizer,
        classes: Classes,
        folder: Path,
        knowledge: Knowledge | None = None,
    ) -> None:
        self.config, self.data, self.paths, self.tokenizer, self.folder = config, data, paths, tokenizer, folder
        self.classes, self.knowledge = classes, knowledge
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True, pieces=tokenizer.spelled())
        self.metrics = ("accuracy", *(["micro_f1"] if config.multi_label else []), "macro_f1", "ece")

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Self:
        """The task of a run folder: tokenizer and labels are loaded, or made from the training split and saved."""
        tokenizer_file, labels_file, knowledge_file = (folder / name for name in (*FILES, KNOWLEDGE))
        if not (tokenizer_file.exists() and labels_file.exists()):
            examples = list(cls.read_split(config, data, paths, "train", ReadReport()))
            everything = replace(data, val=data.val or data.train, val_share=0.0, train_share=1.0)
            classes = Classes.of(examples, cls.read_split(config, everything, paths, "train", ReadReport()))
            if len(classes.labels) < 2:
                got, wanted = f"{len(examples):,} examples, labels: {classes.labels}", "texts with two labels or more"
                raise DataError("there is nothing to tell apart", got=got, wanted=wanted, where=paths("train")[0])
            texts = [example.source for example in examples]
            if config.knowledge:
                knowledge = Knowledge(read_triples(config.knowledge), config.knowledge_branches)
                knowledge.save(knowledge_file)
                texts += knowledge.branches_of(texts)
            classes.save(labels_file)
            if not tokenizer_file.exists():
                save_tokenizer(cls.train_tokenizer(tokenizer, texts), tokenizer_file)
        found, classes = cls.load_tokenizer(tokenizer_file), Classes.load(labels_file)
        known = Knowledge.load(knowledge_file) if config.knowledge else None
        return cls(config, data, paths=paths, tokenizer=found, classes=classes, folder=folder, knowledge=known)

    def dress(self, model: Any) -> Classifier:
        """The encoder with a layer that says the label."""
        self._need_branches(model)
        return Classifier(
            model,
            num_classes=len(self.classes.labels),
            pooling=self.config.pooling,
            dropout=self.config.dropout,
            weights=self._weights(),
            ngrams=self._ngrams(),
        )

    def _ngrams(self) -> NgramWeights | None:
        """What runs of tokens say for themselves, beside the encoder."""
        number, config = len(self.classes.labels), self.config
        return NgramWeights(number, longest=config.ngrams, rows=config.ngram_rows) if config.ngrams else None

    def _need_branches(self, model: Any) -> None:
        """Raises where there is knowledge, and the model cannot tell it from the text."""
        if self.knowledge is not None and not getattr(model, "reads_branches", False):
            raise ConfigError(
                "this model cannot read knowledge beside a text",
                got=f"task.knowledge and {type(model).__name__}",
                wanted='family = "bert" with position = "learned" and bigrams = 0',
            )

    def _weights(self) -> Tensor:
        """What the examples of each class count for in training; with several labels, those that have it."""
        counts, number = torch.tensor(self.classes.counts, dtype=torch.float).clamp(min=1), self.classes.examples
        if self.config.class_weights == "none":
            return torch.ones_like(counts)
        return (number - counts).clamp(min=1) / counts if self.config.multi_label else number / (len(counts) * counts)

    # --- data ---------------------------------------------------------------------------------------------------------

    def read(self, path: Path, report: ReadReport | None = None) -> Iterator[Example]:
        """The texts of a file that is to be answered or looked at, with the labels that it has."""
        multi, policy = self.config.multi_label, policy_of(report)
        return read_labelled([path], multi_label=multi, need_labels=False, on_bad_line=policy, report=report)

    def examples(self, name: str) -> list[Example]:
        """The split as texts, each with its labels."""
        return list(self.read_split(self.config, self.data, self.paths, name, ReadReport(), self.classes.labels))

    def split(self, name: str, cache: Path) -> Rows:
        """The encoded split; the encoding is kept in the cache folder."""
        data, multi, labels = self.data, self.config.multi_label, self.classes.labels
        # to leave out what is judged by would flatter
        too_long = "truncate" if name != "train" and data.too_long == "drop" else data.too_long
        return build_rows(
            split_paths(self.paths, data, name),
            self.tokenizer,
            lambda report: self.read_split(self.config, data, self.paths, name, report, labels),
            lambda example: self._target(self.classes.ids(example.targets)),
            split=name,
            policy={
                "labels": labels,
                "multi": multi,
                "bad": data.on_bad_line,
                "markers": self.tokenizer.markers,
                "knowledge": None if self.knowledge is None else self.knowledge.sum,
                **part_of(data, name),
            },
            cache_dir=cache,
            max_length=data.max_length,
            too_long=too_long,
            label_width=len(labels) if multi else 1,
            kept=self.kept,
            grow=None if self.knowledge is None else lambda text, ids: self._row(text, ids)[:2],
        )

    def kept(self, ids: Sequence[int]) -> list[int]:
        """Which places of a text are read where it is longer than `data.max_length`: the first."""
        return list(range(min(len(ids), self.data.max_length)))

    def _row(self, text: str, ids: Sequence[int]) -> Branched:
        """What is read of a text with these ids: the places that are kept, and what is known of its entities."""
        kept, offsets = self.kept(ids), self.tokenizer.offsets(text)
        row = framed([ids[i] for i in kept], self.tokenizer)
        spans = [(0, 0), *(offsets[i] for i in kept), (len(text), len(text))]
        if self.knowledge is None:
            return Branched(row, [0] * len(row), spans)
        return self.knowledge.grow(text, row, spans, self.tokenizer, self.data.max_length + 2)

    def _target(self, ids: Sequence[int]) -> list[int]:
        """The labels of a text as a batch holds them: which one, or yes and no for each."""
        return [int(i in ids) for i in range(len(self.classes.labels))] if self.config.multi_label else list(ids)

    # --- training -----------------------------------------------------------------------------------------------------

    def loss(self, model: Classifier, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of the rows' labels, and how many rows have any.

        Class weights and the rest are training's: where the smoothing is given, as in validation, all examples count
        alike, and nothing else does.
        """
        assert batch.target is not None
        config, number = self.config, (batch.target.ids[:, 0] >= 0).sum()
        if smoothing is not None:
            return self._entropy(
                model.logits(batch), batch.target.ids, torch.ones_like(model.weights), smoothing
            ), number
        if model.training and self.classes.temperature != 1:  # of a training that goes on: `finish` fits it again
            self.classes = replace(self.classes, temperature=1.0)
        read = batch.twice() if config.consistency else batch
        assert read.target is not None
        logits = model.logits(with_unknown(read, config.word_dropout, self.tokenizer))
        loss = self._entropy(logits, read.target.ids, model.weights, config.label_smoothing)
        if config.consistency:
            apart = self._apart(*logits.float().chunk(2)) * (batch.target.ids[:, 0] >= 0)
            loss = (loss + config.consistency / 2 * apart.sum()) / 2
        return loss, number

    def _entropy(self, logits: Tensor, labels: Tensor, weights: Tensor, smoothing: float) -> Tensor:
        """The sum over rows; of several labels, over each of them."""
        logits = logits.float()
        if not self.config.multi_label:
            return F.cross_entropy(
                logits, labels[:, 0], weights, ignore_index=NONE, reduction="sum", label_smoothing=smoothing
            )
        goal = labels.clamp(min=0) * (1 - smoothing) + smoothing / 2
        each = F.binary_cross_entropy_with_logits(logits, goal.float(), pos_weight=weights, reduction="none")
        return (each * (labels >= 0)).sum()

    def _apart(self, first: Tensor, second: Tensor) -> Tensor:
        """KL both ways between what two passes say of each row: B."""
        if self.config.multi_label:
            return ((first.sigmoid() - second.sigmoid()) * (first - second)).sum(-1)
        first, second = first.log_softmax(-1), second.log_softmax(-1)
        return ((first.exp() - second.exp()) * (first - second)).sum(-1)

    def finish(self, model: Classifier, device: torch.device) -> str:
        """Fits the temperature to the validation split, and keeps it with the run; says what it did."""
        if not self.config.calibrate:
            if self.classes.temperature != 1:  # of a training before
                self.classes = replace(self.classes, temperature=1.0)
                self.classes.save(self.folder / FILES[1])
            return ""
        rows = self.split("val", cache_folder())
        logits, right = self._logits(model, rows, DecodeConfig(), device), _labels_of(rows)
        temperature = fit_temperature(logits, right)
        self.classes = replace(self.classes, temperature=temperature)
        self.classes.save(self.folder / FILES[1])
        if temperature == 1:
            return "not calibrated: validation is all right, so nothing says how sure is too sure"
        before, after = (float(likelihood_loss(logits / t, right)) for t in (1.0, temperature))
        return f"calibrated: temperature {temperature:.3g}, validation loss {before:.4g} -> {after:.4g}"

    # --- answers ------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _logits(
        self, model: Classifier, rows: Rows, config: DecodeConfig, device: torch.device, on_batch: OnBatch | None = None
    ) -> Tensor:
        """N x C, in the order of the rows."""
        found = torch.zeros(len(rows), len(self.classes.labels))
        plan = rows.plan(batch_tokens=config.batch_tokens, multiple=8, seed=0, epoch=0, shuffle=False)
        for done, planned in enumerate(plan, 1):
            batch = rows.collate(planned)
            found[batch.rows] = model.logits(batch.to(device))[: len(batch.rows)].float().cpu()
            if on_batch is not None:
                on_batch(done, len(plan))
        return found

    def probabilities(self, logits: Tensor) -> Tensor:
        """Calibrated: that each is the label, or with several labels that each is one of them."""
        logits = logits / self.classes.temperature
        return logits.sigmoid() if self.config.multi_label else logits.softmax(-1)

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
        """The label of each text with its probability, and the `n_best` labels; an empty text has none.

        With several labels the answer is all that are likely enough, commas between, with the probability of just
        these; with n_best above 1 the likeliest labels one by one.
        """
        encoded, most = self.tokenizer.encode_batch(list(sources)), self.data.max_length
        for number, ids in enumerate(encoded, first_index + 1):
            need_room(ids, most, self.data.too_long, number)
        found = self.probabilities(self._logits(model, self._rows(sources, encoded), config, device, on_batch))
        triples = zip(sources, found, (max(0, len(ids) - most) for ids in encoded), strict=True)
        return [self._prediction(row, config.n_best, cut) if text.strip() else EMPTY for text, row, cut in triples]

    def need(self, source: str, number: int) -> None:
        """Raises where a text is longer than is read, if that is an error."""
        need_room(self.tokenizer.encode_batch([source])[0], self.data.max_length, self.data.too_long, number)

    def _rows(self, sources: Sequence[str], encoded: Sequence[Sequence[int]]) -> Rows:
        """Texts and their ids as rows without labels."""
        none, pad = Column.of([[]] * len(encoded), "int64"), self.tokenizer.specials.pad
        rows, codes = self.reading(sources, encoded)
        branches = None if codes is None else Column.of(codes, "int64")
        return Rows(Column.of(rows, "int64"), none, Counts(), pad, label_width=1, branches=branches)

    def reading(self, texts: Sequence[str], encoded: Sequence[Sequence[int]]) -> tuple[Ids, Ids | None]:
        """What is read of texts with these ids, and where knowledge is put into them, which of it hangs at what."""
        if self.knowledge is None:
            return [framed([ids[i] for i in self.kept(ids)], self.tokenizer) for ids in encoded], None
        grown = [self._row(text, ids) for text, ids in zip(texts, encoded, strict=True)]
        return [row.ids for row in grown], [row.codes for row in grown]

    def _prediction(self, row: Tensor, number: int, cut: int) -> Prediction:
        if self.config.multi_label and number == 1:
            said = row >= self.config.threshold
            sets = [said.nonzero()[:, 0].tolist()]
            scores = [float(torch.where(said, row, 1 - row).prod())]
        else:
            best = row.sort(descending=True, stable=True)
            sets, scores = [[i] for i in best.indices[:number].tolist()], best.values[:number].tolist()
        names = [tuple(self.classes.labels[i] for i in each) for each in sets]
        texts, ids = tuple(",".join(each) for each in names), tuple(map(tuple, sets))
        return Prediction(texts, tuple(scores), tokens=tuple(names), cut=cut, ids=ids)

    def evaluate(
        self,
        model: Classifier,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: OnBatch | None = None,
    ) -> Evaluation:
        """Accuracy (all labels right), F1 over all decisions and as the mean of the classes, calibration error."""
        rows = self.split(split, cache_folder())
        probabilities = self.probabilities(self._logits(model, rows, config, device, on_batch))
        right = _labels_of(rows)
        if self.config.multi_label:
            said, sure = probabilities >= self.config.threshold, probabilities.flatten()
            scores = self._scores(said, right.bool(), sure, right.flatten().bool())
        else:
            sure, best = probabilities.max(-1)
            scores = self._scores(self._one_hot(best), self._one_hot(right), sure, best == right)
        return Evaluation(scores, len(rows), rows.counts.truncated)

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """The metrics of these answers that texts alone can tell."""
        said = self._decided([prediction.tokens[0] for prediction in predictions])  # a label may hold a comma
        return self._scores(said, self._decided([example.targets for example in examples]))

    def _scores(
        self, said: Tensor, right: Tensor, sure: Tensor | None = None, hit: Tensor | None = None
    ) -> list[Score]:
        """Of N x C decisions, and of how sure the model was of each that turned out right, or not."""
        micro, macro = f1_scores(said, right)
        found = {"accuracy": 100 * float((said == right).all(1).double().mean()), "macro_f1": macro}
        if self.config.multi_label:
            found["micro_f1"] = micro
        if sure is not None and hit is not None:
            found["ece"] = calibration_error(sure, hit)
        signature = f"examples:{len(said)}|classes:{said.shape[1]}"
        ways = {"ece": f"{signature}|bins:15|temperature:{self.classes.temperature:.4g}"}
        return [Score(name, found[name], ways.get(name, signature)) for name in self.metrics if name in found]

    def _decided(self, labels: Sequence[Sequence[str]]) -> Tensor:
        known = self.classes.labels
        return torch.tensor([[name in row for name in known] for row in labels]).reshape(-1, len(known))

    def _one_hot(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, len(self.classes.labels)).bool()

    # --- looking ------------------------------------------------------------------------------------------------------

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A text and its label (as text, or its number) as one row, and what stands along it: `source`, `target`."""
        if isinstance(target, str):
            names = self.classes.parted(target) if self.config.multi_label else [target.strip()] * bool(target.strip())
            target = self.classes.ids(names)
        row, codes, spans = self._row(source, self.tokenizer.encode_batch([source])[0])
        label = ",".join(self.classes.labels[i] for i in target)
        axes = (
            Axis("source", tuple(self.tokenizer.tokens(row)), tuple(spans), source),
            Axis("target", (label,), ((0, len(label)),), label),
        )
        branches = None if self.knowledge is None else [codes]
        read = pad_rows([row], self.tokenizer.specials.pad, branches)
        batch = Batch(read, pad_rows([self._target(target)], NONE))
        return batch, {axis.name: axis for axis in axes}

    def places(self, model: Classifier, batch: Batch) -> Tensor:
        """From which places' states the answer is read, and which share of it from each: B x N."""
        with torch.enable_grad():
            hidden = model.hidden(batch).detach().requires_grad_()
            (gradient,) = torch.autograd.grad(model.pooled(hidden, batch.source).sum(), hidden)
        read = (gradient != 0).any(-1).float()
        return read / read.sum(1, keepdim=True).clamp(min=1)

    def log_probs(self, model: Classifier, batch: Batch) -> Tensor:
        """The calibrated log-probability of the label (B x 1), or of each label to be one or not (B x C)."""
        assert batch.target is not None
        logits, labels = model.logits(batch).float() / self.classes.temperature, batch.target.ids
        if self.config.multi_label:
            return F.logsigmoid(torch.where(labels > 0, logits, -logits))
        return logits.log_softmax(-1).gather(-1, labels)


EMPTY = Prediction(("",), (0.0,), ((),), ids=((),))


def _labels_of(rows: Rows) -> Tensor:
    """The right labels of all rows: N, or N x C where there are several."""
    labels = torch.from_numpy(rows.labels.ids.astype("int64"))
    return labels.reshape(-1, rows.label_width) if rows.label_width > 1 else labels
