"""Gated convolutions: sequence to sequence (Gehring et al. 2017), a language model (Dauphin et al. 2017), an encoder.

A sequence to sequence model has attention to the source in every decoder block. A language model is a stack of causal
convolutions without positions: it sees layers x (kernel - 1) tokens back, wherever it stands. An encoder is the
source's stack alone, or one layer of several widths side by side (Kim 2014), pooled by an attention of its own. What it
knows of a token may be more than a vector: others for the letters in it, and for the runs of tokens that end there.

The papers' weight normalisation and the scaling of the encoder's gradients are left out: with the scaled
initialisation, clipping and Adam they are not needed.

Shapes: B batch, N length, S source length, T target length, E embedding width, D block width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import key
from regard.errors import RegardError, require, require_positive, require_share
from regard.layers.convolution import GatedConvolution
from regard.layers.embedding import Embedding, Head, token_table
from regard.layers.letters import SpelledTokens
from regard.layers.memory import empty_memory, remembered, with_memory
from regard.layers.ngrams import NgramEmbedding
from regard.layers.output import MaskedHead, real_places
from regard.layers.pooling import AttentionPooling
from regard.layers.positions import Learned
from regard.models import Sizes, refuse_unused, token_tables
from regard.ops.attention import attend
from regard.ops.masks import padding
from regard.types import Batch, Sequences, State

HALF = 0.5**0.5  # keeps the variance of a sum of two


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a convolutional model."""

    preset: str = key("base", "base, lm (a language model) or tiny: the sizes of every key that is not given")
    encoder_layers: int = key(4, "gated convolutions of what reads a text")
    decoder_layers: int = key(4, "gated convolutions of what writes one: a decoder, a language model")
    embedding_dim: int = key(256, "width of the token vectors")
    hidden_dim: int = key(256, "width of the blocks")
    kernel: int = key(3, "how many neighbouring tokens a convolution sees")
    kernels: tuple[int, ...] = key(
        (), "an encoder of one layer with these widths side by side ([3, 4, 5]) in place of encoder_layers of kernel"
    )
    ngrams: int = key(
        0, "an encoder also has vectors for runs of 2 to this many tokens, which runs share by chance; 0: none"
    )
    ngram_rows: int = key(50000, "ngrams: how many vectors for the runs of each length")
    ngram_dim: int = key(64, "ngrams: width of these vectors, beside those of the tokens")
    letters: int = key(
        0, "an encoder's token vectors know the runs of 1 to this many letters in their tokens; 0: they do not"
    )
    dropout: float = key(0.2, "dropout of embeddings and of the input of each convolution")
    max_length: int = key(512, "how many positions are learned; a language model has none")
    tie_embeddings: bool = key(True, "target embedding and output share one weight; with a shared vocabulary all three")

    def __post_init__(self) -> None:
        require_positive(
            self, "encoder_layers", "decoder_layers", "embedding_dim", "hidden_dim", "kernel", "max_length"
        )
        require_positive(self, "ngram_rows", "ngram_dim")
        require(self.letters >= 0, "letters is a length", got=self.letters, wanted="0 (none) or more")
        require(
            self.ngrams == 0 or self.ngrams > 1,
            "ngrams are runs of tokens",
            got=self.ngrams,
            wanted="0 (none), 2 or more",
        )
        require_share(self, "dropout")
        fits = all(width > 0 for width in self.kernels) and self.hidden_dim % max(1, len(self.kernels)) == 0
        wanted = f"widths over 0, as many as divide hidden_dim ({self.hidden_dim})"
        require(fits, "kernels are the widths that share hidden_dim", got=list(self.kernels), wanted=wanted)


PRESETS: dict[str, dict[str, object]] = {
    "base": {},
    "lm": {"decoder_layers": 12, "embedding_dim": 280, "hidden_dim": 512, "kernel": 4, "dropout": 0.3},
    "tiny": {"embedding_dim": 64, "hidden_dim": 64},
}
KINDS = ("seq2seq", "causal", "encoder")
LAWS = frozenset({"causal", "padding-invariant"})
_NGRAMS = ("ngrams", "ngram_rows", "ngram_dim")
_READ_ONLY = (*_NGRAMS, "letters")
_UNUSED: dict[str, tuple[str, ...]] = {
    "seq2seq": ("kernels", *_READ_ONLY),
    "causal": ("encoder_layers", "max_length", "kernels", *_READ_ONLY),
    "encoder": ("decoder_layers",),
}
_UNUSED_BY_WIDTHS = ("encoder_layers", "kernel", "max_length")


