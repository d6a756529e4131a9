"""Traces on disk: a folder with `trace.json` (names, axes, info) and one safetensors file (measures).

    save(trace, "traces/one")
    trace = load("traces/one")

The tensors' file is named by what is in it, and trace.json, which is written last, names it: a reader finds the old
trace or the new one, never half of each, and notices damage. Nothing in it can execute code.

Shapes: B batch, H heads, N rows (queries), M keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import read_section
from regard.errors import ConfigError, DataError, RegardError, require
from regard.ops.observe import Weighed, bin_width
from regard.ops.strips import TOP, check_top
from regard.types import Axis, Trace, View

VERSION = 1
HEADER = "trace.json"
EXACT_LENGTH = 1024  # beyond it a matrix for each head is too much to keep
BY_ROW = ("lse", "entropy", "confidence", "distance")
NEAR = (-1, 0, 1)  # the diagonals that are kept: previous, own and next token


class NotSaved(RegardError):
    """A saved view was asked for what was not saved of it."""


@dataclass(frozen=True)
class _Layer:
    """What trace.json says of a layer."""

    name: str
    kind: str
    rows_axis: str
    keys_axis: str
    shape: tuple[int, int, int, int]
    bins: tuple[int, int]  # places to a bin of its map: rows, keys

    def __post_init__(self) -> None:
        sizes = f"shape {list(self.shape)}, bins {list(self.bins)}"
        sensible = min(self.shape) >= 0 and min(self.bins) >= 1
        require(sensible, f'sizes of "{self.name}"', got=sizes, wanted="a shape of 0 or more, bins of 1 or more")
        require(self.kind in ("self", "cross"), f'kind of "{self.name}"', got=self.kind, wanted="self or cross")


@dataclass(frozen=True)
class _Header:
    """What stands in trace.json."""

    version: int
    tensors: str  # the file that holds them
    sha256: str  # of that file
    layers: tuple[_Layer, ...]
    axes: tuple[Axis, ...]
    info: dict[str, Any]

    def __post_init__(self) -> None:
        for axis in self.axes:
            got, wanted = f"{len(axis.offsets)} offsets", f"{len(axis.tokens)}, as many as it has tokens"
            require(len(axis.offsets) == len(axis.tokens), f'axis "{axis.name}"', got=got, wanted=wanted)


def save(trace: Trace, path: str | Path, *, exact: bool = False, bins: int = 128) -> None:
    """Writes every measure of a trace, maps of at most `bins` x `bins`, and with `exact` all weights (to 1,024 tokens).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Trace((), info={"text": "to be"}), folder)
    ...     load(folder).info
    {'text': 'to be'}
    """
    if exact and any(max(view.shape[2:]) > EXACT_LENGTH for view in trace):
        got = f"{max(max(view.shape[2:]) for view in trace):,}"
        wanted = f"at most {EXACT_LENGTH:,} tokens"
        raise ConfigError("exact weights of so long a text are not saved", got=got, wanted=wanted, remedy="exact=False")
    named = all(name == axis.name for name, axis in trace.axes.items())
    require(named, "an axis stands under another name", got=list(trace.axes), wanted="the name of each axis")
    tensors: dict[str, Tensor] = {}
    for i, view in enumerate(trace):
        tensors |= {f"{i}.{name}": tensor for name, tensor in _measures(view, bins, exact).items()}
    layers = tuple(_layer(view, bins) for view in trace)
    _write(Path(path), tensors, layers, trace)


def load(path: str | Path) -> Trace:
    """Reads a trace; each view answers what was saved of it."""
    folder = Path(path)
    header = _read_header(folder / HEADER)
    tensors = _read_tensors(folder / header.tensors, header.sha256)
    views = [_view(i, layer, tensors, folder / HEADER) for i, layer in enumerate(header.layers)]
    return Trace(tuple(views), {axis.name: axis for axis in header.axes}, header.info)


class Saved:
    """A view (`regard.types.View`) of what was saved; for the rest it says how to get it."""

    def __init__(
        self,
        name: str,
        kind: str,
        axes: tuple[str, str],
        shape: tuple[int, int, int, int],
        tensors: Mapping[str, Tensor],
        bins: tuple[int, int] = (1, 1),
    ) -> None:
        self.name, self.kind = name, kind
        self.rows_axis, self.keys_axis = axes
        self.shape = shape
        self._tensors, self._bins = tensors, bins
        weights, positions, norms = (tensors.get(name) for name in ("weights", "positions", "norms"))
        self._exact = None if weights is None else Weighed(weights, positions=positions, norms=norms)

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of each row's scores: B x H x N."""
        return self._tensors["lse"]

    @property
    def entropy(self) -> Tensor:
        """The entropy of each row's weights in nats: B x H x N."""
        return self._tensors["entropy"]

    @property
    def confidence(self) -> Tensor:
        """The largest weight of each row: B x H x N."""
        return self._tensors["confidence"]

    @property
    def distance(self) -> Tensor:
        """How far each row looks on average: B x H x N."""
        return self._tensors["distance"]

    @property
    def received(self) -> Tensor:
        """The weight that each key receives from all rows together: B x H x M."""
        return self._tensors["received"]

    @property
    def value_norms(self) -> Tensor | None:
        """|W_O^h v_j|, B x H x M; None where the layer gave no projection."""
        return self._tensors.get("norms")

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The largest weights of each row and their keys, B x H x N x k; key -1 where no weight is left."""
        check_top(k)
        return self._tensors["top.weights"][..., :k], self._tensors["top.keys"][..., :k].long()

    def first(self) -> Tensor:
        """The weight of key 0: B x H x N."""
        return self._tensors["first"]

    def map(self, bins: int | tuple[int, int]) -> Tensor:
        """The pooled map in the bins that it was saved with; in any where the weights were saved."""
        return self._tensors["map"] if self._are_kept(bins) else self._whole_for(bins, "map").map(bins)

    def weighted_map(self, bins: int | tuple[int, int]) -> Tensor | None:
        """The same of weights times value norms, rows that sum to 1; None where the layer gave no projection."""
        if self.value_norms is None:
            return None
        if self._are_kept(bins) and "weighted" in self._tensors:
            return self._tensors["weighted"]
        return self._whole_for(bins, "value-weighted map").weighted_map(bins)

    def _are_kept(self, bins: int | tuple[int, int]) -> bool:
        rows, keys = (bins, bins) if isinstance(bins, int) else bins
        return (bin_width(self.shape[2], rows), bin_width(self.shape[3], keys)) == self._bins

    def _whole_for(self, bins: int | tuple[int, int], what: str) -> Weighed:
        asked, kept = (bins, bins) if isinstance(bins, int) else bins, _num_bins(self.shape, self._bins)
        return self._weighed(f"a {what} of {asked[0]} x {asked[1]} bins", f"the one of {kept[0]} x {kept[1]} bins")

    def diagonal(self, offset: int) -> Tensor:
        """The weight of the key at the row's position + offset: B x H x N."""
        if offset in NEAR:
            return self._tensors[f"diagonal.{offset}"]
        return self._weighed(f"diagonal {offset}", f"diagonals {', '.join(map(str, NEAR))}").diagonal(offset)

    def rows(self, rows: range, heads: Sequence[int] | None = None) -> Tensor:
        """The exact weights of these rows and heads (all if not given): B x H x R x M."""
        return self._weighed("exact rows", "measures, the map and the top keys").rows(rows, heads)

    def pairs(self, keys: Tensor) -> Tensor:
        """The weight that each row gives to one key of its own: B x H x N."""
        return self._weighed("weights of given keys", "measures, the map and the top keys").pairs(keys)

    def _weighed(self, asked: str, kept: str) -> Weighed:
        if self._exact is None:
            remedy = "observe the model again, or save the trace with exact=True"
            raise NotSaved(f'this was not saved of "{self.name}"', got=asked, wanted=kept, remedy=remedy)
        return self._exact


