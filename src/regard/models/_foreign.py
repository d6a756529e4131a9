"""Weights in other people's names: a family says which of its tensors is which of theirs, and both ways follow.

`Foreign` is what a family file has for that; `from_theirs` and `as_theirs` are the two ways, the same for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from regard.errors import ConfigError, RunError, require
from regard.models import Sizes
from regard.types import Specials

T = TypeVar("T")


class Foreign(Protocol):
    """What a family file has that exchanges weights with others."""

    MODEL_TYPES: tuple[str, ...]  # their names for it: "model_type" in config.json
    UNUSED: tuple[str, ...]  # how the names of tensors end that files may hold and nobody reads

    def from_foreign(self, config: dict[str, Any]) -> tuple[Any, Sizes]:
        """Our config and vocabulary for their config.json; raises where it says another model."""

    def to_foreign(self, config: Any, sizes: Sizes) -> dict[str, Any]:
        """Their config.json, without special ids; raises where they have no such model."""

    def specials(self, config: Mapping[str, Any]) -> Specials:
        """The special ids that their config.json says, or means where it says none: see `specials` below."""

    def settle(self, config: Any, tensors: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """The config with the parts that a file really has, and its tensors under the names of `pairs`: see `plain`."""

    def pairs(self, config: Any) -> list[Pair]:
        """Which of our tensors is which of theirs."""

    def copies(self, config: Any) -> dict[str, str]:
        """Their tensors that may repeat another one (as a tied head does), with that one."""


def from_theirs(
    family: Foreign, config: dict[str, Any], tensors: Mapping[str, Tensor], *, where: object
) -> tuple[Any, Sizes, dict[str, Tensor]]:
    """Our config, vocabulary and state for their config.json and tensors."""
    ours, sizes = family.from_foreign(config)
    ours, tensors = family.settle(ours, tensors)
    options: dict[str, Any] = {"unused": family.UNUSED, "copies": family.copies(ours)}
    return ours, sizes, to_ours(family.pairs(ours), tensors, where=where, **options)


def as_theirs(
    family: Foreign, config: Any, sizes: Sizes, state: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Their config.json and tensors for our config, vocabulary and state."""
    theirs = family.to_foreign(config, sizes)
    return theirs, to_theirs(family.pairs(config), state, copies=family.copies(config))


def plain(config: T, tensors: Mapping[str, Tensor]) -> tuple[T, dict[str, Tensor]]:
    """A `settle` for families whose files always hold what their config says, under one set of names."""
    return config, dict(tensors)


def no_copies(config: object) -> dict[str, str]:
    """The `copies` of families whose tensors are all their own."""
    return {}


