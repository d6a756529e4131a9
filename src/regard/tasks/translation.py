"""Translation, and any other text to text: two parallel texts in, a model that writes one from the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.config import key
from regard.data.batching import Planned, collate, first_rows, padding_share, plan_batches
from regard.data.config import DataConfig
from regard.data.parts import in_split, part_of
from regard.data.readers import ReadReport, read_examples
from regard.data.store import Store, build_store
from regard.data.tokenizers import Tokenizer, TokenizerConfig, train_tokenizers
from regard.decode.config import DecodeConfig
from regard.decode.search import decode, pad_rows, stream
from regard.decode.speculative import Draft
from regard.errors import DataError, require
from regard.models import Seq2Seq, Sizes
from regard.tasks._both_ways import both
from regard.tasks._both_ways import search as search_both_ways
from regard.tasks.metrics import METRICS, Evaluation, MetricOptions, Score, count_words, find_metric
from regard.tasks.texts import Paths, Stateless, listed, of_labels, split_paths
from regard.types import Axis, Batch, Example, Prediction, Specials

SUMMARY = "translation, and any other text to text"
KIND = "seq2seq"
FILES = ("tokenizer.source.json", "tokenizer.target.json")
TAKES = ("train_share", "noise")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a translation recipe."""

    label_smoothing: float = key(
        0.1, "share of the target's probability that is spread over all tokens", may_change=True
    )
    consistency: float = key(
        0.0, "R-Drop: weight of how far two passes with other dropout lie apart, as 5; 0: off", may_change=True
    )
    both_ways: bool = key(
        False,
        "also learn answers from their end; a beam search without a prefix looks from both ends, judges by both",
    )
    metrics: tuple[str, ...] = key(("bleu", "chrf"), f"what `evaluate` reports: {', '.join(METRICS)}", may_change=True)
    tokenize: str = key(
        "13a", "sacreBLEU's tokenizer: 13a, zh, ja-mecab, char, or none for text tokenised already", may_change=True
    )
    lowercase: bool = key(False, "whether BLEU, chrF and TER ignore case", may_change=True)

    def __post_init__(self) -> None:
        got = self.label_smoothing
        require(0 <= got < 1, "label_smoothing is a share", got=got, wanted="0 <= x < 1")
        require(self.consistency >= 0, "consistency is a weight", got=self.consistency, wanted="0 (off) or more")
        require(bool(self.metrics), "no metric is named", got=self.metrics, wanted=", ".join(METRICS))
        for name in self.metrics:
            find_metric(name)
        MetricOptions(self.tokenize)


@dataclass(frozen=True)
class Pairs:
    """A split, encoded: the batches of an epoch, planned and then made one by one."""

    store: Store
    source: Specials
    target: Specials

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]:
        return plan_batches(
            self.store.source_lengths,
            self.store.target_lengths,
            batch_tokens=batch_tokens,
            multiple=multiple,
            seed=seed,
            epoch=epoch,
            shuffle=shuffle,
        )

    def collate(self, planned: Planned) -> Batch:
        return collate(self.store, planned, source_ids=self.source, target_ids=self.target)

    def first(self, number: int) -> Batch:
        """The first rows of the split as one batch."""
        plan = self.plan(batch_tokens=4096, multiple=4, seed=0, epoch=0, shuffle=False)
        return first_rows(plan, self.collate, number)

    def padding(self, plan: list[Planned]) -> float:
        return padding_share(plan, self.store.source_lengths, self.store.target_lengths)

    def describe(self) -> str:
        """One line, and one more for each of the first bad lines that were left out."""
        bad = [f"\n  {place}: {reason}" for place, reason in self.store.counts.bad_lines]
        return self.store.describe() + "".join(bad)


