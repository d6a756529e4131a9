"""Bahdanau's and Luong's scores to the letter, and a bidirectional layer that equals PyTorch's packed one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from regard.errors import ConfigError
from regard.layers.recurrent import LAYERS, BidirectionalLayer, RecurrentAttention, last_real, reversal

EXACT = {"rtol": 0.0, "atol": 1e-10}


def context_by_hand(scores: list[Tensor], states: Tensor) -> Tensor:
    """c_i = sum_j alpha_ij h_j, alpha_ij = exp(e_ij) / sum_k exp(e_ik)  (Bahdanau et al. 2015, eq. 5 and 6)"""
    exponentials = torch.stack(scores).exp()
    return sum(a * h for a, h in zip(exponentials / exponentials.sum(), states, strict=True))  # type: ignore[return-value]


def test_bahdanaus_score() -> None:
    """e_ij = v . tanh(W s_(i-1) + U h_j)  (Bahdanau et al. 2015, A.1.2)"""
    attention = RecurrentAttention("additive", query_dim=3, memory_dim=4, attention_dim=5)
    w, b, u, v = attention.query.weight, attention.query.bias, attention.keys.weight, attention.vector
    states, queries, lengths = torch.randn(2, 6, 4), torch.randn(2, 3), torch.tensor([6, 2])
    found = attention(queries, attention.project(states), states, lengths)
    for row, length in enumerate(lengths.tolist()):
        s = queries[row]
        scores = [v @ torch.tanh(w @ s + b + u @ states[row, j]) for j in range(length)]
        assert_close(found[row], context_by_hand(scores, states[row, :length]), **EXACT)


def test_luongs_general_score() -> None:
    """score(h_t, h_s) = h_t . W h_s  (Luong et al. 2015, eq. 8), not scaled"""
    attention = RecurrentAttention("multiplicative", query_dim=3, memory_dim=4, attention_dim=5)
    states, queries, lengths = torch.randn(2, 6, 4), torch.randn(2, 3), torch.tensor([6, 2])
    found = attention(queries, attention.project(states), states, lengths)
    for row, length in enumerate(lengths.tolist()):
        scores = [queries[row] @ attention.keys.weight @ states[row, j] for j in range(length)]
        assert_close(found[row], context_by_hand(scores, states[row, :length]), **EXACT)


@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_an_empty_memory_is_read_as_zeros(kind: str) -> None:
    attention = RecurrentAttention(kind, 3, 4, 5)
    states = torch.randn(2, 6, 4, requires_grad=True)
    query = torch.randn(2, 3, requires_grad=True)
    found = attention(query, attention.project(states), states, torch.tensor([0, 3]))
    assert torch.equal(found[0], torch.zeros(4))
    found.sum().backward()
    assert query.grad is not None
    assert states.grad is not None
    assert query.grad.isfinite().all()
    assert states.grad.isfinite().all()
    assert not query.grad[0].any()


def test_an_unknown_attention() -> None:
    with pytest.raises(ConfigError) as error:
        RecurrentAttention("dot", 3, 4, 5)
    assert str(error.value) == "no such attention\n  got:    dot\n  wanted: additive, multiplicative"


@pytest.mark.parametrize("cell", LAYERS)
@settings(max_examples=10)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), extra=st.integers(0, 2))
def test_bidirectional_equals_pytorchs_on_packed_rows(cell: str, lengths: list[int], extra: int) -> None:
    """Values at the real places, and the gradients that come from them."""
    ours = BidirectionalLayer(cell, 3, 4)
    theirs = LAYERS[cell](3, 4, batch_first=True, bidirectional=True)
    for name, parameter in theirs.named_parameters():
        own = ours.backwards if name.endswith("_reverse") else ours.forwards
        with torch.no_grad():
            parameter.copy_(own.get_parameter(name.removesuffix("_reverse")))
    x = torch.randn(len(lengths), max(lengths) + extra, 3)
    real = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]

    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    wanted, _ = pad_packed_sequence(theirs(packed)[0], batch_first=True, total_length=x.shape[1])
    found = ours(x, torch.tensor(lengths))
    assert_close(found[real], wanted[real], **EXACT)

    weight = torch.randn(int(real.sum()), 8)
    (found[real] * weight).sum().backward()
    (wanted[real] * weight).sum().backward()
    for name, parameter in theirs.named_parameters():
        own = ours.backwards if name.endswith("_reverse") else ours.forwards
        assert_close(own.get_parameter(name.removesuffix("_reverse")).grad, parameter.grad, **EXACT)


def test_reversal_is_its_own_inverse() -> None:
    lengths = torch.tensor([4, 0, 1, 3])
    mirror = reversal(4, lengths)
    assert mirror.tolist() == [[3, 2, 1, 0], [0, 1, 2, 3], [0, 1, 2, 3], [2, 1, 0, 3]]
    assert torch.equal(mirror.gather(1, mirror), torch.arange(4).expand(4, 4))


def test_last_real_place() -> None:
    x = torch.randn(3, 4, 2)
    found = last_real(x, torch.tensor([4, 1, 0]))
    assert torch.equal(found, torch.stack([x[0, 3], x[1, 0], x[2, 0]]))


def test_the_ends_of_both_readings_are_pytorchs_final_states() -> None:
    """What the decoder starts from: the forward state after the last token, the backward one after the first."""
    ours, theirs = BidirectionalLayer("gru", 3, 4), nn.GRU(3, 4, batch_first=True, bidirectional=True)
    for name, parameter in theirs.named_parameters():
        own = ours.backwards if name.endswith("_reverse") else ours.forwards
        with torch.no_grad():
            parameter.copy_(own.get_parameter(name.removesuffix("_reverse")))
    x, lengths = torch.randn(3, 5, 3), torch.tensor([5, 1, 3])
    _, final = theirs(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    ahead, back = ours(x, lengths).chunk(2, dim=-1)
    assert_close(torch.stack([last_real(ahead, lengths), back[:, 0]]), final, **EXACT)
