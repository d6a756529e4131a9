"""Several tasks as one: each puts its prefix before its sources, and one model writes the answers of all (T5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch

from regard.config import key
from regard.data.batching import Ints, Planned, plan_batches
from regard.data.config import SPLITS, DataConfig
from regard.data.parts import in_split, part_of
from regard.data.readers import ReadReport, read_examples
from regard.data.store import Counts, Store, as_asked, build_store, join
from regard.data.tokenizers import Tokenizer, TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.errors import DataError, require
from regard.models import Seq2Seq
from regard.tasks import translation
from regard.tasks.metrics import METRICS, Evaluation, MetricOptions, Score, find_metric
from regard.tasks.texts import listed
from regard.types import Example, Prediction, Specials

SUMMARY = "several tasks in one model, told apart by a prefix, mixed by weight"
KIND, FILES, TAKES = translation.KIND, translation.FILES, translation.TAKES
OWN_FILES = True  # [[task.parts]] names the files, not [data]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the tasks: an entry of `[[task.parts]]`."""

    name: str = key("", "what its metrics are called after: german.bleu")
    prefix: str = key("", 'what is put before each of its sources: "translate to German: "')
    set: str = key("", 'a set of the catalogue, in whose folder the files lie; "" = files of your own')
    train: tuple[str, ...] = key((), "one .tsv, .jsonl or .json (SQuAD), or two parallel text files")
    val: tuple[str, ...] = key((), "the same for validation")
    val_share: float = key(0.0, "share of the training files that is held out for validation, where val names none")
    test: tuple[str, ...] = key((), "the same for the test; may be left out")
    swapped: bool = key(False, "the files hold the target first, as a label before its text")
    weight: float = key(1.0, "its share of the training, as a multiple of the others'; 0 = by its number of rows")
    metrics: tuple[str, ...] = key(("bleu",), f"what `evaluate` reports of it: {', '.join(METRICS)}")
    tokenize: str = key("13a", "sacreBLEU's tokenizer")
    lowercase: bool = key(False, "whether its metrics ignore case")

    def __post_init__(self) -> None:
        require(bool(self.name) and "." not in self.name, "a part needs a name", got=self.name, wanted='as "german"')
        require(self.weight >= 0, f"weight of {self.name} is negative", got=self.weight, wanted="0 or more")
        both = bool(self.train and (self.val or self.val_share))
        require(both, f"{self.name} does not name its files", got="", wanted="train, and val or val_share")
        require(bool(self.metrics), f"{self.name} has no metric", got=self.metrics, wanted=", ".join(METRICS))
        for name in self.metrics:
            find_metric(name)
        MetricOptions(self.tokenize)
        self.of(DataConfig())  # which sees to it that the files make sense

    def of(self, data: DataConfig) -> DataConfig:
        """What `[data]` says, of the files of this part."""
        return replace(data, set=self.set, train=self.train, val=self.val, val_share=self.val_share, test=self.test)

    def files_of(self, split: str) -> str:
        """The split whose files a split is read from: validation may be a share of training; "" = there are none."""
        name = "train" if split == "val" and self.val_share else split
        return name if getattr(self, name, ()) else ""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a text-to-text recipe."""

    parts: tuple[Part, ...] = key((), "the tasks, each an entry [[task.parts]]")
    label_smoothing: float = key(
        0.1, "share of the target's probability that is spread over all tokens", may_change=True
    )

    def __post_init__(self) -> None:
        got = self.label_smoothing
        require(0 <= got < 1, "label_smoothing is a share", got=got, wanted="0 <= x < 1")
        names = [part.name for part in self.parts]
        require(len(names) > 0, "there is nothing to learn", got="no [[task.parts]]", wanted="one or more")
        require(len(set(names)) == len(names), "two parts have one name", got=", ".join(names), wanted="other names")
        prefixes = [part.prefix for part in self.parts]
        told = len(set(prefixes)) == len(prefixes)
        require(told, "two parts have one prefix: nothing tells them apart", got=prefixes, wanted="other prefixes")
        some = {part.weight > 0 for part in self.parts}
        require(len(some) == 1, "some parts have a weight, others have none", got=names, wanted="all of them or none")

    def settled(self, resolve: Callable[[DataConfig], dict[str, tuple[Path, ...]]]) -> Config:
        """The same with a user's own files by their whole path."""

        def whole(part: Part) -> Part:
            if part.set:
                return part
            found = resolve(part.of(DataConfig()))
            files = [tuple(str(path.resolve()) for path in found.get(split, ())) for split in SPLITS]
            return replace(part, train=files[0], val=files[1], test=files[2])

        return replace(self, parts=tuple(whole(part) for part in self.parts))


class Paths(Protocol):
    """The files of a split, of the recipe's [data] or of other data."""

    def __call__(self, split: str, data: DataConfig | None = None) -> Sequence[Path]: ...


@dataclass(frozen=True)
class Mixed(translation.Pairs):
    """The rows of all parts, one part after the other; in training, rows of a part may come several times an epoch."""

    sizes: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]:
        # the same rows in every epoch: other rows would be other lengths, and other shapes of batches
        chosen = mixed_rows(self.sizes, self.weights) if shuffle else np.arange(len(self.store))
        plan = plan_batches(
            self.store.source_lengths[chosen],
            self.store.target_lengths[chosen],
            batch_tokens=batch_tokens,
            multiple=multiple,
            seed=seed,
            epoch=epoch,
            shuffle=shuffle,
        )
        return [Planned(chosen[planned.rows], planned.shape) for planned in plan]


