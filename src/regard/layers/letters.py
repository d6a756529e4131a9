"""Token vectors that know how their tokens are spelled: what is hardly ever seen is told by letters that it shares.

Shapes: B batch, N length, V vocabulary, D width, M runs of letters that a token has at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def letter_runs(pieces: Sequence[str], longest: int) -> list[list[str]]:
    """The runs of 1 to `longest` letters in each piece that other pieces have as well.

    >>> letter_runs(["low", "lower", ""], 3)
    [['l', 'o', 'w', 'lo', 'ow', 'low'], ['l', 'o', 'w', 'lo', 'ow', 'low'], []]
    """
    every = [
        list(dict.fromkeys(piece[i : i + n] for n in range(1, longest + 1) for i in range(len(piece) - n + 1)))
        for piece in pieces
    ]
    counts = Counter(run for runs in every for run in runs)
    return [[run for run in runs if counts[run] > 1] for runs in every]


class SpelledTokens(nn.Embedding):
    """A vector for each token, plus the mean of those of the runs of letters in it: B x N ids -> B x N x D.

    The vectors of letters begin at zero. Special tokens, whose piece is "", have none.
    """

    runs: Tensor  # V x M, filled up with 0

    def __init__(self, pieces: Sequence[str], dim: int, *, longest: int) -> None:
        super().__init__(len(pieces), dim)
        nn.init.normal_(self.weight, std=dim**-0.5)
        found = letter_runs(pieces, longest)
        row = {run: i for i, run in enumerate(sorted({run for runs in found for run in runs}), 1)}
        most = max(1, *map(len, found))
        runs = torch.tensor([[row[run] for run in each] + [0] * (most - len(each)) for each in found])
        self.register_buffer("runs", runs, persistent=False)  # the tokenizer says it
        self.letters = nn.Parameter(torch.zeros(len(row) + 1, dim))

    def forward(self, input: Tensor) -> Tensor:
        spelled = F.embedding_bag(self.runs[input.flatten()], self.letters, mode="mean", padding_idx=0)
        return super().forward(input) + spelled.unflatten(0, input.shape)  # type: ignore[no-any-return]
