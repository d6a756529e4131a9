"""A tag for each word of a text: an encoder, a linear layer over its states, and what tags are worth side by side.

Shapes: B batch, N length, D model width, C tags.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.output import width_of
from regard.ops import crf
from regard.types import Batch

NONE = -100  # the label of a place where no word begins
NEVER = -1e4  # the score of what may not be; finite, so that gradients are
SHAPE_DIM = 64
# AdamW moves every weight by about the learning rate: at that of a fine-tuning transitions would stay what they were
FASTER = 10.0


class Tagger(nn.Module):
    """An encoder and a linear layer, of whose tags each depends on the one before it (`crf`) or on none.

    An id of a batch is a token's, plus the vocabulary's size times the number of its word's shape (0: none said), so
    that who takes tokens out of a text takes their shapes along.
    """

    transitions: Tensor  # this and the next two where there is a CRF
    starts: Tensor
    ends: Tensor
    legal: Tensor
    legal_start: Tensor
    legal_end: Tensor

    def __init__(
        self,
        body: Any,
        *,
        vocabulary: int,
        legal: Tensor,
        legal_start: Tensor,
        legal_end: Tensor,
        has_crf: bool,
        num_shapes: int = 0,
        dropout: float = 0.0,
    ) -> None:
        """`legal` (C x C), `legal_start` and `legal_end` (C) say which tags may follow each other, begin and end."""
        super().__init__()
        body.head = nn.Identity()  # what stands at a hidden place is not asked here
        self.body, self.vocabulary, self.has_crf, num_tags = body, vocabulary, has_crf, len(legal)
        width = width_of(body)
        if num_shapes:
            self.shapes, self.mix = nn.Embedding(num_shapes, SHAPE_DIM), nn.Linear(width + SHAPE_DIM, width)
        self.has_shapes = bool(num_shapes)
        self.dropout, self.tag = nn.Dropout(dropout), nn.Linear(width, num_tags)
        for name, value in (("legal", legal), ("legal_start", legal_start), ("legal_end", legal_end)):
            self.register_buffer(name, value, persistent=False)
        sizes = {"transitions": (num_tags, num_tags), "starts": (num_tags,), "ends": (num_tags,)}
        for name, size in sizes.items() if has_crf else ():
            self.register_parameter(name, nn.Parameter(torch.zeros(size)))

    @property
    def source(self) -> nn.Module:
        """The embedding."""
        return self.body.source  # type: ignore[no-any-return]

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x D."""
        source = replace(batch.source, ids=batch.source.ids % self.vocabulary)
        return self.body.hidden(replace(batch, source=source))  # type: ignore[no-any-return]

    def emissions(self, batch: Batch) -> Tensor:
        """How well each tag fits each place: B x N x C."""
        states = self.dropout(self.hidden(batch))
        if self.has_shapes:
            shape = self.shapes(batch.source.ids // self.vocabulary)
            states = states + F.gelu(self.mix(torch.cat([states, shape.to(states.dtype)], -1)))
        return self.tag(states).float()  # type: ignore[no-any-return]

    def chain(self) -> crf.Chain:
        """What tags are worth beside each other: nothing where there is no CRF."""
        if not self.has_crf:
            none = torch.zeros_like(self.legal_start, dtype=torch.float)
            return crf.Chain(none[:, None] + none, none, none)
        learned = (self.transitions, self.starts, self.ends)
        legal = (self.legal, self.legal_start, self.legal_end)
        return crf.Chain(*(torch.where(may, FASTER * x, NEVER) for may, x in zip(legal, learned, strict=True)))

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of -log p(tags of a row), and how many words have one; `batch.target` has a label for each place."""
        assert batch.target is not None
        emissions, labels = self.emissions(batch), batch.target.ids
        number = (labels >= 0).sum()
        if not self.has_crf:
            flat = emissions.flatten(0, 1), labels.flatten()
            return F.cross_entropy(*flat, ignore_index=NONE, reduction="sum"), number
        chain, (emissions, place, lengths) = self.chain(), words_only(emissions, labels)
        tags = labels.new_zeros(len(labels), labels.shape[1] + 1).scatter(1, place, labels.clamp(min=0))[:, :-1]
        every = crf.log_partition(crf.forward(emissions, chain), chain, lengths) * (lengths > 0)
        return (every - crf.path_scores(emissions, tags, chain, lengths)).sum(), number

    def log_marginals(self, batch: Batch) -> Tensor:
        """log p(tag) at each place whose label is not NONE, over all taggings of the row: B x N x C."""
        assert batch.target is not None
        emissions, labels = self.emissions(batch), batch.target.ids
        if not self.has_crf:
            return emissions.log_softmax(-1)
        words, place, lengths = words_only(emissions, labels)
        found = crf.log_marginals(words, self.chain(), lengths)
        return found.gather(1, place.clamp(max=labels.shape[1] - 1)[:, :, None].expand_as(emissions))


def words_only(emissions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The emissions of the places whose label is not NONE, moved together (B x N x C); where each went; how many.

    What is no word goes to place N, which is cut off.
    """
    words = labels != NONE
    place = torch.where(words, words.cumsum(1) - 1, labels.shape[1])
    rows, length, tags = emissions.shape
    room = emissions.new_zeros(rows, length + 1, tags)
    return room.scatter(1, place[:, :, None].expand_as(emissions), emissions)[:, :-1], place, words.sum(1)
