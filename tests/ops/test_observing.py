"""Who observes is told of every attention and changes none."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.recurrent import RecurrentAttention
from regard.ops.attention import attend, observing, reference
from regard.ops.call import Call
from regard.ops.masks import causal, padding
from regard.ops.terms import Dense


class Notes:
    """A recorder that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Call, Tensor | None]] = []
        self.weights: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self.outputs: list[Tensor] = []

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        self.calls.append((call, projection))
        self.outputs.append(out)

    def saw_weights(self, weights: Tensor, values: Tensor, projection: Tensor | None, out: Tensor) -> None:
        self.weights.append((weights, values, projection))
        self.outputs.append(out)


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
def test_a_recorder_is_told_what_was_asked_and_the_output_stays(backend: str) -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    term, projection = Dense(torch.randn(1, 4, 5, 5)), torch.randn(32, 32)
    plain = attend(q, k, v, mask=causal(), terms=[term], scale=0.3, backend=backend)
    notes = Notes()
    with observing(notes):
        seen = attend(q, k, v, mask=causal(), terms=[term], scale=0.3, backend=backend, projection=projection)
    assert torch.equal(seen, plain)
    ((call, given),) = notes.calls
    assert given is projection
    assert (call.q, call.k, call.v) == (q, k, v)
    assert (call.terms, call.scale, call.positions) == ((term,), 0.3, None)
    torch.testing.assert_close(reference(call)[0], plain)


def test_nobody_is_told_outside_the_block_and_after_an_error() -> None:
    notes, qkv = Notes(), torch.randn(3, 1, 1, 2, 4)
    attend(*qkv)
    with pytest.raises(ZeroDivisionError), observing(notes):
        attend(*qkv).fill_(1 // 0)
    attend(*qkv)
    assert len(notes.calls) == 1


def test_recorders_nest() -> None:
    outer, inner, qkv = Notes(), Notes(), torch.randn(3, 1, 1, 2, 4)
    with observing(outer):
        with observing(inner):
            attend(*qkv)
        attend(*qkv)
    assert (len(outer.calls), len(inner.calls)) == (2, 1)


def test_another_thread_is_not_observed() -> None:
    notes = Notes()
    with observing(notes):
        thread = threading.Thread(target=lambda: attend(*torch.randn(3, 1, 1, 2, 4)))
        thread.start()
        thread.join()
    assert notes.calls == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_code_is_whole_and_keeps_no_recorder(dynamic: bool) -> None:
    notes, qkv = Notes(), torch.randn(3, 1, 1, 4, 8)
    torch.compiler.reset()

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, mask=causal())

    compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=dynamic)
    with observing(notes):
        first = compiled(*qkv)
    torch.testing.assert_close(compiled(*qkv), first)
    assert notes.calls == []


def test_the_output_is_told_in_its_graph() -> None:
    """Who explains needs the gradient at the very tensors that the model goes on with."""
    notes, q = Notes(), torch.randn(1, 2, 3, 4, requires_grad=True)
    layer, memory = RecurrentAttention("additive", 4, 4, 4), torch.randn(2, 5, 4)
    with observing(notes):
        out = attend(q, q, q)
        read = layer(torch.randn(2, 4), layer.project(memory), memory, torch.tensor([5, 3]))
    assert notes.outputs[0] is out
    (gradient,) = torch.autograd.grad(read.sum(), notes.outputs[1])
    assert torch.equal(gradient, torch.ones(2, 1, 1, 4))


@torch.no_grad()
def test_layers_tell_their_output_projection() -> None:
    notes, x = Notes(), torch.randn(2, 5, 16)
    own, cross = SelfAttention(16, 4, num_kv_heads=2), CrossAttention(16, 4)
    with observing(notes):
        own(x, mask=causal())
        cross(x, cross.project(torch.randn(2, 7, 16)), mask=padding(torch.tensor([7, 3])))
    assert [projection for _, projection in notes.calls] == [own.out.weight, cross.out.weight]
    assert [call.k.shape for call, _ in notes.calls] == [(2, 2, 5, 4), (2, 4, 7, 4)]


@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
@torch.no_grad()
def test_recurrent_attention_tells_its_weights(kind: str) -> None:
    notes, layer, memory = Notes(), RecurrentAttention(kind, 6, 4, 6), torch.randn(2, 5, 4)
    asked = (torch.randn(2, 6), layer.project(memory), memory, torch.tensor([5, 3]))
    plain = layer(*asked)
    with observing(notes):
        seen = layer(*asked)
    assert torch.equal(seen, plain)
    ((weights, values, _),) = notes.weights
    assert weights.shape == (2, 1, 1, 5)
    assert weights[1, 0, 0, 3:].tolist() == [0.0, 0.0]
    torch.testing.assert_close((weights @ values)[:, 0, 0], plain)
