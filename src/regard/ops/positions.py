"""Positions that are added to or turned into the vectors: sinusoids and rotations."""

from __future__ import annotations

import torch
from torch import Tensor


def sinusoid(positions: Tensor, dim: int, base: float = 10000.0) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i/dim)), PE(pos, 2i+1) = cos(the same) (Vaswani et al. 2017, 3.5).

    Gives positions.shape x dim, in float32 unless the default type is wider.

    >>> sinusoid(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    angles = positions[..., None] * frequencies(dim, base, positions.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :dim]


def rotate(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Turns each pair (x_i, x_(i + d/2)) by pos / base^(2i/d) (Su et al. 2021, in the half-split layout).

    `x` is batch x heads x length x width, `positions` length or batch x length.
    """
    angles = positions[..., None] * frequencies(x.shape[-1], base, x.device)  # .. x length x d/2
    angles = angles if positions.dim() == 1 else angles[:, None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def frequencies(dim: int, base: float, device: torch.device) -> Tensor:
    """1 / base^(2i/dim) for i = 0 .. ceil(dim / 2) - 1."""
    exponent = torch.arange(0, dim, 2, device=device, dtype=torch.get_default_dtype()) / dim
    return base**-exponent
