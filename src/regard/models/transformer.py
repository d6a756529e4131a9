"""The Transformer (Vaswani et al. 2017): encoder, decoder, and the choices that later papers added to it.

Marian and BART are two of its forms: `_marian.py` says which, and exchanges their weights.

Shapes: B batch, S source length, T target length, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import require, require_positive, require_share
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.block import DecoderBlock, EncoderBlock, Sublayer
from regard.layers.copying import Copying
from regard.layers.embedding import Embedding, Head
from regard.layers.feedforward import FeedForward, norm
from regard.layers.positions import (
    AlibiBias,
    Learned,
    Relative,
    Rotary,
    ShawKeys,
    Sinusoidal,
    T5Bias,
    TransformerXLKeys,
)
from regard.models import Sizes, _marian, token_tables
from regard.ops.masks import Mask, causal, padding
from regard.types import Batch, Sequences, State

Position = Literal[
    "sinusoidal", "sinusoidal-halves", "learned", "rotary", "alibi", "t5", "shaw", "transformer-xl", "none"
]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "geglu", "swiglu", "reglu"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a Transformer."""

    preset: str = key("base", "tiny, small, base or big: the sizes of every key that is not given")
    encoder_layers: int = key(6, "blocks of the encoder")
    decoder_layers: int = key(6, "blocks of the decoder")
    model_dim: int = key(512, "width of the token vectors")
    num_heads: int = key(8, "attention heads; model_dim is divided among them")
    num_kv_heads: int = key(0, "key and value heads, for grouped queries; 0: as many as num_heads")
    ffn_dim: int = key(2048, "inner width of the feed-forward layers")
    activation: Activation = key("relu", "relu, gelu, gelu-tanh, silu, or gated: geglu, swiglu, reglu")
    norm: Literal["layer", "rms"] = key("layer", "layer norm or root-mean-square norm")
    norm_first: bool = key(True, "norm before each sublayer (trains more easily); false: after it, as in the paper")
    position: Position = key(
        "sinusoidal", "sinusoidal(-halves), learned, rotary, alibi, t5, shaw, transformer-xl or none"
    )
    max_length: int = key(512, "how many positions are learned; only for position = learned")
    first_position: int = key(0, "rows of the learned positions before that of the first token; BART has 2")
    scale_embeddings: bool = key(True, "token vectors are multiplied by sqrt(model_dim), as in the paper")
    embedding_norm: bool = key(False, "a norm of the embeddings, as in BART")
    dropout: float = key(0.1, "dropout of embeddings and sublayers")
    attention_dropout: float = key(0.0, "dropout of the attention weights")
    activation_dropout: float = key(0.0, "dropout inside the feed-forward layers")
    tie_embeddings: bool = key(True, "target embedding and output share one weight; with a shared vocabulary all three")
    output_bias: bool = key(False, "a bias of each token at the output, as in Marian and BART")
    copy: bool = key(False, "tokens may be copied from the source (See et al. 2017); needs one vocabulary")
    backend: Literal["auto", "reference", "fused", "flex"] = key("auto", "which attention backend; auto: the fastest")

    def __post_init__(self) -> None:
        require_positive(self, "encoder_layers", "decoder_layers", "model_dim", "num_heads", "ffn_dim", "max_length")
        require_share(self, "dropout", "attention_dropout", "activation_dropout")
        require(self.first_position >= 0, "first_position is too small", got=self.first_position, wanted="0 or more")
        heads = f"model_dim ({self.model_dim}) must be divisible by num_heads ({self.num_heads})"
        require(self.model_dim % self.num_heads == 0, heads, got=self.model_dim, wanted=f"{self.num_heads} x width")
        groups = f"num_heads ({self.num_heads}) must be divisible by num_kv_heads ({self.num_kv_heads})"
        fits = self.num_kv_heads >= 0 and (self.num_kv_heads == 0 or self.num_heads % self.num_kv_heads == 0)
        require(fits, groups, got=self.num_kv_heads, wanted="a divisor of num_heads, or 0")
        width = self.model_dim // self.num_heads
        pairs = self.position != "rotary" or width % 2 == 0
        require(pairs, "rotary positions turn pairs", got=f"heads of width {width}", wanted="an even width")


