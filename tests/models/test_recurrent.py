"""The recurrent decoders, one row and one step at a time.

s: the decoder's state, h_j: the encoder's states, c: what was read from them, x: the embedded token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.models import Sizes
from regard.models.recurrent import Config, Recurrent, build
from regard.types import Batch, Sequences

EXACT = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def small(**form: Any) -> Recurrent:
    model = build(Config(embedding_dim=6, hidden_dim=8, **form), Sizes(11, 13, False)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def gru(cell: nn.GRUCell, x: Tensor, s: Tensor) -> Tensor:
    """s' = (1 - z) n + z s, with the reset gate on the projected state (Cho et al. 2014, as in cuDNN)"""
    w_r, w_z, w_n = (cell.weight_ih @ x + cell.bias_ih).chunk(3)
    u_r, u_z, u_n = (cell.weight_hh @ s + cell.bias_hh).chunk(3)
    r, z = torch.sigmoid(w_r + u_r), torch.sigmoid(w_z + u_z)
    n = torch.tanh(w_n + r * u_n)
    return (1 - z) * n + z * s


def lstm(cell: nn.LSTMCell, x: Tensor, s: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """c' = f c + i g, s' = o tanh(c') (Hochreiter and Schmidhuber 1997, with forget gates)"""
    i, f, g, o = (cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ s + cell.bias_hh).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def rnn(cell: nn.RNNCell, x: Tensor, s: Tensor) -> Tensor:
    return torch.tanh(cell.weight_ih @ x + cell.bias_ih + cell.weight_hh @ s + cell.bias_hh)


def encoded(model: Recurrent, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The states h_j of one source (each both directions), and the last of each direction."""
    x = model.source(ids[None])
    for layer in model.encoder:
        ahead, back = layer.forwards(x)[0], layer.backwards(x.flip(1))[0].flip(1)
        x = torch.cat([ahead, back], dim=-1)
    return x[0], torch.cat([ahead[0, -1], back[0, 0]])


def read(model: Recurrent, s: Tensor, states: Tensor) -> Tensor:
    """The context: softmax over the scores of s against every h_j, and the weighted sum."""
    attention: Any = model.decoder.attention
    if model.decoder.kind == "additive":
        query = attention.query(s)
        scores = [attention.vector @ torch.tanh(query + attention.keys(h)) for h in states]
    else:
        scores = [s @ attention.keys(h) for h in states]
    return torch.stack(scores).softmax(0) @ states


def hidden_by_hand(model: Recurrent, source: Tensor, target: Tensor) -> Tensor:
    decoder: Any = model.decoder
    states, summary = encoded(model, source)
    s = list(torch.tanh(decoder.begin(summary)).chunk(decoder.layers))  # s_0 of each layer
    c = [torch.zeros_like(each) for each in s]
    fed = torch.zeros_like(summary)
    outputs = []
    for x in model.target(target[None])[0]:
        if decoder.kind == "none":
            context = summary  # the fixed-length vector, at every step
        else:
            context = read(model, s[-1], states) if decoder.kind == "additive" else fed
        y = torch.cat([x, context])
        for i, cell in enumerate(decoder.cells):
            if decoder.cell == "lstm":
                s[i], c[i] = lstm(cell, y, s[i], c[i])
            else:
                s[i] = (gru if decoder.cell == "gru" else rnn)(cell, y, s[i])
            y = s[i]
        if decoder.kind == "multiplicative":
            context = read(model, s[-1], states)
        # Luong et al. 2015, eq. 5: h~ = tanh(W_c [c; h]), fed to the next step
        y = fed = torch.tanh(decoder.combine(torch.cat([y, context])))
        outputs.append(decoder.readout(torch.cat([y, x])))
    return torch.stack(outputs)


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("attention", ["none", "additive", "multiplicative"])
@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_equals_the_formulas(cell: str, attention: str, layers: int) -> None:
    model = small(cell=cell, attention=attention, encoder_layers=layers, decoder_layers=layers)
    source = Sequences(torch.randint(11, (3, 5)), torch.tensor([5, 2, 4]))
    target = Sequences(torch.randint(13, (3, 5)), torch.tensor([5, 5, 5]))
    found = model.hidden(Batch(source, target))
    for row, length in enumerate(source.lengths.tolist()):
        wanted = hidden_by_hand(model, source.ids[row, :length], target.ids[row, :-1])
        assert_close(found[row], wanted, **EXACT)


@torch.no_grad()
def test_the_fixed_length_vector_is_all_that_the_decoder_knows() -> None:
    """No memory grows with the source, and what is remembered is as wide as the state."""
    model = small(attention="none")
    state = model.start(Sequences(torch.randint(11, (2, 9)), torch.tensor([9, 4])), 5)
    assert {name: tuple(tensor.shape) for name, tensor in state.memory.items()} == {
        "summary": (2, 8),
        "lengths": (2,),
        "0.h": (2, 8),
    }
