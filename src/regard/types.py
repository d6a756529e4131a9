"""The records that travel between the rooms: Example, Sequences, Batch, State, Prediction.

Shapes: B rows of a batch, N tokens in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from regard.errors import RegardError


@dataclass(frozen=True, slots=True)
class Example:
    """One source and everything that is right for it; more than one target means equally right variants."""

    source: str
    targets: tuple[str, ...] = ()
    place: str = ""  # file:line, for messages


@dataclass(frozen=True, slots=True)
class Sequences:
    """Rows of ids, padded at the right; `lengths` says what is real."""

    ids: Tensor  # B x N
    lengths: Tensor  # B

    def to(self, device: torch.device | str) -> Sequences:
        return Sequences(self.ids.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model is given: `target` rows hold <s> y1 .. yn </s>; `rows` are the places in the split."""

    source: Sequences
    target: Sequences | None = None
    rows: Sequence[int] = ()
    num_tokens: int = 0  # real source and target tokens, known without asking the device

    def to(self, device: torch.device | str) -> Batch:
        target = None if self.target is None else self.target.to(device)
        return replace(self, source=self.source.to(device), target=target)


@dataclass(slots=True)
class State:
    """What decoding remembers. It goes into `step` and comes out of it; no module keeps any of it.

    `position` is the only clock: how many tokens each row has consumed; `bound` is the same for the furthest row,
    known without asking the device. `memory` holds what stays as it is for a source (encoder output, cross keys and
    values), `cache` what each step changes. Every tensor has the row as its first axis. A cache named in `timed` has
    time as its axis 2 (B x heads x time x width) and may be cut back by `truncate`; one that is not (a recurrent
    state) may not.
    """

    position: Tensor  # B
    memory: dict[str, Tensor] = field(default_factory=dict)
    cache: dict[str, Tensor] = field(default_factory=dict)
    timed: frozenset[str] = frozenset()
    bound: int = 0

    def select(self, rows: Tensor) -> State:
        """The state of these rows, in this order; a row may be taken more than once (beams) or not at all.

        >>> State(torch.tensor([3, 5])).select(torch.tensor([1, 1])).position.tolist()
        [5, 5]
        """
        memory = {name: tensor.index_select(0, rows) for name, tensor in self.memory.items()}
        return replace(self.reorder(rows), memory=memory)

    def reorder(self, rows: Tensor) -> State:
        """As `select`, where every row keeps its source: the memory, equal within a source, is left alone."""
        cache = {name: self._rows_of(name, tensor, rows) for name, tensor in self.cache.items()}
        return replace(self, position=self.position.index_select(0, rows), cache=cache)

    def _rows_of(self, name: str, tensor: Tensor, rows: Tensor) -> Tensor:
        if name not in self.timed:
            return tensor.index_select(0, rows)
        # only what was written is copied; the rest of a preallocated cache is empty anyway
        taken = tensor.new_zeros((len(rows), *tensor.shape[1:]))
        taken[:, :, : self.bound] = tensor[:, :, : self.bound].index_select(0, rows)
        return taken

    def truncate(self, lengths: Tensor) -> State:
        """Takes steps back: each row forgets what it consumed after its first `lengths` tokens."""
        untimed = sorted(set(self.cache) - self.timed)
        if untimed:
            raise RegardError("this state cannot go back", got=untimed, wanted="caches with a time axis only")
        return replace(self, position=torch.minimum(self.position, lengths))  # the bound stays an upper one

    def advance(self, steps: int) -> State:
        """The clock after this many more tokens."""
        return replace(self, position=self.position + steps, bound=self.bound + steps)

    def reset(self, rows: Tensor) -> State:
        """Starts these rows again, for the next request in a running batch."""
        position = self.position.index_fill(0, rows, 0)
        cache = {n: t if n in self.timed else t.index_fill(0, rows, 0) for n, t in self.cache.items()}
        return replace(self, position=position, cache=cache)


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer: the best text first, with the score of each (length-normalised log-probability)."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    tokens: tuple[tuple[str, ...], ...] = ()

    @property
    def text(self) -> str:
        return self.texts[0]
