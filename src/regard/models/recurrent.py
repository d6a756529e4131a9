"""Recurrent models: RNN, LSTM or GRU, as sequence to sequence, as a language model and as an encoder.

A sequence to sequence model reads its source both ways; what its decoder knows of that:

- attention = "none": the encoder's last state is all (Cho et al. 2014; Sutskever et al. 2014);
- "additive": before each step the decoder's state asks the encoder's states (Bahdanau et al. 2015);
- "multiplicative": after each step, with input feeding (Luong et al. 2015).

A language model is the decoder's layers alone, from a state to a state (Zaremba et al. 2014), regularised as in Merity
et al. 2018 if asked. An encoder is the source's layers alone, pooled by an attention of its own.

Shapes: B batch, N length, S source length, T target length, D embedding width, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import RegardError, require, require_positive, require_share
from regard.layers.copying import Copying
from regard.layers.dropout import LockedDropout
from regard.layers.embedding import Embedding, Head, token_table
from regard.layers.output import MaskedHead, last_of
from regard.layers.pooling import AttentionPooling
from regard.layers.recurrent import (
    LAYERS,
    STATES,
    BidirectionalLayer,
    RecurrentDecoder,
    RecurrentEmbedding,
    recur,
)
from regard.models import Sizes, refuse_unused, token_tables
from regard.types import Batch, Sequences, State


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a recurrent model."""

    preset: str = key(
        "base",
        "base, lm or awd (language models of their papers' sizes) or tiny: the sizes of every key that is not given",
    )
    cell: Literal["rnn", "lstm", "gru"] = key("gru", "rnn, lstm or gru")
    attention: Literal["none", "additive", "multiplicative"] = key(
        "additive",
        "of a decoder to its source: none (the fixed-length vector), additive (Bahdanau) or multiplicative (Luong)",
    )
    encoder_layers: int = key(1, "bidirectional layers of what reads a text")
    decoder_layers: int = key(1, "layers of what writes one: a decoder, a language model")
    embedding_dim: int = key(256, "width of the token vectors")
    hidden_dim: int = key(512, "width of the states; each direction of an encoder has half of it")
    dropout: float = key(0.3, "dropout of embeddings, between layers and before the output")
    locked_dropout: bool = key(False, "this dropout is the same at every place; not of a decoder with a source")
    weight_dropout: float = key(0.0, "dropout of the weights from step to step; not of a decoder with a source")
    word_dropout: float = key(0.0, "dropout of whole tokens; not of a decoder with a source")
    tie_embeddings: bool = key(True, "target embedding and output share one weight; with a shared vocabulary all three")
    copy: bool = key(False, "tokens may be copied from the source (See et al. 2017); needs one vocabulary, attention")

    def __post_init__(self) -> None:
        require_positive(self, "encoder_layers", "decoder_layers", "embedding_dim", "hidden_dim")
        require(self.hidden_dim % 2 == 0, "hidden_dim is halved", got=self.hidden_dim, wanted="an even number")
        require_share(self, "dropout", "weight_dropout", "word_dropout")
        knows = not self.copy or self.attention != "none"
        require(knows, "who copies looks at its source", got='attention = "none"', wanted="additive, multiplicative")


_LSTM = {"cell": "lstm", "decoder_layers": 2, "embedding_dim": 650, "hidden_dim": 650, "dropout": 0.5}
_AWD = {"cell": "lstm", "decoder_layers": 3, "embedding_dim": 400, "hidden_dim": 960, "dropout": 0.4}
PRESETS: dict[str, dict[str, object]] = {
    "base": {},
    "lm": _LSTM,  # the medium one of Zaremba et al.
    # as large as AWD-LSTM, whose last layer is narrow where this one has a projection
    "awd": _AWD | {"locked_dropout": True, "weight_dropout": 0.5, "word_dropout": 0.1},
    "tiny": {"embedding_dim": 64, "hidden_dim": 128},
}
KINDS = ("seq2seq", "causal", "encoder")
LAWS = frozenset({"causal", "padding-invariant"})
_UNUSED = {
    "seq2seq": ("locked_dropout", "weight_dropout", "word_dropout"),
    "causal": ("attention", "encoder_layers", "copy"),
    "encoder": ("attention", "decoder_layers", "copy"),
}


