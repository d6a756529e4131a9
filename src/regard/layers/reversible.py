"""Reversible residual blocks (Gomez et al. 2017): what they read is had back from what they gave, and is not kept.

    y1 = x1 + F(x2)        y2 = x2 + G(y1)        and back        x2 = y2 - G(y1)        x1 = y1 - F(x2)

A backward pass goes down the stack, runs each F and G again and takes their gradients there: the memory of a training
step does not grow with the depth, but for the few numbers that `kept` holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.ops.attention import is_observed
from regard.ops.call import is_captured

Options = Mapping[str, Any]


class Branch(nn.Module):
    """dropout(body(norm(x))), what one half of the stream adds to the other; with `chunk`, so many tokens at a time."""

    def __init__(self, body: nn.Module, norm: nn.Module, *, dropout: float, chunk: int = 0) -> None:
        super().__init__()
        self.body, self.norm, self.dropout, self.chunk = body, norm, nn.Dropout(dropout), chunk

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        """B x N x D -> B x N x D."""
        if self.chunk and x.shape[1] > self.chunk:
            return torch.cat([self._run(part, options) for part in x.split(self.chunk, dim=1)], dim=1)
        return self._run(x, options)

    def _run(self, x: Tensor, options: Options) -> Tensor:
        return self.dropout(self.body(self.norm(x), **options))  # type: ignore[no-any-return]


class ReversibleBlock(nn.Module):
    """F is the attention, G the feed-forward.

    The attention is given a dict `kept`: what it decided in its first run and must not decide anew in the second (as
    rounding could make it) it leaves there.
    """

    def __init__(self, attention: nn.Module, feedforward: nn.Module) -> None:
        super().__init__()
        self.attention, self.feedforward = attention, feedforward

    def forward(self, x1: Tensor, x2: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        x1 = x1 + self.attention(x2, **options)
        return x1, x2 + self.feedforward(x1)


class ReversibleStack(nn.Module):
    """Blocks one after the other. Where gradients are wanted, and nobody observes, their activations are recomputed.

    `random` says whether they draw random numbers in training (dropout), which the second run must draw again.
    """

    def __init__(self, blocks: Iterable[ReversibleBlock], *, random: bool) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(blocks)  # which forgets the types of its modules
        self.random = random

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x1: Tensor, x2: Tensor, options: Sequence[Options]) -> tuple[Tensor, Tensor]:
        """Two B x N x D -> two B x N x D; `options` are what the attention of each block is told."""
        random = self.random and self.training
        # who observes may ask for gradients inside of a block; a captured graph cannot draw the same numbers again
        if torch.is_grad_enabled() and not is_observed() and not (random and is_captured(x1)):
            parameters = [p for p in self.parameters() if p.requires_grad]
            return _Recomputed.apply(self.blocks, options, random, x1, x2, *parameters)  # type: ignore[no-any-return, no-untyped-call]
        for block, said in zip(self.blocks, options, strict=True):
            x1, x2 = block(x1, x2, kept={}, **said)
        return x1, x2


class _Recomputed(torch.autograd.Function):
    """A stack that keeps its last states only."""

    @staticmethod
    def forward(
        ctx: Any,
        blocks: Iterable[Any],
        options: Sequence[Options],
        random: bool,
        x1: Tensor,
        x2: Tensor,
        *parameters: nn.Parameter,
    ) -> tuple[Tensor, Tensor]:
        ctx.parameters, ctx.precision, ctx.runs = parameters, _Precision(x1), []
        with ctx.precision.again():
            for block, said in zip(blocks, options, strict=True):
                first = _Run(block.attention, {**said, "kept": {}}, x1.device, random)
                x1 = x1 + first(x2)
                second = _Run(block.feedforward, {}, x1.device, random)
                x2 = x2 + second(x1)
                ctx.runs.append((first, second))
        ctx.save_for_backward(x1, x2)
        return x1, x2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> tuple[Tensor | None, ...]:
        x1, x2 = ctx.saved_tensors
        found: dict[nn.Parameter, Tensor] = {}
        with ctx.precision.again():
            while ctx.runs:  # each is let go of as soon as it is done
                first, second = ctx.runs.pop()
                x2, d1 = second.undo(x1, x2, d1, d2, found)
                x1, d2 = first.undo(x2, x1, d2, d1, found)
        return None, None, None, d1, d2, *(found.get(parameter) for parameter in ctx.parameters)


class _Run:
    """One run of a branch, which can be repeated with the same random numbers."""

    def __init__(self, branch: nn.Module, options: Options, device: torch.device, random: bool) -> None:
        self.branch, self.options, self.device = branch, options, device
        self.states = _random_states(device) if random else ()

    def __call__(self, x: Tensor) -> Tensor:
        return self.branch(x, **self.options)  # type: ignore[no-any-return]

    def undo(
        self, x: Tensor, y: Tensor, dx: Tensor, dy: Tensor, found: dict[nn.Parameter, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """What y was before branch(x) was added to it, and the gradient of x; those of the parameters go to `found`."""
        parameters = [p for p in self.branch.parameters() if p.requires_grad]
        with torch.enable_grad(), self._same_numbers():
            x = x.detach().requires_grad_()
            added = self(x)
        grads = torch.autograd.grad(added, [x, *parameters], dy.to(added.dtype), allow_unused=True)
        for parameter, grad in zip(parameters, grads[1:], strict=True):
            if grad is not None:
                found[parameter] = found[parameter] + grad if parameter in found else grad
        assert grads[0] is not None
        return y - added.detach(), dx + grads[0]

    @contextlib.contextmanager
    def _same_numbers(self) -> Iterator[None]:
        if not self.states:
            yield
            return
        cuda = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            torch.set_rng_state(self.states[0])
            for device, state in zip(cuda, self.states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


class _Precision:
    """Autocast as it was, without its memory of casts: what it casts where no gradient is wanted has none later."""

    def __init__(self, like: Tensor) -> None:
        self.kind = like.device.type
        self.enabled, self.dtype = torch.is_autocast_enabled(self.kind), torch.get_autocast_dtype(self.kind)

    def again(self) -> torch.autocast:
        return torch.autocast(self.kind, self.dtype, enabled=self.enabled, cache_enabled=False)


def _random_states(device: torch.device) -> tuple[Tensor, ...]:
    if device.type != "cuda":
        return (torch.get_rng_state(),)
    return torch.get_rng_state(), torch.cuda.get_rng_state(device)
