"""Rows of a store -> batches of a few fixed shapes, with little padding.

Shapes: B rows, S source width, T decoder width. A source row is its ids and EOS; a target row is BOS, its ids and
EOS, of which the decoder reads all but the last and answers all but the first: both need one place more than ids.
Where there is one text, rows are kept as the model reads them, nothing is added, and T is 0.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from regard.data.store import Column, Store
from regard.data.tokenizers import BOS, EOS, PAD
from regard.errors import require
from regard.types import Batch, Sequences, Specials

Ints = npt.NDArray[np.int64]
Shape = tuple[int, int, int]  # B x S x T
Item = TypeVar("Item")
OURS = Specials(BOS, EOS, PAD)  # of a tokenizer that we trained

NONE = -100  # the label of a place that has none
MAX_CELLS = 600  # of lengths, of which shapes are made
FULL = 0.8  # of the token budget: a shape whose batches would hold less gives its odd rows to a larger shape


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch to come: its rows, and the shape that they are laid into, which may have room for more rows."""

    rows: Ints
    shape: Shape
    key: tuple[int, ...] = ()  # what the draws of an objective follow from: seed and epoch, or nothing in validation


def plan_batches(
    source_lengths: npt.ArrayLike,
    target_lengths: npt.ArrayLike | None,
    *,
    batch_tokens: int,
    multiple: int = 4,
    max_shapes: int = 16,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
) -> list[Planned]:
    """Puts every row into exactly one batch; the same arguments give the same plan, each epoch another one.

    Lengths count stored ids; without `target_lengths` there is one text. Widths are multiples of `multiple` (the
    largest of one text is as wide as its longest row), at most `max_shapes` shapes occur, and they depend on the
    lengths alone, not on the epoch. No side of a batch has more than `batch_tokens` places, unless a single row needs
    them. Without `shuffle`, rows go by length.

    >>> [(p.rows.tolist(), p.shape) for p in plan_batches([3, 3, 2], [3, 2, 3], batch_tokens=8, shuffle=False)]
    [([2, 1], (2, 4, 4)), ([0], (2, 4, 4))]
    """
    require(batch_tokens > 0, "batch_tokens must be positive", got=batch_tokens, wanted="1 or more")
    needs = _needs(source_lengths, target_lengths)
    if not len(needs):
        return []
    cell_of_row, cells, counts = _count_cells(needs, multiple)
    layouts = [_lay_out(widths, cells, counts, batch_tokens) for widths in _merge(cells, counts, max_shapes)]
    # More shapes fit the rows better; but where rows are few, each shape leaves a batch that is not full.
    layout = min(layouts, key=lambda candidate: candidate.places)
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(needs)) if shuffle else np.lexsort((needs[:, 0], needs.sum(axis=1)))
    shape_of = layout.shape_of_cell[cell_of_row[order]]
    plan = layout.fill([order[shape_of == k] for k in range(len(layout.shapes))])
    return [plan[i] for i in random.permutation(len(plan))] if shuffle else plan


def padding_share(
    plan: Sequence[Planned], source_lengths: npt.ArrayLike, target_lengths: npt.ArrayLike | None
) -> float:
    """Which share of all places in the plan's batches holds nothing, from 0 to 1; missing rows count too."""
    lengths = _needs(source_lengths, target_lengths).sum(axis=1)
    real = sum(int(lengths[planned.rows].sum()) for planned in plan)
    places = sum(rows * (source + target) for rows, source, target in (planned.shape for planned in plan))
    return 1 - real / places if places else 0.0


def collate(store: Store, planned: Planned, *, source_ids: Specials = OURS, target_ids: Specials = OURS) -> Batch:
    """Lays the rows of a planned batch into its shape; rows that are missing have length 0.

    Target rows are T + 1 wide: the decoder reads `ids[:, :-1]` and answers `ids[:, 1:]`.
    """
    num_rows, source_width, target_width = planned.shape
    source, source_places = _lay(store.sources, planned.rows, num_rows, source_width, source_ids, bos=False)
    target, target_places = _lay(store.targets, planned.rows, num_rows, target_width + 1, target_ids, bos=True)
    num_tokens = source_places + target_places - len(planned.rows)  # the decoder reads one less than a row holds
    return Batch(source, target, rows=planned.rows.tolist(), num_tokens=num_tokens)


