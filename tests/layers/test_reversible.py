"""Reversible blocks: the values and gradients of plain ones, from the last states alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.layers.feedforward import FeedForward
from regard.layers.reversible import Branch, ReversibleBlock, ReversibleStack
from regard.ops.attention import observing

EXACT = {"rtol": 0.0, "atol": 1e-12}
DIM = 6


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Mixing(nn.Module):
    """Stands for an attention: mixes tokens, and reverses those whose mean was under 0 when it first ran."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.runs = nn.Linear(DIM, DIM), list[bool]()

    def forward(self, x: Tensor, *, kept: dict[str, Tensor], scale: float) -> Tensor:
        self.runs.append("low" in kept)
        if "low" not in kept:
            kept["low"] = x.detach().mean(-1, keepdim=True) < 0
        return self.linear(torch.where(kept["low"], x.flip(1), x)) * scale  # type: ignore[no-any-return]


def branch(body: nn.Module, dropout: float = 0.0, chunk: int = 0) -> Branch:
    return Branch(body, nn.LayerNorm(DIM), dropout=dropout, chunk=chunk)


def stack(depth: int = 3, dropout: float = 0.0) -> ReversibleStack:
    def block() -> ReversibleBlock:
        feedforward = FeedForward(DIM, 9, activation="gelu", dropout=dropout)
        return ReversibleBlock(branch(Mixing(), dropout), branch(feedforward, dropout, chunk=4))

    return ReversibleStack((block() for _ in range(depth)), random=dropout > 0)


def options(model: ReversibleStack) -> list[dict[str, Any]]:
    return [{"scale": 0.5 + i} for i in range(len(model.blocks))]


def plainly(model: ReversibleStack, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    for block, said in zip(model.blocks, options(model), strict=True):
        x1 = x1 + block.attention(x2, kept={}, **said)
        x2 = x2 + block.feedforward(x1)
    return x1, x2


def reversibly(model: ReversibleStack, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    return model(x1, x2, options(model))  # type: ignore[no-any-return]


Run = Callable[[ReversibleStack, Tensor, Tensor], tuple[Tensor, Tensor]]


def run(how: Run, model: ReversibleStack, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What comes out of two halves, and the gradients of both and of every parameter."""
    torch.manual_seed(5)
    x1, x2 = x.clone().requires_grad_(), x.flip(0).requires_grad_()
    out = torch.cat(how(model, x1, x2), dim=-1)
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    return out, list(torch.autograd.grad((out * weight).sum(), [x1, x2, *model.parameters()]))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_values_and_gradients_are_those_of_plain_blocks(dropout: float) -> None:
    """With dropout too: the second run draws what the first drew."""
    model, x = stack(dropout=dropout), torch.randn(2, 7, DIM)
    (found, found_grads), (wanted, wanted_grads) = run(reversibly, model, x), run(plainly, model, x)
    assert torch.equal(found, wanted)
    assert_close(found_grads, wanted_grads, **EXACT)
    assert all(grad.abs().max() > 1e-3 for grad in found_grads)


def test_the_random_numbers_of_others_are_left_alone() -> None:
    model, x = stack(dropout=0.3), torch.randn(2, 7, DIM)
    after = []
    for how in (reversibly, plainly):
        run(how, model, x)
        after.append(torch.rand(3))
    assert torch.equal(*after)


def kept_bytes(model: ReversibleStack, how: Run) -> int:
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    x = torch.randn(2, 50, DIM, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = how(model, x, x)
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert out[0].requires_grad
    return sum(size for place, size in sizes.items() if place not in parameters)


def test_memory_does_not_grow_with_depth() -> None:
    assert kept_bytes(stack(2), reversibly) == kept_bytes(stack(8), reversibly) == 2 * 2 * 50 * DIM * 8
    assert kept_bytes(stack(8), plainly) > 3 * kept_bytes(stack(2), plainly) > 0


def test_what_was_decided_is_not_decided_again() -> None:
    model, x = stack(2), torch.randn(2, 7, DIM)
    run(reversibly, model, x)
    assert [block.attention.body.runs for block in model.blocks] == [[False, True]] * 2


def test_nothing_is_run_again_without_gradients() -> None:
    model, x = stack(2), torch.randn(2, 7, DIM)
    with torch.no_grad():
        found = reversibly(model, x, x)
    assert not found[0].requires_grad
    assert [block.attention.body.runs for block in model.blocks] == [[False]] * 2
    assert all(torch.equal(*both) for both in zip(found, reversibly(model, x, x), strict=True))


def test_who_observes_sees_a_graph_and_the_same_values() -> None:
    model, x = stack(), torch.randn(2, 7, DIM)
    wanted = run(reversibly, model, x)
    inside: list[Tensor] = []
    hook = model.blocks[0].attention.body.register_forward_hook(lambda *given: inside.append(given[-1]))
    with observing(object()):  # type: ignore[arg-type]
        found = run(reversibly, model, x)
    hook.remove()
    assert torch.equal(found[0], wanted[0])
    assert_close(found[1], wanted[1], **EXACT)
    assert len(inside) == 1
    assert inside[0].requires_grad


def test_blocks_may_share_their_weights_and_some_may_be_frozen() -> None:
    block = stack(1).blocks[0]
    block.attention.norm.requires_grad_(False)
    model, x = ReversibleStack([block, block], random=False), torch.randn(2, 7, DIM)
    grads = []
    for how in (reversibly, plainly):
        model.zero_grad()
        sum(part.square().sum() for part in how(model, x, x)).backward()  # type: ignore[union-attr]
        grads.append({name: p.grad for name, p in model.named_parameters()})
    assert grads[0]["blocks.0.attention.norm.weight"] is None
    assert_close(*[{name: grad for name, grad in each.items() if grad is not None} for each in grads], **EXACT)


def test_autocast_is_the_same_in_both_runs_and_leaves_nothing_behind() -> None:
    """What it casts in a run without gradients must not be found in one with them."""
    torch.set_default_dtype(torch.float32)
    model, x = stack(), torch.randn(2, 7, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        found, found_grads = run(reversibly, model, x)
        wanted, wanted_grads = run(plainly, model, x)
    assert torch.equal(found, wanted)
    for one, other in zip(found_grads, wanted_grads, strict=True):
        assert_close(one, other, rtol=0.0, atol=0.05 * other.abs().max().item())


def test_backward_after_the_autocast_runs_as_forward_did() -> None:
    torch.set_default_dtype(torch.float32)
    model, x = stack(), torch.randn(2, 7, DIM)
    grads = []
    for inside in (True, False):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = torch.cat(reversibly(model, x, x)).square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        grads.append([p.grad for p in model.parameters()])
    assert_close(*grads, rtol=0.0, atol=0.0)


def test_gradients_of_gradients_are_refused() -> None:
    model, x = stack(1), torch.randn(2, 7, DIM, requires_grad=True)
    (grad,) = torch.autograd.grad(reversibly(model, x, x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_some_tokens_at_a_time_are_all_tokens(chunk: int) -> None:
    body, x = FeedForward(DIM, 9), torch.randn(2, 7, DIM)
    one, other = branch(body), branch(body, chunk=chunk)
    widths: list[int] = []
    hook = body.register_forward_pre_hook(lambda module, args: widths.append(args[0].shape[1]))
    assert_close(other(x), one(x), **EXACT)
    hook.remove()
    assert max(widths[:-1]) == min(chunk, 7)
