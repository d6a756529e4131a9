"""The gated convolution, one place at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.layers.convolution import GatedConvolution

EXACT = {"rtol": 0.0, "atol": 1e-10}


def by_hand(layer: GatedConvolution, x: Tensor, left: int) -> Tensor:
    """v([A B]) = A * sigmoid(B), [A B] = W [x_(i - left) .. x_(i - left + k - 1)] + b  (Gehring et al. 2017, 3.2)"""
    length, dim = x.shape
    rows = []
    for i in range(length):
        total = layer.convolution.bias.clone()
        for n in range(layer.kernel):
            place = i - left + n
            if 0 <= place < length:  # beyond the ends there are zeros
                total = total + layer.convolution.weight[:, :, n] @ x[place]
        rows.append(total[:dim] * torch.sigmoid(total[dim:]))
    return torch.stack(rows)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_centred(kernel: int) -> None:
    """A width of 4 sees one place before and two after."""
    layer, x = GatedConvolution(3, kernel, causal=False, dropout=0.0), torch.randn(6, 3)
    torch.nn.init.normal_(layer.convolution.bias)
    assert_close(layer(x[None])[0][0], by_hand(layer, x, left=(kernel - 1) // 2), **EXACT)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
def test_causal(kernel: int) -> None:
    layer, x = GatedConvolution(3, kernel, causal=True, dropout=0.0), torch.randn(6, 3)
    torch.nn.init.normal_(layer.convolution.bias)
    assert_close(layer(x[None])[0][0], by_hand(layer, x, left=kernel - 1), **EXACT)


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (2, 4), (5, 1)])
def test_what_it_remembers_is_enough_to_go_on(kernel: int, sizes: tuple[int, ...]) -> None:
    layer, x = GatedConvolution(3, kernel, causal=True, dropout=0.0), torch.randn(2, 6, 3)
    before, found = torch.zeros(2, kernel - 1, 3), []
    for piece in x.split(sizes, dim=1):
        out, before = layer(piece, before)
        assert before.shape == (2, kernel - 1, 3)
        found.append(out)
    assert_close(torch.cat(found, dim=1), layer(x)[0], **EXACT)
    assert_close(before, layer(x)[1], **EXACT)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_first_weights_keep_the_variance(dropout: float) -> None:
    """Gehring et al. 2017, 3.5: N(0, sqrt(4p / n)), where p is the share that dropout keeps."""
    layer = GatedConvolution(64, 3, causal=False, dropout=dropout)
    wanted = (4 * (1 - dropout) / (3 * 64)) ** 0.5
    assert layer.convolution.weight.std().item() == pytest.approx(wanted, rel=0.03)
    assert not layer.convolution.bias.any()


def test_dropout_falls_on_the_input() -> None:
    """So that what is remembered for the next step is not dropped twice."""
    layer, x = GatedConvolution(3, 3, causal=True, dropout=0.5), torch.randn(1, 6, 3)
    out, last = layer(x)
    assert not torch.equal(out, layer(x)[0])
    assert torch.equal(last, x[:, -2:])