def build(
    config: Config, sizes: Sizes, kind: str = "seq2seq"
) -> Convolutional | ConvolutionalLM | ConvolutionalEncoder | WidthsEncoder:
    """A convolutional model of this config and kind, with fresh weights."""
    unused = (*_UNUSED[kind], *(_UNUSED_BY_WIDTHS if config.kernels else ()), *(() if config.ngrams else _NGRAMS))
    refuse_unused(config, kind, unused)
    if kind == "seq2seq":
        return _seq2seq(config, sizes)
    return _causal(config, sizes) if kind == "causal" else _encoder(config, sizes)


def _seq2seq(config: Config, sizes: Sizes) -> Convolutional:
    source_table, target_table, head = token_tables(sizes, config.embedding_dim, tie=config.tie_embeddings)

    return Convolutional(
        source=_placed(config, source_table),
        encoder=_stack(config, config.encoder_layers, causal=False),
        target=_placed(config, target_table),
        decoder=[
            DecoderBlock(convolution, config.hidden_dim, config.embedding_dim)
            for convolution in _stack(config, config.decoder_layers, causal=True)
        ],
        head=head,
        hidden_dim=config.hidden_dim,
        dropout=config.dropout,
    )


def _causal(config: Config, sizes: Sizes) -> ConvolutionalLM:
    table = token_table(sizes.target, config.embedding_dim)
    return ConvolutionalLM(
        source=Embedding(table, position=None, dropout=config.dropout),
        layers=_stack(config, config.decoder_layers, causal=True),
        head=Head(config.embedding_dim, sizes.target, table if config.tie_embeddings else None, bias=True),
        hidden_dim=config.hidden_dim,
        dropout=config.dropout,
    )


def _encoder(config: Config, sizes: Sizes) -> ConvolutionalEncoder | WidthsEncoder:
    table = _table(config, sizes)
    output = table if config.tie_embeddings else token_table(sizes.source, config.embedding_dim)
    if config.kernels:
        return WidthsEncoder(
            source=_embedding(config, table, position=None, scale=False),
            kernels=config.kernels,
            head=MaskedHead(output, dim=config.hidden_dim),
            source_dim=_source_dim(config),
            hidden_dim=config.hidden_dim,
        )
    return ConvolutionalEncoder(
        source=_placed(config, table),
        layers=_stack(config, config.encoder_layers, causal=False),
        head=MaskedHead(output),
        source_dim=_source_dim(config),
        hidden_dim=config.hidden_dim,
        dropout=config.dropout,
    )


def _table(config: Config, sizes: Sizes) -> nn.Embedding:
    if not config.letters:
        return token_table(sizes.source, config.embedding_dim)
    require(
        bool(sizes.pieces),
        "letters need a task that says how tokens are spelled",
        got=f"letters = {config.letters}",
        wanted="classification, tagging or another that reads one text",
    )
    return SpelledTokens(sizes.pieces, config.embedding_dim, longest=config.letters)


def _placed(config: Config, table: nn.Embedding) -> Embedding:
    return _embedding(config, table, position=Learned(config.max_length, config.embedding_dim))


def _embedding(config: Config, table: nn.Embedding, **form: Any) -> Embedding:
    if not config.ngrams:
        return Embedding(table, dropout=config.dropout, **form)
    runs = {"longest": config.ngrams, "rows": config.ngram_rows, "dim": config.ngram_dim}
    return NgramEmbedding(table, dropout=config.dropout, **runs, **form)


def _source_dim(config: Config) -> int:
    """How wide what stands for a token is."""
    return config.embedding_dim + (config.ngram_dim if config.ngrams else 0)


def _stack(config: Config, layers: int, *, causal: bool) -> list[GatedConvolution]:
    shape = (config.hidden_dim, config.kernel)
    return [GatedConvolution(*shape, causal=causal, dropout=config.dropout) for _ in range(layers)]


def _convolve(layers: Iterable[nn.Module], x: Tensor, lengths: Tensor) -> Tensor:
    """Centred convolutions with residuals: B x N x D -> B x N x D."""
    real = real_places(x, lengths).to(x.dtype)
    for layer in layers:
        x = (x + layer(x * real)[0]) * HALF  # padding is zero, as what lies beyond the ends
    return x