def build(config: Config, sizes: Sizes, kind: str = "seq2seq") -> Recurrent | RecurrentLM | RecurrentEncoder:
    """A recurrent model of this config and kind, with fresh weights."""
    refuse_unused(config, kind, _UNUSED[kind])
    if kind == "seq2seq":
        return _seq2seq(config, sizes)
    return _causal(config, sizes) if kind == "causal" else _encoder(config, sizes)


def _seq2seq(config: Config, sizes: Sizes) -> Recurrent:
    source_table, target_table, head = token_tables(
        sizes, config.embedding_dim, tie=config.tie_embeddings, copy=config.copy
    )
    copying = Copying(config.embedding_dim, config.hidden_dim, sizes.target) if config.copy else None

    def embed(table: nn.Embedding) -> Embedding:
        return Embedding(table, position=None, dropout=config.dropout)

    return Recurrent(
        source=embed(source_table),
        encoder=_bidirectional(config),
        target=embed(target_table),
        decoder=RecurrentDecoder(
            cell=config.cell,
            layers=config.decoder_layers,
            embedding_dim=config.embedding_dim,
            hidden_dim=config.hidden_dim,
            attention=config.attention,
            dropout=config.dropout,
            copying=copying,
        ),
        head=head,
        dropout=config.dropout,
    )


def _causal(config: Config, sizes: Sizes) -> RecurrentLM:
    table, width = token_table(sizes.target, config.embedding_dim), config.hidden_dim
    inputs = [config.embedding_dim, *[width] * (config.decoder_layers - 1)]
    # a head that is tied is as wide as the tokens; one of its own takes the states as they are
    narrow = config.tie_embeddings and width != config.embedding_dim
    return RecurrentLM(
        source=RecurrentEmbedding(table, _dropout(config), config.word_dropout),
        layers=[LAYERS[config.cell](size, width, batch_first=True) for size in inputs],
        projection=nn.Linear(width, config.embedding_dim) if narrow else nn.Identity(),
        head=Head(width, sizes.target, table if config.tie_embeddings else None, bias=True),
        states=STATES[config.cell],
        dropout=_dropout(config),
        weight_dropout=config.weight_dropout,
    )


def _encoder(config: Config, sizes: Sizes) -> RecurrentEncoder:
    table = token_table(sizes.source, config.embedding_dim)
    output = table if config.tie_embeddings else token_table(sizes.source, config.embedding_dim)
    return RecurrentEncoder(
        source=RecurrentEmbedding(table, _dropout(config), config.word_dropout),
        layers=_bidirectional(config),
        head=MaskedHead(output, dim=config.hidden_dim),
        pooling=AttentionPooling(config.hidden_dim),
        dropout=_dropout(config),
    )


def _bidirectional(config: Config) -> nn.ModuleList:
    inputs = [config.embedding_dim, *[config.hidden_dim] * (config.encoder_layers - 1)]
    width, dropped = config.hidden_dim // 2, config.weight_dropout
    return nn.ModuleList(BidirectionalLayer(config.cell, size, width, weight_dropout=dropped) for size in inputs)


def _dropout(config: Config) -> nn.Module:
    return LockedDropout(config.dropout) if config.locked_dropout else nn.Dropout(config.dropout)


