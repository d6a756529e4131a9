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
from regard.layers.output import last_of
from regard.layers.recurrent import LAYERS, STATES, BidirectionalLayer, RecurrentAttention, recur, reversal

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
    found = last_of(x, torch.tensor([4, 1, 0]))
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
    assert_close(torch.stack([last_of(ahead, lengths), back[:, 0]]), final, **EXACT)


def final_of(after: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(part[0] for part in after) if isinstance(after, tuple) else (after[0],)


@pytest.mark.parametrize("cell", LAYERS)
@settings(max_examples=10)
@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_the_state_after_the_last_real_place_is_pytorchs_of_packed_rows(cell: str, lengths: list[int]) -> None:
    """An empty row keeps the state that it came with."""
    layer, real = LAYERS[cell](3, 4, batch_first=True), torch.tensor(lengths)
    x, before = torch.randn(len(lengths), 6, 3), tuple(torch.randn(len(lengths), 4) for _ in STATES[cell])
    out, after = recur(layer, x, before, lengths=real)
    whole, _ = recur(layer, x, before)
    for row, length in enumerate(lengths):
        assert_close(out[row, :length], whole[row, :length], **EXACT)
        state = tuple(part[row : row + 1] for part in before)
        if length:
            hx = tuple(part[None] for part in state)
            packed = pack_padded_sequence(x[row : row + 1], real[row : row + 1], batch_first=True)
            state = final_of(layer(packed, hx if len(hx) > 1 else hx[0])[1])
        for found, wanted in zip(after, state, strict=True):
            assert_close(found[row : row + 1], wanted, **EXACT)


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("by_step", [False, True])
def test_weight_dropout_is_one_mask_for_all_steps(cell: str, by_step: bool) -> None:
    """Values and gradients: those of a layer whose weights from step to step were dropped beforehand."""
    layer, x = LAYERS[cell](3, 4, batch_first=True), torch.randn(2, 5, 3)
    before = tuple(torch.randn(2, 4) for _ in STATES[cell])
    lengths = torch.tensor([5, 5]) if by_step else None
    torch.manual_seed(5)
    out, after = recur(layer, x, before, lengths=lengths, weight_dropout=0.5)
    torch.manual_seed(5)
    kept = nn.functional.dropout(torch.ones_like(layer.weight_hh_l0), 0.5)
    assert 0 < kept.count_nonzero() < kept.numel()
    other = LAYERS[cell](3, 4, batch_first=True)
    other.load_state_dict(layer.state_dict())
    with torch.no_grad():
        other.weight_hh_l0.mul_(kept)
    wanted, final = recur(other, x, before)
    assert_close(out, wanted, **EXACT)
    assert_close(after, final, **EXACT)
    out.sum().backward()
    wanted.sum().backward()
    assert_close(layer.weight_hh_l0.grad, other.weight_hh_l0.grad * kept, **EXACT)
    assert_close(layer.weight_ih_l0.grad, other.weight_ih_l0.grad, **EXACT)
    layer.eval()
    found, _ = recur(layer, x, before, lengths=lengths, weight_dropout=0.5)
    assert_close(found, recur(layer, x, before)[0], **EXACT)
