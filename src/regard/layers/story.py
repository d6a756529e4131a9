"""The answer to a question about a story: an encoder of both, and a linear layer over what it read.

Shapes: B batch, N length of a row `<s> sentence </s> .. </s> question </s>`, D model width.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.layers.classifier import Classifier
from regard.types import Batch, Sequences


class StoryReader(Classifier):
    """A classifier that tells its encoder which sentence each token is of, or only what is story and what question."""

    def __init__(self, body: Any, *, end: int, **words: Any) -> None:
        super().__init__(body, **words)
        self.end = end

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x D."""
        texts = sentence_numbers(batch.source, self.end)
        segments = texts if has_hops(self) else (texts > 0).long()
        return super().hidden(replace(batch, source=replace(batch.source, segments=segments)))


def has_hops(model: Classifier) -> bool:
    """Whether the encoder reads whole sentences, hop by hop."""
    return bool(getattr(model.body, "many_texts", False))


def sentence_numbers(source: Sequences, end: int) -> Tensor:
    """0 for the question, 1 .. n for the sentences before it, -1 for <s>, </s> and what pads a row: B x N.

    >>> row = Sequences(torch.tensor([[2, 7, 7, 3, 8, 3, 9, 3, 0]]), torch.tensor([8]))
    >>> sentence_numbers(row, end=3).tolist()
    [[-1, 1, 1, -1, 2, -1, 0, -1, -1]]
    """
    places = torch.arange(source.ids.shape[1], device=source.ids.device)
    ends = (source.ids == end) & (places < source.lengths[:, None])
    before = ends.cumsum(1)
    last = ends.sum(1, keepdim=True) - 1
    words = ~ends & (places > 0) & (before <= last)
    return torch.where(before == last, 0, before + 1).masked_fill(~words, -1)
