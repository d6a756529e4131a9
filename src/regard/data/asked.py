"""Facts that are asked, as rows `entity relation (relation entity).. <mask>`: the batches of an epoch.

What stands between is some of what training knows of the entity: its neighbours, others each epoch where it has more
than are read. The fact that is asked is never among them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from regard.data.batching import NONE, Planned, first_rows, padding_share, plan_batches
from regard.data.facts import FIRST, MASK, PAD, Graph, Ints
from regard.data.readers import ReadReport
from regard.types import Batch, Sequences

FEWEST = 3  # tokens of a row: an entity, a relation, <mask>


@dataclass(frozen=True)
class Asked:
    """Queries and their answers, Q x 3: ids of an entity and a relation, the number of the right entity or -100.

    There may be several numbers, as `together` has them: then all of them are the row's target, wherever it ends.
    """

    graph: Graph
    queries: Ints
    neighbours: int = 0
    report: ReadReport = field(default_factory=ReadReport)

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def lengths(self) -> Ints:
        """How many tokens each row has at most."""
        return FEWEST + 2 * np.minimum(self.graph.edges.counts(self.queries[:, 0]), self.neighbours)

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]:
        plan = plan_batches(
            self.lengths,
            None,
            batch_tokens=batch_tokens,
            multiple=multiple,
            seed=seed,
            epoch=epoch,
            shuffle=shuffle,
        )
        return [replace(planned, key=(seed, epoch)) for planned in plan] if shuffle else plan

    def collate(self, planned: Planned) -> Batch:
        num_rows, width, _ = planned.shape
        entity, relation, *answers = self.queries[planned.rows].T
        several = len(answers) > 1
        ids = np.full((num_rows, width), PAD, np.int64)
        labels = np.full((num_rows, len(answers) if several else width), NONE, np.int64)
        real, own = np.zeros(num_rows, np.int64), np.arange(len(planned.rows))
        ids[own, 0], ids[own, 1] = entity, relation
        real[own] = FEWEST
        if self.neighbours:
            real[own] += 2 * self._put_neighbours(ids[: len(own), 2:], planned)
        ids[own, real[own] - 1] = MASK
        if several:
            labels[own] = np.stack(answers, 1)
        else:
            labels[own, real[own] - 1] = answers[0]
        lengths = torch.from_numpy(real)
        source, target = (Sequences(torch.from_numpy(array), lengths) for array in (ids, labels))
        return Batch(source, target, rows=planned.rows.tolist(), num_tokens=int(real.sum()))

    def _put_neighbours(self, room: Ints, planned: Planned) -> Ints:
        """Writes pairs of a relation and an entity into the rows; gives how many each has.

        They are read from a place of the entity's list on that is drawn, and on from its beginning.
        """
        queries, edges = self.queries[planned.rows], self.graph.edges
        starts, counts = edges.starts(queries[:, 0]), edges.counts(queries[:, 0])
        first = np.zeros_like(counts)
        if planned.key:
            draw = np.random.default_rng([*planned.key, int(planned.rows[0])])
            first = (draw.random(len(counts)) * counts).astype(np.int64)
        step = np.arange(self.neighbours + 1)  # one may be the fact that is asked
        place = starts[:, None] + (first[:, None] + step) % np.maximum(counts, 1)[:, None]
        found = edges.values[np.minimum(place, len(edges.values) - 1)]  # rows x steps x 2
        asked = np.stack([queries[:, 1], FIRST + queries[:, 2]], 1)
        good = (step < counts[:, None]) & (found != asked[:, None]).any(-1)
        into = good.cumsum(1) - 1
        good &= into < self.neighbours
        rows, steps = np.nonzero(good)
        for i in range(2):
            room[rows, 2 * into[rows, steps] + i] = found[rows, steps, i]
        counted: Ints = good.sum(1)
        return counted

    def first(self, number: int) -> Batch:
        """The first rows of the split as one batch."""
        plan = self.plan(batch_tokens=4096, multiple=4, seed=0, epoch=0, shuffle=False)
        return first_rows(plan, self.collate, number)

    def padding(self, plan: list[Planned]) -> float:
        return padding_share(plan, self.lengths, None)

    def describe(self) -> str:
        """One line, and one more for each of the first bad lines that were left out."""
        graph, bad = self.graph, self.report
        number = int((self.queries[:, 2:] != NONE).sum())
        line = f"{number // 2:,} facts, asked both ways; {len(graph.entities):,} entities, "
        line += f"{len(graph.relations):,} relations; {bad.num_bad:,} bad lines"
        return line + "".join(f"\n  {place}: {reason}" for place, reason in bad.bad)


def together(asked: Ints, most: int) -> Ints:
    """Queries of one answer as queries of up to `most`, -100 where a query has fewer: Q x (2 + most).

    >>> together(np.array([[5, 7, 1], [6, 7, 2], [5, 7, 3], [5, 7, 4]]), 2).tolist()
    [[5, 7, 1, 3], [5, 7, 4, -100], [6, 7, 2, -100]]
    """
    asked = asked[np.lexsort((asked[:, 1], asked[:, 0]))]
    _, first, counts = np.unique(asked[:, :2], axis=0, return_index=True, return_counts=True)
    rank = np.arange(len(asked)) - np.repeat(first, counts)  # among the answers of its query
    row = (rank % most == 0).cumsum() - 1
    found = np.full((row[-1] + 1 if len(row) else 0, 2 + most), NONE, np.int64)
    found[row, :2], found[row, 2 + rank % most] = asked[:, :2], asked[:, 2]
    return found