@dataclass(frozen=True, slots=True)
class Pair:
    """One tensor of ours and what it is in theirs: the rows of several, one after the other, each perhaps transposed.

    `sizes` are the rows of each of theirs where they differ; equal shares if not given. `shape` is that of each of
    theirs where it has more than two axes and ours is a matrix, which has all of them but the first as one; or where
    its first axis is 1, as of a matrix of one row (1, -1), and ours has no such axis. `scales` is what each of theirs
    is of ours, where they differ by a factor.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()

    def part_of_ours(self, tensor: Tensor, place: int) -> Tensor:
        """One of theirs as it stands in ours."""
        if self.shape:
            tensor = tensor[0] if self.shape[0] == 1 else tensor.flatten(1)
        tensor = tensor / self.scales[place] if self.scales else tensor
        return tensor.T if self.transposed else tensor

    def part_of_theirs(self, tensor: Tensor, place: int) -> Tensor:
        """A part of ours as it stands in theirs."""
        tensor = tensor.T if self.transposed else tensor
        tensor = tensor * self.scales[place] if self.scales else tensor
        return tensor.reshape(self.shape) if self.shape else tensor


def same(ours: str, theirs: str, *, transposed: bool = False) -> Pair:
    """A tensor that is one of theirs.

    >>> same("norm.weight", "ln_f.weight").theirs
    ('ln_f.weight',)
    """
    return Pair(ours, (theirs,), transposed)


def linear(
    ours: str,
    *theirs: str,
    bias: bool = True,
    transposed: bool = False,
    sizes: Sequence[int] = (),
    scales: Sequence[float] = (),
) -> list[Pair]:
    """The weight and bias of a linear layer, of several of theirs where ours is one matrix."""
    sizes, scales = tuple(sizes), tuple(scales)
    weights, biases = (tuple(f"{name}.{part}" for name in theirs) for part in ("weight", "bias"))
    found = [Pair(f"{ours}.weight", weights, transposed, sizes, scales=scales)]
    if bias:
        found.append(Pair(f"{ours}.bias", biases, False, sizes, scales=scales))
    return found


def to_ours(
    pairs: Iterable[Pair],
    tensors: Mapping[str, Tensor],
    *,
    where: object,
    unused: Sequence[str] = (),
    copies: Mapping[str, str] | None = None,
) -> dict[str, Tensor]:
    """Our state from theirs. Every tensor of theirs must be used, but for names that end as one of `unused` does.

    `copies` names the tensors of theirs that may repeat another one, with that one: where such a tensor is not in the
    file it is read from there, and where it is in the file without a place in ours it must be equal.
    """
    copies = copies or {}
    ours, used = dict[str, Tensor](), set[str]()
    for pair in pairs:
        names = [name if name in tensors else copies.get(name, name) for name in pair.theirs]
        missing = [name for name in names if name not in tensors]
        if missing:
            raise RunError("the weights lack a tensor", got=f"no {missing[0]}", wanted=f"for {pair.ours}", where=where)
        parts = [pair.part_of_ours(tensors[name], place) for place, name in enumerate(names)]
        tensor = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
        ours[pair.ours] = tensor.clone() if used.intersection(names) else tensor  # a copy is a tensor of its own
        used.update(names)
    left = sorted(name for name in tensors if name not in used and not name.endswith(tuple(unused)))
    for name in [name for name in left if copies.get(name) in tensors]:
        if not torch.equal(tensors[name], tensors[copies[name]]):
            raise RunError(
                f"{name} is not what the config says it is",
                got=f"other values than those of {copies[name]}",
                wanted="the same tensor (tied), or a config that unties them",
                where=where,
            )
        left.remove(name)
    if left:
        raise RunError(
            "the weights hold tensors that this family has no place for", got=", ".join(left[:5]), where=where
        )
    return ours


def to_theirs(
    pairs: Iterable[Pair], state: Mapping[str, Tensor], *, copies: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Their state from ours; what `to_ours` joined is cut apart again, and a copy that is still one is left out."""
    theirs = dict[str, Tensor]()
    for pair in pairs:
        tensor = state[pair.ours]
        parts = tensor.split(list(pair.sizes)) if pair.sizes else tensor.chunk(len(pair.theirs))
        for place, (name, part) in enumerate(zip(pair.theirs, parts, strict=True)):
            theirs[name] = pair.part_of_theirs(part, place).contiguous().clone()
    repeated = [(name, source) for name, source in (copies or {}).items() if name in theirs and source in theirs]
    for name, source in repeated:
        if torch.equal(theirs[name], theirs[source]):
            del theirs[name]
    return theirs


def known(config: Mapping[str, Any], name: str, values: Mapping[Any, T], usual: object) -> T:
    """What the value of a key of their config means to us; raises where it means nothing.

    >>> known({"hidden_act": "silu"}, "hidden_act", {"silu": "swiglu"}, "silu")
    'swiglu'
    """
    value, wanted = config.get(name, usual), ", ".join(map(str, values))
    if value not in list(values):
        raise ConfigError(f'no model of this family has this "{name}"', got=value, wanted=wanted, where="config.json")
    return values[value]


def specials(
    config: Mapping[str, Any], *, start: Sequence[str | int], end: Sequence[str | int], pad: Sequence[str | int]
) -> Specials:
    """The special ids that a config.json says. For each, what is looked for in turn: "eos" is the key "eos_token_id",
    and a number is the id that it has where nothing is said (in a smaller vocabulary: the last one).

    >>> specials({"pad_token_id": 0}, start=("bos", "pad"), end=("eos", 1), pad=("pad", 0))
    Specials(start=0, end=1, pad=0, unk=None, mask=None)
    """
    last = config.get("vocab_size", float("inf")) - 1

    def said(names: Sequence[str | int]) -> Any:
        values = [min(name, last) if isinstance(name, int) else config.get(f"{name}_token_id") for name in names]
        return next((value for value in values if value is not None), None)

    ids = (said(start), said(end), said(pad))
    one = all(isinstance(value, int) for value in ids)
    require(one, "a text has one start, one end and one padding", got=ids, wanted="one id each")
    known = all(0 <= value <= last for value in ids)
    require(known, "a special id of config.json is not in the vocabulary", got=ids, wanted=f"0 to {last} (vocab_size)")
    return Specials(*ids, config.get("unk_token_id"), config.get("mask_token_id"))
