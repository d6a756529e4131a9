"""Positions that are added to or turned into the vectors: sinusoids and rotations."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.types import BRANCHES


def sinusoid(positions: Tensor, dim: int, base: float = 10000.0, *, halves: bool = False) -> Tensor:
    """PE(pos, 2i) = sin(pos / base^(2i/dim)), PE(pos, 2i+1) = cos(the same) (Vaswani et al. 2017, 3.5).

    Gives positions.shape x dim, in float32 unless the default type is wider. With `halves` all sines stand before all
    cosines, as XLNet and Marian have them.

    >>> sinusoid(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    angles = positions[..., None] * frequencies(dim, base, positions.device)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-2 if halves else -1).flatten(-2)[..., :dim]
    return waves.to(torch.promote_types(torch.float32, torch.get_default_dtype()))


def rotate(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Turns each pair (x_i, x_(i + d/2)) by pos / base^(2i/d) (Su et al. 2021, in the half-split layout).

    `x` is batch x heads x length x width, `positions` length or batch x length. It is done in float32 at least.

    >>> rotate(torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), torch.tensor([0])).flatten().tolist()
    [1.0, 0.0]
    """
    if x.shape[-1] % 2:
        raise RegardError("only an even width can be rotated in pairs", got=x.shape[-1], wanted="an even head_dim")
    angles = positions[..., None] * frequencies(x.shape[-1], base, x.device)  # .. x length x d/2
    angles = angles if positions.dim() == 1 else angles[:, None]
    wide = torch.promote_types(torch.float32, x.dtype)
    cos, sin = angles.cos().to(wide), angles.sin().to(wide)
    a, b = x.to(wide).chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


def frequencies(dim: int, base: float, device: torch.device) -> Tensor:
    """1 / base^(2i/dim) for i = 0 .. ceil(dim / 2) - 1.

    In float64 (which Apple's GPUs have not): in float32 the waves are off by 0.0005 at position 10,000, and grow so.
    """
    wide = torch.float32 if device.type == "mps" else torch.float64
    return base ** -(torch.arange(0, dim, 2, device=device, dtype=wide) / dim)


def places_in_segments(segments: Tensor) -> Tensor:
    """Where each token stands in its own text, for rows of several texts one after the other: B x N.

    >>> places_in_segments(torch.tensor([[4, 4, 7, 7, 7]])).tolist()
    [[0, 1, 0, 1, 2]]
    """
    places = torch.arange(segments.shape[1], device=segments.device)
    begins = (segments != segments.roll(1, dims=1)) & (places > 0)
    return places - torch.where(begins, places, 0).cummax(1).values


def soft_positions(codes: Tensor) -> Tensor:
    """Where each token stands in a text with branches (K-BERT): B x N of the codes of `regard.ops.masks.branching`.

    The text goes on as if it had no branches; each branch goes on from the last token of its entity, which it follows.

    >>> soft_positions(torch.tensor([[0, 16, 16, 17, 17, 18, 0]])).tolist()
    [[0, 1, 2, 3, 4, 3, 3]]
    """
    is_text = codes % BRANCHES == 0
    return is_text.cumsum(1) - 1 + torch.where(is_text, 0, places_in_segments(codes) + 1)