def collate_rows(
    rows: Column,
    labels: Column,
    planned: Planned,
    *,
    pad: int,
    label_width: int = 0,
    branches: Column | None = None,
) -> Batch:
    """Lays rows of one text into their planned shape, and their labels beside them, -100 where there is none.

    Labels are as many as the row has places, or `label_width` where the whole row has that many.
    """
    num_rows, width, _ = planned.shape
    source = lay(rows, planned.rows, num_rows, width, pad)
    if branches is not None:
        source = replace(source, branches=lay(branches, planned.rows, num_rows, width, 0).ids)
    target = lay(labels, planned.rows, num_rows, label_width or width, NONE)
    return Batch(source, target, rows=planned.rows.tolist(), num_tokens=int(rows.lengths[planned.rows].sum()))


def lay(column: Column, rows: Ints, num_rows: int, width: int, fill: int) -> Sequences:
    """Rows of a column as they are, padded to num_rows x width; rows that are missing have length 0."""
    ids = np.full((num_rows, width), fill, np.int64)
    _put(ids, column, rows, 0)
    real = np.zeros(num_rows, np.int64)
    real[: len(rows)] = column.lengths[rows]
    return Sequences(torch.from_numpy(ids), torch.from_numpy(real))


def first_rows(plan: Sequence[Planned], collate: Callable[[Planned], Batch], number: int) -> Batch:
    """The first rows of a split as one batch, whose two sides differ in width, so that a width tells the side."""
    number = min(number, sum(len(planned.rows) for planned in plan))
    require(number > 0, "there is nothing to observe", got="an empty validation split", wanted="one row or more")
    widths = [planned.shape[1:] for planned in plan if (planned.rows < number).any()]
    source_width, target_width = np.max(widths, axis=0).tolist()
    batch = collate(Planned(np.arange(number), (number, source_width + 1, target_width)))
    wide = int(batch.source.lengths.max())
    if batch.target is None:
        return replace(batch, source=_narrowed(batch.source, wide))
    target = _narrowed(batch.target, int(batch.target.lengths.max()))
    # the decoder reads all but the last place
    return replace(batch, source=_narrowed(batch.source, wide + (wide == target.ids.shape[1] - 1)), target=target)


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """Makes the next `depth` items on a thread while the current one is used.

    An exception comes out where its item would have; a consumer that stops, stops the thread.
    """
    ready: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: Item | None, error: BaseException | None) -> None:
        while not stopped.is_set():
            try:
                return ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item, None)
                if stopped.is_set():
                    return
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]  # None only beside an error
    finally:
        stopped.set()
        thread.join()


@dataclass
class _Layout:
    """A few shapes, smallest first, and how many rows each hands to the shape above it.

    `above[k]` is the smallest shape that covers shape k; the last covers all.
    """

    shapes: list[Shape]
    shape_of_cell: Ints
    above: list[int]
    handed: list[int]
    places: int  # in all batches together

    def fill(self, buckets: list[Ints]) -> list[Planned]:
        """The batches, given the rows of each shape in their order."""
        plan = []
        buckets = list(buckets)
        for k, shape in enumerate(self.shapes):
            keep = len(buckets[k]) - self.handed[k]
            rows, rest = buckets[k][:keep], buckets[k][keep:]
            if len(rest):  # to the front, so that they are not handed on again
                buckets[self.above[k]] = np.concatenate([rest, buckets[self.above[k]]])
            plan += [Planned(rows[i : i + shape[0]], shape) for i in range(0, keep, shape[0])]
        return plan


def _count_cells(needs: Ints, multiple: int) -> tuple[Ints, Ints, Ints]:
    """Rows of nearly the same needs make a cell: the cell of each row, the widths of each cell, its number of rows.

    How near grows with the length, and more so where long texts would make too many cells. One more cell, of no
    rows, is wide enough for all.
    """
    for fineness in (16, 8, 4, 2):
        doublings = np.ceil(np.log2(np.maximum(needs / (fineness * multiple), 1))).astype(np.int64)
        near = _round_up(needs, multiple << doublings)
        pairs = near[:, 0] * (near[:, 1].max() + 1) + near[:, 1]  # as one number: unique pairs are slow to find
        _, cell_of_row, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        if len(counts) <= MAX_CELLS:
            break
    cells, rounded = np.zeros((len(counts) + 1, 2), np.int64), _round_up(needs, multiple)
    if not needs[:, 1].any():  # one text, which may be as long as the model has positions: no place more than that
        rounded = np.minimum(rounded, needs.max(axis=0))
    np.maximum.at(cells, cell_of_row, rounded)
    cells[-1] = cells.max(axis=0)
    return cell_of_row, cells, np.append(counts, 0)


