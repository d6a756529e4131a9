"""Weights in other people's names: a family says which of its tensors is which of theirs, and both ways follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import RunError


@dataclass(frozen=True, slots=True)
class Pair:
    """One tensor of ours and what it is in theirs: the rows of several, one after the other, each perhaps transposed.

    `sizes` are the rows of each of theirs where they differ; equal shares if not given.
    """

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False
    sizes: tuple[int, ...] = ()


def same(ours: str, theirs: str, *, transposed: bool = False) -> Pair:
    """A tensor that is one of theirs.

    >>> same("norm.weight", "ln_f.weight").theirs
    ('ln_f.weight',)
    """
    return Pair(ours, (theirs,), transposed)


def linear(
    ours: str, *theirs: str, bias: bool = True, transposed: bool = False, sizes: Sequence[int] = ()
) -> list[Pair]:
    """The weight and bias of a linear layer, of several of theirs where ours is one matrix."""
    found = [Pair(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transposed, tuple(sizes))]
    if bias:
        found.append(Pair(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs), False, tuple(sizes)))
    return found


def to_ours(
    pairs: Iterable[Pair], tensors: Mapping[str, Tensor], *, where: object, unused: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Our state from theirs. Every tensor of theirs must be used, but for names that end as one of `unused` does."""
    ours, used = dict[str, Tensor](), set[str]()
    for pair in pairs:
        missing = [name for name in pair.theirs if name not in tensors]
        if missing:
            raise RunError("the weights lack a tensor", got=f"no {missing[0]}", wanted=f"for {pair.ours}", where=where)
        parts = [tensors[name].T if pair.transposed else tensors[name] for name in pair.theirs]
        ours[pair.ours] = torch.cat(parts).contiguous() if len(parts) > 1 else parts[0].contiguous()
        used.update(pair.theirs)
    left = sorted(name for name in tensors if name not in used and not name.endswith(tuple(unused)))
    if left:
        raise RunError(
            "the weights hold tensors that this family has no place for", got=", ".join(left[:5]), where=where
        )
    return ours


def to_theirs(pairs: Iterable[Pair], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state from ours; what `to_ours` joined is cut apart again."""
    theirs = dict[str, Tensor]()
    for pair in pairs:
        tensor = state[pair.ours]
        parts = tensor.split(list(pair.sizes)) if pair.sizes else tensor.chunk(len(pair.theirs))
        for name, part in zip(pair.theirs, parts, strict=True):
            theirs[name] = (part.T if pair.transposed else part).contiguous().clone()
    return theirs
