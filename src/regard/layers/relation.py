"""How two entities of a text relate: an encoder, and what it made of the text and of each entity (R-BERT).

Shapes: B batch, N length, D model width, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.layers.classifier import Classifier
from regard.layers.output import mean_of, text_places, width_of
from regard.types import Sequences


class RelationClassifier(Classifier):
    """logits = W [W0 tanh(h) + b0; W1 tanh(h1) + b1; W1 tanh(h2) + b1] + b, dropout before each W (Wu and He 2019).

    h is one state of the whole text, h1 and h2 are the means of the states of each entity, its two marks among them.
    """

    def __init__(self, body: Any, *, markers: tuple[int, ...], **words: Any) -> None:
        super().__init__(body, **words)
        dim = self.classify.in_features
        self.whole, self.entity = nn.Linear(dim, dim), nn.Linear(width_of(body), dim)
        self.classify = nn.Linear(3 * dim, self.classify.out_features)
        self.markers = markers  # the ids of <e1>, </e1>, <e2>, </e2>

    def pooled(self, hidden: Tensor, source: Sequences) -> Tensor:
        """B x 3D: of the whole text, the first entity, the second."""
        whole = self.whole(self.dropout(super().pooled(hidden, source).tanh()))
        first, second = (self.entity(self.dropout(state.tanh())) for state in self._entities(hidden, source))
        return torch.cat([whole, first, second], dim=-1)

    def _entities(self, hidden: Tensor, source: Sequences) -> list[Tensor]:
        """The mean state of each entity: B x D; zeros where a row has none."""
        found, ids = [], source.ids
        for begin, end in (self.markers[:2], self.markers[2:]):
            begun, ended = (ids == begin).cumsum(1), (ids == end).cumsum(1)
            found.append(mean_of(hidden, ((begun > ended) | (ids == end)) & text_places(source)))
        return found
