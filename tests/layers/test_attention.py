"""Multi-head attention: the paper's formula, PyTorch's own module, and caches that change nothing.

Shapes: B batch, N queries, M keys, D model width, H heads, d head width.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import ConfigError, RegardError
from regard.layers.attention import CrossAttention, SelfAttention, merge_heads, split_heads
from regard.layers.positions import AlibiBias, Relative, Rotary, ShawKeys, T5Bias, TransformerXLKeys
from regard.ops.masks import causal, padding
from regard.ops.terms import Dense

EXACT = {"rtol": 0.0, "atol": 1e-10}


def stir(module: nn.Module) -> nn.Module:
    """Moves every parameter, so that none is a zero that hides what it does."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


# --- the paper --------------------------------------------------------------------------------------------------------


def test_heads_concatenate_into_w_o() -> None:
    """MultiHead(Q, K, V) = Concat(head_1, .., head_H) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)  (3.2.2)"""
    model_dim, num_heads, head_dim = 12, 3, 4
    layer = stir(SelfAttention(model_dim, num_heads, bias=False))
    x = torch.randn(5, model_dim)

    w_q, w_k, w_v = layer.qkv.weight.T.chunk(3, dim=1)  # each D x (H d)
    w_o = layer.out.weight.T
    heads = []
    for i in range(num_heads):
        columns = slice(i * head_dim, (i + 1) * head_dim)
        q, k, v = x @ w_q[:, columns], x @ w_k[:, columns], x @ w_v[:, columns]
        weights = torch.softmax(q @ k.T / math.sqrt(head_dim), dim=-1)
        heads.append(weights @ v)
    assert_close(layer(x[None])[0], torch.cat(heads, dim=-1) @ w_o, **EXACT)


def test_masked_attention_looks_at_the_past() -> None:
    """Row i of a causal layer is what the layer says of the first i tokens alone."""
    layer, x = stir(SelfAttention(8, 2)), torch.randn(1, 5, 8)
    whole = layer(x, mask=causal())
    for i in range(5):
        assert_close(whole[:, i], layer(x[:, : i + 1])[:, i], **EXACT)


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_grouped_queries_share_keys_and_values(backend: str) -> None:
    """H query heads over K key heads are H full heads whose key and value weights are repeated H / K times."""
    grouped, full = stir(SelfAttention(12, 6, num_kv_heads=2, backend=backend)), SelfAttention(12, 6)
    with torch.no_grad():
        for name in ("weight", "bias"):
            q, k, v = getattr(grouped.qkv, name).split(grouped.sizes)
            k, v = (part.unflatten(0, (2, 2)).repeat_interleave(3, dim=0).flatten(0, 1) for part in (k, v))
            getattr(full.qkv, name).copy_(torch.cat([q, k, v]))
        full.out.load_state_dict(grouped.out.state_dict())
    x = torch.randn(2, 5, 12)
    assert_close(grouped(x, mask=causal()), full(x, mask=causal()), **EXACT)


def test_grouped_queries_in_cross_attention() -> None:
    grouped, full = stir(CrossAttention(12, 6, num_kv_heads=2, memory_dim=7)), CrossAttention(12, 6, memory_dim=7)
    with torch.no_grad():
        full.q.load_state_dict(grouped.q.state_dict())
        full.out.load_state_dict(grouped.out.state_dict())
        for name in ("weight", "bias"):
            k, v = getattr(grouped.kv, name).chunk(2)
            repeated = [p.unflatten(0, (2, 2)).repeat_interleave(3, dim=0).flatten(0, 1) for p in (k, v)]
            getattr(full.kv, name).copy_(torch.cat(repeated))
    x, memory = torch.randn(2, 3, 12), torch.randn(2, 5, 7)
    assert_close(grouped(x, grouped.project(memory)), full(x, full.project(memory)), **EXACT)


