"""Trace -> the page's document: plain JSON, and beside it one array for each tensor.

Shapes: H heads, K key heads, N rows (queries), M keys, d head width; one row of the batch, so no batch axis.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import ConfigError, RegardError
from regard.look.trace import NotSaved
from regard.ops.call import Call
from regard.ops.masks import Band, Lengths
from regard.ops.observe import bin_width
from regard.types import Trace, View

Array = NDArray[Any]
VERSION = 1
EXACT_LENGTH = 1024  # to this length every head is exact unless told otherwise
EXACT_BYTES = 400 * 2**20  # a browser's longest string is 512 MiB
DIGITS = 10  # letters of a weight in JSON
VALUES_LENGTH = 256  # the step view shows values to here
TOP, TOP_LENGTH = 8, 4096
LARGEST_HALF = 65504.0  # of a text that is longer, distances go beyond it
LONG = 4096  # beyond it measures of rows are halves: 100 heads of 32,768 rows stay a file that opens
UNKNOWN_HEAD: dict[str, Any] = {"importance": None, "kinds": [], "scores": {}}
Head = tuple[int, int]  # layer, head
Exact = Literal["auto", "all"] | Collection[Head]


@dataclass(frozen=True)
class Document:
    """What the page shows: `doc` in JSON's own types, `tensors` as arrays by name."""

    doc: dict[str, Any]
    tensors: dict[str, Array] = field(default_factory=dict)

    def put(self, name: str, tensor: Tensor, dtype: str = "f4") -> None:
        """Adds a tensor; as floats where it asks for halves, but has numbers that are too large for them."""
        too_large = dtype == "f2" and bool((tensor.abs() > LARGEST_HALF).any())
        self.tensors[name] = _array(tensor, "f4" if too_large else dtype)

    def json(self) -> dict[str, Any]:
        """The document with the types and shapes of its tensors."""
        named = {
            name: {"dtype": array.dtype.str[1:], "shape": list(array.shape)} for name, array in self.tensors.items()
        }
        return {**self.doc, "tensors": named}


@dataclass(frozen=True)
class Explanations:
    """What is said about a trace beside its measures; each in the form that the page's document has for it."""

    heads: list[list[dict[str, Any]]] | None = None
    rollout: dict[str, Any] | None = None
    relevance: dict[str, Any] | None = None
    alignment: dict[str, Any] | None = None
    card: dict[str, Any] | None = None
    ablation: dict[str, Any] | None = None
    drift: dict[str, Any] | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # "rollout", "relevance", "drift.entropy" ...


def make_document(
    trace: Trace,
    found: Explanations | None = None,
    *,
    title: str = "regard",
    bins: int = 128,
    exact: Exact = "auto",
    live: str | None = None,
) -> Document:
    """The document of the first row of a trace's batch.

    Weights are exact to 1,024 tokens and for the heads that `exact` names, pooled into `bins` beyond. `live` is the
    address that gives exact rows of the rest.

    >>> import torch
    >>> from regard.layers.attention import SelfAttention
    >>> from regard.look.collect import observe
    >>> layer = SelfAttention(8, num_heads=2)
    >>> with observe(layer) as trace:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> make_document(trace).tensors["0.entropy"].shape
    (2, 5)
    """
    _check_whole(trace)
    found = found or Explanations()
    forms = _forms(trace, exact, live)
    document = Document(
        {
            "version": VERSION,
            "title": title,
            **{name: str(trace.info.get(name, "")) for name in ("model", "run", "text", "answer")},
            "cut": trace.info.get("cut"),  # to so many tokens
            "axes": _axes(trace),
            "layers": [_layer(view, form, bins) for view, form in zip(trace, forms, strict=True)],
            "exact_heads": None if live is not None else _exact_heads(trace, exact),
            "heads": found.heads or [[UNKNOWN_HEAD] * view.shape[1] for view in trace],
            "rollout": found.rollout,
            "relevance": found.relevance,
            "alignment": found.alignment,
            "card": found.card,
            "ablation": found.ablation,
            "drift": found.drift,
            "live": live,
        }
    )
    for i, (view, form) in enumerate(zip(trace, forms, strict=True)):
        _put_measures(document, i, view, bins)
        _put_exact(document, i, view, form)
    for name, tensor in found.tensors.items():
        document.put(name, tensor)
    return document


