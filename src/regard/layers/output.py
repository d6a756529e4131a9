"""Heads over hidden states that are more than one matrix, and the place of one that is not there."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import RegardError
from regard.layers.feedforward import ACTIVATIONS, norm
from regard.ops.losses import token_cross_entropy
from regard.types import BRANCHES, Batch, Sequences


class MaskedHead(nn.Module):
    """What stands at a hidden place (Devlin et al.): norm(f(x W + b)) against each token's vector, plus its bias."""

    def __init__(
        self, tokens: nn.Embedding, *, activation: str = "gelu", norm_eps: float = 1e-5, dim: int | None = None
    ) -> None:
        """Of states that are `dim` wide; None: as wide as the tokens."""
        super().__init__()
        self.dense = nn.Linear(dim or tokens.embedding_dim, tokens.embedding_dim)
        self.activation, self.norm = ACTIVATIONS[activation], norm("layer", tokens.embedding_dim, norm_eps)
        self.weight, self.bias = tokens.weight, nn.Parameter(torch.zeros(tokens.num_embeddings))

    def transform(self, hidden: Tensor) -> Tensor:
        """.. x D -> what weight and bias turn into logits."""
        return self.norm(self.activation(self.dense(hidden)))  # type: ignore[no-any-return]

    def forward(self, hidden: Tensor) -> Tensor:
        """.. x D -> .. x V."""
        return F.linear(self.transform(hidden), self.weight, self.bias)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The sum of the cross-entropies of T x D states, without their logits; labels under 0 count nothing."""
        if not hidden.is_cuda:  # few places are hidden: only they are transformed
            hidden, labels = hidden[labels >= 0], labels[labels >= 0]
        return token_cross_entropy(self.transform(hidden), self.weight, labels, smoothing, self.bias)


def last_of(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The state of the last token of each row (of an empty one that of its first place): B x N x D -> B x D.

    >>> last_of(torch.tensor([[[1.0], [2.0], [0.0]]]), torch.tensor([2])).tolist()
    [[2.0]]
    """
    place = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, place)[:, 0]


def mean_of(hidden: Tensor, places: Tensor) -> Tensor:
    """The mean of the states of each row at these places, B x N: B x N x D -> B x D; 0 where there are none.

    >>> mean_of(torch.tensor([[[1.0], [2.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
    [[1.5]]
    """
    return (hidden * places[:, :, None]).sum(1) / places.sum(1, keepdim=True).clamp(min=1).to(hidden.dtype)


def largest_of(hidden: Tensor, places: Tensor) -> Tensor:
    """The largest of the states of each row at these places, B x N, number by number: B x N x D -> B x D."""
    least = torch.finfo(hidden.dtype).min
    return hidden.masked_fill(~places[:, :, None], least).amax(1) * places.any(1, keepdim=True)


def real_places(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Which places of B x N x D states are tokens: B x N x 1."""
    return (torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None])[:, :, None]


def text_places(source: Sequences) -> Tensor:
    """Which places are tokens of the text itself, and neither padding nor what hangs at it: B x N."""
    real = real_places(source.ids[:, :, None], source.lengths)[:, :, 0]
    return real if source.branches is None else real & (source.branches % BRANCHES == 0)


@torch.no_grad()
def width_of(body: Any) -> int:
    """How wide a state is, as the body alone knows it."""
    source, training = Sequences(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2])), body.training
    body.eval()  # dropout would move the random numbers of the training
    width = int(body.hidden(Batch(source)).shape[-1])
    body.train(training)
    return width


class NoHead(nn.Module):
    """Stands for a head that a model has not; `name` is the key of `[model]` that would give it one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, hidden: Tensor) -> Tensor:
        remedy = f"take weights that have it, or train one: model.{self.name} = true"
        raise RegardError("this model has no such head", got=f"{self.name} = false", remedy=remedy)
