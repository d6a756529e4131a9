"""Attention of transformers models, heard through the library's own interface for attention functions.

While somebody observes, "sdpa" and "eager" of its `AttentionInterface` are functions that call what they stand for,
give its result unchanged, and tell what it was asked. No model and no config is touched, so masks, branches and
outputs are what they are without. transformers is never imported here: a model of it has done so.

Shapes: B batch, H heads, K key heads, N rows (queries), M keys, d head width.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.ops.call import Call
from regard.ops.masks import Mask, Visible, causal, padding, same_segment, visible
from regard.ops.observe import Observed
from regard.ops.terms import Dense

FUNCTIONS = ("sdpa", "eager")
Attention = Callable[..., tuple[Tensor, Tensor | None]]


class Listener(Protocol):
    """Who is told what transformers attended."""

    def knows(self, module: nn.Module) -> bool:
        """Whether it wants to hear of this module."""

    def arguments(self, module: nn.Module) -> Mapping[str, Any]:
        """What a running module was given by name."""

    def heard(self, module: nn.Module, kind: str, call: Call, weights: Tensor | None, out: Tensor, v: Tensor) -> None:
        """An attention, "self" or "cross"; with weights where the call does not say all of it.

        Its output (B x H x N x d) and values come in their graph.
        """

    def projects(self, projection: Tensor) -> None:
        """The W^O of the attention that was heard last."""


def is_foreign(model: nn.Module) -> bool:
    """Whether a model is one of transformers, or has one in it."""
    return next(_configs(model), None) is not None


def has_one_text(model: nn.Module) -> bool:
    """Whether a model of transformers has one text, rather than a source and a target."""
    return is_foreign(model) and not any(config.is_encoder_decoder for config in _configs(model))


def _configs(model: nn.Module) -> Iterator[Any]:
    """The configs of all models of transformers in this one."""
    library: Any = sys.modules.get("transformers.modeling_utils")
    if library is not None:
        yield from (module.config for module in model.modules() if isinstance(module, library.PreTrainedModel))


@contextlib.contextmanager
def hearing(model: nn.Module, listener: Listener) -> Iterator[None]:
    """Inside the block the listener hears every attention of the model."""
    for name in {config._attn_implementation for config in _configs(model)} - {*FUNCTIONS, None}:
        remedy = 'model.set_attn_implementation("sdpa")'
        wanted = " or ".join(FUNCTIONS)
        raise RegardError("this attention of transformers is not observed", got=name, wanted=wanted, remedy=remedy)
    ear = _Ear(listener)
    token = _ears.set((*_ears.get(), ear))
    with contextlib.ExitStack() as stack:
        stack.callback(_ears.reset, token)
        stack.callback(_install())
        for module in model.modules():
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                stack.callback(module.register_forward_pre_hook(ear.reads).remove)
        yield


# --- the functions that tell ------------------------------------------------------------------------------------------

_lock = threading.Lock()
_installed: list[contextlib.ExitStack] = []  # as often as somebody observes now; the last to go restores


def _install() -> Callable[[], None]:
    """Puts functions that tell in the place of the library's, unless they stand there; gives what ends that."""
    with _lock:
        _installed.append(_installed[0] if _installed else _replace_functions())

    def end() -> None:
        with _lock:
            stack = _installed.pop()
            if not _installed:
                stack.close()

    return end


def _replace_functions() -> contextlib.ExitStack:
    functions: Any = sys.modules["transformers.modeling_utils"].ALL_ATTENTION_FUNCTIONS
    stack = contextlib.ExitStack()
    # `generate` compiles a model by itself for some caches: compiled code would not tell
    stack.enter_context(torch.compiler.set_stance("force_eager"))
    for name in FUNCTIONS:
        before = functions.get(name)
        if _forget(functions, name):  # somebody's own function, put over the library's
            stack.callback(functions.__setitem__, name, before)
        stack.callback(_forget, functions, name)
        functions[name] = _telling(name, before)
    return stack


def _forget(functions: Any, name: str) -> bool:
    try:
        del functions[name]
    except KeyError:
        return False
    return True


def _telling(name: str, function: Attention | None) -> Attention:
    """An attention function that gives what the function gives and tells who listens."""

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        run = function or _eager_of(module)
        output, weights = run(module, query, key, value, attention_mask, **options)
        # B x N x H x d: seen with the heads first, and given back so, it is the same memory and a part of the graph
        heads_first = output.transpose(1, 2)
        asked = _Asked(name, query, key, value, attention_mask, options)
        for ear in _ears.get():
            ear.hears(module, asked, heads_first, weights)
        return heads_first.transpose(1, 2), weights

    return attention