def _check_whole(trace: Trace) -> None:
    """Raises where a trace is not that of a whole text: the page would take its rows for those at the beginning."""
    if not len(trace):
        raise ConfigError("there is nothing to show", got="a trace without attention layers", wanted="at least one")
    lengths: dict[str, int] = {name: len(axis.tokens) for name, axis in trace.axes.items()}
    for view in trace:
        for name, length in zip((view.rows_axis, view.keys_axis), view.shape[2:], strict=True):
            if name and lengths.setdefault(name, length) != length:
                raise ConfigError(
                    "the trace holds a part of a text",
                    got=f"{length} places of {name}",
                    wanted=f"{lengths[name]}, as elsewhere",
                    where=view.name,
                    remedy="observe one pass over the whole text",
                )


def dump(trace: Trace, document: Document, exact: Exact = "auto") -> str:
    """All numbers of a document as JSON text: measures of each layer, and the weights of its exact heads.

    Where not all heads of a layer are exact, or their weights would be too long a text, its pooled maps are there too,
    and `weights` has null for the heads that are not. Heads that `exact` names are refused rather than left out.
    """
    chosen = _dumped(trace, document, exact)  # before anything is made of them
    layers = []
    for i, (view, layer) in enumerate(zip(trace, document.doc["layers"], strict=True)):
        names = ["entropy", "confidence", "distance", "first", "received", "norms", "map", "weighted"]
        found = {name: document.tensors.get(f"{i}.{name}") for name in names}
        numbers = {name: _nested(array) for name, array in found.items() if array is not None}
        rows, heads = range(view.shape[2]), range(view.shape[1])
        if chosen[i]:
            whole = [_nested(_array(view.rows(rows, [head])[0, 0])) if head in chosen[i] else None for head in heads]
            numbers["weights"] = whole
        if len(chosen[i]) == len(heads):
            numbers = {name: values for name, values in numbers.items() if name not in ("map", "weighted")}
        layers.append({**layer, **numbers})
    others = {name: _nested(array) for name, array in document.tensors.items() if not name[0].isdigit()}
    return json.dumps({**document.doc, "layers": layers, "values": others}, ensure_ascii=False, allow_nan=False)


def _dumped(trace: Trace, document: Document, exact: Exact) -> list[set[int]]:
    """The heads of each layer whose weights go into the JSON."""
    listed, named = document.doc["exact_heads"], () if isinstance(exact, str) else exact
    chosen: list[set[int]] = []
    total = 0
    for i, (view, layer) in enumerate(zip(trace, document.doc["layers"], strict=True)):
        _, num_heads, rows, keys = view.shape
        known = range(num_heads) if layer["exact"] in ("qk", "weights") else ()
        heads = {head for head in known if listed is None or [i, head] in listed}
        size = len(heads) * rows * keys * DIGITS
        if total + size > EXACT_BYTES:
            if exact == "all" or any((i, head) in named for head in heads):
                raise ConfigError(
                    f"the exact weights of layer {i + 1} ({label(view)}) are too long for JSON",
                    got=f"{(total + size) / 2**20:,.0f} MiB",
                    wanted=f"at most {EXACT_BYTES // 2**20} MiB",
                    remedy="fewer heads in --exact, or without --json",
                )
            heads, size = set(), 0
        total += size
        chosen.append(heads)
    return chosen


def label(view: View) -> str:
    """What a person calls a layer."""
    return layer_label(view.name, cross=view.kind == "cross")


def layer_label(name: str, *, cross: bool) -> str:
    """What a person calls the layer of this module path.

    >>> layer_label("encoder.blocks.0.attention.body", cross=False), layer_label("decoder.attention", cross=True)
    ('encoder 1', 'decoder, cross')
    >>> layer_label("decoder.blocks.1.cross.body", cross=True), layer_label("model.layers.3.self_attn", cross=False)
    ('decoder 2, cross', 'layer 4')
    >>> layer_label("decoder.copying", cross=True), layer_label("body.hops.1", cross=True)
    ('decoder, copying', 'hop 2')
    >>> layer_label("body.coattention.other", cross=False), layer_label("body.coattention.own", cross=False)
    ('co-attention, other text', 'co-attention, own text')
    """
    parts = name.split(".")
    if "coattention" in parts:
        return f"co-attention, {parts[-1]} text"
    number = next((f" {int(part) + 1}" for part in parts if part.isdigit()), "")
    stack = next((part for part in parts if part in ("encoder", "decoder")), "layer")
    if "hops" in parts:
        return f"hop{number}"
    what = "copying" if parts[-1] == "copying" else "cross" if cross else ""
    return f"{stack}{number}{', ' if what else ''}{what}"


