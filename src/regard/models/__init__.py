"""The families, one file each: a file name is a family's name.

Every family file has `KINDS` (below), `Config` (the keys of `[model]`), `PRESETS` (values by preset name), `LAWS` (what
the contract suite may expect of it; a function of the config where its forms differ; "causal" is not asked of an
encoder) and `build(config, sizes)`, which gives a module with the contract of its kind; where there are several kinds
it is `build(config, sizes, kind)`:

- "seq2seq" reads one text and writes another (`Seq2Seq`), "causal" continues a text (`Causal`), "encoder" reads one
  (`Encoder`); each has `hidden(batch)`, the states before the head, and `head` beside it; a task says which it trains;
- `start(source, max_length)` and `step(tokens, state)`: decoding, one state in and one out; where also
  `read(tokens, state)` is there, which is `step` before the head, decoding makes no logits that it does not need.

A family that exchanges weights with others also has `MODEL_TYPES` (their names for it), and all else that `Foreign` in
`_foreign.py` says; `exchanged` finds it by one of those names.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from types import ModuleType
from typing import Any, Protocol

from torch import Tensor, nn

from regard.config import nearest
from regard.errors import ConfigError, require
from regard.layers.copying import CopyHead
from regard.layers.embedding import Head, token_table
from regard.types import Batch, Sequences, State

KINDS = {"seq2seq": "reads one text and writes another", "causal": "continues a text", "encoder": "reads a text"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a family needs to know about the data: the vocabularies, and whether they are one (where a model has one
    text they are). A task whose model reads one text also says how its tokens are spelled."""

    source: int
    target: int
    shared: bool
    pieces: tuple[str, ...] = ()


class Loss(Protocol):
    """A head of hidden states, .. x D -> .. x V, that knows the loss of its own logits."""

    def __call__(self, hidden: Tensor) -> Tensor: ...

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of the cross-entropies of T x D states; labels under 0 count nothing."""


class Seq2Seq(Protocol):
    """The contract of a family that reads one text and writes another."""

    head: Loss
    training: bool

    def hidden(self, batch: Batch) -> Tensor: ...

    def start(self, source: Sequences, max_length: int) -> State: ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]: ...


class Causal(Protocol):
    """The contract of a family that continues a text: there is one sequence, `batch.source`.

    One that reads a long text in segments also has `empty_memory(rows)`, a State, and
    `remember(batch, memory) -> hidden, memory`: what it knows of the segments before.
    """

    head: Loss
    training: bool

    def hidden(self, batch: Batch) -> Tensor:
        """The states after each token, which predict the next: B x N x D."""

    def start(self, source: Sequences, max_length: int) -> State:
        """An empty state for the rows of `source`, whose tokens are not read: a prompt goes through `step`."""

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""


class Encoder(Protocol):
    """The contract of a family that reads a text: both sides of each token."""

    head: Loss  # what stands at a place that was hidden
    training: bool

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token of `batch.source`: B x N x D."""

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The state of a whole row: B x D."""


def token_tables(
    sizes: Sizes, dim: int, *, tie: bool, bias: bool = False, copy: bool = False
) -> tuple[nn.Embedding, nn.Embedding, Head]:
    """Source and target vectors and the output head; tied, the last two share a weight, or all three one vocabulary."""
    if copy and not sizes.shared:
        raise ConfigError(
            "what is copied from the source must be in the vocabulary of the target",
            got="two vocabularies, model.copy = true",
            wanted="one",
            remedy="tokenizer.shared = true, or model.copy = false",
        )
    source = token_table(sizes.source, dim)
    target = source if sizes.shared and tie else token_table(sizes.target, dim)
    return source, target, (CopyHead if copy else Head)(dim, sizes.target, target if tie else None, bias=bias)


def refuse_unused(config: Any, kind: str, unused: Sequence[str]) -> None:
    """Raises where one of these keys, for which a model of this kind has no use, was set."""
    values = asdict(config)
    for field in fields(config):
        name, value = field.name, values[field.name]
        what = f"a model that {KINDS[kind]} has no use for {name}"
        require(name not in unused or value == field.default, what, got=value, wanted=f"{field.default}, as if unsaid")


def names(kind: str | None = None) -> list[str]:
    """The families that are there, or those of one kind.

    >>> "transformer" in names(), "transformer" in names("causal")
    (True, False)
    """
    found = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return [name for name in found if kind is None or kind in _file(name).KINDS]


def family(name: str, kind: str | None = None) -> ModuleType:
    """The file of a family; an unknown name gives the nearest known one. With a `kind`, only such a family will do."""
    if name not in names():
        near = nearest(name, names(kind))
        remedy = f'did you mean "{near}"?' if near else "`regard models` lists them"
        raise ConfigError("no such model family", got=name, wanted=", ".join(names(kind)), remedy=remedy)
    found = _file(name)
    if kind is not None and kind not in found.KINDS:
        raise ConfigError(
            f"the task needs a model that {KINDS[kind]}",
            got=f"{name}, which {' or '.join(KINDS[own] for own in found.KINDS)}",
            wanted=", ".join(names(kind)),
        )
    return found


def build(name: str, config: Any, sizes: Sizes, kind: str) -> Any:
    """A model of this family and kind, with fresh weights."""
    found = family(name, kind)
    return found.build(config, sizes, kind) if len(found.KINDS) > 1 else found.build(config, sizes)


def _file(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def exchanged() -> dict[str, str]:
    """The names that others have for our families, and the family of each.

    >>> exchanged()["roberta"]
    'bert'
    """
    types = {name: _file(name).__dict__.get("MODEL_TYPES", ()) for name in names()}
    return {theirs: name for name, found in types.items() for theirs in found}


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
