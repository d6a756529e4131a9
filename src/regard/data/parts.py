"""Which examples of its files a split has, and with which mistakes: one place for all tasks that read by the example.

Validation may be a share of the training files (`data.val_share`), training a share of the rest (`data.train_share`),
and any split may be read with noise (`regard evaluate --noise`). What is chosen follows from the texts themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from regard.data.config import DataConfig
from regard.data.noise import Noise
from regard.data.rows import is_held_out
from regard.types import Example

Change = Callable[[Noise, Example], Example]


@dataclass(frozen=True)
class NoisyData(DataConfig):
    """The `[data]` section of a recipe, whose texts are read with mistakes."""

    noise: Noise = dataclasses.field(kw_only=True, metadata={"doc": "the mistakes"})

    @classmethod
    def of(cls, data: DataConfig, noise: Noise) -> NoisyData:
        return cls(**{field.name: getattr(data, field.name) for field in dataclasses.fields(DataConfig)}, noise=noise)


def in_split(
    examples: Iterable[Example], data: DataConfig, name: str, noisy: Change | None = None
) -> Iterator[Example]:
    """The examples that belong to a split, of those in its files; `noisy` where not all of a source may be changed.

    >>> texts = [Example(f"text {i}") for i in range(100)]
    >>> [len(list(in_split(texts, DataConfig(val_share=0.2, train_share=0.5), name))) for name in ("train", "val")]
    [38, 21]
    """
    noise, noisy = noise_of(data), noisy or _with_noise
    for example in examples:
        if name != "test" and data.val_share and is_held_out(example.source, data.val_share) != (name == "val"):
            continue
        # another sum than that of what is held out, which would leave shares of other sizes
        if name == "train" and not is_held_out(f"train {example.source}", data.train_share):
            continue
        yield noisy(noise, example) if noise.share else example


def part_of(data: DataConfig, name: str) -> dict[str, Any]:
    """What `in_split` depends on, as a part of the name of a cache."""
    part = name if data.val_share or (name == "train" and data.train_share < 1) else "all"
    return {"part": [part, data.val_share, data.train_share if name == "train" else 1.0], "noise": str(noise_of(data))}


def noise_of(data: DataConfig) -> Noise:
    """The mistakes that the texts of a split are read with."""
    return data.noise if isinstance(data, NoisyData) else Noise()


def _with_noise(noise: Noise, example: Example) -> Example:
    return dataclasses.replace(example, source=noise.text(example.source))