PRESETS = {
    "base": {},
    "tiny": {"encoder_layers": 4, "decoder_layers": 4, "model_dim": 128, "num_heads": 4, "ffn_dim": 256},
    "small": {"encoder_layers": 4, "decoder_layers": 4, "model_dim": 256, "num_heads": 4, "ffn_dim": 1024},
    "big": {"model_dim": 1024, "num_heads": 16, "ffn_dim": 4096, "dropout": 0.3},
}
KINDS = ("seq2seq",)
LAWS = frozenset({"causal", "padding-invariant", "truncates"})
MODEL_TYPES, UNUSED = _marian.MODEL_TYPES, _marian.UNUSED
from_foreign, to_foreign, specials = _marian.from_foreign, _marian.to_foreign, _marian.specials
settle, pairs, copies = _marian.settle, _marian.pairs, _marian.copies


def build(config: Config, sizes: Sizes) -> Transformer:
    """A Transformer of this config, with fresh weights."""
    source_table, target_table, head = token_tables(
        sizes, config.model_dim, tie=config.tie_embeddings, bias=config.output_bias, copy=config.copy
    )
    copying = Copying(config.model_dim, config.model_dim, sizes.target) if config.copy else None
    encoder_blocks = [_encoder_block(config, relative) for relative in _relatives(config, config.encoder_layers, True)]
    decoder_blocks = [_decoder_block(config, relative) for relative in _relatives(config, config.decoder_layers, False)]
    model = (CopyingTransformer if config.copy else Transformer)(
        source=_embedding(config, source_table),
        encoder=Stack(encoder_blocks, norm(config.norm, config.model_dim) if config.norm_first else None),
        target=_embedding(config, target_table),
        decoder=Stack(decoder_blocks, norm(config.norm, config.model_dim) if config.norm_first else None, copying),
        head=head,
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


class Stack(nn.Module):
    """Blocks, the norm that ends them where each block norms its input, and what copies in the end."""

    def __init__(self, blocks: Iterable[nn.Module], norm: nn.Module | None, copying: Copying | None = None) -> None:
        super().__init__()
        self.blocks: Iterable[Any] = nn.ModuleList(blocks)  # which forgets the types of its modules
        self.norm, self.copying = norm, copying

    def finish(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class Transformer(nn.Module):
    """Reads a source with the encoder, writes a target with the decoder."""

    def __init__(self, *, source: Embedding, encoder: Stack, target: Embedding, decoder: Stack, head: Head) -> None:
        super().__init__()
        self.source, self.encoder, self.target, self.decoder, self.head = source, encoder, target, decoder, head

    @property
    def longest(self) -> int | None:
        """How many tokens of a target it can read; None: any number."""
        return self.target.places

    def encode(self, source: Sequences) -> Tensor:
        """B x S ids -> the memory, B x S x D."""
        mask = padding(source.lengths)
        x = self.source(source.ids)
        for block in self.encoder.blocks:
            x = block(x, mask)
        return self.encoder.finish(x)

    def hidden(self, batch: Batch) -> Tensor:
        """The states that predict each next target token: B x (T - 1) x D."""
        assert batch.target is not None
        return self.decode(batch.target.ids[:, :-1], self.encode(batch.source), batch.source.lengths)

    def decode(self, ids: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """B x T ids and a memory with the lengths of its rows -> the states after each of them, B x T x D."""
        # causal alone: padding stands at the right, where no real token looks
        x, mask, memory_mask = self.target(ids), causal(), padding(lengths)
        for block in self.decoder.blocks:
            x = block(x, block.cross.body.project(memory), mask=mask, memory_mask=memory_mask)
        return self.decoder.finish(x)

    def start(self, source: Sequences, max_length: int) -> State:
        """Encodes, projects the memory once for every block, and makes room for `max_length` target tokens."""
        return self.begin(self.encode(source), source, max_length)

    def begin(self, memory: Tensor, source: Sequences, max_length: int) -> State:
        """As `start`, once the source was read."""
        rows = len(source.ids)
        state = State(torch.zeros_like(source.lengths), memory={"lengths": source.lengths})
        for i, block in enumerate(self.decoder.blocks):
            state.memory[f"{i}.k"], state.memory[f"{i}.v"] = block.cross.body.project(memory)
            state.cache[f"{i}.k"], state.cache[f"{i}.v"] = block.attention.body.new_cache(rows, max_length, memory)
        return replace(state, timed=frozenset(state.cache))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        hidden, state = self.read(tokens, state)
        return self.head(hidden), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """As `step`, but the states that the head makes logits of: B x n x D."""
        positions = state.position[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        mask: Mask = causal()
        memory_mask = padding(state.memory["lengths"])
        bound = state.bound + tokens.shape[1]
        x = self.target(tokens, positions, bound)
        for i, block in enumerate(self.decoder.blocks):
            x = block(
                x,
                (state.memory[f"{i}.k"], state.memory[f"{i}.v"]),
                mask=mask,
                memory_mask=memory_mask,
                positions=positions,
                cache=(state.cache[f"{i}.k"], state.cache[f"{i}.v"]),
                bound=bound,
            )
        return self.decoder.finish(x), state.advance(tokens.shape[1])


class CopyingTransformer(Transformer):
    """A Transformer that can also say what stands in its source: its states carry what they would copy."""

    def hidden(self, batch: Batch) -> Tensor:
        """The states that predict each next target token, and what they copy: B x (T - 1) x (D + V)."""
        batch = batch.spread()
        assert batch.target is not None
        assert self.decoder.copying is not None
        copying, memory = self.decoder.copying, self.encode(batch.source)
        states = self.decode(batch.target.ids[:, :-1], memory, batch.source.lengths)
        return copying(states, copying.keys(memory), batch.source)  # type: ignore[no-any-return]

    def begin(self, memory: Tensor, source: Sequences, max_length: int) -> State:
        """As `start`, once the source was read."""
        assert self.decoder.copying is not None
        state = super().begin(memory, source, max_length)
        self.decoder.copying.remember(state, memory, source)
        return state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """As `step`, but what the head makes logits of: B x n x (D + V)."""
        assert self.decoder.copying is not None
        states, after = super().read(tokens, state)
        return self.decoder.copying.recall(states, after), after


def _encoder_block(config: Config, relative: Relative | None) -> EncoderBlock:
    return EncoderBlock(_attention(config, relative), _feedforward(config), lambda body: _sublayer(config, body))


def _decoder_block(config: Config, relative: Relative | None) -> DecoderBlock:
    cross = CrossAttention(
        config.model_dim,
        config.num_heads,
        num_kv_heads=config.num_kv_heads or None,
        dropout=config.attention_dropout,
        backend=config.backend,
    )
    wrap = lambda body: _sublayer(config, body)  # noqa: E731
    return DecoderBlock(_attention(config, relative), cross, _feedforward(config), wrap)


def _attention(config: Config, relative: Relative | None) -> SelfAttention:
    return SelfAttention(
        config.model_dim,
        config.num_heads,
        num_kv_heads=config.num_kv_heads or None,
        dropout=config.attention_dropout,
        relative=relative,
        backend=config.backend,
    )


def _feedforward(config: Config) -> FeedForward:
    return FeedForward(
        config.model_dim, config.ffn_dim, activation=config.activation, dropout=config.activation_dropout
    )


def _sublayer(config: Config, body: nn.Module) -> Sublayer:
    return Sublayer(body, norm(config.norm, config.model_dim), norm_first=config.norm_first, dropout=config.dropout)


def _embedding(config: Config, table: nn.Embedding) -> Embedding:
    return Embedding(
        table,
        position=_absolute(config),
        scale=config.scale_embeddings,
        norm=norm(config.norm, config.model_dim) if config.embedding_norm else None,
        dropout=config.dropout,
    )


def _absolute(config: Config) -> Sinusoidal | Learned | None:
    if config.position == "learned":
        return Learned(config.max_length, config.model_dim, first=config.first_position)
    halves = config.position == "sinusoidal-halves"
    return Sinusoidal(config.model_dim, halves=halves) if halves or config.position == "sinusoidal" else None


def _relatives(config: Config, layers: int, bidirectional: bool) -> list[Relative | None]:
    """The position scheme inside each block's attention; T5's is one for all of them."""
    head_dim = config.model_dim // config.num_heads
    if config.position == "t5":
        return [T5Bias(config.num_heads, bidirectional=bidirectional)] * layers
    if config.position == "rotary":
        return [Rotary() for _ in range(layers)]
    if config.position == "alibi":
        return [AlibiBias(config.num_heads) for _ in range(layers)]
    if config.position == "shaw":
        return [ShawKeys(head_dim) for _ in range(layers)]
    if config.position == "transformer-xl":
        return [TransformerXLKeys(config.model_dim, config.num_heads) for _ in range(layers)]
    return [None] * layers
