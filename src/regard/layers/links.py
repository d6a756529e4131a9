"""Which entity is missing from a fact: an encoder of `entity relation <mask>`, of which a state is held against all.

Shapes: B batch, N length, D model width, E entities.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.output import last_of, width_of
from regard.ops.losses import token_cross_entropy
from regard.types import Batch


class LinkPredictor(nn.Module):
    """An encoder, and the product of its state with each entity's vector, which is the one that it reads.

    `dropout` is that of the vectors, where they are read and where they are scored.
    """

    def __init__(self, body: Any, *, first: int, num_entities: int, dropout: float) -> None:
        """`first` is the id of the first entity."""
        super().__init__()
        body.head = nn.Identity()  # it would score relations too
        body.source.dropout = nn.Dropout(dropout)
        width, dim = width_of(body), body.source.tokens.embedding_dim
        self.project = nn.Identity() if width == dim else nn.Linear(width, dim)
        self.body, self.first, self.num_entities, self.dropout = body, first, num_entities, dropout

    @property
    def source(self) -> nn.Module:
        """The embedding."""
        return self.body.source  # type: ignore[no-any-return]

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x D."""
        return self.body.hidden(batch)  # type: ignore[no-any-return]

    def queries(self, batch: Batch) -> Tensor:
        """What the entity and the place that is asked for, the first and the last of each row, became: B x D.

        The entity's own vector is added, as blocks add to what they read: from <mask> alone it is learned slowly.
        """
        hidden = self.hidden(batch)
        return self.project(hidden[:, 0] + last_of(hidden, batch.source.lengths))  # type: ignore[no-any-return]

    def entities(self) -> Tensor:
        """The vector of each entity: E x D."""
        table = self.body.source.tokens.weight[self.first : self.first + self.num_entities]
        return F.dropout(table, self.dropout, self.training)

    def logits(self, batch: Batch) -> Tensor:
        """B x E; not in bf16, where many would be equal."""
        queries = self.queries(batch)
        with torch.autocast(queries.device.type, enabled=False):
            return F.linear(queries.float(), self.entities().float())

    def loss(
        self, batch: Batch, smoothing: float, negatives: int = 0, *, several: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Sum of the cross-entropies of the entities that are right, and how many they are.

        With `negatives`, each is told from so many others alone, which are drawn for each batch. With `several`, all
        that stands in the target of a row is right.
        """
        assert batch.target is not None
        queries = self.queries(batch)
        if several:
            right = batch.target.ids
            return token_cross_entropy(queries, self.entities(), right, smoothing), (right >= 0).sum()
        labels = labels_of(batch)
        if not 0 < negatives < self.num_entities:
            return token_cross_entropy(queries, self.entities(), labels, smoothing), (labels >= 0).sum()
        asked = batch.source.ids[:, 0] - self.first
        return self._sampled(queries, labels, asked, smoothing, negatives), (labels >= 0).sum()

    def _sampled(self, queries: Tensor, labels: Tensor, asked: Tensor, smoothing: float, negatives: int) -> Tensor:
        """-log softmax at the right entity, where the sum over all is estimated by those that are drawn.

        The entity that is asked about (under 0 where it is hidden) is always among them: it is what its own state is
        most like, and hardly ever the answer.
        """
        right, drawn = labels.clamp(min=0), torch.randint(self.num_entities, (negatives,), device=labels.device)
        tokens = self.body.source.tokens
        own, own_asked, others = (
            F.dropout(tokens(self.first + ids), self.dropout, self.training)
            for ids in (right, asked.clamp(min=0), drawn)
        )
        at_right, at_asked = ((queries * x).sum(-1, keepdim=True).float() for x in (own, own_asked))
        at_asked = at_asked.masked_fill(((asked < 0) | (asked == right))[:, None], -torch.inf)
        scores = F.linear(queries, others).float()
        counted = (drawn == right[:, None]) | (drawn == asked[:, None])
        each = (scores + math.log(self.num_entities / negatives)).masked_fill(counted, -torch.inf)
        total = torch.cat([at_right, at_asked, each], 1).logsumexp(1)
        loss = total - (1 - smoothing) * at_right[:, 0] - smoothing * scores.mean(1)
        return (loss * (labels >= 0)).sum()


def labels_of(batch: Batch) -> Tensor:
    """The right entity of each row, which is the label of its last place: B; under 0 where there is none."""
    assert batch.target is not None
    return batch.target.ids.gather(1, (batch.source.lengths - 1).clamp(min=0)[:, None])[:, 0]