def _eager_of(module: nn.Module) -> Attention:
    """The plain attention in the file of a module's class: every model of transformers has its own."""
    forward: Any = inspect.unwrap(type(module).forward)
    function: Attention = forward.__globals__["eager_attention_forward"]
    return function


# --- what they tell ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Asked:
    """What an attention function of transformers was asked."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None  # true = may, or a number to add: B|1 x H|1 x N|1 x M
    options: Mapping[str, Any]

    def is_causal(self, module: nn.Module) -> bool:
        """Whether the function itself looks at what came before only: sdpa does, where it is given no mask."""
        if self.name != "sdpa" or self.mask is not None or self.q.shape[2] == 1:
            return False
        asked = self.options.get("is_causal")
        return bool(getattr(module, "is_causal", True) if asked is None else asked)

    def cut(self, num_keys: int) -> _Asked:
        """The same without the keys behind these: room of a cache that was not filled yet."""
        if num_keys == self.k.shape[2]:
            return self
        options = dict(self.options)
        if options.get("position_bias") is not None:
            options["position_bias"] = options["position_bias"][..., :num_keys]
        mask = None if self.mask is None else self.mask[..., :num_keys]
        return replace(self, k=self.k[:, :, :num_keys], v=self.v[:, :, :num_keys], mask=mask, options=options)


class _Ear:
    """Makes calls of what transformers asks its functions, and tells them to one listener."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.unread: Tensor | None = None  # the last output, until the layer that reads it is found
        self.masks: list[tuple[Tensor, int, Mask | Dense | None]] = []  # the last ones, which most layers share

    def hears(self, module: nn.Module, asked: _Asked, output: Tensor, weights: Tensor | None) -> None:
        """One attention: what was asked, and the output (B x H x N x d) and weights (if any) that it gave."""
        if not self.listener.knows(module):
            return
        kind = "cross" if _is_cross(module, self.listener.arguments(module)) else "self"
        call, listed = self._call(module, kind, asked)
        kept = Observed(call).rows(range(call.q.shape[2])) if listed else None
        if not asked.options.get("dropout") and not _explains(call, asked.options, output.detach(), weights):
            kept = _own_weights(module, call, weights)
        self.listener.heard(module, kind, call, kept, output, asked.v)
        self.unread = output.detach()

    def reads(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a linear layer runs: the first that is given the last attention's output is its projection."""
        if self.unread is None or not args or not isinstance(args[0], Tensor):
            return
        given, output = args[0].detach(), self.unread.transpose(1, 2).flatten(2)
        if given.shape == output.shape and (given.data_ptr() == output.data_ptr() or torch.equal(given, output)):
            weight: Any = module.weight
            self.listener.projects(weight if isinstance(module, nn.Linear) else weight.t())
            self.unread = None

    def _call(self, module: nn.Module, kind: str, asked: _Asked) -> tuple[Call, bool]:
        """The call, and whether it is a cached step that a mask or bias of its own belongs to.

        Masks and terms speak of positions, and a mask that lists the rows of a step does not say which these are.
        """
        plain_causal = asked.is_causal(module)
        rows = asked.q.shape[2]
        if kind == "self" and rows < asked.k.shape[2]:
            asked = asked.cut(rows if plain_causal else _filled(asked.mask, asked.k.shape[2]))
        keys = asked.k.shape[2]
        before = keys - rows if kind == "self" else 0
        # one row that sees all keys may be the last of a causal text: as such it fits to the rows before it
        alone = kind == "self" and rows == 1 and (before > 0 or getattr(module, "is_causal", False))
        if asked.mask is not None:
            form = self._form(asked.mask, rows, before, alone or rows > 1)
        else:
            form = causal() if plain_causal or alone else None
        bias = asked.options.get("position_bias")
        terms = [part for part in (form, None if bias is None else Dense(bias)) if isinstance(part, Dense)]
        listed = before > 0 and (bool(terms) or _lists(form))
        if listed and isinstance(form, Mask):
            form = None if asked.mask is None else visible(_allowed(asked.mask).expand(-1, -1, rows, -1))
        if asked.options.get("sliding_window") is not None:
            # its cache may move what it holds within its memory, under who was given a part of it
            asked = replace(asked, k=asked.k.clone(), v=asked.v.clone())
        scale = asked.options.get("scaling")
        positions = torch.arange(before, keys, device=asked.q.device) if before > 0 and not listed else None
        call = Call(
            asked.q.detach(),
            asked.k.detach(),
            asked.v.detach(),
            form if isinstance(form, Mask) else None,
            tuple(terms),
            asked.q.shape[-1] ** -0.5 if scale is None else float(scale),
            0.0,
            positions,
        )
        return call, listed

    def _form(self, mask: Tensor, rows: int, before: int, ordered: bool) -> Mask | Dense | None:
        """A mask in the shortest form that says the same; found once for all layers that share it."""
        for known, place, form in self.masks:
            if known is mask and place == before:
                return form
        form = _form(mask, rows, before, ordered)
        self.masks = [*self.masks[-3:], (mask, before, form)]
        return form


_ears: ContextVar[tuple[_Ear, ...]] = ContextVar("ears", default=())


def _is_cross(module: nn.Module, named: Mapping[str, Any]) -> bool:
    """Whether an attention reads another text: it says so, or was given the states of one."""
    said = getattr(module, "is_cross_attention", False) or "CrossAttention" in type(module).__name__
    return said is True or any(named.get(name) is not None for name in ("key_value_states", "encoder_hidden_states"))


def _filled(mask: Tensor | None, keys: int) -> int:
    """How many keys there are up to the last one that the last row may see."""
    if mask is None:
        return keys
    seen = _allowed(mask)[..., -1, :].flatten(0, -2).any(0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else keys


def _allowed(mask: Tensor) -> Tensor:
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _form(mask: Tensor, rows: int, before: int, ordered: bool) -> Mask | Dense | None:
    allowed = _allowed(mask).expand(-1, -1, rows, -1)
    if mask.dtype != torch.bool:
        # numbers that only forbid are a mask; but a row of nothing but the smallest number attends everywhere
        forbids = bool((mask.masked_fill(~allowed, 0) == 0).all()) and bool(allowed.any(-1).all())
        if not forbids:
            return Dense(mask.expand(-1, -1, rows, -1))
    if allowed.shape[1] > 1:
        return visible(allowed)
    last = allowed[:, :1, -1:]  # B|1 x 1 x 1 x M
    keys = torch.arange(allowed.shape[3], device=mask.device)
    earlier = keys <= torch.arange(before, before + rows, device=mask.device)[:, None]
    ordered = ordered and torch.equal(last & earlier, allowed)
    if not ordered and not torch.equal(last.expand_as(allowed), allowed):
        return visible(allowed)
    real = last[:, 0, 0]
    if bool(real.all()):
        return causal() if ordered else None
    if torch.equal(keys < real.sum(-1, keepdim=True), real):
        return causal() & padding(real.sum(-1)) if ordered else padding(real.sum(-1))
    if ordered:
        return causal() & same_segment(torch.ones_like(real, dtype=torch.long), real.long())
    return visible(last.expand_as(allowed))


def _lists(form: Mask | Dense | None) -> bool:
    return isinstance(form, Mask) and any(isinstance(rule, Visible) for rule in form.rules)


def _explains(call: Call, options: Mapping[str, Any], output: Tensor, weights: Tensor | None) -> bool:
    """Whether a call is all that was done: what else a function did shows in its last row."""
    rows, groups = call.q.shape[2], call.q.shape[1] // call.k.shape[1]
    if options.get("softcap") is not None:
        return False
    if rows == 0 or call.k.shape[2] == 0:
        return True
    exact = call.q.dtype.itemsize >= 4
    last = Observed(call).rows(range(rows - 1, rows))
    if weights is not None and weights.shape[-1] == last.shape[-1]:
        return _near(weights.detach()[:, :, -1:], last, 1e-5 if exact else 1e-2)
    values = call.v.repeat_interleave(groups, dim=1).to(last.dtype)
    return _near(output[:, :, -1:], last @ values, (1e-4 if exact else 5e-2) * float(values.abs().max()))


def _near(one: Tensor, other: Tensor, most: float) -> bool:
    return bool(((one - other).abs() <= most).all())


def _own_weights(module: nn.Module, call: Call, weights: Tensor | None) -> Tensor:
    """The weights that a function gave itself, where the call does not explain its output."""
    if weights is not None and weights.shape[-1] >= call.k.shape[2]:
        return weights[..., : call.k.shape[2]]
    raise RegardError(
        "this layer does more than scaled dot-product attention (a soft cap, a sink), so its weights are not known",
        got=type(module).__name__,
        remedy='model.set_attn_implementation("eager"), which gives its weights itself',
    )
