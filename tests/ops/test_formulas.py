"""The formulas of the papers, written out with loops and scalars as a learner reads them, against the code."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.attention import attend, read, score, score_additive, weigh
from regard.ops.masks import causal, window
from regard.ops.positions import rotate, sinusoid
from regard.ops.terms import Alibi, Buckets, RelativeKeys, SegmentKeys, alibi_slopes, t5_bucket


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def softmax(scores: list[float]) -> list[float]:
    exponentials = [math.exp(s) for s in scores]
    return [e / sum(exponentials) for e in exponentials]


def dot(a: Tensor, b: Tensor) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def attention_by_hand(scores: list[list[float]], values: Tensor) -> Tensor:
    """Each query reads the sum of the values, weighted by the softmax of its row of scores."""
    rows = []
    for row in scores:
        weights = softmax(row)
        rows.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.stack(rows)


def heads(x: Tensor) -> Tensor:
    """One text and one head, as attend takes them."""
    return x[None, None]


BACKENDS = pytest.mark.parametrize("backend", ["reference", "fused"])


@BACKENDS
def test_scaled_dot_product_attention(backend: str) -> None:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V   (Vaswani et al. 2017, eq. 1)"""
    d_k = 8
    Q, K, V = normal(3, d_k), normal(5, d_k), normal(5, d_k)
    scores = [[dot(q, k) / math.sqrt(d_k) for k in K] for q in Q]
    wanted = attention_by_hand(scores, V)
    torch.testing.assert_close(attend(heads(Q), heads(K), heads(V), backend=backend)[0, 0], wanted)


def test_the_three_verbs_are_the_formula() -> None:
    Q, K, V = normal(3, 8), normal(5, 8), normal(5, 8)
    torch.testing.assert_close(read(weigh(score(Q, K)), V), torch.softmax(Q @ K.T / math.sqrt(8), dim=-1) @ V)


@BACKENDS
def test_causal_attention_reads_only_the_past(backend: str) -> None:
    """Row i is the attention of query i over keys 0 .. i (Vaswani et al. 2017, 3.2.3)."""
    Q, K, V = normal(4, 8), normal(4, 8), normal(4, 8)
    wanted = []
    for i in range(4):
        scores = [[dot(Q[i], K[j]) / math.sqrt(8) for j in range(i + 1)]]
        wanted.append(attention_by_hand(scores, V[: i + 1]))
    out = attend(heads(Q), heads(K), heads(V), mask=causal(), backend=backend)
    torch.testing.assert_close(out[0, 0], torch.cat(wanted))


@BACKENDS
def test_a_window_reads_the_neighbours(backend: str) -> None:
    Q, K, V = normal(6, 8), normal(6, 8), normal(6, 8)
    wanted = []
    for i in range(6):
        near = [j for j in range(6) if i - 2 <= j <= i + 1]
        scores = [[dot(Q[i], K[j]) / math.sqrt(8) for j in near]]
        wanted.append(attention_by_hand(scores, V[near]))
    out = attend(heads(Q), heads(K), heads(V), mask=window(2, 1), backend=backend)
    torch.testing.assert_close(out[0, 0], torch.cat(wanted))