@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_width_and_scale_of_a_head_may_be_given(kind: type[SelfAttention] | type[CrossAttention]) -> None:
    """Heads of 5 in a model of 8, grouped, with scores as they are: the formula head by head."""
    layer = stir(kind(8, 4, num_kv_heads=2, head_dim=5, scale=1.0, bias=False))
    x = torch.randn(1, 6, 8)
    if isinstance(layer, SelfAttention):
        q, k, v = layer.qkv(x[0]).split(layer.sizes, dim=-1)
        found = layer(x)
    else:
        q, (k, v) = layer.q(x[0]), layer.kv(x[0]).chunk(2, dim=-1)
        found = layer(x, layer.project(x))
    heads = []
    for i in range(4):
        own, group = slice(5 * i, 5 * i + 5), slice(5 * (i // 2), 5 * (i // 2) + 5)
        heads.append(torch.softmax(q[:, own] @ k[:, group].T, dim=-1) @ v[:, group])
    assert_close(found[0], torch.cat(heads, dim=-1) @ layer.out.weight.T, **EXACT)


def test_a_key_bias_cannot_matter() -> None:
    """q . (k_j + b) adds q . b to every score of a row, which softmax does not see: the one part without gradient."""
    layer = stir(SelfAttention(8, 2))
    layer(torch.randn(2, 5, 8)).square().sum().backward()
    assert layer.qkv.bias.grad is not None
    q, k, v = layer.qkv.bias.grad.chunk(3)
    assert k.abs().max() < 1e-12
    assert q.abs().min() > 1e-8
    assert v.abs().min() > 1e-8


# --- PyTorch's module -------------------------------------------------------------------------------------------------


def masks_of_torch(lengths: Tensor, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """PyTorch's key padding and causal masks, where true means hidden."""
    return torch.arange(keys) >= lengths[:, None], torch.ones(queries, keys, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_self_attention_equals_multiheadattention(is_causal: bool, backend: str) -> None:
    theirs, ours = stir(nn.MultiheadAttention(12, 3, batch_first=True)), SelfAttention(12, 3, backend=backend)
    with torch.no_grad():
        ours.qkv.weight.copy_(theirs.in_proj_weight)
        ours.qkv.bias.copy_(theirs.in_proj_bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    lengths = torch.tensor([6, 2, 4])
    hidden, future = masks_of_torch(lengths, 6, 6)
    x = torch.randn(3, 6, 12, requires_grad=True)

    mask = padding(lengths) & causal() if is_causal else padding(lengths)
    wanted = theirs(x, x, x, key_padding_mask=hidden, attn_mask=future if is_causal else None, need_weights=False)[0]
    found = ours(x, mask=mask)
    assert_close(found, wanted, **EXACT)

    weight = torch.randn_like(wanted)
    pairs = [
        (x, x),
        (ours.qkv.weight, theirs.in_proj_weight),
        (ours.qkv.bias, theirs.in_proj_bias),
        (ours.out.weight, theirs.out_proj.weight),
        (ours.out.bias, theirs.out_proj.bias),
    ]
    our_gradients = torch.autograd.grad(found, [a for a, _ in pairs], weight)
    their_gradients = torch.autograd.grad(wanted, [b for _, b in pairs], weight)
    assert_close(our_gradients, their_gradients, **EXACT)


def test_cross_attention_equals_multiheadattention() -> None:
    theirs = stir(nn.MultiheadAttention(12, 3, batch_first=True, kdim=7, vdim=7))
    ours = CrossAttention(12, 3, memory_dim=7)
    with torch.no_grad():
        ours.q.weight.copy_(theirs.q_proj_weight)
        ours.q.bias.copy_(theirs.in_proj_bias[:12])
        ours.kv.weight.copy_(torch.cat([theirs.k_proj_weight, theirs.v_proj_weight]))
        ours.kv.bias.copy_(theirs.in_proj_bias[12:])
    ours.out.load_state_dict(theirs.out_proj.state_dict())
    lengths = torch.tensor([5, 1, 3])
    x, memory = torch.randn(3, 4, 12, requires_grad=True), torch.randn(3, 5, 7, requires_grad=True)

    hidden, _ = masks_of_torch(lengths, 4, 5)
    wanted = theirs(x, memory, memory, key_padding_mask=hidden, need_weights=False)[0]
    found = ours(x, ours.project(memory), mask=padding(lengths))
    assert_close(found, wanted, **EXACT)

    weight = torch.randn_like(wanted)
    our_gradients = torch.autograd.grad(found, [x, memory, ours.q.weight, ours.out.weight, ours.kv.weight], weight)
    theirs_of = [x, memory, theirs.q_proj_weight, theirs.out_proj.weight, theirs.k_proj_weight, theirs.v_proj_weight]
    *their_gradients, k, v = torch.autograd.grad(wanted, theirs_of, weight)
    assert_close(our_gradients, (*their_gradients, torch.cat([k, v])), **EXACT)


# --- the cache --------------------------------------------------------------------------------------------------------

RELATIVES = ["none", "rotary", "alibi", "t5", "shaw", "transformer-xl"]


def relative(name: str, num_heads: int, head_dim: int) -> Relative | None:
    return {
        "none": lambda: None,
        "rotary": Rotary,
        "alibi": lambda: AlibiBias(num_heads),
        "t5": lambda: T5Bias(num_heads, bidirectional=False, num_buckets=8, max_distance=16),
        "shaw": lambda: ShawKeys(head_dim, reach=2),
        "transformer-xl": lambda: TransformerXLKeys(num_heads * head_dim, num_heads),
    }[name]()


@settings(max_examples=60)
@given(
    name=st.sampled_from(RELATIVES),
    backend=st.sampled_from(["reference", "fused"]),
    rows=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    half_width=st.integers(1, 3),
    pieces=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    room=st.integers(0, 3),
    bounded=st.booleans(),
)
@torch.no_grad()
def test_a_cache_changes_nothing(
    name: str,
    backend: str,
    rows: int,
    kv_heads: int,
    groups: int,
    half_width: int,
    pieces: list[int],
    room: int,
    bounded: bool,
) -> None:
    """Whatever the shapes, the heads, the position scheme, and the pieces in which the tokens come."""
    num_heads, length = kv_heads * groups, sum(pieces)
    layer = stir(
        SelfAttention(
            num_heads * 2 * half_width,
            num_heads,
            num_kv_heads=kv_heads,
            relative=relative(name, num_heads, 2 * half_width),
            backend=backend,
        )
    )
    x = torch.randn(rows, length, num_heads * 2 * half_width)
    cache = layer.new_cache(rows, length + room, x)
    found, done = [], 0
    for piece in x.split(pieces, dim=1):
        positions = torch.arange(done, done := done + piece.shape[1]).expand(rows, -1)
        bound = done if bounded else None
        found.append(layer(piece, mask=causal(), positions=positions, cache=cache, bound=bound))
    assert_close(torch.cat(found, dim=1), layer(x, mask=causal()), **EXACT)


@settings(max_examples=30)
@given(name=st.sampled_from(RELATIVES), lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4))
@torch.no_grad()
def test_rows_of_a_cache_keep_their_own_time(name: str, lengths: list[int]) -> None:
    """Row b holds lengths[b] tokens, and rubbish after them; the next token of each sees its own past only."""
    layer, rows, room = stir(SelfAttention(8, 2, relative=relative(name, 2, 4))), len(lengths), max(lengths) + 1
    x = torch.randn(rows, room, 8)
    cache = layer.new_cache(rows, room, x)
    everywhere = torch.arange(room).expand(rows, -1)
    layer(torch.randn_like(x), mask=causal(), positions=everywhere, cache=cache, bound=room)
    for row, length in enumerate(lengths):
        k_v = tuple(buffer[row : row + 1] for buffer in cache)
        positions = torch.arange(length)[None]
        if length:
            layer(x[row : row + 1, :length], mask=causal(), positions=positions, cache=k_v, bound=length)
    positions = torch.tensor(lengths)[:, None]
    last = x.gather(1, positions[..., None].expand(-1, -1, 8))
    found = layer(last, mask=causal(), positions=positions, cache=cache, bound=room)
    for row, length in enumerate(lengths):
        assert_close(found[row, 0], layer(x[row : row + 1, : length + 1], mask=causal())[0, -1], **EXACT)


def test_a_full_cache_says_so_before_it_writes() -> None:
    layer = SelfAttention(8, 2)
    x = torch.randn(1, 3, 8)
    cache = layer.new_cache(1, 2, x)
    with pytest.raises(RegardError) as error:
        layer(x, mask=causal(), positions=torch.arange(3)[None], cache=cache, bound=3)
    assert str(error.value) == (
        "the cache is full\n  got:    3 tokens\n  wanted: at most 2\n  try:    start with a larger max_length"
    )
    assert not cache[0].any()


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_splitting_heads_is_undone_by_merging_them() -> None:
    x = torch.randn(2, 3, 12)
    heads = split_heads(x, 4)
    assert heads.shape == (2, 3, 3, 4)
    assert torch.equal(heads[:, 1], x[:, :, 4:8])
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize("cross", [False, True])
def test_dropout_of_the_weights_acts_in_training_only(cross: bool) -> None:
    x = torch.randn(1, 50, 8)
    layer = CrossAttention(8, 2, dropout=0.5) if cross else SelfAttention(8, 2, dropout=0.5)

    def forward() -> Tensor:
        return layer(x, layer.project(x)) if isinstance(layer, CrossAttention) else layer(x)

    assert not torch.equal(forward(), forward())
    layer.eval()
    assert torch.equal(forward(), forward())


@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
@pytest.mark.parametrize(
    ("model_dim", "num_heads", "num_kv_heads", "text"),
    [
        (
            10,
            4,
            None,
            "model_dim must be divisible by num_heads\n  got:    (10, 4)\n  wanted: model_dim % num_heads == 0",
        ),
        (
            12,
            6,
            4,
            "num_heads must be divisible by num_kv_heads\n  got:    (6, 4)\n  wanted: num_heads % num_kv_heads == 0",
        ),
    ],
)
def test_heads_that_do_not_fit(
    kind: type[nn.Module], model_dim: int, num_heads: int, num_kv_heads: int | None, text: str
) -> None:
    with pytest.raises(ConfigError) as error:
        kind(model_dim, num_heads, num_kv_heads=num_kv_heads)
    assert str(error.value) == text


# --- reading other states ---------------------------------------------------------------------------------------------

SCHEMES = [
    lambda heads: None,
    lambda heads: Rotary(),
    lambda heads: AlibiBias(heads),
    lambda heads: T5Bias(heads, bidirectional=True),
    lambda heads: ShawKeys(4),
    lambda heads: TransformerXLKeys(4 * heads, heads),
]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("make", SCHEMES)
def test_over_a_memory_is_the_end_of_a_longer_text(make: object, bias: bool, num_kv_heads: int) -> None:
    relative = make(4)  # type: ignore[operator]
    layer = stir(SelfAttention(16, 4, num_kv_heads=num_kv_heads, bias=bias, relative=relative))
    x = torch.randn(2, 9, 16)
    whole = layer(x, mask=causal())
    assert_close(layer(x[:, 6:], mask=causal(), over=x, positions=torch.arange(6, 9)), whole[:, 6:], **EXACT)
    places = torch.tensor([[8, 3], [0, 5]])
    rows = torch.arange(2)[:, None]
    assert_close(layer(x[rows, places], mask=causal(), over=x, positions=places), whole[rows, places], **EXACT)


def test_terms_are_added_to_those_of_the_positions() -> None:
    layer, x = stir(SelfAttention(16, 4, relative=TransformerXLKeys(16, 4))), torch.randn(2, 5, 16)
    assert not torch.allclose(layer(x, terms=[Dense(torch.randn(1, 4, 5, 5))]), layer(x))
    blind = torch.zeros(1, 1, 5, 5).masked_fill_(torch.ones(5, 5).triu(1).bool(), -1e9)
    assert_close(layer(x, terms=[Dense(blind)]), layer(x, mask=causal()), **EXACT)
