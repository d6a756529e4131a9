"""The Transformer against PyTorch's own, and the sizes of the paper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import RegardError
from regard.models import Sizes, with_preset
from regard.models.transformer import Config, Transformer, build
from regard.types import Batch, Sequences

EXACT = {"rtol": 0.0, "atol": 1e-10}


@pytest.fixture
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def pairs(ours: Transformer, theirs: nn.Transformer) -> Iterator[tuple[Tensor, Tensor]]:
    """Every parameter of our stacks with the one that it is in PyTorch's."""

    def modules(a: nn.Module, b: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(a.parameters(), b.parameters(), strict=True)

    for block, layer in zip(ours.encoder.blocks, theirs.encoder.layers, strict=True):
        yield block.attention.body.qkv.weight, layer.self_attn.in_proj_weight
        yield block.attention.body.qkv.bias, layer.self_attn.in_proj_bias
        yield from modules(block.attention.body.out, layer.self_attn.out_proj)
        yield from modules(block.attention.norm, layer.norm1)
        yield from modules(block.feedforward.body.up, layer.linear1)
        yield from modules(block.feedforward.body.down, layer.linear2)
        yield from modules(block.feedforward.norm, layer.norm2)
    for block, layer in zip(ours.decoder.blocks, theirs.decoder.layers, strict=True):
        yield block.attention.body.qkv.weight, layer.self_attn.in_proj_weight
        yield block.attention.body.qkv.bias, layer.self_attn.in_proj_bias
        yield from modules(block.attention.body.out, layer.self_attn.out_proj)
        yield from modules(block.attention.norm, layer.norm1)
        width = block.cross.body.q.weight.shape[0]
        yield block.cross.body.q.weight, layer.multihead_attn.in_proj_weight[:width]
        yield block.cross.body.q.bias, layer.multihead_attn.in_proj_bias[:width]
        yield block.cross.body.kv.weight, layer.multihead_attn.in_proj_weight[width:]
        yield block.cross.body.kv.bias, layer.multihead_attn.in_proj_bias[width:]
        yield from modules(block.cross.body.out, layer.multihead_attn.out_proj)
        yield from modules(block.cross.norm, layer.norm2)
        yield from modules(block.feedforward.body.up, layer.linear1)
        yield from modules(block.feedforward.body.down, layer.linear2)
        yield from modules(block.feedforward.norm, layer.norm3)
    if ours.encoder.norm is not None and ours.decoder.norm is not None:
        yield from modules(ours.encoder.norm, theirs.encoder.norm)
        yield from modules(ours.decoder.norm, theirs.decoder.norm)


def torch_transformer(config: Config) -> nn.Transformer:
    model = nn.Transformer(
        config.model_dim,
        config.num_heads,
        config.encoder_layers,
        config.decoder_layers,
        config.ffn_dim,
        dropout=0.0,
        activation=config.activation,
        norm_first=config.norm_first,
        batch_first=True,
    )
    if not config.norm_first:  # PyTorch ends post-norm stacks with one more norm, which the paper has not
        model.encoder.norm = model.decoder.norm = None
    return model


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_equals_pytorchs_transformer(activation: str, norm_first: bool) -> None:
    """Hidden states and the gradients of every weight, under copied weights, with padding on both sides."""
    config = Config(
        encoder_layers=2,
        decoder_layers=3,
        model_dim=12,
        num_heads=3,
        ffn_dim=20,
        activation=activation,  # type: ignore[arg-type]
        norm_first=norm_first,
        dropout=0.0,
    )
    ours, theirs = build(config, Sizes(11, 13, False)), torch_transformer(config)
    with torch.no_grad():
        for own, other in pairs(ours, theirs):
            own.add_(0.2 * torch.randn_like(own))
            other.copy_(own)
    assert sum(own.numel() for own, _ in pairs(ours, theirs)) == sum(p.numel() for p in theirs.parameters())

    source = Sequences(torch.randint(11, (3, 5)), torch.tensor([5, 2, 4]))
    target = Sequences(torch.randint(13, (3, 7)), torch.tensor([4, 7, 2]))
    hidden = torch.arange(5) >= source.lengths[:, None]
    wanted = theirs(
        ours.source(source.ids),
        ours.target(target.ids[:, :-1]),
        tgt_mask=torch.ones(6, 6, dtype=torch.bool).triu(1),
        src_key_padding_mask=hidden,
        memory_key_padding_mask=hidden,
    )
    found = ours.hidden(Batch(source, target))
    assert_close(found, wanted, **EXACT)

    weight = torch.randn_like(wanted)
    (found * weight).sum().backward()
    (wanted * weight).sum().backward()
    gradients = {id(p): p.grad for p in theirs.parameters()}
    for own, other in pairs(ours, theirs):
        base = other if other._base is None else other._base  # a slice of a packed weight
        grad = gradients[id(base)]
        assert grad is not None
        if base is not other:
            start = other.storage_offset() // other.stride(0)
            grad = grad[start : start + len(other)]
        assert_close(own.grad, grad, **EXACT)


@pytest.mark.parametrize(
    ("preset", "millions"),
    [("base", 65), ("big", 213)],
)
def test_sizes_of_the_paper(preset: str, millions: int) -> None:
    """Vaswani et al. 2017, table 3, with the shared vocabulary of 37,000 tokens; within 4 %."""
    config = Config(**with_preset("transformer", {"preset": preset}))
    with torch.device("meta"):
        model = build(config, Sizes(37000, 37000, True))
    count = sum(p.numel() for p in model.parameters())
    assert count == pytest.approx(millions * 1e6, rel=0.04)


def test_learned_positions_end_on_either_side() -> None:
    table = with_preset("transformer", {"preset": "tiny", "position": "learned", "max_length": 4})
    model = build(Config(**table), Sizes(9, 9, True))
    ids, lengths = torch.ones(1, 5, dtype=torch.long), torch.tensor([5])
    with pytest.raises(RegardError, match="the text is longer than the learned positions\n  got:    5 tokens"):
        model.start(Sequences(ids, lengths), 4)
    _, state = model.step(ids[:, :4], model.start(Sequences(ids[:, :4], lengths - 1), 9))
    with pytest.raises(RegardError, match="the text is longer than the learned positions\n  got:    5 tokens"):
        model.step(ids[:, :1], state)


def test_linear_weights_start_as_glorot_says_and_biases_at_zero() -> None:
    model = build(Config(**with_preset("transformer", {"preset": "tiny"})), Sizes(9, 9, True))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = (6 / sum(module.weight.shape)) ** 0.5
            assert 0.9 * bound < module.weight.abs().max() <= bound
            assert not module.bias.any()
