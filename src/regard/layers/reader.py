"""Where an answer begins and ends: an encoder of a question and its text, and two scores of each place of the text.

Shapes: B batch, N length of a row `<s> question </s> text </s>`, D model width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.output import width_of
from regard.types import Batch

NEVER = -1e9  # the score of a place that no answer has: finite, so that 0 times it is 0


class SpanReader(nn.Module):
    """An encoder and a linear layer that scores each place of the text as the first and as the last of an answer.

    That the text answers nothing is said by <s>. Which places are the text is seen from the rows: it is what stands
    between the first `end` id and the last place.
    """

    def __init__(self, body: Any, *, end: int, dropout: float) -> None:
        super().__init__()
        body.head = nn.Identity()  # what stands at a hidden place is not asked here
        self.body, self.end = body, end
        self.dropout, self.score = nn.Dropout(dropout), nn.Linear(width_of(body), 2)

    @property
    def source(self) -> nn.Module:
        """The embedding."""
        return self.body.source  # type: ignore[no-any-return]

    def segments(self, ids: Tensor) -> Tensor:
        """0 for <s>, the question and its end, 1 for what comes after: B x N."""
        ends = (ids == self.end).long()
        return (ends.cumsum(1) - ends > 0).long()

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x D."""
        source = replace(batch.source, segments=self.segments(batch.source.ids))
        return self.body.hidden(replace(batch, source=source))  # type: ignore[no-any-return]

    def scores(self, batch: Batch) -> Tensor:
        """Of each place as the first of the answer, and as the last: B x 2 x N; NEVER where neither can be."""
        ids, lengths = batch.source.ids, batch.source.lengths
        scores = self.score(self.dropout(self.hidden(batch))).float().transpose(1, 2)
        places = torch.arange(ids.shape[1], device=ids.device)
        text = (self.segments(ids) > 0) & (places < lengths[:, None] - 1)
        return scores.masked_fill(~(text | (places == 0))[:, None], NEVER)  # type: ignore[no-any-return]
