"""Hashed and local attention against what the paper says, written out token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from regard.ops.attention import attend
from regard.ops.call import Scattered
from regard.ops.hashing import (
    Near,
    attend_hashed,
    attend_local,
    attend_window,
    draw_rotations,
    hash_buckets,
    padded_length,
    shared_keys,
    sort_by_bucket,
    usual_buckets,
    window_before,
    window_by_bucket,
)
from regard.ops.masks import causal, padding, visible

EXACT = {"rtol": 0.0, "atol": 1e-12}
B, H, WIDTH = 2, 3, 5


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def vectors(length: int, parts: int = 2) -> Tensor:
    return torch.randn(parts, B, H, length, WIDTH)


def written_out(q: Tensor, v: Tensor, order: Tensor, near: Near, lengths: Tensor) -> Tensor:
    """Each token by itself: in every round its chunk and those beside it, all rounds one after the other in a ring."""
    batch, heads, num_tokens, _ = q.shape
    out = torch.zeros_like(v)
    for b in range(batch):
        for h in range(heads):
            ring = order[b, h].flatten().tolist()
            chunks = [ring[i : i + near.chunk] for i in range(0, len(ring), near.chunk)]
            unit = q[b, h] / (q[b, h].square().mean(-1, keepdim=True) + 1e-6).sqrt()
            for i in range(num_tokens):
                parts = []
                for own in (c for c, chunk in enumerate(chunks) if i in chunk):
                    beside = [chunks[(own + s) % len(chunks)] for s in range(-near.before, near.after + 1)]
                    keys = [j for chunk in beside for j in chunk if (j <= i if near.causal else j < lengths[b])]
                    others = [j for j in keys if j != i]
                    scores = torch.stack([q[b, h, i] @ unit[j] for j in others] or [q.new_tensor(-1e5)]) / WIDTH**0.5
                    read = scores.softmax(0) @ v[b, h, others or [i]]
                    parts.append((scores.logsumexp(0) if others else q.new_tensor(-1e5), read))
                share = torch.stack([lse for lse, _ in parts]).softmax(0)
                out[b, h, i] = sum(s * read for s, (_, read) in zip(share, parts, strict=True))
    return out


def orders(length: int, rounds: int, chunk: int, lengths: Tensor | None = None) -> Tensor:
    buckets = torch.randint(4, (B, H, rounds, length))
    return sort_by_bucket(
        buckets, torch.full((B,), length) if lengths is None else lengths, padded_length(length, [chunk])
    )


# --- hashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "chunks", "wanted"),
    [(3, [4], 3), (4, [4], 4), (5, [4], 8), (8, [4], 8), (5, [4, 6], 12), (4, [4, 6], 4), (13, [4, 6], 24)],
)
def test_whole_chunks(length: int, chunks: list[int], wanted: int) -> None:
    assert padded_length(length, chunks) == wanted


@pytest.mark.parametrize(
    ("length", "chunk", "max_length", "wanted"),
    [
        (8, 4, 80, (4,)),
        (12, 4, 80, (4,)),
        (40, 4, 80, (4, 4)),
        (4096, 64, 4096, (128,)),
        (65536, 64, 65536, (32, 64)),
        (3, 64, 4096, (2,)),
    ],
)
def test_two_buckets_a_chunk(length: int, chunk: int, max_length: int, wanted: tuple[int, ...]) -> None:
    assert usual_buckets(length, chunk, max_length) == wanted


def test_rotations_of_a_seed_are_those_of_the_global_generator_which_is_left_alone() -> None:
    torch.manual_seed(7)
    wanted = torch.randn(H, WIDTH, 2, 4)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    found = [draw_rotations(torch.zeros(1), (H, WIDTH, 2, 4), seed=7) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(rotations[0], wanted) for rotations in found)
    assert draw_rotations(torch.zeros(1).float(), (H, WIDTH, 2, 4), seed=7).dtype == torch.float32


def test_rotations_without_a_seed_are_new_each_time() -> None:
    first, second = (draw_rotations(torch.zeros(1), (H, WIDTH, 2, 4)) for _ in range(2))
    assert not torch.equal(first, second)


def test_a_bucket_is_the_nearest_direction_or_the_opposite_of_one() -> None:
    x, rotations = torch.randn(B, H, 7, WIDTH), torch.randn(1, H, WIDTH, 2, 3)
    found = hash_buckets(x, rotations, [6])
    for b, h, r, n in torch.cartesian_prod(*(torch.arange(size) for size in found.shape)).tolist():
        turned = x[b, h, n] @ rotations[0, h, :, r]
        assert found[b, h, r, n] == torch.cat([turned, -turned]).argmax()
    assert torch.equal(hash_buckets(3 * x, rotations, [6]), found)
    assert torch.equal(hash_buckets(-x, rotations, [6]), (found + 3) % 6)


def test_factors_of_a_bucket_are_hashed_apart() -> None:
    x, rotations = torch.randn(B, H, 7, WIDTH), torch.randn(B, H, WIDTH, 2, 5)
    first, second = hash_buckets(x, rotations[..., :2], [4]), hash_buckets(x, rotations[..., 2:], [6])
    assert torch.equal(hash_buckets(x, rotations, [4, 6]), first + 4 * second)


def test_padding_is_sorted_last_and_equals_stay_in_order() -> None:
    buckets = torch.tensor([[[[1, 0, 1, 0, 0]]], [[[2, 2, 0, 0, 1]]]])
    found = sort_by_bucket(buckets, torch.tensor([5, 3]), 6)
    assert found.tolist() == [[[[1, 3, 4, 0, 2, 5]]], [[[2, 0, 1, 3, 4, 5]]]]


# --- whole texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("near", [Near(4), Near(4, 2), Near(3, 0), Near(3, 1, 1, causal=False), Near(8, 0, 1, False)])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_hashed_attention_is_what_the_paper_says(near: Near, rounds: int) -> None:
    """Values and gradients, with padding in one of the rows. (Lengths of more chunks than are read: none is twice.)"""
    length = 22
    q, v = vectors(length).requires_grad_()
    lengths = torch.tensor([length, 17])
    order = orders(length, rounds, near.chunk, lengths)
    real = (torch.arange(length) < lengths[:, None])[:, None, :, None]
    found = attend_hashed(q, v, order, near, lengths=lengths)[0] * real
    wanted = written_out(q, v, order, near, lengths) * real
    assert_close(found, wanted, rtol=0.0, atol=1e-10)
    weight = torch.randn_like(found)
    for mine, theirs in zip(
        torch.autograd.grad((found * weight).sum(), (q, v)),
        torch.autograd.grad((wanted * weight).sum(), (q, v)),
        strict=True,
    ):
        assert_close(mine, theirs, rtol=0.0, atol=1e-10)


def full(q: Tensor, v: Tensor) -> Tensor:
    """Causal attention of shared queries and keys, in which only the first token reads itself."""
    length = q.shape[2]
    earlier = torch.ones(length, length).tril(-1).bool()
    earlier[0, 0] = True
    return attend(q, shared_keys(q), v, mask=visible(earlier), backend="reference")


def test_one_chunk_is_full_attention_but_to_oneself() -> None:
    q, v = vectors(6)
    out, weights = attend_hashed(q, v, None, Near(64), lengths=torch.full((B,), 6))
    assert_close(out, full(q, v), **EXACT)
    dense = weights().dense()
    assert (dense.diagonal(dim1=2, dim2=3)[..., 1:] == 0).all()
    assert (dense[:, :, 0, 0] == 1).all()


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_one_bucket_that_is_read_whole_is_full_attention(rounds: int) -> None:
    """Two chunks that read each other: all tokens. With more rounds the two of each are not beside each other alone."""
    q, v = vectors(8)
    order = torch.arange(8).expand(B, H, rounds, 8)
    out, _ = attend_hashed(q, v, order, Near(4, 1) if rounds == 1 else Near(8, 0), lengths=torch.full((B,), 8))
    assert_close(out, full(q, v), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("length", [3, 4, 5, 8, 19])
@pytest.mark.parametrize("before", [0, 1])
def test_local_attention_is_a_mask(length: int, before: int) -> None:
    q, k, v = vectors(length, 3)
    part = torch.arange(length) // 4
    near = part[:, None] - part <= before
    wanted = attend(q, k, v, mask=causal() & visible(near), backend="reference")
    found, weights = attend_local(q, k, v, Near(4, before), lengths=torch.full((B,), length))
    assert_close(found, wanted, **EXACT)
    assert_close(weights().dense() @ v, wanted, **EXACT)


def test_local_attention_to_both_sides_is_a_ring_without_padding() -> None:
    q, k, v = vectors(11, 3)
    lengths = torch.tensor([11, 6])
    # of three chunks in a ring each is beside all
    found, _ = attend_local(q, k, v, Near(4, 1, 1, causal=False), lengths=lengths)
    assert_close(found, attend(q, k, v, mask=padding(lengths), backend="reference"), **EXACT)


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_the_weights_are_what_was_read_and_never_ahead(rounds: int) -> None:
    q, v = vectors(14)
    out, weights = attend_hashed(q, v, orders(14, rounds, 4), Near(4), lengths=torch.full((B,), 14))
    dense = weights().dense()
    assert weights().shape == dense.shape == (B, H, 14, 14)
    assert_close(dense @ v, out, **EXACT)
    assert (dense.triu(1) == 0).all()
    assert_close(dense.sum(-1), torch.ones(B, H, 14), rtol=0.0, atol=1e-10)


def test_texts_of_one_row_do_not_see_each_other() -> None:
    q, v = vectors(14)
    segments = torch.tensor([[0] * 5 + [1] * 9, [0] * 14])
    lengths = torch.full((B,), 14)
    same = (segments[:, :, None] == segments[:, None])[:, None]
    hashed = attend_hashed(q, v, orders(14, 2, 4), Near(4), lengths=lengths, segments=segments)[1]().dense()
    local = attend_local(q, q, v, Near(4), lengths=lengths, segments=segments)[1]().dense()
    for dense in (hashed, local):
        assert (dense.masked_fill(same, 0.0) == 0).all()
        assert_close(dense.sum(-1), torch.ones(B, H, 14), rtol=0.0, atol=1e-10)


def test_an_empty_row_is_finite() -> None:
    q, v = vectors(6).requires_grad_()
    lengths = torch.tensor([6, 0])
    for near in (Near(4), Near(4, 1, 1, causal=False)):
        hashed, _ = attend_hashed(q, v, orders(6, 2, 4, lengths), near, lengths=lengths)
        local, _ = attend_local(q, q, v, near, lengths=lengths)
        assert hashed.isfinite().all()
        assert local.isfinite().all()
        grads = torch.autograd.grad((hashed + local).sum(), (q, v))
        assert all(grad.isfinite().all() for grad in grads)


def test_sixteen_bits_are_weighed_in_more() -> None:
    q, v = vectors(14).float()
    order, lengths = orders(14, 2, 4), torch.full((B,), 14)
    wanted, _ = attend_hashed(q, v, order, Near(4), lengths=lengths)
    found, weights = attend_hashed(q.bfloat16(), v.bfloat16(), order, Near(4), lengths=lengths)
    assert (found.dtype, weights().weights.dtype) == (torch.bfloat16, torch.float32)
    assert_close(found.float(), wanted, rtol=0.0, atol=0.05)


def test_dropout_is_of_the_weights() -> None:
    q, v = vectors(14)
    order, lengths = orders(14, 2, 4), torch.full((B,), 14)
    kept, before = attend_hashed(q, v, order, Near(4), lengths=lengths)
    dropped, after = attend_hashed(q, v, order, Near(4), lengths=lengths, dropout=0.5)
    assert not torch.equal(kept, dropped)
    assert torch.equal(before().dense(), after().dense())


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("near", [Near(4), Near(3, 2), Near(1, 0)])
def test_a_step_reads_its_chunk_of_the_order_so_far(near: Near) -> None:
    buckets, positions = torch.randint(3, (B, H, 20, 2)), torch.tensor([[2, 9, 17], [19, 0, 5]])
    keys, meant = window_by_bucket(buckets, positions, near)
    assert keys.shape == (B, H, 2, 3, near.width)
    for b, h, r, n in torch.cartesian_prod(*(torch.arange(size) for size in keys.shape[:4])).tolist():
        at = int(positions[b, n])
        if at < near.chunk:
            wanted = list(range(at + 1))
        else:
            order = sorted(range(at + 1), key=lambda j, b=b, h=h, r=r: (int(buckets[b, h, j, r]), j))
            start = (order.index(at) // near.chunk - near.before) * near.chunk
            wanted = [order[i % len(order)] for i in range(start, start + near.width)]
        assert keys[b, h, r, n][meant.expand(keys.shape)[b, h, r, n]].tolist() == wanted


def test_local_steps_are_the_rows_of_a_whole_pass() -> None:
    q, k, v = vectors(15, 3)
    near = Near(4, 1)
    whole, _ = attend_local(q, k, v, near, lengths=torch.full((B,), 15))
    positions = torch.tensor([[3, 14], [0, 8]])
    at = positions[:, None, :, None].expand(B, H, 2, WIDTH)
    found, weights = attend_window(q.gather(2, at), k, v, positions, window_before(positions, near), shared=False)
    assert_close(found, whole.gather(2, at), **EXACT)
    assert_close(weights().dense() @ v, found, **EXACT)


def test_hashed_steps_within_a_chunk_are_the_rows_of_a_whole_pass() -> None:
    q, v = vectors(6)
    whole, _ = attend_hashed(q, v, None, Near(8), lengths=torch.full((B,), 6))
    positions = torch.tensor([[3, 5], [0, 2]])
    at = positions[:, None, :, None].expand(B, H, 2, WIDTH)
    window = window_by_bucket(torch.randint(3, (B, H, 6, 2)), positions, Near(8))
    found, weights = attend_window(q.gather(2, at), shared_keys(q), v, positions, window, shared=True)
    assert_close(found, whole.gather(2, at), rtol=0.0, atol=1e-10)
    assert_close(weights().dense() @ v, found, **EXACT)


def test_scattered_weights_add_up() -> None:
    scattered = Scattered(torch.rand(1, 2, 3, 4).requires_grad_(), torch.randint(5, (1, 2, 3, 4)), 5)
    dense = scattered.detach().dense()
    assert not dense.requires_grad
    assert dense.shape == scattered.shape
    assert math.isclose(dense.sum().item(), scattered.weights.sum().item())
