"""A model as a tree: its parts with the shapes of their weights, their parameters, and their cost a token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.layers.output import NoHead
from regard.models import Sizes, build, family
from regard.types import Batch, Sequences


@dataclass
class Part:
    """A module: `cost` is in multiply-adds a token, `times` how many equal ones stand in a row."""

    name: str
    kind: str
    shapes: str = ""
    parameters: int = 0
    cost: float = 0.0
    times: int = 1
    parts: list[Part] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Part]]:
        """This part and those in it, each with its depth."""
        yield depth, self
        for part in self.parts:
            yield from part.walk(depth + 1)


def describe(name: str, config: Any, *, vocab_size: int, length: int, kind: str = "") -> Part:
    """The parts of a family's model (of its first kind) for a shared vocabulary; the cost is for `length` tokens."""
    with torch.device("meta"):  # shapes without values: the largest model takes no memory and no time
        sizes = Sizes(vocab_size, vocab_size, shared=True)
        model: nn.Module = build(name, config, sizes, kind or family(name).KINDS[0]).eval()
        costs = _costs(model, length)
    return _part(name, "", model, costs, owned={name for name, _ in model.named_parameters()})


def _costs(model: Any, length: int) -> dict[nn.Module, float]:
    """Multiply-adds a token of every module, in reading one text (and writing another), of `length` tokens."""
    costs: dict[nn.Module, float] = dict.fromkeys(model.modules(), 0.0)
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    active: list[tuple[nn.Module, int]] = []
    counter = FlopCounterMode(display=False)

    def enter(module: nn.Module, _: object) -> None:
        active.append((module, counter.get_total_flops()))

    def leave(module: nn.Module, _: object, __: object) -> None:
        cost = (counter.get_total_flops() - active.pop()[1]) / 2 / length
        # a parent that was not called itself (a list, or one that is only asked for its part) costs what is in it
        called = {module for module, _ in active}
        part: nn.Module | None = module
        while part is not None and part not in called:
            costs[part] += cost
            part = parents.get(part)

    for module in model.modules():
        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:  # of the kernels of attention, the one that is counted
        hidden = model.hidden(Batch(_text(length), _text(length + 1)))
        if not isinstance(model.head, NoHead):
            model.head(hidden)
    return {**costs, model: counter.get_total_flops() / 2 / length}


def _text(length: int) -> Sequences:
    return Sequences(torch.zeros(1, length, dtype=torch.long), torch.full((1,), length))


def _part(name: str, path: str, module: nn.Module, costs: dict[nn.Module, float], owned: set[str]) -> Part:
    """A module and what is in it; `owned` names each weight once, so that a shared one is counted once."""
    own = dict(module.named_parameters(recurse=False))
    new = [p for n, p in own.items() if path + n in owned]
    shapes = [f"{n} {' x '.join(map(str, p.shape))}{'' if path + n in owned else ' (shared)'}" for n, p in own.items()]
    parts = [_part(n, f"{path}{n}.", child, costs, owned) for n, child in _children(module)]
    parts = [part for part in parts if part.shapes or part.parts or part.cost]
    parameters = sum(p.numel() for p in new) + sum(part.parameters for part in parts)
    return Part(name, type(module).__name__, ", ".join(shapes), parameters, costs[module], parts=_fold(parts))


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules inside, those of a list with their place in it: encoder.0, encoder.1, ..."""
    for name, child in module.named_children():
        if isinstance(child, nn.ModuleList):
            yield from ((f"{name}.{i}", each) for i, each in child.named_children())
        else:
            yield name, child


def _fold(parts: list[Part]) -> list[Part]:
    """Equal parts of a list, one after the other, become one with a count: blocks.0-5."""
    folded: list[Part] = []
    for part in parts:
        last = folded[-1] if folded else None
        stem, _, place = part.name.rpartition(".")
        if last is not None and stem and last.name.startswith(f"{stem}.") and _form(part) == _form(last):
            last.times += 1
            last.name = f"{stem}.{int(place) - last.times + 1}-{place}"
        else:
            folded.append(part)
    return folded


def _form(part: Part) -> list[tuple[object, ...]]:
    return [(d, p.name if d else "", p.kind, p.shapes, p.parameters, p.cost) for d, p in part.walk()]
