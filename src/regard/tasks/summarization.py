"""Summarization: documents and their summaries in, a model that writes a summary of its own.

A translation into few words: what differs is how the files are read, what is measured, and that the model can be told
how long its summary should be. For that, a special token before the document says how long the summary was in training,
one for each of a few ranges of lengths with as many summaries each (Fan et al. 2018).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from regard.config import key
from regard.data.config import DataConfig
from regard.data.parts import Change, in_split, part_of
from regard.data.readers import ReadReport, read_examples
from regard.data.store import build_store
from regard.data.tokenizers import TokenizerConfig
from regard.errors import ConfigError, DataError, require
from regard.tasks import translation
from regard.tasks.metrics import METRICS, count_words
from regard.tasks.texts import Paths, listed, split_paths
from regard.types import Example

SUMMARY = "documents and their summaries in, a model that writes one"
KIND, FILES, TAKES = translation.KIND, translation.FILES, translation.TAKES
LENGTH = re.compile(r"<length (\d+)-(\d*)>")  # a special piece: from how many words to how many


@dataclass(frozen=True, kw_only=True)
class Config(translation.Config):
    """The `[task]` section of a summarization recipe: translation's keys, and how the length is controlled."""

    metrics: tuple[str, ...] = key(
        ("rouge1", "rouge2", "rougeL"), f"what `evaluate` reports: {', '.join(METRICS)}", may_change=True
    )
    length_control: bool = key(False, "learn to write as many words as decode.words asks for")
    length_ranges: int = key(5, "length_control: how many ranges of lengths are told apart")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.length_ranges > 1, "length_ranges tells lengths apart", got=self.length_ranges, wanted="2 or more")


class Task(translation.Task):
    """A translation of documents into summaries."""

    config: Config

    @classmethod
    def open(  # type: ignore[override]
        cls, config: Config, data: DataConfig, tokenizer: TokenizerConfig, *, paths: Paths, folder: Path
    ) -> Task:
        """The task of a run folder: its tokenizers are loaded, or trained on the training split and saved there."""

        def examples() -> list[Example]:
            return listed(read_split(config, data, paths, "train", ReadReport()), "train", paths("train"))

        def extra(found: list[Example]) -> list[str]:
            return length_pieces(found, config.length_ranges) if config.length_control else []

        source, target = translation.open_tokenizers(tokenizer, folder, examples, extra)
        return cls(config, data, paths=paths, source=source, target=target, shared=tokenizer.shared)

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """The longest summary of each range in words, 0 for the last, and the id that stands for the range."""
        names = self.source.tokens(self.source.special_ids)
        found = zip(map(LENGTH.fullmatch, names), self.source.special_ids, strict=True)
        ranges = [(int(match[2] or 0), i) for match, i in found if match]
        if not ranges:
            raise ConfigError(
                "the tokenizer has no pieces that say a length",
                got="task.length_control = true",
                wanted="a tokenizer that was trained with it",
                remedy="train from scratch, or without task.length_control",
            )
        return ranges

    def lead(self, words: int) -> list[int]:
        """The id that says about how many words are wanted; 0: as many as half of the summaries had at most."""
        if not self.config.length_control:
            return []
        fitting = [i for most, i in self.lengths if most == 0 or words <= most]
        return [fitting[0] if words else self.lengths[(len(self.lengths) - 1) // 2][1]]

    def examples(self, name: str) -> list[Example]:
        """The split as text, with every right summary."""
        return list(read_split(self.config, self.data, self.paths, name, ReadReport()))

    def split(self, name: str, cache: Path) -> translation.Pairs:
        """The encoded split; the encoding is kept in the cache folder."""
        data, config = self.data, self.config
        # to leave out what is judged by would flatter
        too_long = "truncate" if name != "train" and data.too_long == "drop" else data.too_long
        store = build_store(
            split_paths(self.paths, data, name),
            self.source,
            self.target,
            cache_dir=cache,
            max_length=data.max_length,
            too_long=too_long,
            on_bad_line=data.on_bad_line,
            split=name,
            read=lambda report: read_split(config, data, self.paths, name, report),
            lead=lambda text: self.lead(count_words(text)),
            more={"control": config.length_control, **part_of(data, name)},
        )
        return translation.Pairs(store, self.source.specials, self.target.specials)


def read_split(
    config: Config, data: DataConfig, paths: Paths, name: str, report: ReadReport, noisy: Change | None = None
) -> Iterator[Example]:
    """The examples of a split; where validation has no file, it is a share of the training file by the documents."""
    files = split_paths(paths, data, name)
    for example in read_examples(files, on_bad_line=data.on_bad_line, report=report):
        if not example.targets:
            got, wanted = f"documents alone in {files[0]}", "a .jsonl or .tsv with document and summary"
            raise DataError("there are no summaries to learn from", got=got, wanted=wanted)
        yield from in_split([example], data, name, noisy)


def length_pieces(examples: Sequence[Example], number: int) -> list[str]:
    """Special pieces for ranges of lengths that the summaries fall into in equal numbers, the last without an end.

    >>> length_pieces([Example("", ("a b",)), Example("", ("a b c",)), Example("", ("a " * 9,))], 2)
    ['<length 0-2>', '<length 3->']
    """
    counts = sorted(count_words(text) for example in examples for text in example.targets)
    most = sorted({counts[max(len(counts) * n // number - 1, 0)] for n in range(1, number)} - {counts[-1]})
    if not most:
        raise DataError(
            "all summaries are about as long",
            got=f"{counts[0]} words",
            wanted="lengths that differ to learn them",
            remedy="task.length_control = false",
        )
    return [f"<length {low + 1 if low else 0}-{high or ''}>" for low, high in pairwise([0, *most, 0])]
