"""Vectors of texts: an encoder as it came, of which nothing is trained here. Texts that mean alike point alike, if the
encoder was trained for that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import key
from regard.data.config import DataConfig
from regard.data.tokenizers import Tokenizer, TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.decode.search import batches, pad_rows
from regard.errors import ConfigError, require
from regard.layers.output import last_of, mean_of
from regard.models import Encoder, Sizes
from regard.types import Batch, Prediction

SUMMARY = "texts in, a vector of each out, by an encoder that was converted"
KIND = "encoder"
FILES = ("tokenizer.json",)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a run for vectors."""

    context: int = key(512, "tokens that are read of a text, the special ones among them")
    pooling: Literal["mean", "first", "last"] = key(
        "mean", "which states a vector is of: their mean, the first, the last"
    )
    normalize: bool = key(True, "vectors have a length of 1, so that their product is the cosine")

    def __post_init__(self) -> None:
        require(self.context > 2, "context is too short", got=self.context, wanted="3 or more")


class Task:
    """A tokenizer, and how a text becomes a vector."""

    metrics: Sequence[str] = ()

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True)

    @classmethod
    def open(
        cls,
        config: Config,
        data: DataConfig,
        tokenizer: TokenizerConfig,
        *,
        paths: Callable[[str], Sequence[Path]],
        folder: Path,
    ) -> Task:
        """The task of a run folder that `regard convert` made."""
        if not (folder / FILES[0]).exists():
            _trains_nothing()
        return cls(config, Tokenizer.load(folder / FILES[0]))

    def dress(self, model: Any) -> Any:
        """The model as it is."""
        return model

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text with what the tokenizer puts around it; of a text that is too long, the beginning."""
        before, after = self.tokenizer.before, self.tokenizer.after
        room = self.config.context - len(before) - len(after)
        return [[*before, *ids[:room], *after] for ids in self.tokenizer.encode_batch(texts)]

    @torch.inference_mode()
    def vectors(
        self, model: Encoder, texts: Sequence[str], *, device: torch.device | str = "cpu", batch_tokens: int = 16384
    ) -> Tensor:
        """A vector of each text: texts x width."""
        rows = self.rows(texts)
        found: dict[int, Tensor] = {}
        empty = [()] * len(rows)
        for chosen in batches(range(len(rows)), rows, empty, DecodeConfig(beam=1, batch_tokens=batch_tokens)):
            source = pad_rows([rows[i] for i in chosen], self.tokenizer.specials.pad).to(device)
            vectors = self._pooled(model.hidden(Batch(source)), source.lengths)
            found |= dict(zip(chosen, vectors.float().cpu(), strict=True))
        return torch.stack([found[i] for i in range(len(rows))]) if rows else torch.empty(0, 0)

    def _pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        if self.config.pooling == "first":
            vectors = hidden[:, 0]
        elif self.config.pooling == "last":
            vectors = last_of(hidden, lengths)
        else:
            vectors = mean_of(hidden, lengths)
        return F.normalize(vectors, dim=-1) if self.config.normalize else vectors

    def predict(
        self,
        model: Encoder,
        sources: Sequence[str],
        config: DecodeConfig,
        *,
        device: torch.device,
        on_batch: Callable[[int, int], None] | None = None,
        first_index: int = 0,
    ) -> list[Prediction]:
        """The vector of each text, as a list of numbers in JSON."""
        found = self.vectors(model, sources, device=device, batch_tokens=config.batch_tokens)
        if on_batch is not None:
            on_batch(len(sources), len(sources))
        return [Prediction((json.dumps([round(x, 6) for x in vector.tolist()]),), (0.0,)) for vector in found]

    def split(self, name: str, cache: Path) -> NoReturn:
        """Nothing is trained."""
        _trains_nothing()

    def evaluate(self, model: Encoder, split: str, config: DecodeConfig, **options: Any) -> NoReturn:
        """Nothing is right or wrong."""
        _trains_nothing()

    def tensors(self) -> dict[str, Tensor]:
        """Nothing is carried from batch to batch."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing was carried."""


def _trains_nothing() -> NoReturn:
    raise ConfigError(
        "the task `vectors` has nothing to train or to score",
        wanted="a run that `regard convert` made of an encoder",
        remedy="`regard tasks` lists those that train",
    )
