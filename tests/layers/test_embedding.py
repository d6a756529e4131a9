"""Tokens to vectors and back."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from regard.errors import RegardError
from regard.layers.embedding import Embedding, Head, token_table
from regard.layers.positions import Learned, Sinusoidal
from regard.ops.positions import sinusoid

IDS = torch.tensor([[3, 1, 4], [1, 5, 2]])


def test_tokens_times_the_root_of_the_width_plus_sinusoids() -> None:
    """Vaswani et al. 2017, 3.4: the embedding weights are multiplied by sqrt(d_model)."""
    table = token_table(6, 8)
    found = Embedding(table, position=Sinusoidal(8))(IDS)
    for row in range(2):
        for place in range(3):
            wanted = table.weight[IDS[row, place]] * math.sqrt(8) + sinusoid(torch.tensor(place), 8)
            assert_close(found[row, place], wanted)


def test_scaled_tokens_have_numbers_of_about_one_as_the_sinusoids_have() -> None:
    vectors = Embedding(token_table(500, 64), position=None)(torch.arange(500)[None])
    assert 0.95 < vectors.std().item() < 1.05


def test_scale_can_be_left_out() -> None:
    table = token_table(6, 8)
    assert torch.equal(Embedding(table, position=None, scale=False)(IDS), table.weight[IDS])


@pytest.mark.parametrize("position", [Sinusoidal(8), Learned(9, 8)])
def test_positions_may_be_given_for_each_row(position: Sinusoidal | Learned) -> None:
    embedding = Embedding(token_table(6, 8), position=position)
    later = torch.tensor([[0, 1, 2], [4, 5, 6]])
    found = embedding(IDS, later, bound=7)
    assert_close(found[0], embedding(IDS)[0])
    assert_close(found[1], embedding(torch.cat([IDS[:, :2], IDS[:, :2], IDS], dim=1))[1, 4:])


def test_too_long_for_learned_positions() -> None:
    embedding = Embedding(token_table(6, 8), position=Learned(2, 8))
    with pytest.raises(RegardError, match="the text is longer than the learned positions\n  got:    3 tokens"):
        embedding(IDS)
    with pytest.raises(RegardError, match="got:    9 tokens"):
        embedding(IDS[:, :1], torch.tensor([[8], [0]]), bound=9)


def test_dropout_in_training_only() -> None:
    embedding = Embedding(token_table(6, 8), position=None, dropout=0.5)
    assert (embedding(IDS) == 0).any()
    assert not (embedding.eval()(IDS) == 0).any()


def test_a_tied_head_is_the_embedding() -> None:
    table = token_table(6, 8)
    head = Head(8, 6, table)
    hidden = torch.randn(2, 3, 8)
    assert head.weight is table.weight
    assert_close(head(hidden), hidden @ table.weight.T)


def test_an_untied_head_has_its_own_weight() -> None:
    table = token_table(6, 8)
    head = Head(8, 6)
    assert head.weight.shape == table.weight.shape
    assert head.weight is not table.weight


def test_a_head_may_have_a_bias_which_begins_at_zero() -> None:
    table, hidden = token_table(6, 8), torch.randn(2, 8)
    head = Head(8, 6, table, bias=True)
    assert torch.equal(head(hidden), Head(8, 6, table)(hidden))
    bias = torch.nn.init.normal_(head.bias)
    assert_close(head(hidden), hidden @ table.weight.T + bias)
    assert [name for name, _ in Head(8, 6, table).named_parameters()] == ["weight"]


def test_a_norm_of_tokens_and_positions_together() -> None:
    table, norm = token_table(6, 8), torch.nn.LayerNorm(8)
    plain = Embedding(table, position=Sinusoidal(8))(IDS)
    assert_close(Embedding(table, position=Sinusoidal(8), norm=norm)(IDS), norm(plain))
