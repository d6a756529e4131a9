"""Recurrent sequence to sequence: RNN, LSTM or GRU, with the fixed-length vector, Bahdanau's or Luong's attention.

- attention = "none": the encoder's last state is all that the decoder knows (Cho et al. 2014; Sutskever et al. 2014);
- "additive": before each step the decoder's state asks the encoder's states (Bahdanau et al. 2015);
- "multiplicative": after each step, with input feeding (Luong et al. 2015).

Shapes: B batch, S source length, T target length, D embedding width, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import require, require_positive, require_share
from regard.layers.embedding import Embedding, Head
from regard.layers.recurrent import CELLS, BidirectionalLayer, RecurrentAttention, last_real
from regard.models import Sizes, token_tables
from regard.types import Batch, Sequences, State


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a recurrent model."""

    preset: str = key("base", "tiny or base: the sizes of every key that is not given")
    cell: Literal["rnn", "lstm", "gru"] = key("gru", "rnn, lstm or gru")
    attention: Literal["none", "additive", "multiplicative"] = key(
        "additive", "none (the fixed-length vector), additive (Bahdanau) or multiplicative (Luong)"
    )
    encoder_layers: int = key(1, "bidirectional layers of the encoder")
    decoder_layers: int = key(1, "layers of the decoder")
    embedding_dim: int = key(256, "width of the token vectors")
    hidden_dim: int = key(512, "width of the decoder's state; each direction of the encoder has half of it")
    dropout: float = key(0.3, "dropout of embeddings, between layers and before the output")
    tie_embeddings: bool = key(True, "target embedding and output share one weight; with a shared vocabulary all three")

    def __post_init__(self) -> None:
        require_positive(self, "encoder_layers", "decoder_layers", "embedding_dim", "hidden_dim")
        require(self.hidden_dim % 2 == 0, "hidden_dim is halved", got=self.hidden_dim, wanted="an even number")
        require_share(self, "dropout")


PRESETS: dict[str, dict[str, object]] = {"base": {}, "tiny": {"embedding_dim": 64, "hidden_dim": 128}}
KINDS = ("seq2seq",)
LAWS = frozenset({"causal", "padding-invariant"})


