"""Segment memory: the states that each layer read last, for the next segment of the same stream (Dai et al. 2019).

It is a `State`: `cache["0"]` .. are what the first and each later layer read (B x M x D, the latest at the right),
`position` how many tokens each row has read, so that a row which was reset holds nothing. No gradient flows into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from regard.ops.masks import Mask, same_segment
from regard.types import State


def empty_memory(rows: int, layers: int, length: int, like: Tensor) -> State:
    """A memory of `length` states of each layer that holds nothing yet; `like` is D wide.

    >>> empty_memory(2, 1, 5, torch.zeros(8)).cache["0"].shape
    torch.Size([2, 5, 8])
    """
    cache = {str(layer): like.new_zeros(rows, length, like.shape[-1]) for layer in range(layers)}
    return State(torch.zeros(rows, dtype=torch.long, device=like.device), cache=cache)


def length_of(memory: State) -> int:
    """How many states of each layer it has room for."""
    return memory.cache["0"].shape[1]


def held(memory: State, length: int) -> Mask:
    """Sees what the memory holds and all of the `length` tokens after it: places 0 .. M + length - 1."""
    room = length_of(memory)
    places = torch.arange(room + length, device=memory.position.device)
    real = (places >= room - memory.position[:, None]).long()
    return same_segment(real)  # of the tokens after it all are real


def with_memory(memory: State, layer: int, x: Tensor) -> Tensor:
    """What this layer reads: its memory, and after it the segment: B x (M + N) x D."""
    return torch.cat([memory.cache[str(layer)].to(x.dtype), x], dim=1)


def remembered(memory: State, read: Sequence[Tensor], lengths: Tensor) -> State:
    """The memory after a segment, from what each layer read (`with_memory`): of each row the last M real ones."""
    room = length_of(memory)
    last = lengths[:, None, None] + torch.arange(room, device=lengths.device)[:, None]
    cache = {str(i): x.detach().gather(1, last.expand(-1, -1, x.shape[2])) for i, x in enumerate(read)}
    segment = read[0].shape[1] - room
    return replace(memory, position=memory.position + lengths, cache=cache, bound=memory.bound + segment)
