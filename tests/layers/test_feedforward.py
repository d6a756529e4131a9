"""Feed-forward layers and norms, as the papers write them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.errors import ConfigError
from regard.layers.feedforward import FeedForward, norm

EXACT = {"rtol": 0.0, "atol": 1e-12}


def relu(x: Tensor) -> Tensor:
    return torch.maximum(torch.tensor(0.0), x)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation of the paper (Hendrycks and Gimpel 2016)."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def test_the_papers_formula() -> None:
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2  (Vaswani et al. 2017, 3.3)"""
    layer, x = FeedForward(4, 7), torch.randn(2, 3, 4)
    w_1, b_1, w_2, b_2 = layer.up.weight.T, layer.up.bias, layer.down.weight.T, layer.down.bias
    assert_close(layer(x), relu(x @ w_1 + b_1) @ w_2 + b_2, **EXACT)


@pytest.mark.parametrize(("name", "f"), [("relu", relu), ("gelu", gelu), ("gelu-tanh", gelu_tanh), ("silu", silu)])
def test_activations(name: str, f: Callable[[Tensor], Tensor]) -> None:
    layer, x = FeedForward(4, 7, activation=name), torch.randn(5, 4)
    assert_close(layer(x), layer.down(f(layer.up(x))), **EXACT)


@pytest.mark.parametrize(("name", "f"), [("reglu", relu), ("geglu", gelu), ("geglu-tanh", gelu_tanh), ("swiglu", silu)])
def test_gated_forms(name: str, f: Callable[[Tensor], Tensor]) -> None:
    """FFN_GLU(x) = (f(x W) * x V) W_2, without biases as there  (Shazeer 2020)"""
    layer, x = FeedForward(4, 7, activation=name, bias=False), torch.randn(5, 4)
    w, v = layer.up.weight.T.chunk(2, dim=1)
    assert_close(layer(x), (f(x @ w) * (x @ v)) @ layer.down.weight.T, **EXACT)


def test_positions_are_treated_alike_and_apart() -> None:
    layer, x = FeedForward(4, 7), torch.randn(1, 6, 4)
    shuffled = torch.randperm(6)
    assert_close(layer(x[:, shuffled]), layer(x)[:, shuffled], **EXACT)


def test_dropout_is_inside_and_in_training_only() -> None:
    layer, x = FeedForward(4, 64, dropout=0.5), torch.randn(5, 4)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer.down(relu(layer.up(x))))


def test_layer_norm() -> None:
    """(x - mean) / sqrt(variance + epsilon) * gain + bias  (Ba et al. 2016)"""
    layer, x = norm("layer", 6), torch.randn(2, 3, 6)
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.bias)
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    assert_close(layer(x), (x - mean) / (variance + 1e-5).sqrt() * layer.weight + layer.bias, **EXACT)


def test_a_layer_norm_without_bias() -> None:
    layer, x = norm("layer", 6, bias=False), torch.randn(2, 6)
    torch.nn.init.normal_(layer.weight)
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert_close(layer(x), (x - mean) / (variance + 1e-5).sqrt() * layer.weight, **EXACT)
    assert [name for name, _ in norm("rms", 6, bias=False).named_parameters()] == ["weight"]


def test_rms_norm() -> None:
    """x / sqrt(mean of squares + epsilon) * gain  (Zhang and Sennrich 2019)"""
    layer, x = norm("rms", 6), torch.randn(2, 3, 6)
    torch.nn.init.normal_(layer.weight)
    assert_close(layer(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * layer.weight, **EXACT)


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_the_epsilon_of_a_norm(kind: str) -> None:
    x = torch.full((1, 4), 1e-3) * torch.tensor([1.0, -1.0, 1.0, -1.0])  # mean 0, mean of squares 1e-6
    assert_close(norm(kind, 4, eps=3e-6)(x), x / 2e-3, **EXACT)


def test_unknown_names() -> None:
    with pytest.raises(ConfigError) as error:
        FeedForward(4, 7, activation="tanh")
    known = "relu, gelu, gelu-tanh, silu, geglu, geglu-tanh, swiglu, reglu"
    assert str(error.value) == f"no such activation\n  got:    tanh\n  wanted: {known}"
    with pytest.raises(ConfigError) as error:
        norm("batch", 4)
    assert str(error.value) == "no such norm\n  got:    batch\n  wanted: layer, rms"
