"""An end-to-end memory network: a question reads the sentences of a story in several hops (Sukhbaatar et al. 2015).

The segments of a row say which text a token is of: 0 the question, 1 .. n the sentences in their order, below 0 none of
them. A text becomes a vector by position encoding, the sum over its words x_j of l_j * (A x_j), where

    l_kj = (1 - j / J) - (k / D) (1 - 2 j / J)         of word j of J and number k of D, both from 1

and a sentence also has a learned vector of its age: how many sentences came after it. In hop k the state u weighs the
sentences' input vectors m_i = A_k s_i and adds what it reads of their output vectors c_i = C_k s_i:

    p = softmax(u . m_i),   o = sum_i p_i c_i,   u <- u + o

Tables are tied "adjacent", A_k+1 = C_k and the question's B = A_1, or "layer-wise", one A and one C for all hops and
u <- H u + o. A row without segments is a question without a story.

Shapes: B batch, N length, S slots for sentences, D width, T tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import key
from regard.errors import require, require_positive, require_share
from regard.layers.hops import Hop
from regard.layers.output import MaskedHead
from regard.models import Sizes
from regard.types import Batch

STD = 0.1  # of fresh weights


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a memory network."""

    preset: str = key("base", "base or tiny: the sizes of every key that is not given")
    hops: int = key(3, "how often the question reads the story")
    model_dim: int = key(64, "width of the vectors of sentences and question")
    tying: Literal["adjacent", "layer-wise"] = key(
        "adjacent", "adjacent: what a hop writes with, the next one reads with; layer-wise: all hops are one"
    )
    max_sentences: int = key(64, "how far back sentences are told apart by their age; all that are older have one")
    time_noise: float = key(0.1, "share of sentences before which an empty one is thought in training, which ages them")
    linear_steps: int = key(0, "batches at the beginning of training that are read without the softmax; 0: none")
    dropout: float = key(0.0, "dropout of the tokens' vectors")
    tie_embeddings: bool = key(True, "the head that says what was hidden shares the weight of the embedding")

    def __post_init__(self) -> None:
        require_positive(self, "hops", "model_dim", "max_sentences")
        require_share(self, "time_noise", "dropout")
        require(self.linear_steps >= 0, "linear_steps is negative", got=self.linear_steps, wanted="0 or more")


PRESETS: dict[str, dict[str, object]] = {"base": {}, "tiny": {"hops": 2, "model_dim": 16}}
KINDS = ("encoder",)
LAWS = frozenset({"padding-invariant"})


def build(config: Config, sizes: Sizes) -> MemoryNetwork:
    """A memory network of this config, with fresh weights."""
    number, width = (config.hops + 1 if config.tying == "adjacent" else 3), config.model_dim
    table = nn.Embedding(sizes.source, number * width)
    output = table if config.tie_embeddings else nn.Embedding(sizes.source, number * width)
    model = MemoryNetwork(
        source=table,
        times=nn.Embedding(config.max_sentences, number * width),
        hops=nn.ModuleList(Hop(config.linear_steps) for _ in range(config.hops)),
        head=MaskedHead(output, dim=width),
        turn=nn.Linear(width, width, bias=False) if config.tying == "layer-wise" else None,
        time_noise=config.time_noise,
        dropout=config.dropout,
    )
    for weight in (table.weight, output.weight, model.times.weight):
        nn.init.normal_(weight, std=STD)
    return model


class MemoryNetwork(nn.Module):
    """A question that reads a story, one hop after the other."""

    many_texts = True  # it is told of every sentence which one it is, not only of two texts

    def __init__(
        self,
        *,
        source: nn.Embedding,
        times: nn.Embedding,
        hops: nn.ModuleList,
        head: MaskedHead,
        turn: nn.Linear | None,
        time_noise: float,
        dropout: float,
    ) -> None:
        super().__init__()
        # the tables stand side by side: adjacent A_1, C_1 .. C_K; layer-wise B, A, C
        self.source, self.times, self.hops, self.head, self.turn = source, times, hops, head, turn
        self.time_noise, self.dropout = time_noise, nn.Dropout(dropout)
        self.width = head.dense.in_features

    def hidden(self, batch: Batch) -> Tensor:
        """What the question knows after the last hop, at a sentence's tokens plus that sentence's last c: B x N x D."""
        ids, lengths = batch.source.ids, batch.source.lengths
        segments = torch.zeros_like(ids) if batch.source.segments is None else batch.source.segments
        real = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]) & (segments >= 0)
        # a GPU is not asked how many sentences there are: not more than tokens
        slots = max(1, int(segments.max())) if ids.device.type == "cpu" else ids.shape[1]
        texts = torch.where(real, segments, slots + 1)  # the last slot is of no text, and nobody reads it
        vectors, counts = self._vectors(ids, texts, slots + 2)
        question, memory, there = vectors[:, 0], vectors[:, 1:-1], counts[:, 1:-1] > 0
        memory = memory + self.times(self._ages(there)) * there[:, :, None]
        state = self._read(question[:, : self.width], memory, there)
        known = state[:, None] + F.pad(memory[..., -self.width :], (0, 0, 1, 1))
        return known.gather(1, texts[:, :, None].expand(-1, -1, self.width))

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """What the question knows after the last hop, as a row's <s>, which is of no sentence, has it: B x D."""
        return hidden[:, 0]

    def _vectors(self, ids: Tensor, texts: Tensor, slots: int) -> tuple[Tensor, Tensor]:
        """The sum of each text's words, by every table with position encoding (B x slots x TD), and their number."""
        member = texts[:, None] == torch.arange(slots, device=ids.device)[:, None]  # B x slots x N
        counts = member.sum(-1)
        words = self.dropout(self.source(ids))  # B x N x TD
        share = (member.cumsum(-1) / counts.clamp(min=1)[:, :, None]).to(words.dtype)  # j / J
        # l_kj is linear in k: two sums of words, and no l of each word and number
        plain, tilted = member * (1 - share) @ words, member * (1 - 2 * share) @ words
        numbers = torch.arange(1, self.width + 1, device=ids.device, dtype=words.dtype) / self.width
        return plain - numbers.repeat(words.shape[-1] // self.width) * tilted, counts

    def _ages(self, there: Tensor) -> Tensor:
        """How many sentences came after each (B x S); in training some that are none are counted as well."""
        steps = there.long()
        if self.training and self.time_noise:
            steps = steps * (1 + (torch.rand(there.shape, device=there.device) < self.time_noise).long())
        ages = steps.flip(1).cumsum(1).flip(1) - 1
        return ages.clamp(0, self.times.num_embeddings - 1)

    def _read(self, state: Tensor, memory: Tensor, there: Tensor) -> Tensor:
        """What the question knows after the last hop: B x D."""
        tables = memory.split(self.width, dim=-1)
        for k, hop in enumerate(self.hops):
            keys, values = tables[k : k + 2] if self.turn is None else tables[1:]
            read = hop(state, keys, values, there)
            state = (state if self.turn is None else self.turn(state)) + read
        return state
