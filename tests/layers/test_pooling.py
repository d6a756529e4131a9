"""Attention pooling: Yang et al.'s formula, padding, and that it can be looked at."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from regard.layers.pooling import AttentionPooling
from regard.look.collect import observe

EXACT = {"rtol": 0.0, "atol": 1e-10}


def pooling() -> AttentionPooling:
    layer = AttentionPooling(4)
    torch.nn.init.normal_(layer.query)
    return layer


def test_the_formula() -> None:
    """a_j = softmax_j(v . tanh(W h_j + b)), s = sum_j a_j h_j  (Yang et al. 2016, eq. 8 to 10)"""
    layer, hidden, lengths = pooling(), torch.randn(3, 6, 4), torch.tensor([6, 1, 3])
    found = layer(hidden, lengths)
    for row, length in enumerate(lengths.tolist()):
        h = hidden[row, :length]
        scores = torch.stack([layer.vector @ torch.tanh(layer.keys.weight @ each + layer.query) for each in h])
        assert_close(found[row], scores.softmax(0) @ h, **EXACT)


def test_an_empty_row_is_zeros_with_finite_gradients() -> None:
    layer, hidden = pooling(), torch.randn(2, 3, 4, requires_grad=True)
    found = layer(hidden, torch.tensor([0, 2]))
    assert not found[0].any()
    found.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    assert not hidden.grad[0].any()
    assert not hidden.grad[1, 2:].any()


def test_what_it_reads_can_be_looked_at() -> None:
    layer, hidden, lengths = pooling(), torch.randn(2, 5, 4), torch.tensor([5, 2])
    with observe(layer) as trace, torch.no_grad():
        pooled = layer(hidden, lengths)
    weights = trace[0].rows(range(1))
    assert weights.shape == (2, 1, 1, 5)
    assert not weights[1, ..., 2:].any()
    assert_close((weights @ hidden[:, None])[:, 0, 0], pooled, rtol=0.0, atol=1e-6)
