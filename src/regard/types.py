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
        # only pinned memory may be copied behind our back: other memory could be freed before it was read
        later = self.ids.is_pinned()
        return Sequences(self.ids.to(device, non_blocking=later), self.lengths.to(device, non_blocking=later))

    def pin(self) -> Sequences:
        """The same in memory that a GPU can read while we go on."""
        return Sequences(self.ids.pin_memory(), self.lengths.pin_memory())


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

    def pin(self) -> Batch:
        """The same in memory that a GPU can read while we go on."""
        target = None if self.target is None else self.target.pin()
        return replace(self, source=self.source.pin(), target=target)


@dataclass(slots=True)
class State:
    """What decoding remembers. It goes into `step` and comes out of it; no module keeps any of it.

    `position` is the only clock: how many tokens each row has consumed; `bound` is at least that of the furthest row,
    known without asking the device. `memory` holds what stays as it is for a source (encoder output, cross keys and
    values), `cache` what each step changes. Every tensor has the row as its first axis. A cache named in `timed` has
    time as its axis 2 (B x heads x time x width) and may be cut back by `truncate`; it is written in place, so that
    to step twice from one state needs a `select` first. One that is not timed (a recurrent state) may not be cut
    back; it begins as the memory of the same name, or else as zeros.
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
        return self._at(torch.minimum(self.position, lengths))

    def advance(self, steps: int) -> State:
        """The clock after this many more tokens."""
        return replace(self, position=self.position + steps, bound=self.bound + steps)

    def reset(self, rows: Tensor) -> State:
        """Starts these rows again, for the next request in a running batch."""
        cache = {name: self._begun(name, tensor, rows) for name, tensor in self.cache.items()}
        return replace(self._at(self.position.index_fill(0, rows, 0)), cache=cache)

    def _begun(self, name: str, tensor: Tensor, rows: Tensor) -> Tensor:
        if name in self.timed:  # what lies after a row's position is not seen
            return tensor
        if name in self.memory:
            return tensor.index_copy(0, rows, self.memory[name].index_select(0, rows))
        return tensor.index_fill(0, rows, 0)

    def _at(self, position: Tensor) -> State:
        # going back is rare: here the device may be asked, or the bound would grow beyond every cache
        return replace(self, position=position, bound=int(position.max()) if len(position) else 0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer: the best text first, with the score of each (length-normalised log-probability)."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    tokens: tuple[tuple[str, ...], ...] = ()
    cut: int = 0  # tokens at the end of the source that were too many and not read

    @property
    def text(self) -> str:
        return self.texts[0]
