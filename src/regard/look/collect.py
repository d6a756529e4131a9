"""`observe(model)`: what every attention of a model weighs while it runs, as a `Trace` that fills itself.

Shapes: B batch, H heads, K key heads, N rows (queries), M keys, d head width.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import RegardError
from regard.look import foreign
from regard.ops.attention import observing
from regard.ops.call import Call, Scattered
from regard.ops.masks import Band, Segments, Sliding, Visible
from regard.ops.observe import Observed, Weighed
from regard.ops.terms import Dense
from regard.types import Trace


class NoAttention(RegardError):
    """A block of `observe` came to its end, and no attention was seen."""


@contextlib.contextmanager
def observe(
    model: nn.Module, *, lengths: Mapping[str, Tensor] | None = None, tell: Tell | None = None
) -> Iterator[Trace]:
    """Inside the block, every attention of the model leaves a view in the trace; its outputs stay what they are.

    Steps of a cached or recurrent decoding become the rows of one view. A second pass that starts from the first
    token replaces the first pass. `lengths` says how many rows of each axis are real ("source", "target": B numbers);
    rows beyond are padding and count nowhere. It works on models of transformers as well. `tell` is given the view,
    the output (B x H x N x d) and the values (B x K x M x d) of each call, still in their graph, for gradients.

    Where no attention was seen by the end of the block, that is an error and no empty trace.

    >>> from regard.layers.attention import SelfAttention
    >>> layer = SelfAttention(8, 2)
    >>> with observe(layer) as trace:
    ...     _ = layer(torch.randn(1, 5, 8))
    >>> len(trace)
    1
    """
    _need_model(model)
    _refuse_compiled(model)
    collector = _Collector(model, lengths or {}, tell)
    with contextlib.ExitStack() as stack:
        stack.enter_context(collector.following(model))
        stack.enter_context(observing(collector))
        if foreign.is_foreign(model):
            stack.enter_context(foreign.hearing(model, collector))
        yield Trace(collector.layers)
    collector.finish(model)


class LayerView:
    """One layer's view (`regard.types.View`): the rows of all its calls that belong together."""

    def __init__(self, name: str, kind: str, axes: tuple[str, str], row_lengths: Tensor | None) -> None:
        self.name, self.kind = name, kind
        self.rows_axis, self.keys_axis = axes
        self._row_lengths = row_lengths
        self._call: Call | None = None  # all rows, with the keys, mask and terms of the last call
        # or weights (B x H x N x M) of some rows, and their positions
        self._blocks: list[tuple[Tensor | Scattered, Tensor]] = []
        self._first, self._num_rows = 0, 0
        self._keys = torch.empty(0)  # of the last call as they were given, to know them again
        self._values: Tensor | None = None
        self._projection: Tensor | None = None
        self._stamps: list[tuple[Tensor, int]] = []
        self._seen: Observed | Weighed | None = None

    # --- filling ------------------------------------------------------------------------------------------------------

    def add_call(self, call: Call, projection: Tensor | None) -> None:
        """The rows of a call, after those that came before them."""
        call = replace(call, q=call.q.detach(), k=call.k.detach(), v=call.v.detach(), dropout=0.0)
        if self._forgotten(call.k, call.q.shape[2]):
            self.add_weights(Observed(call).rows(range(call.q.shape[2])), call.k, call.v, projection)
            return
        before = self._rows_before(call.k, call.q.shape[2], call.k.shape[2])
        if before and (self._call is None or not _agree(self._call, call)):
            rows = call.q.shape[2]
            # rows that read another text have no place in it: they stand in the order of their steps
            places = call.query_positions if self.kind == "self" else torch.arange(before, before + rows)
            self._add_block(before, Observed(call).rows(range(rows)), places.to(call.q.device))
        else:
            self._blocks = []
            self._call = call if self._call is None or not before else _joined(self._call, call, before)
        self._num_rows = before + call.q.shape[2]
        self._note(call.k, call.v, projection, call)

    def add_weights(self, weights: Tensor | Scattered, keys: Tensor, values: Tensor, projection: Tensor | None) -> None:
        """The rows that a layer weighed by itself; `keys` are what it weighed, its values where it has no others."""
        weights, keys, values = weights.detach(), keys.detach(), values.detach()
        rows = weights.shape[2]
        forgotten = self._forgotten(keys, rows)
        if forgotten and self._values is not None:
            weights = F.pad(_dense(weights), (forgotten, 0))
            keys = torch.cat([self._keys[:, :, :forgotten], keys], dim=2)
            values = torch.cat([self._values[:, :, :forgotten], values], dim=2)
        before = self._rows_before(keys, rows, weights.shape[3])
        first = weights.shape[3] - rows if self.kind == "self" else before
        self._add_block(before, weights, torch.arange(first, first + rows, device=values.device))
        self._num_rows = before + rows
        self._note(keys, values, projection, None)

    def project(self, projection: Tensor) -> None:
        """The output projection, where it is known only later."""
        self._note(self._keys, self._values, projection, self._call)

    def keep(self) -> None:
        """Copies keys and values that lie in a cache, which others may go on writing into."""
        if self._call is not None:
            steps = self._call.positions is not None
            k, v = (tensor.clone() if steps or _is_part(tensor) else tensor for tensor in (self._call.k, self._call.v))
            self._call, self._values, self._seen = replace(self._call, k=k, v=v), v, None
            self._stamps += [(tensor, _version(tensor)) for tensor in (k, v)]  # a cache that was filled to its end
        elif self._values is not None and _is_part(self._values):
            self._values, self._seen = self._values.clone(), None
        self._keys = torch.empty(0)

    def _forgotten(self, keys: Tensor, rows: int) -> int:
        """How many of the keys that were seen a cache has let go of: that of a sliding window keeps the last ones."""
        start, known = keys.shape[2] - rows, self._first + self._num_rows
        if self.kind != "self" or not 0 < start < known or self._keys.shape[2] != known:
            return 0
        kept = keys[:, :, :start]
        slid = torch.equal(self._keys[:, :, known - start :], kept)
        return known - start if slid and not torch.equal(self._keys[:, :, :start], kept) else 0

    def _rows_before(self, keys: Tensor, rows: int, num_keys: int) -> int:
        """How many of the rows seen so far stand before the new ones; 0 where the new ones start again.

        In self-attention each row has its key, so new rows are the last ones of the keys. Elsewhere rows follow each
        other as long as the very same keys are read.
        """
        if self.kind != "self":
            return self._num_rows if _same_storage(self._keys, keys) and self._keys.shape == keys.shape else 0
        start = num_keys - rows
        before = start - self._first
        if not 0 < before <= self._num_rows:
            self._first = start  # more than 0 where the steps before were taken outside of the block
            return 0
        if not _same_storage(self._keys, keys) and not torch.equal(self._keys[:, :, :start], keys[:, :, :start]):
            raise RegardError(
                "the keys of earlier rows changed between two steps, so that these are rows of different texts",
                got=f'step {start + 1} of "{self.name}"',
                wanted="a cache that only grows, and rows of the batch that stay in their places (no beam search)",
                remedy="observe one forward pass over the finished text",
            )
        return before

    def _add_block(self, before: int, weights: Tensor | Scattered, positions: Tensor) -> None:
        if not before:
            self._blocks = []
        elif not self._blocks:
            assert self._call is not None
            self._blocks = [(self._view().rows(range(before)), self._call.query_positions[..., :before])]
        elif before < self._num_rows:
            kept, places = self._joined_blocks()
            self._blocks = [(kept[:, :, :before], places[..., :before])]
        self._blocks.append((weights, positions))
        self._call = None

    def _joined_blocks(self) -> tuple[Tensor, Tensor]:
        num_keys = self.shape[3]
        whole = [_dense(weights) for weights, _ in self._blocks]
        joined = torch.cat([F.pad(weights, (0, num_keys - weights.shape[3])) for weights in whole], dim=2)
        places = self._block_places()
        self._blocks = [(joined, places)]
        return joined, places

    def _block_places(self) -> Tensor:
        return _cat_positions([places for _, places in self._blocks])

    def _note(self, keys: Tensor, values: Tensor | None, projection: Tensor | None, call: Call | None) -> None:
        self._keys, self._values, self._seen = keys, values, None
        self._projection = None if projection is None else projection.detach()
        held = [] if projection is None else [projection]
        if call is not None:
            parts = [*(call.mask.rules if call.mask is not None else ()), *call.terms]
            held += [value for part in parts for value in _tensors(part)]
        self._stamps = [(tensor, _version(tensor)) for tensor in held]

    # --- asking -------------------------------------------------------------------------------------------------------

    def _view(self) -> Observed | Weighed:
        if any(_version(tensor) != version for tensor, version in self._stamps):
            what = f'weights, masks or keys of "{self.name}" were changed after it was observed'
            raise RegardError(what, remedy="ask for measures before the next update, or save the trace before it")
        if self._seen is None:
            self._seen = self._make_view()
        return self._seen

    def _make_view(self) -> Observed | Weighed:
        if self._call is not None:
            call = replace(self._call, positions=self.positions)
            return Observed(call, row_lengths=self._row_lengths, projection=self._projection)
        return Weighed(
            self._joined_blocks()[0],
            positions=self.positions,
            row_lengths=self._row_lengths,
            values=self._values,
            projection=self._projection,
        )

    @property
    def call(self) -> Call | None:
        """The call that all measures come from; None where the layer gave its weights instead."""
        view = self._view()
        return view.call if isinstance(view, Observed) else None

    @property
    def positions(self) -> Tensor | None:
        """The places of the rows among the keys (N or B x N); None where they are 0 .. N-1."""
        places = self._call.query_positions if self._call is not None else self._block_places()
        return _unless_plain(places, self._num_rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, N, M."""
        if self._call is not None:
            return (*self._call.q.shape[:3], self._call.k.shape[2])
        shapes = [weights.shape for weights, _ in self._blocks]  # scattered ones stay so until they are asked for
        return *shapes[0][:2], sum(shape[2] for shape in shapes), max(shape[3] for shape in shapes)

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of each row's scores: B x H x N."""
        return self._view().lse

    @property
    def entropy(self) -> Tensor:
        """The entropy of each row's weights in nats: B x H x N."""
        return self._view().entropy

    @property
    def confidence(self) -> Tensor:
        """The largest weight of each row: B x H x N."""
        return self._view().confidence

    @property
    def distance(self) -> Tensor:
        """How far each row looks on average: B x H x N."""
        return self._view().distance

    @property
    def received(self) -> Tensor:
        """The weight that each key receives from all rows together: B x H x M."""
        return self._view().received

    @property
    def value_norms(self) -> Tensor | None:
        """|W_O^h v_j|, B x H x M; None where the layer gave no projection."""
        return self._view().value_norms

    def rows(self, rows: range, heads: Sequence[int] | None = None) -> Tensor:
        """The exact weights of these rows and heads (all if not given): B x H x R x M."""
        return self._view().rows(rows, heads)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The largest weights of each row and their keys, B x H x N x k; key -1 where no weight is left."""
        return self._view().top(k)

    def map(self, bins: int | tuple[int, int]) -> Tensor:
        """The pooled map, B x H x row bins x key bins, at most so many of them."""
        return self._view().map(bins)

    def weighted_map(self, bins: int | tuple[int, int]) -> Tensor | None:
        """The same of weights times value norms, rows that sum to 1; None where the layer gave no projection."""
        return self._view().weighted_map(bins)

    def diagonal(self, offset: int) -> Tensor:
        """The weight of the key at the row's position + offset, 0 where there is none: B x H x N."""
        return self._view().diagonal(offset)

    def first(self) -> Tensor:
        """The weight of key 0: B x H x N."""
        return self._view().first()

    def pairs(self, keys: Tensor) -> Tensor:
        """The weight that each row gives to one key of its own: B x H x N."""
        return self._view().pairs(keys)


Tell = Callable[[LayerView, Tensor, Tensor], None]


class _Collector:
    """Follows which module runs, and gives each attention that is seen to the view of its layer."""

    def __init__(self, model: nn.Module, lengths: Mapping[str, Tensor], tell: Tell | None) -> None:
        self.layers: list[LayerView] = []
        self._tell = tell
        self._names = {module: name for name, module in model.named_modules()}
        self._lengths, self._one_axis = lengths, foreign.has_one_text(model)
        self._thread = threading.get_ident()
        self._running: list[tuple[nn.Module, Mapping[str, Any]]] = []  # with the arguments that were given by name
        self._calls: Counter[nn.Module] = Counter()  # in the pass that runs now
        self._views: dict[tuple[nn.Module, int], LayerView] = {}
        self._last: LayerView | None = None
        self._ran = False

    @contextlib.contextmanager
    def following(self, model: nn.Module) -> Iterator[None]:
        """Inside the block every module of the model says when it begins and ends."""
        with contextlib.ExitStack() as stack:
            for module in model.modules():
                stack.callback(module.register_forward_pre_hook(self._begins, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._ends, always_call=True).remove)
            yield

    def _begins(self, module: nn.Module, args: Any, named: Mapping[str, Any]) -> None:
        if threading.get_ident() != self._thread:
            return
        if not self._running:
            self._calls.clear()
        self._ran = True
        self._running.append((module, named))

    def _ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == self._thread:
            self._running.pop()

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        """An `attend`; one outside of the model is not its own."""
        if self._running:
            view = self._view(*self._attending(call.q.shape[2], call.k.shape[2]))
            view.add_call(call, projection)
            if self._tell is not None:
                self._tell(view, out, call.v)

    def saw_weights(self, weights: Tensor | Scattered, values: Tensor, projection: Tensor | None, out: Tensor) -> None:
        """The weights of a layer that makes its own."""
        if self._running:
            view = self._view(*self._attending(*weights.shape[2:]))
            view.add_weights(weights, values, values, projection)
            if self._tell is not None:
                self._tell(view, out, values)

    def heard(self, module: nn.Module, kind: str, call: Call, weights: Tensor | None, out: Tensor, v: Tensor) -> None:
        """An attention of transformers: its call, and its weights where these are what is to be kept."""
        view = self._last = self._view(module, kind)
        if weights is None:
            view.add_call(call, None)
        else:
            view.add_weights(weights, call.k, call.v, None)
        if self._tell is not None:
            self._tell(view, out, v)

    def projects(self, projection: Tensor) -> None:
        """The W^O of the attention that was heard last."""
        assert self._last is not None
        self._last.project(projection)

    def _attending(self, num_rows: int, num_keys: int) -> tuple[nn.Module, str]:
        """The module that attends, and to what: as it says itself, or else as its lengths do."""
        module = self._running[-1][0]
        return module, getattr(module, "attends", "self" if num_rows == num_keys else "cross")

    def _view(self, module: nn.Module, kind: str) -> LayerView:
        # a layer that one pass goes through several times (shared weights) is several layers
        place = (module, self._calls[module])
        self._calls[module] += 1
        if place not in self._views:
            name = self._names[module] + (f"#{place[1] + 1}" if place[1] else "")
            rows_axis, keys_axis = _axes(name, kind, one_axis=self._one_axis)
            # who reads and what is read may be no text
            axes = getattr(module, "rows_axis", rows_axis), getattr(module, "keys_axis", keys_axis)
            self._views[place] = LayerView(name, kind, axes, self._lengths.get(axes[0]))
            self.layers.append(self._views[place])
        return self._views[place]

    def arguments(self, module: nn.Module) -> Mapping[str, Any]:
        """What a running module was given by name."""
        return next((named for running, named in reversed(self._running) if running is module), {})

    def knows(self, module: nn.Module) -> bool:
        """Whether a module is one of the model's, run by who observes it."""
        return module in self._names and threading.get_ident() == self._thread

    def finish(self, model: nn.Module) -> None:
        """Lets go of caches; raises where no attention was seen."""
        for view in self.layers:
            view.keep()
        if not self._ran:
            raise NoAttention(
                "nothing was observed: the model did not run inside the block",
                got=type(model).__name__,
                remedy="with regard.observe(model) as trace: model(ids)",
            )
        if not self.layers:
            raise NoAttention(
                "no attention of this model could be observed",
                got=type(model).__name__,
                wanted="layers that call regard's attend, or the attention functions of transformers",
            )


def _axes(name: str, kind: str, *, one_axis: bool) -> tuple[str, str]:
    """What rows and keys stand on, as far as the path of a module tells."""
    parts = name.split(".")
    if kind == "cross":
        return ("target", "source") if "decoder" in parts and not one_axis else ("", "")
    if one_axis:
        return "source", "source"
    own = "target" if "decoder" in parts else "source" if "encoder" in parts else ""
    return own, own


def _joined(old: Call, new: Call, before: int) -> Call:
    """The first rows of a call and all rows of the next as one: its keys, mask and terms serve the earlier rows too."""
    q = torch.cat([old.q[:, :, :before], new.q], dim=2)
    if old.positions is None and new.positions is None:
        return replace(new, q=q)
    return replace(new, q=q, positions=_cat_positions([old.query_positions[..., :before], new.query_positions]))


def _agree(old: Call, new: Call) -> bool:
    """Whether the mask and terms of a later step say the same of earlier rows as theirs did."""
    if [type(term) for term in old.terms] != [type(term) for term in new.terms]:
        return False
    rules, later = (call.mask.rules if call.mask is not None else () for call in (old, new))
    same_kinds = [type(rule) for rule in rules] == [type(rule) for rule in later]
    listed = any(isinstance(part, (Visible, Dense)) for part in (*later, *new.terms))
    return same_kinds and not listed and all(_same_rule(*both) for both in zip(rules, later, strict=True))


def _same_rule(old: Any, new: Any) -> bool:
    if isinstance(old, Band | Sliding):
        return bool(old == new)
    pairs = list(zip(_tensors(old), _tensors(new), strict=True))
    if isinstance(old, Segments):  # what is later is longer
        pairs = [(x, y[:, : x.shape[1]]) for x, y in pairs]
    return all(x is y or torch.equal(x, y) for x, y in pairs)


def _tensors(part: Any) -> list[Tensor]:
    values = [getattr(part, field.name) for field in fields(part)]
    return [value for value in values if isinstance(value, Tensor)]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _dense(weights: Tensor | Scattered) -> Tensor:
    return weights if isinstance(weights, Tensor) else weights.dense()


def _is_part(tensor: Tensor) -> bool:
    """Whether others may write into its memory unseen: it is part of something larger, or writes are not counted."""
    return tensor.is_inference() or tensor.untyped_storage().nbytes() > tensor.nbytes


def _same_storage(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride() and one.device == other.device


def _cat_positions(parts: list[Tensor]) -> Tensor:
    rows = max((len(part) for part in parts if part.dim() == 2), default=0)
    return torch.cat([part.expand(rows, -1) if rows and part.dim() == 1 else part for part in parts], dim=-1)


def _unless_plain(positions: Tensor | None, rows: int) -> Tensor | None:
    """None for positions that are 0 .. N-1 in every row."""
    if positions is None or bool((positions == torch.arange(rows, device=positions.device)).all()):
        return None
    return positions


def _need_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        wanted = "a torch.nn.Module; that of a run is regard.load(folder).model"
        raise RegardError("this is no model to observe", got=type(model).__name__, wanted=wanted)


def _refuse_compiled(model: nn.Module) -> None:
    if any(module._compiled_call_impl is not None or hasattr(module, "_orig_mod") for module in model.modules()):
        raise RegardError(
            "a compiled model cannot be observed",
            got=type(model).__name__,
            remedy="observe and run the model that was compiled; torch.compile leaves it as it is",
        )
