"""Gated convolutional sequence to sequence with attention in every decoder block (Gehring et al. 2017).

The paper's weight normalisation and its scaling of the encoder's gradients are left out: with its scaled
initialisation, clipping and Adam they are not needed.

Shapes: B batch, S source length, T target length, E embedding width, D block width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import require_positive, require_share
from regard.layers.convolution import GatedConvolution
from regard.layers.embedding import Embedding, Head
from regard.layers.positions import Learned
from regard.models import Sizes, token_tables
from regard.ops.attention import attend
from regard.ops.masks import padding
from regard.types import Batch, Sequences, State

HALF = 0.5**0.5  # keeps the variance of a sum of two


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a convolutional model."""

    preset: str = key("base", "tiny or base: the sizes of every key that is not given")
    encoder_layers: int = key(4, "gated convolutions of the encoder")
    decoder_layers: int = key(4, "gated convolutions of the decoder, each with attention")
    embedding_dim: int = key(256, "width of the token vectors")
    hidden_dim: int = key(256, "width of the blocks")
    kernel: int = key(3, "how many neighbouring tokens a convolution sees")
    dropout: float = key(0.2, "dropout of embeddings and of the input of each convolution")
    max_length: int = key(512, "how many positions are learned")
    tie_embeddings: bool = key(True, "target embedding and output share one weight; with a shared vocabulary all three")

    def __post_init__(self) -> None:
        require_positive(
            self, "encoder_layers", "decoder_layers", "embedding_dim", "hidden_dim", "kernel", "max_length"
        )
        require_share(self, "dropout")


PRESETS: dict[str, dict[str, object]] = {"base": {}, "tiny": {"embedding_dim": 64, "hidden_dim": 64}}
KINDS = ("seq2seq",)
LAWS = frozenset({"causal", "padding-invariant"})


def build(config: Config, sizes: Sizes) -> Convolutional:
    """A convolutional model of this config, with fresh weights."""
    source_table, target_table, head = token_tables(sizes, config.embedding_dim, tie=config.tie_embeddings)

    def embed(table: nn.Embedding) -> Embedding:
        return Embedding(table, position=Learned(config.max_length, config.embedding_dim), dropout=config.dropout)

    def convolution(causal: bool) -> GatedConvolution:
        return GatedConvolution(config.hidden_dim, config.kernel, causal=causal, dropout=config.dropout)

    return Convolutional(
        source=embed(source_table),
        encoder=[convolution(causal=False) for _ in range(config.encoder_layers)],
        target=embed(target_table),
        decoder=[
            DecoderBlock(convolution(causal=True), config.hidden_dim, config.embedding_dim)
            for _ in range(config.decoder_layers)
        ],
        head=head,
        hidden_dim=config.hidden_dim,
        dropout=config.dropout,
    )


class DecoderBlock(nn.Module):
    """A causal gated convolution, then one head of attention to the source, both with a residual."""

    attends = "cross"

    def __init__(self, convolution: GatedConvolution, hidden_dim: int, embedding_dim: int) -> None:
        super().__init__()
        self.convolution = convolution
        self.query = nn.Linear(hidden_dim, embedding_dim)
        self.read = nn.Linear(embedding_dim, hidden_dim)

    def forward(
        self, x: Tensor, embedded: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, before: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """B x T x D -> B x T x D, and the inputs that the next step's convolution needs."""
        y, last = self.convolution(x, before)
        # the query is the state and the token that it was made for, as the paper's (1)
        query = (self.query(y) + embedded) * HALF
        heads = (x[:, None] for x in (query, keys, values))  # one head
        context = attend(*heads, mask=padding(lengths), scale=1.0, projection=self.read.weight)[:, 0]
        # m equal weights would shrink the variance of the sum to 1/m: the paper scales it back by m sqrt(1/m)
        real = lengths.clamp(min=1).to(context.dtype).sqrt()[:, None, None]
        y = (y + self.read(context * real)) * HALF
        return (x + y) * HALF, last


class Convolutional(nn.Module):
    """Reads and writes with convolutions; every decoder block looks at the whole source."""

    def __init__(
        self,
        *,
        source: Embedding,
        encoder: list[GatedConvolution],
        target: Embedding,
        decoder: list[DecoderBlock],
        head: Head,
        hidden_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        width = source.tokens.embedding_dim
        self.source, self.target, self.head = source, target, head
        self.widen_source, self.narrow_source = nn.Linear(width, hidden_dim), nn.Linear(hidden_dim, width)
        self.widen_target, self.narrow_target = nn.Linear(width, hidden_dim), nn.Linear(hidden_dim, width)
        self.encoder = nn.ModuleList(encoder)
        self.decoder: Iterable[Any] = nn.ModuleList(decoder)  # which forgets the types of its modules
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Sequences) -> tuple[Tensor, Tensor]:
        """B x S ids -> keys and values of the attention, each B x S x E: z, and z plus the embeddings."""
        embedded = self.source(source.ids)
        places = torch.arange(embedded.shape[1], device=embedded.device)
        real = (places < source.lengths[:, None])[:, :, None].to(embedded.dtype)
        x = self.widen_source(embedded)
        for layer in self.encoder:
            x = (x + layer(x * real)[0]) * HALF  # padding is zero, as what lies beyond the ends
        keys = self.narrow_source(x)
        return keys, (keys + embedded) * HALF

    def hidden(self, batch: Batch) -> Tensor:
        """The states that predict each next target token: B x (T - 1) x E."""
        assert batch.target is not None
        keys, values = self.encode(batch.source)
        embedded = self.target(batch.target.ids[:, :-1])
        x = self.widen_target(embedded)
        for block in self.decoder:
            x, _ = block(x, embedded, keys, values, batch.source.lengths)
        return self.dropout(self.narrow_target(x))  # type: ignore[no-any-return]

    def start(self, source: Sequences, max_length: int) -> State:
        """Encodes; each block's cache holds the inputs that its next convolution still sees."""
        keys, values = self.encode(source)
        state = State(torch.zeros_like(source.lengths))
        state.memory = {"keys": keys, "values": values, "lengths": source.lengths}
        for i, block in enumerate(self.decoder):
            convolution = block.convolution
            shape = (len(keys), convolution.kernel - 1, convolution.convolution.in_channels)
            state.cache[f"{i}"] = keys.new_zeros(shape)
        return state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        positions = state.position[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.target(tokens, positions, state.bound + tokens.shape[1])
        x, cache = self.widen_target(embedded), dict(state.cache)
        kept = (state.memory["keys"], state.memory["values"], state.memory["lengths"])
        for i, block in enumerate(self.decoder):
            x, cache[f"{i}"] = block(x, embedded, *kept, before=state.cache[f"{i}"])
        return self.head(self.narrow_target(x)), replace(state.advance(tokens.shape[1]), cache=cache)
