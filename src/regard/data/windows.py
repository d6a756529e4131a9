"""A stream of ids as rows of one length: the batches of a language model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from regard.data.batching import NONE, Ints, Planned
from regard.data.text import Text
from regard.types import Batch, Sequences


@dataclass(frozen=True)
class Windows:
    """A text as rows of `context` tokens, each token with the one after it as its label.

    Windows begin `stride` apart, and each counts only what the ones before it did not. In training they lie end to
    end, from another first token in each epoch. Where the model has a memory (`carried`), each row of a batch goes on
    from the same row of the batch before: the rows are equal parts of the text.
    """

    text: Text
    context: int
    stride: int
    carried: bool
    num_rows: int = 0  # 0: as many as the budget has room for

    @property
    def last(self) -> int:
        """How many tokens have one after them."""
        return len(self.text) - 1

    def plan(self, *, batch_tokens: int, multiple: int, seed: int, epoch: int, shuffle: bool) -> list[Planned]:
        rows = self.num_rows or max(1, batch_tokens // self.context)
        if self.carried:
            return self._streams(min(rows, -(-self.last // self.context)), whole=shuffle)
        starts = self._shuffled(np.random.default_rng([seed, epoch])) if shuffle else self._in_order()
        shape = (min(rows, len(starts)), self.context, self.context)
        return [Planned(starts[i : i + rows], shape) for i in range(0, len(starts), rows)]

    def _in_order(self) -> Ints:
        # a window that begins later would have nothing new to say
        return np.arange(0, max(1, self.last - self.context + self.stride), self.stride)

    def _shuffled(self, random: np.random.Generator) -> Ints:
        spare = self.last - self.context
        if spare <= 0:
            return np.zeros(1, np.int64)
        starts = np.arange(random.integers(min(self.context, spare + 1)), spare + 1, self.context)
        return random.permutation(starts)

    def _streams(self, rows: int, *, whole: bool) -> list[Planned]:
        """`rows` parts of the text, segment by segment, the last one shorter.

        With `whole` all parts are equal and the few tokens that are left over are not read.
        """
        length = self.last // rows if whole else -(-self.last // rows)
        widths = {done: min(self.context, length - done) for done in range(0, length, self.context)}
        begins = np.arange(rows) * length
        return [Planned(begins + done, (rows, width, width)) for done, width in widths.items()]

    def collate(self, planned: Planned) -> Batch:
        num_rows, width, _ = planned.shape
        starts = np.pad(planned.rows, (0, num_rows - len(planned.rows)), constant_values=self.last)
        lengths = np.clip(self.last - starts, 0, width)
        seen = np.where(starts == 0, 0, self.context - self.stride)  # by the windows before
        places = np.arange(width)
        real = places < lengths[:, None]
        new = real & (places >= seen[:, None])
        ids = self.text.lines.ids[np.minimum(starts[:, None] + np.arange(width + 1), self.last)].astype(np.int64)
        size = torch.from_numpy(lengths)
        return Batch(
            Sequences(torch.from_numpy(np.where(real, ids[:, :-1], 0)), size),
            Sequences(torch.from_numpy(np.where(new, ids[:, 1:], NONE)), size),
            rows=planned.rows.tolist(),
            num_tokens=int(lengths.sum()),
            carry=torch.full((num_rows,), int(starts[0] > 0)) if self.carried else None,
        )

    def first(self, number: int) -> Batch:
        """The first rows as one batch."""
        starts = np.arange(0, max(1, self.last - self.context + 1), self.context)[:number]
        return replace(self.collate(Planned(starts, (len(starts), self.context, self.context))), carry=None)

    def padding(self, plan: list[Planned]) -> float:
        places = sum(planned.shape[0] * planned.shape[1] for planned in plan)
        real = sum(int(np.clip(self.last - planned.rows, 0, planned.shape[1]).sum()) for planned in plan)
        return 1 - real / places

    def describe(self) -> str:
        return self.text.describe()