def build(config: Config, sizes: Sizes) -> Recurrent:
    """A recurrent model of this config, with fresh weights."""
    source_table, target_table, head = token_tables(sizes, config.embedding_dim, tie=config.tie_embeddings)
    inputs = [config.embedding_dim, *[config.hidden_dim] * (config.encoder_layers - 1)]

    def embed(table: nn.Embedding) -> Embedding:
        return Embedding(table, position=None, dropout=config.dropout)

    return Recurrent(
        source=embed(source_table),
        encoder=nn.ModuleList(BidirectionalLayer(config.cell, size, config.hidden_dim // 2) for size in inputs),
        target=embed(target_table),
        decoder=Decoder(
            cell=config.cell,
            layers=config.decoder_layers,
            embedding_dim=config.embedding_dim,
            hidden_dim=config.hidden_dim,
            attention=config.attention,
            dropout=config.dropout,
        ),
        head=head,
        dropout=config.dropout,
    )


class Decoder(nn.Module):
    """One step at a time: the layers' cells, what was read from the source, and the output state."""

    def __init__(
        self, *, cell: str, layers: int, embedding_dim: int, hidden_dim: int, attention: str, dropout: float
    ) -> None:
        super().__init__()
        self.cell, self.kind, self.layers = cell, attention, layers
        sizes = [embedding_dim + hidden_dim, *[hidden_dim] * (layers - 1)]
        self.cells = nn.ModuleList(CELLS[cell](size, hidden_dim) for size in sizes)
        self.begin = nn.Linear(hidden_dim, layers * hidden_dim)
        self.attention = (
            None if attention == "none" else RecurrentAttention(attention, hidden_dim, hidden_dim, hidden_dim)
        )
        self.combine = nn.Linear(2 * hidden_dim, hidden_dim)
        self.readout = nn.Linear(hidden_dim + embedding_dim, embedding_dim)
        self.dropout = nn.Dropout(dropout)

    def start(self, memory: Tensor, summary: Tensor, lengths: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What stays as it is for a source, with the first state in it, s_0 = tanh(W summary); and the cache."""
        first = torch.tanh(self.begin(summary)).chunk(self.layers, dim=-1)
        cache = {f"{i}.h": h for i, h in enumerate(first)}
        kept = {"summary": summary, "lengths": lengths, **cache}
        if self.attention is not None:
            kept |= {"states": memory, "keys": self.attention.project(memory)}
        if self.cell == "lstm":
            cache |= {f"{i}.c": torch.zeros_like(h) for i, h in enumerate(first)}  # beginnings of zeros need no memory
        if self.kind == "multiplicative":
            cache["fed"] = torch.zeros_like(summary)
        return kept, cache

    def forward(self, x: Tensor, kept: dict[str, Tensor], cache: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One step: B x D embedded tokens -> the output state B x D, and the cache after it."""
        new: dict[str, Tensor] = {}
        top = f"{self.layers - 1}.h"
        if self.kind == "additive":
            context = self._read(cache[top], kept)
        else:
            context = cache["fed"] if self.kind == "multiplicative" else kept["summary"]
        y = torch.cat([x, context.to(x.dtype)], dim=-1)
        for i, cell in enumerate(self.cells):
            state = (cache[f"{i}.h"], cache[f"{i}.c"]) if self.cell == "lstm" else cache[f"{i}.h"]
            after = cell(y, state)
            new[f"{i}.h"] = after[0] if self.cell == "lstm" else after
            if self.cell == "lstm":
                new[f"{i}.c"] = after[1]
            y = self.dropout(new[f"{i}.h"])
        if self.kind == "multiplicative":
            context = self._read(new[top], kept)
        y = torch.tanh(self.combine(torch.cat([y, context.to(y.dtype)], dim=-1)))
        if self.kind == "multiplicative":
            new["fed"] = y
        return self.dropout(self.readout(torch.cat([y, x], dim=-1))), new

    def _read(self, query: Tensor, kept: dict[str, Tensor]) -> Tensor:
        assert self.attention is not None
        return self.attention(query, kept["keys"], kept["states"], kept["lengths"])  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A bidirectional encoder and a decoder that goes step by step, in training as in decoding."""

    def __init__(
        self,
        *,
        source: Embedding,
        encoder: nn.ModuleList,
        target: Embedding,
        decoder: Decoder,
        head: Head,
        dropout: float,
    ) -> None:
        super().__init__()
        self.source, self.encoder, self.target, self.decoder, self.head = source, encoder, target, decoder, head
        self.dropout = nn.Dropout(dropout)

    def begin(self, source: Sequences) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Reads the source: the states of every place, and a summary of both directions' last ones."""
        x = self.source(source.ids)
        for i, layer in enumerate(self.encoder):
            x = layer(self.dropout(x) if i else x, source.lengths)
        ahead, back = x.chunk(2, dim=-1)
        summary = torch.cat([last_real(ahead, source.lengths), back[:, 0]], dim=-1)
        summary = summary * (source.lengths > 0)[:, None]  # an empty source says nothing
        return self.decoder.start(self.dropout(x), summary, source.lengths)

    def hidden(self, batch: Batch) -> Tensor:
        """The states that predict each next target token: B x (T - 1) x D."""
        assert batch.target is not None
        kept, cache = self.begin(batch.source)
        outputs = []
        for x in self.target(batch.target.ids[:, :-1]).unbind(1):
            output, cache = self.decoder(x, kept, cache)
            outputs.append(output)
        return torch.stack(outputs, dim=1)

    def start(self, source: Sequences, max_length: int) -> State:
        """Reads the source; a recurrent state needs no room that grows."""
        memory, cache = self.begin(source)
        return State(torch.zeros_like(source.lengths), memory=memory, cache=cache)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        outputs, cache = [], state.cache
        for x in self.target(tokens).unbind(1):
            output, cache = self.decoder(x, state.memory, cache)
            outputs.append(output)
        after = state.advance(tokens.shape[1])
        after.cache = cache
        return self.head(torch.stack(outputs, dim=1)), after
