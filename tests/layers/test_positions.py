"""The position schemes as their papers write them, one pair of tokens at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import RegardError
from regard.layers.attention import SelfAttention
from regard.layers.positions import (
    AlibiBias,
    DirectedSinusoids,
    Learned,
    Rotary,
    ShawKeys,
    Sinusoidal,
    T5Bias,
    TransformerXLKeys,
)
from regard.ops.masks import causal
from regard.ops.terms import t5_bucket

EXACT = {"rtol": 0.0, "atol": 1e-10}
HEADS, WIDTH, LENGTH = 2, 4, 6
Score = Callable[[int, int, int, Tensor, Tensor], Tensor]  # head, i, j, q_i, k_j


def stirred(layer: SelfAttention) -> SelfAttention:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def by_hand(layer: SelfAttention, x: Tensor, score: Score, *, is_causal: bool) -> Tensor:
    """Attention over one text with this score, a pair of tokens at a time: N x D -> N x D."""
    q, k, v = (part.unflatten(-1, (HEADS, WIDTH)) for part in layer.qkv(x).chunk(3, dim=-1))
    rows = []
    for i in range(len(x)):
        heads = []
        for h in range(HEADS):
            seen = range(i + 1 if is_causal else len(x))
            weights = torch.stack([score(h, i, j, q[i, h], k[j, h]) for j in seen]).softmax(0)
            heads.append(weights @ v[: len(seen), h])
        rows.append(layer.out(torch.cat(heads)))
    return torch.stack(rows)


def compare(layer: SelfAttention, score: Score, *, is_causal: bool) -> None:
    x = torch.randn(LENGTH, HEADS * WIDTH)
    found = layer(x[None], mask=causal() if is_causal else None)[0]
    assert_close(found, by_hand(layer, x, score, is_causal=is_causal), **EXACT)


def attention(relative: nn.Module) -> SelfAttention:
    return stirred(SelfAttention(HEADS * WIDTH, HEADS, relative=relative))  # type: ignore[arg-type]


both_ways = pytest.mark.parametrize("is_causal", [False, True])


@both_ways
def test_rotary(is_causal: bool) -> None:
    """Su et al. 2021: a pair of numbers is a complex one, turned by position x theta_i; the score is the real part."""

    def turned(x: Tensor, position: int) -> Tensor:
        theta = torch.tensor([10000.0 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)])
        return torch.complex(x[: WIDTH // 2], x[WIDTH // 2 :]) * torch.polar(torch.ones(WIDTH // 2), position * theta)

    def score(h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        return (turned(q, i) * turned(k, j).conj()).real.sum() / math.sqrt(WIDTH)

    compare(attention(Rotary()), score, is_causal=is_causal)


@both_ways
def test_alibi(is_causal: bool) -> None:
    """Press et al. 2022: q_i . k_j - m |i - j|, with slopes m from 2^(-8/H) on."""

    def score(h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        return q @ k / math.sqrt(WIDTH) - 2 ** (-8 * (h + 1) / HEADS) * abs(i - j)

    compare(attention(AlibiBias(HEADS)), score, is_causal=is_causal)


@both_ways
def test_t5(is_causal: bool) -> None:
    """Raffel et al. 2020: a learned number for each head and bucket of the distance j - i."""
    bias = T5Bias(HEADS, bidirectional=not is_causal, num_buckets=8, max_distance=5)
    layer = attention(bias)

    def score(h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        bucket = t5_bucket(torch.tensor(j - i), 8, bidirectional=not is_causal, max_distance=5)
        return q @ k / math.sqrt(WIDTH) + bias.weight[bucket, h]

    compare(layer, score, is_causal=is_causal)


@both_ways
def test_shaw(is_causal: bool) -> None:
    """Shaw et al. 2018, eq. 4: e_ij = q_i . (k_j + a_clip(j - i)) / sqrt(d)."""
    keys = ShawKeys(WIDTH, reach=2)
    layer = attention(keys)

    def score(h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        a = keys.weight[max(-2, min(2, j - i)) + 2]
        return q @ (k + a) / math.sqrt(WIDTH)

    compare(layer, score, is_causal=is_causal)


@both_ways
def test_tener(is_causal: bool) -> None:
    """Yan et al. 2019, eq. 15-19: Q_i.K_j + Q_i.R_(i-j) + u.K_j + v.R_(i-j), with nothing to scale it; R(-t) is not
    R(t), as sines change their sign."""
    keys = DirectedSinusoids(HEADS, WIDTH)
    layer = stirred(SelfAttention(HEADS * WIDTH, HEADS, relative=keys, scale=1.0))

    def waves(distance: int) -> Tensor:
        angles = [distance / 10000 ** (2 * n / WIDTH) for n in range(WIDTH // 2)]
        return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)])

    def score(h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        u, v = keys.content_bias[h], keys.position_bias[h]
        return q @ k + q @ waves(i - j) + u @ k + v @ waves(i - j)

    compare(layer, score, is_causal=is_causal)


@both_ways
@pytest.mark.parametrize("clamp", [None, 2, 9])
@pytest.mark.parametrize("halves", [False, True])
def test_transformer_xl(is_causal: bool, clamp: int | None, halves: bool) -> None:
    """Dai et al. 2019, 3.3: A_ij = q_i.k_j + q_i.W R_(i-j) + u.k_j + v.W R_(i-j), scaled by 1 / sqrt(d)."""
    keys = TransformerXLKeys(HEADS * WIDTH, HEADS, clamp=clamp, causal=is_causal, halves=halves)
    layer = attention(keys)

    def sinusoid(distance: int) -> Tensor:
        dim = HEADS * WIDTH
        angles = [distance / 10000 ** (2 * n / dim) for n in range(dim // 2)]
        if halves:
            return torch.tensor([f(a) for f in (math.sin, math.cos) for a in angles])
        return torch.tensor([f(a) for a in angles for f in (math.sin, math.cos)])

    def score(h: int, i: int, j: int, q: Tensor, k: Tensor) -> Tensor:
        distance = i - j if clamp is None else max(-clamp, min(clamp, i - j))
        r = (keys.project.weight @ sinusoid(distance)).unflatten(0, (HEADS, WIDTH))[h]
        u, v = keys.content_bias[h], keys.position_bias[h]
        return (q @ k + q @ r + u @ k + v @ r) / math.sqrt(WIDTH)

    compare(layer, score, is_causal=is_causal)


def test_transformer_xl_may_share_its_biases() -> None:
    first = TransformerXLKeys(8, 2)
    second = TransformerXLKeys(8, 2, biases=(first.content_bias, first.position_bias))
    assert second.content_bias is first.content_bias
    assert second.position_bias is first.position_bias


def test_transformer_xl_drops_out_distances_in_training_only() -> None:
    keys = TransformerXLKeys(8, 2, dropout=0.5)
    assert not torch.equal(keys.table(5), keys.table(5))
    keys.eval()
    assert_close(keys.table(5), keys.table(5), **EXACT)


@pytest.mark.parametrize("make", [Rotary, lambda: AlibiBias(HEADS), lambda: ShawKeys(WIDTH, reach=2)])
def test_relative_schemes_know_only_distances(make: Callable[[], nn.Module]) -> None:
    """The same text further on is read in the same way."""
    layer, x = attention(make()), torch.randn(1, LENGTH, HEADS * WIDTH)
    later = torch.cat([torch.randn(1, 3, HEADS * WIDTH), x], dim=1)
    from regard.ops.masks import visible

    blind = torch.ones(LENGTH + 3, LENGTH + 3, dtype=torch.bool)
    blind[:, :3] = False
    assert_close(layer(later, mask=visible(blind))[:, 3:], layer(x), **EXACT)


def test_sinusoidal_is_the_papers() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same)  (Vaswani et al. 2017, 3.5)"""
    found = Sinusoidal(6)(torch.arange(4))
    for pos in range(4):
        for i in range(3):
            angle = pos / 10000 ** (2 * i / 6)
            assert_close(found[pos, 2 * i].item(), math.sin(angle))
            assert_close(found[pos, 2 * i + 1].item(), math.cos(angle))