def check_exact(exact: object) -> None:
    """Raises where this does not say which heads stay exact: a word that nobody knows would be taken for none.

    >>> check_exact("all"), check_exact([(0, 1)])
    (None, None)
    """
    if exact in ("auto", "all"):
        return
    pairs = isinstance(exact, Collection) and not isinstance(exact, str)
    if not pairs or not all(is_pair(head) for head in exact):  # type: ignore[attr-defined]
        wanted = '"auto", "all" or pairs (layer, head) counted from 0, as [(0, 1)]'
        raise ConfigError("exact is not understood", got=repr(exact)[:80], wanted=wanted)


def is_pair(head: object) -> bool:
    """Whether this is a layer and a head, by their numbers."""
    return isinstance(head, tuple | list) and len(head) == 2 and all(isinstance(number, Integral) for number in head)


def check_heads(trace: Trace, heads: Collection[Head]) -> None:
    """Raises where one of these heads is not there."""
    check_numbers([view.shape[1] for view in trace], heads)


def check_numbers(sizes: Sequence[int], heads: Collection[Head]) -> None:
    """Raises where one of these heads is not there, in the counting of who looks; `sizes` are the heads of each layer.

    >>> check_numbers([4, 4], [(0, 3), (1, 0)])
    """
    for layer, head in heads:
        if not (0 <= layer < len(sizes) and 0 <= head < sizes[layer]):
            last = f"{len(sizes)}.{sizes[-1]} (in Python ({len(sizes) - 1}, {sizes[-1] - 1}))" if sizes else "none"
            got, wanted = f"{layer + 1}.{head + 1} (in Python ({layer}, {head}))", f"LAYER.HEAD from 1.1 to {last}"
            raise ConfigError("no such head", got=got, wanted=wanted)


def band_of(call: Call) -> tuple[int | None, int | None] | None:
    """The band that the mask is (left, right), or None where it is more than that."""
    rules = () if call.mask is None else call.mask.rules
    band: tuple[int | None, int | None] = (None, None)
    for rule in rules:
        if isinstance(rule, Band):
            band = (rule.left, rule.right)
        elif not (isinstance(rule, Lengths) and int(rule.lengths[0]) >= call.k.shape[2]):
            return None
    return band


def _forms(trace: Trace, exact: Exact, live: str | None) -> list[str | None]:
    """How each layer gives exact rows: "qk", "weights", "live" or not at all."""
    named = () if isinstance(exact, str) else exact
    check_heads(trace, named)
    forms: list[str | None] = []
    total = 0
    for i, view in enumerate(trace):
        asked = exact == "all" or any(layer == i for layer, _ in named)
        form = _form(view) if asked or (max(view.shape[2:]) <= EXACT_LENGTH and _has_rows(view)) else None
        size = 0 if form is None else _exact_bytes(view, form)
        if total + size > EXACT_BYTES:
            if asked and live is None:
                raise ConfigError(
                    f"the exact weights of layer {i + 1} ({label(view)}) do not fit into a page",
                    got=f"{size / 2**20:,.0f} MiB" + (f" after {total / 2**20:,.0f} of other layers" if total else ""),
                    wanted=f"at most {EXACT_BYTES // 2**20} MiB in all",
                    remedy="fewer heads, or --live, which computes rows as you ask for them",
                )
            form, size = None, 0
        total += size
        forms.append(form or ("live" if live is not None and _has_rows(view) else None))
    return forms


def _has_rows(view: View) -> bool:
    """Whether a view gives exact rows; one that was saved may have kept its map alone."""
    try:
        view.rows(range(min(1, view.shape[2])), [0])
    except RegardError:
        return False
    return True


def _form(view: View) -> str:
    call = _call(view)
    plain = call is not None and not call.terms and call.positions is None and band_of(call) is not None
    return "qk" if plain else "weights"


def _call(view: View) -> Call | None:
    """The call that a view computes its measures from; None for one that has weights only."""
    call = getattr(view, "call", None)
    return call if isinstance(call, Call) else None


def _exact_bytes(view: View, form: str) -> int:
    _, heads, rows, keys = view.shape
    call = _call(view)
    if form == "weights" or call is None:
        return 4 * heads * rows * keys
    return 4 * (call.q[0].numel() + call.k[0].numel())


