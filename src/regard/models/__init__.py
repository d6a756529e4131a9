"""The families, one file each: a file name is a family's name.

Every family file has `Config` (the keys of `[model]`), `PRESETS` (values by preset name), `LAWS` (what the contract
suite may expect of it) and `build(config, sizes)`, which gives a module with this contract:

- `hidden(batch)`: batch x length x width, the states that predict each next target token, and `head` beside it;
- `start(source, max_length)` and `step(tokens, state)`: decoding, one state in and one out.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from torch import Tensor, nn

from regard.config import nearest
from regard.errors import ConfigError
from regard.layers.embedding import Head, token_table
from regard.types import Batch, Sequences, State


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a family needs to know about the data: the vocabularies, and whether they are one."""

    source: int
    target: int
    shared: bool


class Seq2Seq(Protocol):
    """The contract of a family that reads one text and writes another."""

    head: Head
    training: bool

    def hidden(self, batch: Batch) -> Tensor: ...

    def start(self, source: Sequences, max_length: int) -> State: ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


def token_tables(sizes: Sizes, dim: int, *, tie: bool) -> tuple[nn.Embedding, nn.Embedding, Head]:
    """Source and target vectors and the output head; tied, the last two share a weight, or all three one vocabulary."""
    source = token_table(sizes.source, dim)
    target = source if sizes.shared and tie else token_table(sizes.target, dim)
    return source, target, Head(dim, sizes.target, target if tie else None)


def names() -> list[str]:
    """The families that are there.

    >>> "transformer" in names()
    True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def family(name: str) -> ModuleType:
    """The file of a family; an unknown name gives the nearest known one."""
    if name not in names():
        near = nearest(name, names())
        remedy = f'did you mean "{near}"?' if near else "`regard models` lists them"
        raise ConfigError("no such model family", got=name, wanted=", ".join(names()), remedy=remedy)
    return importlib.import_module(f"{__name__}.{name}")


def with_preset(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """A `[model]` table with the sizes of its preset filled in where it does not say them itself."""
    presets: dict[str, dict[str, Any]] = family(name).PRESETS
    preset = table.get("preset", next(iter(presets)))
    if not isinstance(preset, str) or preset not in presets:
        near = nearest(str(preset), presets)
        raise ConfigError(
            f'{name} has no preset "{preset}"',
            got=preset,
            wanted=", ".join(presets),
            remedy=f'did you mean "{near}"?' if near else None,
        )
    return {**presets[preset], **table, "preset": preset}
