"""Sublayers: where the norm stands, and what dropout touches."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.block import DecoderBlock, EncoderBlock, Sublayer
from regard.layers.feedforward import FeedForward, norm
from regard.ops.masks import causal, padding


def sublayer(body: nn.Module, *, norm_first: bool, dropout: float = 0.0) -> Sublayer:
    return Sublayer(body, norm("layer", 8), norm_first=norm_first, dropout=dropout)


def test_post_norm_is_the_papers() -> None:
    """LayerNorm(x + Sublayer(x))  (Vaswani et al. 2017, 3.1)"""
    body, x = nn.Linear(8, 8), torch.randn(2, 3, 8)
    layer = sublayer(body, norm_first=False)
    assert_close(layer(x), layer.norm(x + body(x)))


def test_pre_norm_leaves_the_residual_alone() -> None:
    """x + Sublayer(LayerNorm(x))  (Xiong et al. 2020)"""
    body, x = nn.Linear(8, 8), torch.randn(2, 3, 8)
    layer = sublayer(body, norm_first=True)
    assert_close(layer(x), x + body(layer.norm(x)))


def test_dropout_falls_on_the_sublayer_before_it_is_added() -> None:
    """Residual dropout  (Vaswani et al. 2017, 5.4): what is dropped leaves x itself."""
    x = torch.randn(1, 50, 8)
    layer = sublayer(nn.Linear(8, 8), norm_first=True, dropout=0.5)
    found, wanted = layer(x) - x, layer.body(layer.norm(x))
    dropped = found.abs() < 1e-12
    assert 0.3 < dropped.double().mean() < 0.7
    assert_close(found[~dropped], 2 * wanted[~dropped])


def test_arguments_reach_the_body() -> None:
    class Scale(nn.Module):
        def forward(self, x: Tensor, by: float, *, plus: float) -> Tensor:
            return x * by + plus

    x = torch.randn(2, 3, 8)
    layer = sublayer(Scale(), norm_first=True)
    assert_close(layer(x, 3.0, plus=1.0), x + 3 * layer.norm(x) + 1)


def wrap(body: nn.Module) -> Sublayer:
    return sublayer(body, norm_first=True)


def test_an_encoder_block_is_attention_then_feedforward() -> None:
    block = EncoderBlock(SelfAttention(8, 2), FeedForward(8, 12), wrap)
    x, mask = torch.randn(2, 3, 8), padding(torch.tensor([3, 1]))
    y = x + block.attention.body(block.attention.norm(x), mask=mask)
    assert_close(block(x, mask), y + block.feedforward.body(block.feedforward.norm(y)))


def test_an_encoder_block_may_have_a_cache() -> None:
    block, x = EncoderBlock(SelfAttention(8, 2), FeedForward(8, 12), wrap), torch.randn(2, 3, 8)
    cache = block.attention.body.new_cache(2, 3, x)
    steps = [
        block(x[:, n : n + 1], causal(), positions=torch.full((2, 1), n), cache=cache, bound=n + 1) for n in range(3)
    ]
    assert_close(torch.cat(steps, dim=1), block(x, causal()))


def test_a_decoder_block_is_masked_attention_then_memory_then_feedforward() -> None:
    block = DecoderBlock(SelfAttention(8, 2), CrossAttention(8, 2), FeedForward(8, 12), wrap)
    x, memory_mask = torch.randn(2, 3, 8), padding(torch.tensor([4, 2]))
    memory = block.cross.body.project(torch.randn(2, 4, 8))
    y = x + block.attention.body(block.attention.norm(x), mask=causal())
    y = y + block.cross.body(block.cross.norm(y), memory, mask=memory_mask)
    y = y + block.feedforward.body(block.feedforward.norm(y))
    assert_close(block(x, memory, mask=causal(), memory_mask=memory_mask), y)
