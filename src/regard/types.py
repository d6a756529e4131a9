"""The records that travel between the rooms: Example, Sequences, Batch, State, Prediction, Trace.

Shapes: B rows of a batch, N tokens in a row; of an attention: H heads, N rows (queries), M keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from regard.errors import RegardError

BRANCHES = 16  # codes of an entity in `Sequences.branches`: that of its own tokens, then one for each branch


@dataclass(frozen=True, slots=True)
class Example:
    """One source and everything that is right for it; more than one target means equally right variants."""

    source: str
    targets: tuple[str, ...] = ()
    place: str = ""  # file:line, for messages
    target_place: str = field(default="", kw_only=True)  # that of the targets, where they are in a file of their own


@dataclass(frozen=True, slots=True)
class Sequences:
    """Rows of ids, padded at the right; `lengths` says what is real."""

    ids: Tensor  # B x N
    lengths: Tensor  # B
    segments: Tensor | None = None  # B x N: which of the texts of a row each token is of, where a row has several
    branches: Tensor | None = None  # B x N: what is text and what hangs at it, see `regard.ops.masks.branching`

    def to(self, device: torch.device | str) -> Sequences:
        # only pinned memory may be copied behind our back: other memory could be freed before it was read
        later = self.ids.is_pinned()
        return self.each(lambda tensor: tensor.to(device, non_blocking=later))

    def twice(self) -> Sequences:
        """Every row again, after the last."""
        return self.each(lambda tensor: torch.cat([tensor, tensor]))

    def pin(self) -> Sequences:
        """The same in memory that a GPU can read while we go on."""
        return self.each(Tensor.pin_memory)

    def tensors(self) -> list[Tensor]:
        """All that it is made of, always in one order."""
        return [tensor for tensor in (self.ids, self.lengths, self.segments, self.branches) if tensor is not None]

    def each(self, change: Callable[[Tensor], Tensor]) -> Sequences:
        """The same of tensors that were changed alike."""
        segments, branches = (None if tensor is None else change(tensor) for tensor in (self.segments, self.branches))
        return Sequences(change(self.ids), change(self.lengths), segments, branches)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a model is given, and what it should say of it; `rows` are the places in the split.

    Where a text is written from another, `target` rows hold <s> y1 .. yn </s>; each source may have several, all as
    many, which follow each other. Where there is one text, they hold the label of each of its places, -100 where none
    counts; where a whole text has labels, as many as it has.
    """

    source: Sequences
    target: Sequences | None = None
    rows: Sequence[int] = ()
    num_tokens: int = 0  # real source and target tokens, known without asking the device
    carry: Tensor | None = None  # B: 1 where a row goes on from the same row of the batch before, 0 where it begins

    def to(self, device: torch.device | str) -> Batch:
        later = self.source.ids.is_pinned()
        return self._each(lambda part: part.to(device), lambda carry: carry.to(device, non_blocking=later))

    def twice(self) -> Batch:
        """Every row again, after the last; it still counts the tokens of one."""
        return self._each(Sequences.twice, lambda carry: torch.cat([carry, carry]))

    def spread(self) -> Batch:
        """The same with a source of its own for every target."""
        assert self.target is not None
        several = len(self.target.ids) // max(1, len(self.source.ids))
        if several == 1:
            return self
        return replace(self, source=self.source.each(lambda tensor: tensor.repeat_interleave(several, 0)))

    def pin(self) -> Batch:
        """The same in memory that a GPU can read while we go on."""
        return self._each(Sequences.pin, Tensor.pin_memory)

    def tensors(self) -> list[Tensor]:
        """All that it is made of, always in one order."""
        parts = [self.source] if self.target is None else [self.source, self.target]
        found = [tensor for part in parts for tensor in part.tensors()]
        return found if self.carry is None else [*found, self.carry]

    def _each(self, change: Callable[[Sequences], Sequences], carry: Callable[[Tensor], Tensor]) -> Batch:
        return replace(
            self,
            source=change(self.source),
            target=None if self.target is None else change(self.target),
            carry=None if self.carry is None else carry(self.carry),
        )


