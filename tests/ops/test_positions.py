"""Positions stay exact where texts are long and types are narrow."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from regard.errors import ConfigError, RegardError
from regard.ops.attention import score
from regard.ops.positions import frequencies, rotate, sinusoid
from regard.ops.terms import Alibi, t5_bucket


@pytest.fixture
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize(
    ("default", "wanted"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_sinusoid_has_float32_at_least(default: torch.dtype, wanted: torch.dtype) -> None:
    torch.set_default_dtype(default)
    assert sinusoid(torch.arange(3), 8).dtype == wanted


@pytest.mark.parametrize("position", [1, 1_000, 100_000, 10_000_000])
def test_sinusoid_is_exact_to_its_type_at_any_position(position: int) -> None:
    """Angles are wide: in float32 the waves would be off by 0.005 at position 100,000."""
    dim = 512
    angles = position / np.longdouble(10000) ** (np.arange(0, dim, 2, dtype=np.longdouble) / dim)
    wanted = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(dim).astype(np.float64)
    got = sinusoid(torch.tensor(position), dim).double()
    torch.testing.assert_close(got, torch.from_numpy(wanted), rtol=0, atol=6e-8 + 1e-15 * position)


def test_sinusoid_takes_positions_of_any_shape() -> None:
    positions = torch.tensor([[0, 3], [5, 9]])
    assert torch.equal(sinusoid(positions, 6)[1, 0], sinusoid(torch.arange(10), 6)[5])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("start", [0, 100_000])
def test_rotation_is_exact_to_its_type(dtype: torch.dtype, start: int) -> None:
    x, positions = torch.randn(2, 3, 50, 64).to(dtype), torch.arange(50) + start
    wanted = rotate(x.double(), positions)
    got = rotate(x, positions)
    assert got.dtype == dtype
    step = torch.finfo(dtype).eps
    narrow = step > 1e-6  # is computed in float32, and rounded once
    tolerance = {"rtol": step / 2, "atol": 1e-6} if narrow else {"rtol": step, "atol": 2 * step}
    torch.testing.assert_close(got.double(), wanted, **tolerance)


def test_far_rotations_score_as_near_ones_in_float32() -> None:
    q, k = torch.randn(1, 2, 30, 64), torch.randn(1, 2, 30, 64)
    near, far = (score(rotate(q, p), rotate(k, p)) for p in (torch.arange(30), torch.arange(30) + 100_000))
    torch.testing.assert_close(near, far, rtol=1e-5, atol=1e-5)


def test_rotation_keeps_lengths_and_gradients() -> None:
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64, requires_grad=True)
    turned = rotate(x, torch.arange(5))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(torch.autograd.grad(turned.square().sum() / 2, x)[0], x)


def test_an_odd_width_cannot_be_rotated() -> None:
    with pytest.raises(RegardError, match="only an even width") as caught:
        rotate(torch.zeros(1, 1, 2, 7), torch.arange(2))
    assert "even head_dim" in str(caught.value)


def test_frequencies() -> None:
    got = frequencies(5, 100.0, torch.device("cpu"))
    torch.testing.assert_close(got, torch.tensor([1, 100**-0.4, 100**-0.8], dtype=torch.float64))


def test_alibi_tells_far_neighbours_apart_in_bfloat16() -> None:
    q = torch.zeros(1, 1, 1, 4, dtype=torch.bfloat16)
    block = Alibi(torch.tensor([0.25])).block(q, torch.tensor([0]), torch.arange(1000, 1004), 1.0)
    assert block.flatten().tolist() == [-250.0, -250.25, -250.5, -250.75]


def test_buckets_do_not_depend_on_the_default_type() -> None:
    """Here a distance falls exactly where a range ends, and float64 would round it to the other side."""
    found = {}
    for dtype in (torch.float32, torch.float64):
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            found[dtype] = t5_bucket(torch.arange(-200, 200), 18, bidirectional=True, max_distance=128)
        finally:
            torch.set_default_dtype(before)
    assert torch.equal(found[torch.float32], found[torch.float64])


@pytest.mark.parametrize(("num_buckets", "max_distance"), [(2, 8), (32, 8), (1, 8)])
def test_buckets_that_cannot_be_meant(num_buckets: int, max_distance: int) -> None:
    with pytest.raises(ConfigError, match="no room for near and far") as caught:
        t5_bucket(torch.arange(3), num_buckets, bidirectional=True, max_distance=max_distance)
    assert f"max_distance {max_distance}" in str(caught.value)