# --- writing ----------------------------------------------------------------------------------------------------------


def _measures(view: View, bins: int, exact: bool) -> dict[str, Tensor]:
    weighted = view.weighted_map(bins)  # before others, which the same pass finds
    weights, keys = view.top(TOP)
    found = {name: getattr(view, name) for name in BY_ROW}
    found |= {f"diagonal.{offset}": view.diagonal(offset) for offset in NEAR}
    found |= {"first": view.first(), "received": view.received, "map": view.map(bins)}
    found |= {"top.weights": weights, "top.keys": keys.int()}
    if view.value_norms is not None and weighted is not None:
        found |= {"norms": view.value_norms, "weighted": weighted}
    if exact:
        found["weights"] = view.rows(range(view.shape[2]))
        positions = getattr(view, "positions", None)
        found |= {} if positions is None else {"positions": positions.long()}
    # a tensor that shares its memory with another could not be written
    return {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in found.items()}


def _layer(view: View, bins: int) -> _Layer:
    widths = (bin_width(view.shape[2], bins), bin_width(view.shape[3], bins))
    return _Layer(view.name, view.kind, view.rows_axis, view.keys_axis, view.shape, widths)


def _write(folder: Path, tensors: dict[str, Tensor], layers: tuple[_Layer, ...], trace: Trace) -> None:
    from safetensors.torch import save as to_bytes

    data = to_bytes(tensors)
    digest = hashlib.sha256(data).hexdigest()
    header = _Header(VERSION, f"{digest[:16]}.safetensors", digest, layers, tuple(trace.axes.values()), trace.info)
    try:
        text = json.dumps(asdict(header), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError("the info of a trace must be plain JSON", got=error) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _put(folder / header.tensors, data)
        _put(folder / HEADER, text.encode())
        for path in folder.glob("*.safetensors"):  # of the trace that this one replaces
            if re.fullmatch(r"[0-9a-f]{16}\.safetensors", path.name) and path.name != header.tensors:
                path.unlink(missing_ok=True)
    except OSError as error:
        remedy = "check the folder, its permissions and the space that is left"
        raise DataError("a trace cannot be written", got=error.strerror or error, where=folder, remedy=remedy) from None


def _put(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# --- reading ----------------------------------------------------------------------------------------------------------


def _read_header(path: Path) -> _Header:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        wanted = f"a folder with {HEADER}"
        raise DataError("there is no trace", got=path.parent, wanted=wanted) from None
    except OSError as error:
        raise DataError("a trace cannot be read", got=error.strerror, where=path) from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from None
    if not isinstance(table, dict):
        raise _damaged(path, type(table).__name__, "an object")
    if isinstance(table.get("version"), int) and table["version"] > VERSION:
        remedy = "a newer regard reads it"
        raise DataError("a trace of a later version", got=table["version"], wanted=VERSION, where=path, remedy=remedy)
    try:
        header = read_section(_Header, table, where=str(path))
    except ConfigError as error:
        # what stands there is what helps who edited it
        got = error.what if error.got is None else f"{error.what}: {error.got}"
        raise _damaged(path, got, error.wanted) from None
    if not re.fullmatch(r"[0-9a-f]{16}\.safetensors", header.tensors):  # never a path to somewhere else
        raise _damaged(path, f"tensors: {header.tensors!r}", "the name of a file beside it, as it was written")
    return header


def _read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("a trace cannot be read", got=error.strerror, where=path) from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise _damaged(path, f"{len(data):,} bytes that are not the ones written")
    try:
        return from_bytes(data)
    except SafetensorError as error:
        raise _damaged(path, error) from None


def _view(i: int, layer: _Layer, tensors: Mapping[str, Tensor], where: Path) -> Saved:
    prefix = f"{i}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    batch, heads, rows, keys = layer.shape
    by_row, by_key = (batch, heads, rows), (batch, heads, keys)
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys((*BY_ROW, "first", *(f"diagonal.{n}" for n in NEAR)), by_row)
    wanted |= {"received": by_key, "top.weights": (*by_row, TOP), "top.keys": (*by_row, TOP)}
    wanted["map"] = (batch, heads, *_num_bins(layer.shape, layer.bins))
    optional: dict[str, tuple[int, ...]] = {"norms": by_key, "weights": (*by_row, keys), "weighted": wanted["map"]}
    if "positions" in own:  # of the rows, the same in the whole batch or not
        optional["positions"] = (rows,) if own["positions"].dim() == 1 else (batch, rows)
    wanted |= {name: shape for name, shape in optional.items() if name in own}
    floats = own["lse"].dtype if "lse" in own and own["lse"].dtype == torch.float64 else torch.float32
    for name, shape in wanted.items():
        dtype = {"top.keys": torch.int32, "positions": torch.int64}.get(name, floats)
        got = "nothing" if name not in own else f"{tuple(own[name].shape)}, {own[name].dtype}"
        if got != (needed := f"{shape}, {dtype}"):
            raise _damaged(where, f'"{name}" of "{layer.name}": {got}', needed)
    outside = (own["top.keys"] < -1) | (own["top.keys"] >= keys)
    if outside.any():
        got = f'"top.keys" of "{layer.name}": {int(own["top.keys"][outside][0])}'
        raise _damaged(where, got, f"-1 .. {keys - 1}")
    return Saved(layer.name, layer.kind, (layer.rows_axis, layer.keys_axis), layer.shape, own, layer.bins)


def _num_bins(shape: tuple[int, int, int, int], widths: tuple[int, int]) -> tuple[int, ...]:
    return tuple(-(-length // width) for length, width in zip(shape[2:], widths, strict=True))


def _damaged(path: Path, got: object, wanted: object = None) -> DataError:
    return DataError("a trace is damaged", got=got, wanted=wanted, where=path, remedy="save it again, or copy it again")