@pytest.mark.parametrize("dim", [6, 7])
def test_sines_may_stand_before_cosines(dim: int) -> None:
    places = torch.arange(5)
    waves = Sinusoidal(dim)(places)
    assert torch.equal(Sinusoidal(dim, halves=True)(places), torch.cat([waves[:, 0::2], waves[:, 1::2]], dim=1))


def test_learned_positions_are_rows_of_a_table() -> None:
    learned = Learned(5, 3)
    places = torch.tensor([[4, 0], [2, 2]])
    assert torch.equal(learned(places)[1, 0], learned.weight[2])
    assert learned(places).shape == (2, 2, 3)


def test_learned_positions_may_start_further_down_the_table() -> None:
    learned = Learned(5, 3, first=2)
    assert learned.weight.shape == (7, 3)
    assert torch.equal(learned(torch.tensor([0, 4])), learned.weight[[2, 6]])
    learned.check(5)
    with pytest.raises(RegardError, match="got:    6 tokens\n  wanted: at most 5"):
        learned.check(6)


def test_learned_positions_end() -> None:
    learned = Learned(5, 3)
    learned.check(5)
    with pytest.raises(RegardError) as error:
        learned.check(6)
    assert str(error.value) == (
        "the text is longer than the learned positions\n"
        "  got:    6 tokens\n"
        "  wanted: at most 5\n"
        "  try:    read less at a time (task.context, data.max_length), or train with more model.max_length"
    )