@dataclass(frozen=True, slots=True)
class Specials:
    """The ids that begin an output, end a text and fill a row up; in T5 the first and the last are one."""

    start: int
    end: int
    pad: int
    unk: int | None = None  # stands for what the vocabulary has not
    mask: int | None = None  # stands for what is hidden from a masked language model


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

    def reorder(self, rows: Tensor, *, last: int | None = None) -> State:
        """As `select`, where every row keeps its source: the memory, equal within a source, is left alone.

        With `last`, all rows are at one place and those of a source differ in their last tokens only, so many: no more
        is copied, in place.
        """
        cache = {name: self._rows_of(name, tensor, rows, last) for name, tensor in self.cache.items()}
        return replace(self, position=self.position.index_select(0, rows), cache=cache)

    def _rows_of(self, name: str, tensor: Tensor, rows: Tensor, last: int | None = None) -> Tensor:
        if name not in self.timed:
            return tensor.index_select(0, rows)
        if last is not None:
            new = tensor[:, :, self.bound - last : self.bound]
            new.copy_(new.index_select(0, rows))
            return tensor
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
class Span:
    """A stretch of the user's own text, `text[start:end]`, what it is, and how sure that is."""

    start: int
    end: int
    label: str = ""
    score: float = 1.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer: the best text first, with the score of each (length-normalised log-probability)."""

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    tokens: tuple[tuple[str, ...], ...] = ()
    cut: int = 0  # tokens at the end of the source that were too many and not read
    ids: tuple[tuple[int, ...], ...] = ()
    spans: tuple[Span, ...] = ()  # what the best answer marks in the source, where it marks anything
    wrong: str = ""  # why there is no answer, of a source that cannot be read and was left out

    @classmethod
    def none(cls, wrong: str) -> Prediction:
        """No answer, of a source that cannot be read: nothing was judged, so its score is the worst.

        >>> Prediction.none("a bad line").scores
        (-inf,)
        """
        return cls(("",), (-math.inf,), ((),), ids=((),), wrong=wrong)

    @property
    def text(self) -> str:
        return self.texts[0]


@dataclass(frozen=True, slots=True)
class Axis:
    """What stands along one side of an attention.

    >>> Axis("source", ("<s>", "a"), ((0, 0), (0, 1)), "a").tokens
    ('<s>', 'a')
    """

    name: str  # "source", "target"
    tokens: tuple[str, ...]  # surface pieces, with <s> and </s> where the model saw them
    offsets: tuple[tuple[int, int], ...]  # start and end of each token in `text`; an empty span where it has no surface
    text: str


class NoSuchLayer(RegardError, IndexError):
    """A place beyond the layers of a trace; an IndexError, by which a loop over them finds their end."""


class View(Protocol):
    """What one attention layer weighed, each measure exact and computed when it is first asked for.

    A row that may attend nowhere has lse -inf and 0 for everything else.
    """

    @property
    def name(self) -> str:
        """The path of the module: "encoder.0.attention.body"."""

    @property
    def kind(self) -> str:
        """ "self" or "cross"."""

    @property
    def rows_axis(self) -> str:
        """The axis that the queries stand on; "" where unknown."""

    @property
    def keys_axis(self) -> str:
        """The axis that the keys stand on; "" where unknown."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, N, M."""

    @property
    def lse(self) -> Tensor:
        """The log-sum-exp of each row's scores: B x H x N."""

    @property
    def entropy(self) -> Tensor:
        """The entropy of each row's weights in nats: B x H x N."""

    @property
    def confidence(self) -> Tensor:
        """The largest weight of each row: B x H x N."""

    @property
    def distance(self) -> Tensor:
        """The expected |i - j| of row i and the keys j that it reads: B x H x N."""

    @property
    def received(self) -> Tensor:
        """The sum of the weights that each key receives from all rows: B x H x M."""

    @property
    def value_norms(self) -> Tensor | None:
        """The norm of v_j W_O^h: B x H x M; None where the layer gave no projection."""

    def rows(self, rows: range, heads: Sequence[int] | None = None) -> Tensor:
        """The exact weights of these rows: B x H x R x M."""

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k (at most 8) largest weights of each row and their keys, descending: B x H x N x k."""

    def map(self, bins: int | tuple[int, int]) -> Tensor:
        """The weights pooled into at most `bins` bins of rows and of keys; each row of it sums to 1."""

    def weighted_map(self, bins: int | tuple[int, int]) -> Tensor | None:
        """The same of weights times value norms, each row brought back to 1; None where there are no norms."""

    def diagonal(self, offset: int) -> Tensor:
        """The weight of the key at each row's position + offset, 0 outside: B x H x N."""

    def first(self) -> Tensor:
        """The weight of key 0: B x H x N."""

    def pairs(self, keys: Tensor) -> Tensor:
        """The weight of one given key for each row (B x N; -1: none): B x H x N."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What every attention layer weighed, in the order of the forward pass.

    >>> len(Trace(()))
    0
    """

    layers: Sequence[View]
    axes: dict[str, Axis] = field(default_factory=dict)  # empty where no text is known
    info: dict[str, Any] = field(default_factory=dict)  # plain JSON values: "run", "model", "text", "answer"

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer: int) -> View:
        try:
            return self.layers[layer]
        except IndexError:
            wanted = f"0 to {len(self) - 1}" if len(self) else "none: this trace is empty"
            raise NoSuchLayer("no such layer in this trace", got=layer, wanted=wanted) from None

    def __iter__(self) -> Iterator[View]:
        return iter(self.layers)