class Task(Stateless):
    """A translation with its tokenizers: what the loop trains on, and what a run answers with."""

    def __init__(
        self, config: Config, data: DataConfig, *, paths: Paths, source: Tokenizer, target: Tokenizer, shared: bool
    ) -> None:
        self.config, self.data, self.paths = config, data, paths
        self.source, self.target, self.metrics = source, target, config.metrics
        self.sizes = Sizes(source.size, target.size, shared)
        if self.both_ways:
            marks = target.specials.start, target.specials.end, target.specials.pad
            require(
                len(set(marks)) == 3,
                "both_ways needs a start token of its own",
                got="<s> {}, </s> {}, <pad> {}".format(*marks),
                wanted="three tokens",
                remedy="task.both_ways = false",
            )

    @property
    def both_ways(self) -> bool:
        """Whether answers are also learnt, and looked for, from their end."""
        return isinstance(self.config, Config) and self.config.both_ways

    @classmethod
    def open(cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path) -> Task:
        """The task of a run folder: its tokenizers are loaded, or trained on the training split and saved there."""

        def examples() -> list[Example]:
            found = listed(read_split(config, data, paths, "train", ReadReport()), "train", paths("train"))
            _need_targets(found, paths("train"))
            return found

        source, target = open_tokenizers(tokenizer, folder, examples)
        return cls(config, data, paths=paths, source=source, target=target, shared=tokenizer.shared)

    def split(self, name: str, cache: Path) -> Pairs:
        """The encoded split; the encoding is kept in the cache folder."""
        store = build_store(
            split_paths(self.paths, self.data, name),
            self.source,
            self.target,
            cache_dir=cache,
            max_length=self.data.max_length,
            too_long=self.data.too_long,
            on_bad_line=self.data.on_bad_line,
            split=name,
            read=lambda report: read_split(self.config, self.data, self.paths, name, report),
            more=part_of(self.data, name),
        )
        return Pairs(store, self.source.specials, self.target.specials)

    def examples(self, name: str) -> list[Example]:
        """The split as text, with every right answer."""
        examples = list(read_split(self.config, self.data, self.paths, name, ReadReport()))
        _need_targets(examples, split_paths(self.paths, self.data, name))
        return examples

    def lead(self, words: int) -> list[int]:
        """The ids that are put before a source whose answer should have about so many words: none."""
        return []

    def _read(self, sources: Sequence[str], words: int = 0) -> list[list[int]]:
        """The ids of each source as the model reads it, without its end; none for no text, or for spaces alone."""
        lead = self.lead(words)
        found = zip(sources, self.source.read_batch(list(sources)), strict=True)
        return [[*lead, *ids] if ids and source.strip() else [] for source, ids in found]

    def kept(self, ids: Sequence[int]) -> Sequence[int]:
        """Which places of a source are read where it is longer than `data.max_length`: the first."""
        return range(min(len(ids), self.data.max_length))

    def loss(self, model: Seq2Seq, batch: Batch, *, smoothing: float | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of the real target tokens, and how many they are."""
        if smoothing is None:
            smoothing = self.config.label_smoothing
        if self.both_ways and model.training:
            batch = both(batch)
        if self.config.consistency and model.training:
            return consistent_loss(model, batch, smoothing, self.config.consistency)
        return sum_loss(model, batch, smoothing)

    def predict(
        self,
        model: Seq2Seq,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        prefixes: Sequence[str] | None = None,
        on_batch: Callable[[int, int], None] | None = None,
        first_index: int = 0,
        draft: Draft | None = None,
    ) -> list[Prediction]:
        """The answers, in the order of the sources."""
        encoded = self._read(sources, config.words)
        fitting = [self._fit(row, i) for i, row in enumerate(encoded, first_index + 1)]
        special, rows = self.target.specials, [[*row, self.source.specials.end] for row in fitting]
        if self.both_ways and config.method == "beam" and prefixes is None and draft is None:
            found = search_both_ways(
                model,
                rows,
                config,
                source_pad=self.source.specials.pad,
                special=special,
                log_probs=lambda batch: self.log_probs(model, batch),
                device=device,
                on_batch=on_batch,
            )
        else:
            found = decode(
                model,
                rows,
                config,
                bos=special.start,
                eos=special.end,
                pad=special.pad,
                device=device,
                prefixes=None if prefixes is None else self._forced(prefixes, encoded),
                on_batch=on_batch,
                first_index=first_index,
                draft=draft,
            )
        cuts = [len(row) - len(read) for row, read in zip(encoded, fitting, strict=True)]
        return [
            Prediction(
                texts=tuple(self.target.decode(hypothesis.ids) for hypothesis in row),
                scores=tuple(hypothesis.score for hypothesis in row),
                tokens=tuple(tuple(self.target.tokens(hypothesis.ids)) for hypothesis in row),
                cut=cut,
                ids=tuple(hypothesis.ids for hypothesis in row),
            )
            for row, cut in zip(found, cuts, strict=True)
        ]

    def need(self, source: str, number: int) -> None:
        """Raises where a source is longer than is read, if that is an error."""
        self._fit(self._read([source])[0], number)

    def _forced(self, prefixes: Sequence[str], sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The ids of what answers begin with, none where there is no source; what no answer can hold is refused."""
        found, special = self.target.encode_batch(list(prefixes)), set(self.target.special_ids)
        for prefix, ids in zip(prefixes, found, strict=True):
            strange = [
                prefix[slice(*span)] for i, span in zip(ids, self.target.offsets(prefix), strict=True) if i in special
            ]
            require(
                not strange,
                "a prefix holds what no answer of this run can hold",
                got=" ".join(strange)[:80],
                wanted="words or letters that its training targets had",
            )
        return [ids if source else [] for ids, source in zip(found, sources, strict=True)]

    def generate(
        self,
        model: Seq2Seq,
        source: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        index: int = 0,
        draft: Draft | None = None,
    ) -> Iterator[str]:
        """The answer to one source, piece by piece."""
        ids = [*self._fit(self._read([source], config.words)[0], index + 1), self.source.specials.end]
        special = self.target.specials
        tokens = stream(
            model,
            ids,
            config,
            bos=special.start,
            eos=special.end,
            pad=special.pad,
            device=device,
            index=index,
            draft=draft,
        )
        return self.target.pieces(tokens)

    def pair(self, source: str, target: str | Sequence[int]) -> tuple[Batch, dict[str, Axis]]:
        """A source and its answer (a text, or the ids that a search found) as one row, and what stands along it.

        The axes: `source`; `prefix`, what the decoder has read at each of its places; `target`, what it writes there.
        """
        ids = self.target.encode_batch([target])[0] if isinstance(target, str) else list(target)
        text, spans = (target, self.target.offsets(target)) if isinstance(target, str) else self.target.spans(ids)
        start, end, found = (0, 0), (len(text), len(text)), self._read([source], count_words(text))[0]
        fitting, places = self._fit(found, 1), self.source.offsets(source)
        spans_read = [*[start] * (len(found) - len(places)), *places]
        read = [spans_read[i] for i in self.kept(found)]
        fitting, special = [*fitting, self.source.specials.end], self.target.specials
        whole = [special.start, *ids, special.end]
        tokens = self.target.tokens(whole)
        axes = (
            Axis("source", tuple(self.source.tokens(fitting)), (*read, (len(source), len(source))), source),
            Axis("prefix", tuple(tokens[:-1]), (start, *spans), text),
            Axis("target", tuple(tokens[1:]), (*spans, end), text),
        )
        batch = Batch(pad_rows([fitting], self.source.specials.pad), pad_rows([whole], special.pad))
        return batch, {axis.name: axis for axis in axes}

    def log_probs(self, model: Seq2Seq, batch: Batch) -> Tensor:
        """The log-probability of each target token after <s>, 0 for padding: B x (T - 1)."""
        labels, hidden = labels_of(batch), model.hidden(batch)
        return of_labels(model.head(hidden), labels.view(hidden.shape[:2]))

    def evaluate(
        self,
        model: Seq2Seq,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Evaluation:
        """The task's metrics on a split."""
        examples = listed(self.examples(split), split, split_paths(self.paths, self.data, split))
        sources = [example.source for example in examples]
        answers = self.predict(model, sources, config, device=device, on_batch=on_batch)
        return Evaluation(self.score(answers, examples), len(examples), sum(answer.cut > 0 for answer in answers))

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """The task's metrics of these answers."""
        hypotheses = [prediction.text for prediction in predictions]
        references = [example.targets for example in examples]
        options = MetricOptions(self.config.tokenize, self.config.lowercase)
        return [find_metric(name).measure(hypotheses, references, options) for name in self.config.metrics]

    def _fit(self, ids: list[int], number: int) -> list[int]:
        if len(ids) > self.data.max_length and self.data.too_long == "error":
            raise DataError(
                f"source {number:,} is too long",
                got=f"{len(ids)} tokens",
                wanted=f"at most {self.data.max_length} (data.max_length)",
                remedy="a shorter text; a model trained with data.too_long = truncate cuts it",
            )
        return [ids[i] for i in self.kept(ids)]


def read_split(config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport) -> Iterator[Example]:
    """The examples of a split; where validation has no file, it is a share of the training files by the sources."""
    files = split_paths(paths, data, name)
    return in_split(read_examples(files, on_bad_line=data.on_bad_line, report=report), data, name)


def open_tokenizers(
    config: TokenizerConfig,
    folder: Path,
    examples: Callable[[], list[Example]],
    extra: Callable[[list[Example]], Sequence[str]] = lambda examples: (),
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a run folder, trained on these examples where they are not there yet.

    `extra` says which special pieces the source has beside the usual ones.
    """
    source_file, target_file = (folder / name for name in FILES)
    if not source_file.exists():
        found = examples()
        source, target = train_tokenizers(config, found, extra=extra(found))
        _save(target, target_file)
        _save(source, source_file)  # last, so that both are there when it is
    source = Tokenizer.load(source_file)
    return source, source if config.shared else Tokenizer.load(target_file)


def sum_loss(model: Seq2Seq, batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sum of the label-smoothed cross-entropies of the real target tokens, and how many they are."""
    labels = labels_of(batch)
    hidden = model.hidden(batch).flatten(0, 1)
    loss = model.head.loss(hidden, labels, smoothing)
    return loss, (labels >= 0).sum()


def consistent_loss(model: Seq2Seq, batch: Batch, smoothing: float, weight: float) -> tuple[Tensor, Tensor]:
    """R-Drop (Liang et al. 2021): every row is read twice, each time with other dropout, and the two should agree.

    Half of -log p_1 - log p_2 + weight (KL(p_1 || p_2) + KL(p_2 || p_1)) / 2, so that it stays a sum over tokens.
    """
    labels, twice = labels_of(batch), batch.twice()
    hidden = model.hidden(twice).flatten(0, 1)
    entropy = model.head.loss(hidden, torch.cat([labels, labels]), smoothing)
    first, second = model.head(hidden).log_softmax(-1, dtype=torch.float32).chunk(2)
    apart = ((first.exp() - second.exp()) * (first - second)).sum(-1)  # KL both ways
    return (entropy + weight / 2 * (apart * (labels >= 0)).sum()) / 2, (labels >= 0).sum()


def labels_of(batch: Batch) -> Tensor:
    """The token after each target token, one row after the other; -100 where there is none."""
    assert batch.target is not None
    labels = batch.target.ids[:, 1:]
    real = torch.arange(labels.shape[1], device=labels.device) < (batch.target.lengths - 1)[:, None]
    return labels.masked_fill(~real, -100).flatten()


def _need_targets(examples: Sequence[Example], paths: Sequence[Path]) -> None:
    if examples and not examples[0].targets:
        raise DataError(
            "there is nothing to translate into",
            got=f"one text file: {_names(paths)}",
            wanted="two parallel files, a .tsv with source and target, or a .jsonl with both",
        )


def _save(tokenizer: Tokenizer, path: Path) -> None:
    try:
        tokenizer.save(path)
    except OSError as error:
        raise DataError("the tokenizer cannot be written", got=error.strerror or error, where=path) from None


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths)