@BACKENDS
def test_grouped_queries_share_key_heads(backend: str) -> None:
    """Query head h reads key head h // (H / K) (Ainslie et al. 2023)."""
    q, k, v = normal(1, 6, 3, 8), normal(1, 2, 5, 8), normal(1, 2, 5, 8)
    out = attend(q, k, v, backend=backend)
    for h in range(6):
        alone = attend(q[:, h : h + 1], k[:, h // 3 : h // 3 + 1], v[:, h // 3 : h // 3 + 1], backend=backend)
        torch.testing.assert_close(out[:, h : h + 1], alone)


def test_additive_score() -> None:
    """e_ij = v^T tanh(W s_i + U h_j)   (Bahdanau et al. 2015, A.1.2)"""
    d, hidden = 4, 6
    s, h = normal(3, d), normal(5, d)
    W, U, v = normal(hidden, d), normal(hidden, d), normal(hidden)
    e = score_additive(s @ W.T, h @ U.T, v)
    for i in range(3):
        for j in range(5):
            inner = [math.tanh(dot(W[n], s[i]) + dot(U[n], h[j])) for n in range(hidden)]
            assert e[i, j].item() == pytest.approx(sum(float(v[n]) * inner[n] for n in range(hidden)))


@pytest.mark.parametrize("dim", [8, 7])
def test_sinusoidal_positions(dim: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d))   (Vaswani et al. 2017, 3.5)"""
    PE = sinusoid(torch.arange(50), dim)
    for pos in range(50):
        for column in range(dim):
            i = column // 2
            wave = math.cos if column % 2 else math.sin
            assert PE[pos, column].item() == pytest.approx(wave(pos / 10000 ** (2 * i / dim)), abs=1e-6)


def test_rotary_positions() -> None:
    """Pair i is turned by the angle pos / 10000^(2i/d)   (Su et al. 2021, eq. 15; pairs are i and i + d/2)"""
    d = 6
    x = normal(1, 1, 20, d)
    turned = rotate(x, torch.arange(20))
    for pos in range(20):
        for i in range(d // 2):
            theta = pos / 10000 ** (2 * i / d)
            a, b = x[0, 0, pos, i].item(), x[0, 0, pos, i + d // 2].item()
            assert turned[0, 0, pos, i].item() == pytest.approx(a * math.cos(theta) - b * math.sin(theta))
            assert turned[0, 0, pos, i + d // 2].item() == pytest.approx(a * math.sin(theta) + b * math.cos(theta))


def test_rotary_scores_depend_only_on_the_distance() -> None:
    """<R_m q, R_n k> is a function of q, k and m - n   (Su et al. 2021, eq. 11)"""
    q, k = normal(2, 3, 7, 16), normal(2, 3, 7, 16)
    here = score(rotate(q, torch.arange(7)), rotate(k, torch.arange(7)))
    for shift in (1, 100, 50_000):
        positions = torch.arange(7) + shift
        torch.testing.assert_close(score(rotate(q, positions), rotate(k, positions)), here)
    assert not torch.allclose(score(rotate(q, torch.arange(7) + 1), rotate(k, torch.arange(7))), here)


def test_rotary_takes_positions_of_each_row() -> None:
    x, positions = normal(2, 3, 4, 8), torch.tensor([[0, 1, 2, 3], [5, 9, 2, 0]])
    turned = rotate(x, positions)
    for b in range(2):
        torch.testing.assert_close(turned[b], rotate(x[b : b + 1], positions[b])[0])


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),  # the paper's own example
        # 12: those of 8, then every other one of 16, which are 2^(-1/2), 2^(-3/2), ...
        (12, [2.0**-n for n in range(1, 9)] + [2.0 ** -(n + 0.5) for n in range(4)]),
        (1, [1 / 256]),
    ],
)
def test_alibi_slopes(num_heads: int, slopes: list[float]) -> None:
    """A geometric sequence that starts at 2^(-8/n) and has that ratio   (Press et al. 2022, 3)"""
    torch.testing.assert_close(alibi_slopes(num_heads), torch.tensor(slopes))


@BACKENDS
def test_alibi(backend: str) -> None:
    """softmax(q_i K^T + m [-(i-1), ..., -2, -1, 0])   (Press et al. 2022, 3)"""
    Q, K, V = normal(5, 8), normal(5, 8), normal(5, 8)
    m = 0.25
    wanted = []
    for i in range(5):
        scores = [[dot(Q[i], K[j]) / math.sqrt(8) - m * (i - j) for j in range(i + 1)]]
        wanted.append(attention_by_hand(scores, V[: i + 1]))
    alibi = Alibi(torch.tensor([m]))
    out = attend(heads(Q), heads(K), heads(V), mask=causal(), terms=[alibi], backend=backend)
    torch.testing.assert_close(out[0, 0], torch.cat(wanted))


def bucket_by_the_paper(ahead: int, num_buckets: int, bidirectional: bool, max_distance: int) -> int:
    """Half of the buckets for exact distances, half for ranges that grow as powers, all beyond in the last.

    (Raffel et al. 2020, 2.1.) Where attention goes both ways, keys after the query have buckets of their own. Whole
    numbers say exactly where a range ends: bucket `exact + n` starts where (distance / exact)^(number of ranges)
    reaches (max_distance / exact)^n.
    """
    if bidirectional:
        offset = num_buckets // 2 if ahead > 0 else 0
        return offset + bucket_by_the_paper(-abs(ahead), num_buckets // 2, False, max_distance)
    distance, exact = max(-ahead, 0), num_buckets // 2
    if distance < exact:
        return distance
    ranges = num_buckets - exact
    n = 0
    while n < ranges - 1 and distance**ranges * exact ** (n + 1) >= max_distance ** (n + 1) * exact**ranges:
        n += 1
    return exact + n


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 16), (8, 128), (12, 96), (64, 256), (4, 8)])
def test_t5_buckets(num_buckets: int, max_distance: int, bidirectional: bool) -> None:
    ahead = range(-2 * max_distance, 2 * max_distance + 1)
    wanted = [bucket_by_the_paper(a, num_buckets, bidirectional, max_distance) for a in ahead]
    got = t5_bucket(torch.tensor(ahead), num_buckets, bidirectional=bidirectional, max_distance=max_distance)
    assert got.tolist() == wanted


@BACKENDS
def test_t5_adds_the_value_of_the_bucket(backend: str) -> None:
    Q, K, V, weight = normal(6, 8), normal(6, 8), normal(6, 8), normal(8, 1)
    scores = [
        [dot(Q[i], K[j]) + weight[bucket_by_the_paper(j - i, 8, True, 4), 0].item() for j in range(6)] for i in range(6)
    ]
    # T5 does not scale: its initialisation does.
    out = attend(heads(Q), heads(K), heads(V), terms=[Buckets(weight, True, 4)], scale=1.0, backend=backend)
    torch.testing.assert_close(out[0, 0], attention_by_hand(scores, V))


@BACKENDS
def test_shaw_relative_keys(backend: str) -> None:
    """e_ij = x_i W^Q (x_j W^K + a_ij)^T / sqrt(d),  a_ij = w_clip(j - i, k)   (Shaw et al. 2018, eq. 4)"""
    n, d, k = 6, 8, 2
    x, WQ, WK, w, V = normal(n, d), normal(d, d), normal(d, d), normal(2 * k + 1, d), normal(n, d)
    scores = []
    for i in range(n):
        row = []
        for j in range(n):
            a_ij = w[max(-k, min(k, j - i)) + k]
            row.append(dot(x[i] @ WQ, x[j] @ WK + a_ij) / math.sqrt(d))
        scores.append(row)
    shaw = RelativeKeys(w[None])
    out = attend(heads(x @ WQ), heads(x @ WK), heads(V), terms=[shaw], backend=backend)
    torch.testing.assert_close(out[0, 0], attention_by_hand(scores, V))


@BACKENDS
def test_transformer_xl(backend: str) -> None:
    """A_ij = (a) E_i W_q^T W_kE E_j + (b) E_i W_q^T W_kR R_(i-j) + (c) u^T W_kE E_j + (d) v^T W_kR R_(i-j)

    (Dai et al. 2019, 3.3), R the sinusoids, the sum divided by sqrt(d) before the softmax.
    """
    n, d = 5, 8
    E, u, v, V = normal(n, d), normal(d), normal(d), normal(n, d)
    W_q, W_kE, W_kR = normal(d, d), normal(d, d), normal(d, d)
    R = {distance: sinusoid(torch.tensor(distance), d).double() for distance in range(-n + 1, n)}
    scores = []
    for i in range(n):
        row = []
        for j in range(n):
            content = dot(W_q @ E[i], W_kE @ E[j])  # (a)
            distance = dot(W_q @ E[i], W_kR @ R[i - j])  # (b)
            of_content = dot(u, W_kE @ E[j])  # (c)
            of_distance = dot(v, W_kR @ R[i - j])  # (d)
            row.append((content + distance + of_content + of_distance) / math.sqrt(d))
        scores.append(row)
    # Row m of the table is j - i = m - (n - 1); the paper's R counts i - j.
    table = torch.stack([W_kR @ R[-ahead] for ahead in range(-n + 1, n)])[None]
    relative = RelativeKeys(table, shift=(v - u)[None])
    out = attend(heads(E @ W_q.T + u), heads(E @ W_kE.T), heads(V), terms=[relative], backend=backend)
    torch.testing.assert_close(out[0, 0], attention_by_hand(scores, V))


@BACKENDS
def test_xlnet_segments(backend: str) -> None:
    """a_ij = (q_i + b)^T s_ij, s_ij = s_+ if i and j are of one segment, else s_-   (Yang et al. 2019, 2.5)"""
    n, d, segments = 6, 8, [0, 0, 1, 1, 1, 2]
    q, k, b, V, s_plus, s_minus = normal(n, d), normal(n, d), normal(d), normal(n, d), normal(d), normal(d)
    scores = []
    for i in range(n):
        row = []
        for j in range(n):
            s_ij = s_plus if segments[i] == segments[j] else s_minus
            row.append((dot(q[i], k[j]) + dot(q[i] + b, s_ij)) / math.sqrt(d))
        scores.append(row)
    term = SegmentKeys(torch.stack([s_plus, s_minus])[:, None], torch.tensor([segments]), b[None])
    out = attend(heads(q), heads(k), heads(V), terms=[term], backend=backend)
    torch.testing.assert_close(out[0, 0], attention_by_hand(scores, V))


def test_a_table_for_each_part_of_a_batch() -> None:
    """Row b of B reads the table b G / B; a table that ends at no distance ahead says the same as a longer one."""
    q, table = torch.randn(4, 2, 3, 8), torch.randn(2, 2, 5, 8)
    places = torch.arange(3)
    found = RelativeKeys(table).block(q, places, places, 1.0)
    for row in range(4):
        alone = RelativeKeys(table[row // 2]).block(q[row : row + 1], places, places, 1.0)
        torch.testing.assert_close(found[row : row + 1], alone)
    left = RelativeKeys(table[0, :, :3], ahead=0).block(q, places, places, 1.0)
    torch.testing.assert_close(left.tril(), RelativeKeys(table[0]).block(q, places, places, 1.0).tril())
    with pytest.raises(ConfigError, match="a batch of 3 rows has no 2 equal parts"):
        RelativeKeys(table).block(q[:3], places, places, 1.0)
