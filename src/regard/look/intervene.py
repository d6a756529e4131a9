"""What happens without a head: masked, replaced by its mean, or pruned for good.

A head reaches the model through its columns of W^O alone, so an intervention is a change of what the `out` of its
layer is given (B x N x (H d), head h at columns h d to (h + 1) d - 1). A layer is any module with a linear `out` and
a `head_dim`; it is named by its path in the model, or by its number in the model's order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import RegardError, require

Head = tuple[str, int]  # the layer's name, the head's number
AnyHead = tuple[str | int, int]  # the layer's name or number, the head's number
Mode = Literal["mask", "mean"]
# Runs the model: "loss" (a number), "answers" (texts) where there are any; every other number is a metric.
Score = Callable[[], Mapping[str, Any]]
Hook = Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...] | None]


@dataclass(frozen=True, eq=False, slots=True)
class Layer:
    """The part of an attention layer that its heads speak through."""

    out: nn.Linear
    head_dim: int
    kind: str = "self"  # or "cross", where it reads another text

    @property
    def num_heads(self) -> int:
        return self.out.in_features // self.head_dim

    def heads(self, x: Tensor) -> Tensor:
        """Splits the last axis: .. x (H d) -> .. x H x d, a view."""
        return x.unflatten(-1, (self.num_heads, self.head_dim))  # type: ignore[no-any-return]


def layers(model: nn.Module) -> dict[str, Layer]:
    """The layers whose heads can be switched off, by their path, in the model's order."""
    found = {}
    for name, module in model.named_modules():
        out, head_dim = getattr(module, "out", None), getattr(module, "head_dim", None)
        if isinstance(out, nn.Linear) and isinstance(head_dim, int):
            found[name] = Layer(out, head_dim, getattr(module, "attends", "self"))
    if not found:
        wanted = "layers with a linear `out` and a `head_dim`"
        raise RegardError("this model has no heads to switch off", got=type(model).__name__, wanted=wanted)
    return found


def all_heads(model: nn.Module) -> list[Head]:
    """Every head of the model, layer by layer."""
    return [(name, head) for name, layer in layers(model).items() for head in range(layer.num_heads)]


def named(model: nn.Module, heads: Iterable[AnyHead]) -> list[Head]:
    """These heads by the names of their layers, each once; one that is not there is an error that says what is."""
    found = layers(model)
    names = list(found)
    result: dict[Head, None] = {}
    for place in heads:
        layer, head = _pair(place)
        by_number = isinstance(layer, Integral) and 0 <= layer < len(names)
        name = names[layer] if by_number else layer  # type: ignore[index]
        if not isinstance(name, str) or name not in found:
            wanted = f"0 to {len(names) - 1}, or one of {', '.join(names)}"
            raise RegardError("no such attention layer", got=layer, wanted=wanted)
        if not 0 <= head < found[name].num_heads:
            wanted = f"0 to {found[name].num_heads - 1}"
            raise RegardError("no such head", got=head, wanted=wanted, where=name)
        result[name, head] = None
    return list(result)


def _pair(place: object) -> AnyHead:
    """A layer and a head, as they are given."""
    if isinstance(place, tuple | list) and len(place) == 2 and isinstance(place[1], Integral):
        return place[0], int(place[1])
    wanted = "pairs (layer, head) counted from 0, as [(0, 1)]"
    raise RegardError("heads are not understood", got=repr(place)[:80], wanted=wanted)


@contextlib.contextmanager
def heads_off(
    model: nn.Module, heads: Iterable[AnyHead], mode: Mode = "mask", means: Mapping[str, Tensor] | None = None
) -> Iterator[None]:
    """Inside, these heads give nothing ("mask") or always what they give on average ("mean", from `mean_outputs`).

    >>> from regard.layers.attention import SelfAttention
    >>> layer = SelfAttention(8, num_heads=2)
    >>> with heads_off(layer, [(0, 0), (0, 1)]):
    ...     torch.equal(layer(torch.randn(1, 1, 8))[0, 0], layer.out.bias)
    True
    """
    require(mode in ("mask", "mean"), "no such mode", got=mode, wanted="mask, mean")
    got = f"mode = {mode} {'without' if means is None else 'with'} means"
    require((mode == "mean") == (means is not None), "mode and means do not fit", got=got, wanted="mean with means")
    off: dict[str, list[int]] = {}
    for name, head in named(model, heads):
        off.setdefault(name, []).append(head)
    found = layers(model)
    hooks = {
        name: _replace(found[name], numbers, None if means is None else means[name]) for name, numbers in off.items()
    }
    with _hooked(found, hooks):
        yield