def mixed_rows(sizes: Sequence[int], weights: Sequence[float]) -> Ints:
    """The rows of an epoch in which every part has its share, and every row of every part comes at least once.

    Weights of 0 leave each part its own number of rows.

    >>> mixed_rows([4, 2], [1.0, 1.0]).tolist()
    [0, 1, 2, 3, 4, 4, 5, 5]
    """
    if not any(weights):
        weights = list(sizes)
    least = max(size / weight for size, weight in zip(sizes, weights, strict=True))
    rows, first = [], 0
    for size, weight in zip(sizes, weights, strict=True):
        # copies of row i: the numbers of an even spread of `wanted` marks that fall to it
        wanted = round(least * weight)
        rows.append(first + np.arange(wanted) * size // wanted)
        first += size
    return np.concatenate(rows, dtype=np.int64)


class Task(translation.Task):
    """The parts with their common tokenizer."""

    def __init__(self, config: Config, data: DataConfig, *, paths: Paths, tokenizer: Tokenizer) -> None:
        names = tuple(f"{part.name}.{metric}" for part in config.parts for metric in part.metrics)
        plain = translation.Config(label_smoothing=config.label_smoothing)
        super().__init__(plain, data, paths=paths, source=tokenizer, target=tokenizer, shared=True)
        self.parts, self.metrics, self._files = config.parts, names, paths

    @classmethod
    def open(  # type: ignore[override]
        cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path
    ) -> Self:
        """The task of a run folder: its tokenizer is loaded, or trained on what all parts train on."""
        require(tokenizer.shared, "one model writes for all parts", got="tokenizer.shared = false", wanted="true")

        def examples() -> list[Example]:
            parts = ((part, _paths(part, "train", paths)) for part in config.parts)
            return [each for part, files in parts for each in listed(_read(part, "train", paths, data), "train", files)]

        source, _ = translation.open_tokenizers(tokenizer, folder, examples)
        return cls(config, data, paths=paths, tokenizer=source)

    def split(self, name: str, cache: Path) -> Mixed:
        """All parts of the split, encoded."""
        stores = [
            build_store(
                _paths(part, name, self._files),
                self.source,
                self.target,
                cache_dir=cache,
                max_length=self.data.max_length,
                too_long=self.data.too_long,
                on_bad_line=self.data.on_bad_line,
                split=name,
                read=partial(_read, part, name, self._files, self.data),
                more={"prefix": part.prefix, "swapped": part.swapped, **part_of(part.of(self.data), name)},
            )
            for part in self.parts
        ]
        special: Specials = self.source.specials
        weights = tuple(part.weight for part in self.parts)
        return Mixed(_joined(stores), special, special, tuple(map(len, stores)), weights)

    def examples(self, name: str) -> list[Example]:
        """The split as text, part after part, with prefixes."""
        return [example for part in self.parts for example in _read(part, name, self._files, self.data)]

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Score]:
        """Every part's metrics of its own examples, which are known by their prefix."""
        rows: dict[str, list[int]] = {part.name: [] for part in self.parts}
        for i, example in enumerate(examples):
            fitting = [part for part in self.parts if example.source.startswith(part.prefix)]
            rows[max(fitting, key=lambda part: len(part.prefix)).name].append(i)
        scores: list[Score] = []
        for part in self.parts:
            own = rows[part.name]
            scores += _scored(part, [predictions[i].text for i in own], [examples[i] for i in own]) if own else []
        return scores

    def evaluate(
        self,
        model: Seq2Seq,
        split: str,
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Evaluation:
        """Every part's metrics on its own rows of the split; parts without such files are left out."""
        scores: list[Score] = []
        number = cut = 0
        for part in self.parts:
            if not part.files_of(split):
                continue
            files = _paths(part, split, self._files)
            examples = listed(_read(part, split, self._files, self.data), split, files)
            sources = [example.source for example in examples]
            answers = self.predict(model, sources, config, device=device, on_batch=on_batch)
            scores += _scored(part, [answer.text for answer in answers], examples)
            number, cut = number + len(examples), cut + sum(answer.cut > 0 for answer in answers)
        if not scores:
            raise DataError(f"no part names a {split} split", got=", ".join(part.name for part in self.parts))
        return Evaluation(scores, number, cut)


def _scored(part: Part, texts: Sequence[str], examples: Sequence[Example]) -> list[Score]:
    references, options = [example.targets for example in examples], MetricOptions(part.tokenize, part.lowercase)
    found = [find_metric(name).measure(texts, references, options) for name in part.metrics]
    return [replace(score, name=f"{part.name}.{score.name}") for score in found]


def _read(
    part: Part, split: str, paths: Paths, data: DataConfig, report: ReadReport | None = None
) -> Iterator[Example]:
    found = read_examples(_paths(part, split, paths), on_bad_line=data.on_bad_line, report=report)
    asked = (as_asked(example, "", swapped=part.swapped) for example in found)
    chosen = in_split(asked, part.of(data), split)  # before the prefix, which has no mistakes
    return (as_asked(example, part.prefix, swapped=False) for example in chosen)


def _paths(part: Part, split: str, paths: Paths) -> Sequence[Path]:
    name = part.files_of(split)
    if not name:
        raise DataError(f"{part.name} names no {split} split", got=f"{split} is empty", remedy="name its files")
    return paths(name, part.of(DataConfig()))


def _joined(stores: Sequence[Store]) -> Store:
    counts = Counts()
    for store in stores:
        counts.truncated += store.counts.truncated
        counts.dropped += store.counts.dropped
        counts.bad += store.counts.bad
        counts.unknown += store.counts.unknown
        counts.unknown_targets += store.counts.unknown_targets
        counts.bad_lines += store.counts.bad_lines
    sources, targets = [store.sources for store in stores], [store.targets for store in stores]
    return Store(join(sources, sources[0].ids.dtype), join(targets, targets[0].ids.dtype), counts)
