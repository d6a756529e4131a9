"""The convolutional model against the equations of its paper (Gehring et al. 2017), one place at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.errors import RegardError
from regard.models import Sizes
from regard.models.convolutional import Config, Convolutional, build
from regard.types import Batch, Sequences

EXACT = {"rtol": 0.0, "atol": 1e-10}
HALF = math.sqrt(0.5)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def small(**form: Any) -> Convolutional:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "embedding_dim": 6, "hidden_dim": 8, **form}
    model = build(Config(**sizes), Sizes(11, 13, False)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def gated(convolution: Any, window: list[Tensor | None]) -> Tensor:
    """v(W X + b), where what lies beyond the ends is zero"""
    total = convolution.convolution.bias
    for n, x in enumerate(window):
        if x is not None:
            total = total + convolution.convolution.weight[:, :, n] @ x
    a, b = total.chunk(2)
    return a * torch.sigmoid(b)


def around(x: list[Tensor], first: int, kernel: int) -> list[Tensor | None]:
    return [x[place] if 0 <= place < len(x) else None for place in range(first, first + kernel)]


def encoded(model: Any, ids: Tensor, kernel: int) -> tuple[list[Tensor], list[Tensor]]:
    """z_j, the last states, and z_j + e_j"""
    embedded = model.source(ids[None])[0]
    x = [model.widen_source(e) for e in embedded]
    for layer in model.encoder:
        x = [(x[i] + gated(layer, around(x, i - (kernel - 1) // 2, kernel))) * HALF for i in range(len(x))]
    z = [model.narrow_source(each) for each in x]
    return z, [(a + e) * HALF for a, e in zip(z, embedded, strict=True)]


def hidden_by_hand(model: Any, source: Tensor, target: Tensor, kernel: int) -> Tensor:
    z, values = encoded(model, source, kernel)
    g = model.target(target[None])[0]
    x = [model.widen_target(each) for each in g]
    for block in model.decoder:
        after = []
        for i in range(len(x)):
            h = gated(block.convolution, around(x, i - kernel + 1, kernel))
            # (1) d_i = W_d h_i + b_d + g_i
            d = (block.query(h) + g[i]) * HALF
            # a_ij = exp(d_i . z_j) / sum_t exp(d_i . z_t)
            a = torch.stack([d @ each for each in z]).softmax(0)
            # (2) the conditional input c_i = sum_j a_ij (z_j + e_j), scaled by m sqrt(1/m)
            c = sum(weight * value for weight, value in zip(a, values, strict=True)) * math.sqrt(len(z))
            after.append((x[i] + (h + block.read(c)) * HALF) * HALF)
        x = after
    return torch.stack([model.narrow_target(each) for each in x])


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@torch.no_grad()
def test_equals_the_papers_equations(kernel: int) -> None:
    model = small(kernel=kernel)
    source = Sequences(torch.randint(11, (3, 5)), torch.tensor([5, 1, 4]))
    target = Sequences(torch.randint(13, (3, 6)), torch.tensor([6, 6, 6]))
    found = model.hidden(Batch(source, target))
    for row, length in enumerate(source.lengths.tolist()):
        wanted = hidden_by_hand(model, source.ids[row, :length], target.ids[row, :-1], kernel)
        assert_close(found[row], wanted, **EXACT)


@pytest.mark.parametrize(("kernel", "layers"), [(3, 1), (3, 2), (4, 2)])
@torch.no_grad()
def test_the_decoder_sees_as_far_back_as_its_kernels_reach(kernel: int, layers: int) -> None:
    """layers x (kernel - 1) tokens, and not one further: attention looks at the source only."""
    model, length = small(kernel=kernel, decoder_layers=layers), 12
    source = Sequences(torch.randint(11, (1, 4)), torch.tensor([4]))
    ids = torch.randint(13, (1, length + 1))
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 1) % 13
    moved = model.hidden(Batch(source, Sequences(ids, torch.tensor([length + 1])))) - model.hidden(
        Batch(source, Sequences(changed, torch.tensor([length + 1])))
    )
    seen = (moved[0].abs().amax(-1) > 1e-9).tolist()
    reach = layers * (kernel - 1)
    assert seen == [place <= reach for place in range(length)]


@torch.no_grad()
def test_the_signal_keeps_its_size_through_the_blocks() -> None:
    """What the scaled residuals and first weights are for: ten blocks neither blow up nor fade."""
    config = Config(embedding_dim=64, hidden_dim=64, encoder_layers=10, decoder_layers=10, dropout=0.0)
    model = build(config, Sizes(50, 50, True)).eval()
    source = Sequences(torch.randint(50, (8, 20)), torch.full((8,), 20))
    keys, _ = model.encode(source)
    hidden = model.hidden(Batch(source, source))
    assert 0.05 < keys.std().item() < 5
    assert 0.05 < hidden.std().item() < 5


def test_learned_positions_end() -> None:
    model = small(max_length=4)
    with pytest.raises(RegardError, match="the text is longer than the learned positions\n  got:    5 tokens"):
        model.start(Sequences(torch.ones(1, 5, dtype=torch.long), torch.tensor([5])), 4)


# --- one text


def single(kind: str, **form: Any) -> Any:
    model = build(Config(**{"embedding_dim": 6, "hidden_dim": 8, **form}), Sizes(11, 11, True), kind).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@torch.no_grad()
def test_a_language_model_is_gated_causal_convolutions_with_residuals(kernel: int) -> None:
    """h = (X W + b) * sigmoid(X V + c) of the tokens up to this one (Dauphin et al. 2017, eq. 1), added to X."""
    model = single("causal", decoder_layers=3, kernel=kernel)
    ids = torch.randint(11, (2, 7))
    found = model.hidden(Batch(Sequences(ids, torch.tensor([7, 7]))))
    for row in range(2):
        x = [model.widen(model.source.tokens.weight[i] * math.sqrt(6)) for i in ids[row]]
        for layer in model.layers:
            x = [(x[i] + gated(layer, around(x, i - kernel + 1, kernel))) * HALF for i in range(len(x))]
        assert_close(found[row], torch.stack([model.narrow(each) for each in x]), **EXACT)


@torch.no_grad()
def test_a_language_model_has_no_longest_text() -> None:
    """It sees as far back as its kernels reach, wherever it stands."""
    model = single("causal", decoder_layers=2, kernel=3)
    ids = torch.randint(11, (1, 700))
    whole = model.hidden(Batch(Sequences(ids, torch.tensor([700]))))
    part = model.hidden(Batch(Sequences(ids[:, 600:], torch.tensor([100]))))
    assert_close(part[:, 4:], whole[:, 604:], **EXACT)
    assert not torch.allclose(part[:, 3], whole[:, 603])


def test_texts_in_one_row_are_refused_by_a_language_model() -> None:
    batch = Batch(Sequences(torch.ones(1, 3, dtype=torch.long), torch.tensor([3]), torch.zeros(1, 3)))
    with pytest.raises(RegardError, match="a convolutional language model reads one text a row\n  got:    segments"):
        single("causal").hidden(batch)


@pytest.mark.parametrize("kernel", [1, 3, 4])
@torch.no_grad()
def test_an_encoder_is_the_stack_of_the_source(kernel: int) -> None:
    model = single("encoder", encoder_layers=2, kernel=kernel)
    ids = torch.randint(11, (2, 6))
    found = model.hidden(Batch(Sequences(ids, torch.tensor([6, 3]))))
    for row, length in enumerate((6, 3)):
        x = [model.widen(e) for e in model.source(ids[row : row + 1, :length])[0]]
        for layer in model.layers:
            x = [(x[i] + gated(layer, around(x, i - (kernel - 1) // 2, kernel))) * HALF for i in range(len(x))]
        assert_close(found[row, :length], torch.stack([model.narrow(each) for each in x]), **EXACT)
    assert model.pooled(found, torch.tensor([6, 3])).shape == (2, 6)


@torch.no_grad()
def test_widths_side_by_side_are_the_filters_of_their_paper() -> None:
    model = single("encoder", encoder_layers=4, kernels=(1, 2, 5, 4))
    ids = torch.randint(11, (2, 6))
    found = model.hidden(Batch(Sequences(ids, torch.tensor([6, 3]))))
    for row, length in enumerate((6, 3)):
        x = list(model.source(ids[row : row + 1, :length])[0])
        for place in range(length):
            features = []
            for layer, width in zip(model.layers.values(), (1, 2, 5, 4), strict=True):
                total = layer.bias
                for n, each in enumerate(around(x, place - (width - 1) // 2, width)):
                    total = total if each is None else total + layer.weight[:, :, n] @ each
                features.append(total.clamp(min=0))
            assert_close(found[row, place], torch.cat(features), **EXACT)
    assert model.pooled(found, torch.tensor([6, 3])).shape == (2, 8)


@torch.no_grad()
@pytest.mark.parametrize("form", [{"kernels": (1, 2)}, {"encoder_layers": 1}], ids=["widths", "stack"])
def test_runs_of_tokens_are_read_beside_the_tokens(form: dict[str, Any]) -> None:
    ids, lengths = torch.randint(11, (2, 6)), torch.tensor([6, 3])
    model = single("encoder", **form, ngrams=3, ngram_rows=7, ngram_dim=4)
    whole = model.hidden(Batch(Sequences(ids, lengths)))
    assert model.source(ids).shape == (2, 6, 6 + 4)
    model.source.ngrams.weight.zero_()
    without = model.hidden(Batch(Sequences(ids, lengths)))
    assert (whole[0] - without[0]).abs().amax(1).min() > 1e-6  # at each place
    plain = single("encoder", **form)  # the same model, but for the columns that read nothing now
    taken = model.state_dict()
    plain.load_state_dict(
        {
            name: taken[name][:, : own.shape[1]] if own.dim() > 1 else taken[name]
            for name, own in plain.state_dict().items()
        }
    )
    assert_close(plain.hidden(Batch(Sequences(ids, lengths))), without, **EXACT)


@torch.no_grad()
def test_vectors_of_words_begin_small_beside_widths() -> None:
    model: Any = build(Config(kernels=(1, 2), embedding_dim=400, dropout=0.0), Sizes(11, 11, True), "encoder")
    assert 0.04 < model.source(torch.arange(11)[None]).std() < 0.06