def mean_outputs(model: nn.Module, run: Callable[[], object]) -> dict[str, Tensor]:
    """What each head gives on average over all places that the model meets in `run`: H x d for each layer.

    A place of padding counts as any other: run texts of one length together, or one by one.
    """
    found = layers(model)
    sums = {name: torch.zeros(layer.num_heads, layer.head_dim, dtype=torch.float64) for name, layer in found.items()}
    counts = dict.fromkeys(found, 0)

    def watch(name: str) -> Hook:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            given = found[name].heads(inputs[0].detach()).flatten(0, -3)
            sums[name] += given.sum(0, dtype=torch.float64).cpu()
            counts[name] += len(given)

        return hook

    with torch.no_grad(), _hooked(found, {name: watch(name) for name in found}):
        run()
    unseen = [name for name, count in counts.items() if not count]
    if unseen:
        raise RegardError("some layers were not run", got=", ".join(unseen), wanted="a run through the whole model")
    return {name: (total / counts[name]).float() for name, total in sums.items()}


def ablate(
    model: nn.Module,
    score: Score,
    heads: Iterable[AnyHead] | None = None,
    mode: Mode = "mask",
    means: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """What changes while each of these heads (all, if none are given) is off, one at a time.

    A row's "change" is the loss without the head minus the loss with it, and its "metrics" are changes too; "changed"
    says whether any answer became another one, and "answer" is the first that did (None where none did).
    """
    found = layers(model)
    numbers = {name: number for number, name in enumerate(found)}
    whole = _scores(score)
    rows = []
    for name, head in all_heads(model) if heads is None else named(model, heads):
        with heads_off(model, [(name, head)], mode, means):
            without = _scores(score)
        metrics = {key: without["metrics"][key] - value for key, value in whole["metrics"].items()}
        others = [new for old, new in zip(whole["answers"], without["answers"], strict=True) if new != old]
        row = {"layer": numbers[name], "name": name, "kind": found[name].kind, "head": head}
        row["change"] = without["loss"] - whole["loss"]
        rows.append({**row, "metrics": metrics, "answer": others[0] if others else None, "changed": bool(others)})
    return {"mode": mode, "loss": whole["loss"], "metrics": whole["metrics"], "heads": rows}


def prune_order(importance: Mapping[str, Tensor]) -> list[Head]:
    """Every head, the least important first; equal ones in the model's order.

    >>> prune_order({"a": torch.tensor([0.3, 0.1]), "b": torch.tensor([0.2])})
    [('a', 1), ('b', 0), ('a', 0)]
    """
    heads = [(name, head) for name, values in importance.items() for head in range(len(values))]
    return sorted(heads, key=lambda head: float(importance[head[0]][head[1]]))


def prune_curve(
    model: nn.Module,
    score: Score,
    importance: Callable[[], Mapping[str, Tensor]],
    *,
    keep: int = 0,
    every: int = 4,
) -> list[dict[str, Any]]:
    """Takes away the least important head, again and again, until `keep` are left: the scores at each number of heads.

    `importance` gives a number for each head (`relevance.head_importance`); it is asked anew after every few heads,
    with those off that went before. A point has "kept", "pruned" (the heads that are off, as they went), "loss" and
    "metrics". The model is left as it was: `prune(model, points[i]["pruned"])` makes a point real.
    """
    heads = all_heads(model)
    require(every >= 1, "every is too small", got=every, wanted="1 or more")
    require(0 <= keep <= len(heads), "so many heads cannot be kept", got=keep, wanted=f"0 to {len(heads)}")
    off: list[Head] = []
    points: list[dict[str, Any]] = []
    while True:
        with heads_off(model, off):
            scores = _scores(score)
            kept = len(heads) - len(off)
            points.append({"kept": kept, "pruned": list(off), "loss": scores["loss"], "metrics": scores["metrics"]})
            if kept == keep:
                break
            if len(off) % every == 0:
                order = [head for head in _whole_order(importance(), heads) if head not in off]
        off.append(order.pop(0))
    return points


def prune(model: nn.Module, heads: Iterable[AnyHead]) -> None:
    """Takes these heads out of the weights: their columns of W^O become 0, which a saved model keeps."""
    found = layers(model)
    with torch.no_grad():
        for name, head in named(model, heads):
            found[name].heads(found[name].out.weight)[:, head] = 0.0


def _replace(layer: Layer, numbers: list[int], means: Tensor | None) -> Hook:
    def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        given = inputs[0].clone()  # what others hold is left alone
        layer.heads(given)[..., numbers, :] = 0.0 if means is None else means[numbers].to(given)
        return (given, *inputs[1:])

    return hook


@contextlib.contextmanager
def _hooked(found: Mapping[str, Layer], hooks: Mapping[str, Hook]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, hook in hooks.items():
            stack.callback(found[name].out.register_forward_pre_hook(hook).remove)
        yield


def _whole_order(importance: Mapping[str, Tensor], heads: list[Head]) -> list[Head]:
    order = prune_order(importance)
    if set(order) != set(heads):
        unknown = ", ".join(f"{name} {head}" for name, head in sorted(set(order) ^ set(heads)))
        raise RegardError("the importance does not know every head of the model, or others", got=unknown)
    return order


def _scores(score: Score) -> dict[str, Any]:
    with torch.no_grad():
        given = score()
    metrics = {name: float(value) for name, value in given.items() if name not in ("loss", "answers")}
    return {"loss": float(given["loss"]), "metrics": metrics, "answers": list(given.get("answers", ()))}
