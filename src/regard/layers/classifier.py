"""A label for each text: an encoder, one state of what it read, and a linear layer over that.

Shapes: B batch, N length, D model width, C classes.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.layers.ngrams import NgramWeights
from regard.layers.output import largest_of, last_of, mean_of, text_places
from regard.types import Batch, Sequences

Pooling = Literal["mean", "max", "mean-max", "first", "last", "pooled"]


class Classifier(nn.Module):
    """An encoder and a linear layer over one state of each text; beside these, `ngrams` may say what runs of tokens do.

    The encoder is the deep part then, and the runs are the wide one (Cheng et al. 2016).
    """

    weights: Tensor

    def __init__(
        self,
        body: Any,
        *,
        num_classes: int,
        pooling: Pooling,
        dropout: float,
        weights: Tensor,
        ngrams: NgramWeights | None = None,
    ) -> None:
        super().__init__()
        body.head = nn.Identity()  # what stands at a hidden place is not asked here
        self.body, self.pooling = body, pooling
        self.dropout, self.classify = nn.Dropout(dropout), nn.Linear(self._width(), num_classes)
        self.ngrams = ngrams
        self.register_buffer("weights", weights, persistent=False)  # of the classes, in training

    @property
    def source(self) -> nn.Module:
        """The embedding."""
        return self.body.source  # type: ignore[no-any-return]

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x D."""
        return self.body.hidden(batch)  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor, source: Sequences) -> Tensor:
        """The state of a whole row: B x D."""
        return pool(self.body, hidden, source, self.pooling)

    def logits(self, batch: Batch) -> Tensor:
        """B x C."""
        pooled = self.pooled(self.hidden(batch), batch.source)
        logits = self.classify(self.dropout(pooled))
        return logits if self.ngrams is None else logits + self.ngrams(batch.source)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _width(self) -> int:
        """How wide a state is, as the body alone knows it."""
        source, training = Sequences(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2])), self.body.training
        self.body.eval()  # dropout would move the random numbers of the training
        width = pool(self.body, self.body.hidden(Batch(source)), source, self.pooling).shape[1]
        self.body.train(training)
        return width


def pool(body: Any, hidden: Tensor, source: Sequences, how: Pooling) -> Tensor:
    """One state of each row: their mean, their largest, both, the first, the last, or what the family takes (pooled).

    Of a text with branches, it is one of the text's own tokens: what hangs at it was read by these.
    """
    if how == "pooled":
        return body.pooled(hidden, source.lengths)  # type: ignore[no-any-return]
    if how == "first":
        return hidden[:, 0]
    if how == "last":
        return last_of(hidden, source.lengths)
    places = text_places(source)
    ways = {"mean": (mean_of,), "max": (largest_of,), "mean-max": (mean_of, largest_of)}[how]
    return torch.cat([way(hidden, places) for way in ways], dim=-1)
