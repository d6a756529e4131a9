"""Vectors of texts: an encoder as it came, of which nothing is trained here. Texts that mean alike point alike, if the
encoder was trained for that."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.config import key
from regard.data.config import DataConfig
from regard.data.tokenizers import Tokenizer, TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.decode.search import pad_rows
from regard.errors import ConfigError, require
from regard.layers.classifier import Pooling, pool
from regard.models import Encoder, Sizes
from regard.tasks.texts import Stateless, by_length
from regard.types import Batch, Prediction

SUMMARY = "texts in, a vector of each out, by an encoder that was converted"
KIND = "encoder"
NOT_LOOKED_INTO = "a vector is no answer that could be explained"
FILES = ("tokenizer.json",)
DECODE = ("batch_tokens",)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[task]` section of a run for vectors."""

    context: int = key(512, "tokens that are read of a text, the special ones among them")
    pooling: Pooling = key("mean", "what a text's states become, as in classification")
    normalize: bool = key(True, "vectors have a length of 1, so that their product is the cosine")

    def __post_init__(self) -> None:
        require(self.context > 2, "context is too short", got=self.context, wanted="3 or more")


class Task(Stateless):
    """A tokenizer, and how a text becomes a vector."""

    metrics: Sequence[str] = ()

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.sizes = Sizes(tokenizer.size, tokenizer.size, shared=True, pieces=tokenizer.spelled())

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

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text with what the tokenizer puts around it; of a text that is too long, the beginning."""
        before, after = self.tokenizer.before, self.tokenizer.after
        room = self.config.context - len(before) - len(after)
        return [[*before, *ids[:room], *after] for ids in self.tokenizer.encode_batch(texts)]

    def vectors(
        self, model: Encoder, texts: Sequence[str], *, device: torch.device | str = "cpu", batch_tokens: int = 16384
    ) -> Tensor:
        """A vector of each text: texts x width."""
        return vectors_of(
            model,
            self.rows(texts),
            self.tokenizer.specials.pad,
            pooling=self.config.pooling,
            normalize=self.config.normalize,
            device=device,
            batch_tokens=batch_tokens,
        )

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


@torch.inference_mode()
def vectors_of(
    model: Any,
    rows: Sequence[Sequence[int]],
    pad: int,
    *,
    codes: Sequence[Sequence[int]] | None = None,
    pooling: Pooling,
    normalize: bool,
    device: torch.device | str,
    batch_tokens: int = 16384,
) -> Tensor:
    """A vector of each row of ids, in their order: rows x width; `codes` say what hangs at it, where anything does."""
    found: dict[int, Tensor] = {}
    for chosen in by_length(rows, batch_tokens):
        source = pad_rows([rows[i] for i in chosen], pad, codes and [codes[i] for i in chosen]).to(device)
        pooled = pool(model, model.hidden(Batch(source)), source, pooling)
        found |= zip(chosen, pooled.float().cpu(), strict=True)
    vectors = torch.stack([found[i] for i in range(len(rows))]) if rows else torch.empty(0, 0)
    return F.normalize(vectors, dim=-1) if normalize else vectors


def _trains_nothing() -> NoReturn:
    raise ConfigError(
        "the task `vectors` has nothing to train or to score",
        wanted="a run that `regard convert` made of an encoder",
        remedy="`regard tasks` lists those that train",
    )
