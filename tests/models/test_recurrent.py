"""The recurrent decoders, one row and one step at a time; the language model and the encoder against PyTorch's.

s: the decoder's state, h_j: the encoder's states, c: what was read from them, x: the embedded token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import RegardError
from regard.look.collect import observe
from regard.models import Sizes
from regard.models.recurrent import PRESETS, Config, Recurrent, RecurrentEncoder, RecurrentLM, build
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


# --- one text

LAYERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def single(kind: str, **form: Any) -> Any:
    model = build(Config(**{"embedding_dim": 6, "hidden_dim": 8, **form}), Sizes(11, 11, True), kind).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def text(*lengths: int) -> Batch:
    return Batch(Sequences(torch.randint(11, (len(lengths), max(lengths))), torch.tensor(lengths)))


@pytest.mark.parametrize("cell", LAYERS)
@pytest.mark.parametrize("tie", [True, False])
@torch.no_grad()
def test_a_language_model_is_pytorchs_stack_between_embedding_and_head(cell: str, tie: bool) -> None:
    model: RecurrentLM = single("causal", cell=cell, decoder_layers=3, tie_embeddings=tie)
    stack: Any = LAYERS[cell](6, 8, num_layers=3, batch_first=True)
    for i, layer in enumerate(model.layers):
        for name, weight in layer.named_parameters():
            stack.get_parameter(name.replace("l0", f"l{i}")).copy_(weight)
    batch = text(7, 7)
    states, _ = stack(model.source.tokens.weight[batch.source.ids] * 6**0.5)
    if tie:  # as narrow as the tokens
        states = states @ model.projection.weight.T + model.projection.bias
    assert_close(model.hidden(batch), states, **EXACT)
    assert_close(model.head(model.hidden(batch)), states @ model.head.weight.T + model.head.bias, **EXACT)


def test_a_head_as_wide_as_the_states_needs_no_projection() -> None:
    assert isinstance(single("causal", hidden_dim=6).projection, nn.Identity)
    assert isinstance(single("causal", tie_embeddings=False).projection, nn.Identity)
    assert single("causal", tie_embeddings=False).head.weight.shape == (11, 8)


def test_no_gradient_flows_through_what_is_remembered() -> None:
    """The gradients of a segment are those of the segment alone, from a state that is given."""
    model = single("causal", cell="lstm", decoder_layers=2, dropout=0.0).train()
    _, memory = model.remember(text(5, 5), model.empty_memory(2))
    batch = text(4, 4)
    given = {name: tensor.clone() for name, tensor in memory.cache.items()}
    hidden, _ = model.remember(batch, memory)
    found = torch.autograd.grad(hidden.square().sum(), list(model.layers.parameters()))
    memory.cache = given
    again, _ = model.remember(batch, memory)
    for mine, right in zip(found, torch.autograd.grad(again.square().sum(), model.layers.parameters()), strict=True):
        assert_close(mine, right, **EXACT)


def test_regularisers_act_where_they_should() -> None:
    """Each alone makes two readings differ; words and parts that are dropped are so at every place."""
    ids = torch.tensor([[3] * 6])
    for form in ({"locked_dropout": True, "dropout": 0.5}, {"weight_dropout": 0.5}, {"word_dropout": 0.5}):
        model = single("causal", cell="lstm", **{"dropout": 0.0, **form}).train()
        batch = Batch(Sequences(ids, torch.tensor([6])))
        assert not all(torch.equal(model.hidden(batch), model.hidden(batch)) for _ in range(20)), form
        embedded = model.source(ids)
        assert torch.equal(embedded, embedded[:, :1].expand_as(embedded))


def test_texts_in_one_row_are_refused_by_a_language_model() -> None:
    batch = Batch(Sequences(torch.ones(1, 3, dtype=torch.long), torch.tensor([3]), torch.zeros(1, 3)))
    for read in (lambda model: model.hidden(batch), lambda model: model.remember(batch, model.empty_memory(1))):
        with pytest.raises(RegardError, match="a recurrent language model reads one text a row\n  got:    segments"):
            read(single("causal"))


@torch.no_grad()
def test_an_encoder_is_pytorchs_both_ways_and_its_pooling_can_be_looked_at() -> None:
    model: RecurrentEncoder = single("encoder", cell="lstm")
    both = nn.LSTM(6, 4, bidirectional=True, batch_first=True)
    layer: Any = model.layers[0]
    for name, weight in layer.forwards.named_parameters():
        both.get_parameter(name).copy_(weight)
        both.get_parameter(f"{name}_reverse").copy_(layer.backwards.get_parameter(name))
    batch = text(5, 5)
    with observe(model) as trace:
        hidden = model.hidden(batch)
        pooled = model.pooled(hidden, batch.source.lengths)
    assert_close(hidden, both(model.source.tokens.weight[batch.source.ids] * 6**0.5)[0], **EXACT)
    assert [view.name for view in trace] == ["pooling"]
    assert_close((trace[0].rows(range(1)) @ hidden[:, None])[:, 0, 0].float(), pooled.float(), rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(("preset", "millions"), [("lm", 28.43), ("awd", 33.72)])
def test_presets_of_language_models_are_as_large_as_their_papers(preset: str, millions: float) -> None:
    """On WikiText-2, a vocabulary of 33,278: 28 and 33 million."""
    with torch.device("meta"):
        model = build(Config(preset=preset, **PRESETS[preset]), Sizes(33278, 33278, True), "causal")  # type: ignore[arg-type]
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