def _exact_heads(trace: Trace, exact: Exact) -> list[list[int]] | None:
    """The heads that are exact where not all are."""
    short = [i for i, view in enumerate(trace) if max(view.shape[2:]) <= EXACT_LENGTH]
    if isinstance(exact, str) or len(short) == len(trace):
        return None
    whole = {(i, head) for i in short for head in range(trace[i].shape[1])}
    return [list(head) for head in sorted(whole | set(exact))]


def _layer(view: View, form: str | None, bins: int) -> dict[str, Any]:
    _, heads, rows, keys = view.shape
    call = _call(view)
    band = None if call is None else band_of(call)
    return {
        "name": view.name,
        "label": label(view),
        "kind": view.kind,
        "rows": axis_name(view.rows_axis, rows),
        "keys": axis_name(view.keys_axis, keys),
        "heads": heads,
        "kv_heads": heads if call is None else call.k.shape[1],
        "width": None if call is None else call.q.shape[-1],
        "scale": None if call is None else call.scale,
        "band": list(band or (None, None)),
        "exact": form,
        "bin": [bin_width(rows, bins), bin_width(keys, bins)],
    }


def _put_measures(document: Document, i: int, view: View, bins: int) -> None:
    _, _, rows, columns = view.shape
    dtype = "f4" if max(view.shape[2:]) <= LONG else "f2"
    weighted = _weighted_map(view, bins)  # before others, which the same pass finds
    document.put(f"{i}.map", view.map(bins)[0], dtype)
    for name in ("entropy", "confidence", "distance"):
        document.put(f"{i}.{name}", getattr(view, name)[0], dtype)
    document.put(f"{i}.first", view.first()[0], dtype)
    if dtype == "f4":
        document.put(f"{i}.lse", view.lse[0])
    document.put(f"{i}.received", view.received[0])  # a sink's beside that of others: halves would lose the small ones
    if view.value_norms is not None and weighted is not None:
        document.put(f"{i}.norms", view.value_norms[0], dtype)
        if max(bin_width(rows, bins), bin_width(columns, bins)) > 1:  # else the map times the norms is the same
            document.put(f"{i}.weighted", weighted[0], dtype)
    if rows <= TOP_LENGTH:
        weights, keys = view.top(min(TOP, view.shape[3]))
        document.put(f"{i}.top.weights", weights[0])
        document.put(f"{i}.top.keys", keys[0], "i4")


def _weighted_map(view: View, bins: int) -> Tensor | None:
    """None also where a trace was saved without it: the page then shows raw weights, never a guess."""
    try:
        return view.weighted_map(bins)
    except NotSaved:
        return None


def _put_exact(document: Document, i: int, view: View, form: str | None) -> None:
    call = _call(view)
    if form == "weights":
        document.put(f"{i}.weights", view.rows(range(view.shape[2]))[0])
    elif form == "qk" and call is not None:
        document.put(f"{i}.q", call.q[0])
        document.put(f"{i}.k", call.k[0])
        if max(view.shape[2:]) <= VALUES_LENGTH:
            document.put(f"{i}.v", call.v[0])


def _array(tensor: Tensor, dtype: str = "f4") -> Array:
    plain = tensor.detach().float() if tensor.is_floating_point() else tensor  # numpy knows no bfloat16
    return np.ascontiguousarray(plain.cpu().numpy(), dtype=f"<{dtype}")


def _nested(array: Array) -> Any:
    """Lists of numbers with six digits; JSON knows no infinity."""
    if array.ndim:
        return [_nested(part) for part in array]
    return float(f"{float(array):.6g}") if np.isfinite(array) else None


def axis_name(name: str, length: int) -> str:
    """The name of an axis; one that nobody named is called by its length, and its places by their numbers."""
    return name or f"{length} places"


def _axes(trace: Trace) -> dict[str, dict[str, Any]]:
    axes = {
        name: {"tokens": list(axis.tokens), "offsets": [list(span) for span in axis.offsets], "text": axis.text}
        for name, axis in trace.axes.items()
    }
    for view in trace:
        for name, length in zip((view.rows_axis, view.keys_axis), view.shape[2:], strict=True):
            numbers = [str(n) for n in range(1, length + 1)]
            unknown = {"tokens": numbers, "offsets": [[0, 0]] * length, "text": ""}
            axes.setdefault(axis_name(name, length), unknown)
    return axes