def _merge(cells: Ints, counts: Ints, max_shapes: int) -> Iterator[Ints]:
    """Joins, again and again, the two cells whose common shape costs the fewest places; gives each stage that has
    at most `max_shapes` cells.
    """
    widths, counts = cells.copy(), counts.copy()
    alive = np.ones(len(widths), bool)

    def costs(k: int) -> npt.NDArray[np.float64]:
        """How many places it costs to join cell k to each other cell."""
        joint = np.maximum(widths, widths[k]).sum(axis=1) * (counts + counts[k])
        cost = joint - widths.sum(axis=1) * counts - widths[k].sum() * counts[k]
        return np.where(alive & (np.arange(len(widths)) != k), cost, np.inf)

    cost = np.stack([costs(k) for k in range(len(widths))])
    for remaining in range(len(widths), 0, -1):
        if remaining <= max_shapes:
            yield widths[alive]
        if remaining == 1:
            return
        a, b = divmod(int(cost.argmin()), len(widths))
        widths[a] = np.maximum(widths[a], widths[b])
        counts[a] += counts[b]
        alive[b] = False
        cost[b], cost[:, b] = np.inf, np.inf
        cost[a] = cost[:, a] = costs(a)


def _lay_out(widths: Ints, cells: Ints, counts: Ints, batch_tokens: int) -> _Layout:
    """Gives every cell the first shape that covers it, and every shape its number of rows.

    Rows that do not fill a batch: either all batches of the shape become a little smaller and equally full, or
    the odd rows are handed to the shape above, whichever leaves fewer empty places.
    """
    widths = np.unique(widths, axis=0)
    widths = widths[np.argsort(widths.sum(axis=1), kind="stable")]
    last = len(widths) - 1
    shape_of_cell = np.full(len(cells), last)
    for k in range(last - 1, -1, -1):
        shape_of_cell[(cells <= widths[k]).all(axis=1)] = k
    above = [next((j for j in range(k + 1, last) if (widths[j] >= widths[k]).all()), last) for k in range(last + 1)]
    held = [int(counts[shape_of_cell == k].sum()) for k in range(last + 1)]
    layout = _Layout([], shape_of_cell, above, [], 0)
    for k, (source, target) in enumerate(widths.tolist()):
        most = max(1, batch_tokens // max(source, target))
        num_batches = -(-held[k] // most)
        num_rows = max(1, -(-held[k] // max(num_batches, 1)))
        handed, odd = 0, held[k] % most
        missing_places = (num_batches * num_rows - held[k]) * (source + target)
        wider_places = odd * (int(widths[above[k]].sum()) - source - target)
        if k != last and (num_rows < FULL * most or missing_places > wider_places):
            num_batches, num_rows, handed = held[k] // most, most, odd
            held[above[k]] += handed
        layout.shapes.append((num_rows, source, target))
        layout.handed.append(handed)
        layout.places += num_batches * num_rows * (source + target)
    return layout


def _round_up(length: Ints, multiple: Ints | int) -> Ints:
    return -(-length // multiple) * multiple


def _lay(
    column: Column, rows: Ints, num_rows: int, width: int, special: Specials, *, bos: bool
) -> tuple[Sequences, int]:
    """Rows of a column as padded ids of num_rows x width with EOS (and BOS), and how many places are real."""
    lengths = column.lengths[rows]
    ids = np.full((num_rows, width), special.pad, np.int64)
    _put(ids, column, rows, int(bos))
    ids[np.arange(len(rows)), lengths + bos] = special.end
    if bos:
        ids[: len(rows), 0] = special.start
    real = np.zeros(num_rows, np.int64)
    real[: len(rows)] = lengths + 1 + bos
    return Sequences(torch.from_numpy(ids), torch.from_numpy(real)), int(real.sum())


def _put(ids: Ints, column: Column, rows: Ints, first: int) -> None:
    """Writes rows of a column into the first rows of an array, each from place `first` on."""
    starts, lengths = column.starts[rows], column.lengths[rows]
    row = np.repeat(np.arange(len(rows)), lengths)
    place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # 0 .. length - 1, row after row
    ids[row, place + first] = column.ids[np.repeat(starts, lengths) + place]


def _needs(source_lengths: npt.ArrayLike, target_lengths: npt.ArrayLike | None) -> Ints:
    """How many places each row needs on both sides: N x 2."""
    source = np.asarray(source_lengths, np.int64)
    if target_lengths is None:
        return np.stack([source, np.zeros_like(source)], axis=1)
    return np.stack([source, np.asarray(target_lengths, np.int64)], axis=1) + 1


def _narrowed(side: Sequences, width: int) -> Sequences:
    return side.each(lambda tensor: tensor[:, :width].contiguous() if tensor.dim() == 2 else tensor)