def _centred(x: Tensor, kernel: int) -> Tensor:
    """B x D x N with zeros before and after, so that a convolution of this width sits on each place."""
    return F.pad(x, ((kernel - 1) // 2, kernel - 1 - (kernel - 1) // 2))


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

    @property
    def longest(self) -> int | None:
        """How many tokens of a target it can read; None: any number."""
        return self.target.places

    def encode(self, source: Sequences) -> tuple[Tensor, Tensor]:
        """B x S ids -> keys and values of the attention, each B x S x E: z, and z plus the embeddings."""
        embedded = self.source(source.ids)
        keys = self.narrow_source(_convolve(self.encoder, self.widen_source(embedded), source.lengths))
        return keys, (keys + embedded) * HALF

    def hidden(self, batch: Batch) -> Tensor:
        """The states that predict each next target token: B x (T - 1) x E."""
        batch = batch.spread()
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


class ConvolutionalLM(nn.Module):
    """Each token sees those before it that its layers reach; its state predicts the next.

    What it remembers of a text is the last inputs of each layer, and with them it goes on as if it had never paused.
    """

    def __init__(
        self, *, source: Embedding, layers: Sequence[GatedConvolution], head: Head, hidden_dim: int, dropout: float
    ) -> None:
        super().__init__()
        width = source.tokens.embedding_dim
        self.source, self.head, self.dropout = source, head, nn.Dropout(dropout)
        self.widen, self.narrow = nn.Linear(width, hidden_dim), nn.Linear(hidden_dim, width)
        self.layers: Any = nn.ModuleList(layers)

    def hidden(self, batch: Batch) -> Tensor:
        """The states after each token, which predict the next: B x N x E."""
        return self.remember(batch, self.empty_memory(len(batch.source.ids)))[0]

    def empty_memory(self, rows: int) -> State:
        """What `remember` begins with: zeros, as what lies before a text."""
        return empty_memory(rows, len(self.layers), self.layers[0].kernel - 1, self.widen.bias)

    def remember(self, batch: Batch, memory: State) -> tuple[Tensor, State]:
        """The states after each token of a segment, and what the next one of these rows needs of its layers' inputs."""
        if batch.source.segments is not None:
            raise RegardError("a convolutional language model reads one text a row", got="segments", wanted="none")
        x, read = self.widen(self.source(batch.source.ids)), []
        for i, layer in enumerate(self.layers):
            read.append(with_memory(memory, i, x))
            x = (x + layer(x, memory.cache[str(i)])[0]) * HALF
        return self.dropout(self.narrow(x)), remembered(memory, read, batch.source.lengths)

    def start(self, source: Sequences, max_length: int) -> State:
        """An empty memory; it needs no room that grows."""
        return self.empty_memory(len(source.ids))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        hidden, state = self.remember(Batch(Sequences(tokens, torch.full_like(tokens[:, 0], tokens.shape[1]))), state)
        return self.head(hidden), state


class ConvolutionalEncoder(nn.Module):
    """Reads a text with convolutions. Where a row holds several texts they are read as one."""

    def __init__(
        self,
        *,
        source: Embedding,
        layers: Sequence[GatedConvolution],
        head: MaskedHead,
        source_dim: int,
        hidden_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        width = source.tokens.embedding_dim
        self.source, self.layers, self.head = source, nn.ModuleList(layers), head
        self.widen, self.narrow = nn.Linear(source_dim, hidden_dim), nn.Linear(hidden_dim, width)
        self.pooling, self.dropout = AttentionPooling(width), nn.Dropout(dropout)

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x E."""
        x = _convolve(self.layers, self.widen(self.source(batch.source.ids)), batch.source.lengths)
        return self.dropout(self.narrow(x))  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The state of a whole row, which an attention reads from all its places: B x E."""
        return self.pooling(hidden, lengths)  # type: ignore[no-any-return]


class WidthsEncoder(nn.Module):
    """Reads a text with convolutions of several widths side by side: what each finds at a place, one after another.

    The paper's filters: no residual, no positions, and vectors that begin small, so that a word that was hardly ever
    seen says hardly anything. With `pooling = "max"` and dropout of the task this is its classifier.
    """

    def __init__(
        self, *, source: Embedding, kernels: Sequence[int], head: MaskedHead, source_dim: int, hidden_dim: int
    ) -> None:
        super().__init__()
        each = hidden_dim // len(kernels)
        self.source, self.head, self.pooling = source, head, AttentionPooling(hidden_dim)
        # by name and no list: none stands above another, as fine-tuning takes the layers of a list to do
        self.layers = nn.ModuleDict({f"{i}": nn.Conv1d(source_dim, each, width) for i, width in enumerate(kernels)})

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x D."""
        x = self.source(batch.source.ids)
        x = (x * real_places(x, batch.source.lengths)).transpose(1, 2)  # padding is zero, as what lies beyond the ends
        convolutions: Iterable[Any] = self.layers.values()
        wide = [F.relu(layer(_centred(x, layer.kernel_size[0]))) for layer in convolutions]
        return torch.cat(wide, dim=1).transpose(1, 2)

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The state of a whole row, which an attention reads from all its places: B x D."""
        return self.pooling(hidden, lengths)  # type: ignore[no-any-return]