# --- sequence to sequence ---------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A bidirectional encoder and a decoder that goes step by step, in training as in decoding."""

    def __init__(
        self,
        *,
        source: Embedding,
        encoder: nn.ModuleList,
        target: Embedding,
        decoder: RecurrentDecoder,
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
        summary = torch.cat([last_of(ahead, source.lengths), back[:, 0]], dim=-1)
        summary = summary * (source.lengths > 0)[:, None]  # an empty source says nothing
        return self.decoder.start(self.dropout(x), summary, source.lengths)

    def hidden(self, batch: Batch) -> Tensor:
        """The states that predict each next target token: B x (T - 1) x D."""
        batch = batch.spread()
        assert batch.target is not None
        kept, cache = self.begin(batch.source)
        outputs = []
        for x in self.target(batch.target.ids[:, :-1]).unbind(1):
            output, cache = self.decoder(x, kept, cache)
            outputs.append(output)
        states, copying = torch.stack(outputs, dim=1), self.decoder.copying
        return states if copying is None else copying(states, copying.keys(kept["states"]), batch.source)

    def start(self, source: Sequences, max_length: int) -> State:
        """Reads the source; a recurrent state needs no room that grows."""
        memory, cache = self.begin(source)
        state = State(torch.zeros_like(source.lengths), memory=memory, cache=cache)
        if self.decoder.copying is not None:
            self.decoder.copying.remember(state, memory["states"], source)
        return state

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        outputs, cache = [], state.cache
        for x in self.target(tokens).unbind(1):
            output, cache = self.decoder(x, state.memory, cache)
            outputs.append(output)
        after = state.advance(tokens.shape[1])
        after.cache = cache
        states, copying = torch.stack(outputs, dim=1), self.decoder.copying
        return self.head(states if copying is None else copying.recall(states, after)), after


# --- one text ---------------------------------------------------------------------------------------------------------


class RecurrentLM(nn.Module):
    """Reads on and on; its last state predicts the next token, and its states are all that it remembers."""

    def __init__(
        self,
        *,
        source: RecurrentEmbedding,
        layers: Iterable[nn.RNNBase],
        projection: nn.Module,
        head: Head,
        states: str,
        dropout: nn.Module,
        weight_dropout: float,
    ) -> None:
        super().__init__()
        self.source, self.projection, self.head, self.dropout = source, projection, head, dropout
        self.layers: Any = nn.ModuleList(layers)  # which forgets the types of its modules
        self.states, self.weight_dropout = states, weight_dropout

    def hidden(self, batch: Batch) -> Tensor:
        """The states after each token, which predict the next: B x N x D (H where the head is not tied)."""
        _one_text(batch.source)
        return self._read(batch.source.ids, self.empty_memory(len(batch.source.ids)).cache)[0]

    def empty_memory(self, rows: int) -> State:
        """What `remember` begins with: states of zeros."""
        like = self.layers[0].weight_hh_l0
        shape = (rows, self.layers[0].hidden_size)
        cache = {f"{i}.{part}": like.new_zeros(shape) for i in range(len(self.layers)) for part in self.states}
        return State(torch.zeros(rows, dtype=torch.long, device=like.device), cache=cache)

    def remember(self, batch: Batch, memory: State) -> tuple[Tensor, State]:
        """The states after each token of a segment, and those of the layers, with which the next one goes on."""
        _one_text(batch.source)
        ids, lengths = batch.source.ids, batch.source.lengths
        # a batch that says that it is full, as all of a long text are but the last, need not go step by step
        full = batch.num_tokens == ids.numel()
        hidden, cache = self._read(ids, memory.cache, None if full else lengths)
        kept = {name: tensor.detach() for name, tensor in cache.items()}
        bound = memory.bound + ids.shape[1]
        return hidden, replace(memory, position=memory.position + lengths, cache=kept, bound=bound)

    def start(self, source: Sequences, max_length: int) -> State:
        """States of zeros; they need no room that grows."""
        return self.empty_memory(len(source.ids))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        hidden, cache = self._read(tokens, state.cache)
        return self.head(hidden), replace(state.advance(tokens.shape[1]), cache=cache)

    def _read(
        self, ids: Tensor, cache: dict[str, Tensor], lengths: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x, new = self.source(ids), dict[str, Tensor]()
        for i, layer in enumerate(self.layers):
            names = [f"{i}.{part}" for part in self.states]
            before = tuple(cache[name] for name in names)
            x, after = recur(layer, x, before, lengths=lengths, weight_dropout=self.weight_dropout)
            x, new = self.dropout(x), new | dict(zip(names, after, strict=True))
        return self.projection(x), new


class RecurrentEncoder(nn.Module):
    """Reads a text both ways. Where a row holds several texts they are read as one."""

    def __init__(
        self,
        *,
        source: RecurrentEmbedding,
        layers: nn.ModuleList,
        head: MaskedHead,
        pooling: AttentionPooling,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.source, self.layers, self.head, self.pooling, self.dropout = source, layers, head, pooling, dropout

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token, both directions side by side: B x N x H."""
        x = self.source(batch.source.ids)
        for layer in self.layers:
            x = self.dropout(layer(x, batch.source.lengths))
        return x  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The state of a whole row, which an attention reads from all its places: B x H."""
        return self.pooling(hidden, lengths)  # type: ignore[no-any-return]


def _one_text(source: Sequences) -> None:
    if source.segments is not None:
        raise RegardError("a recurrent language model reads one text a row", got="segments", wanted="none")
