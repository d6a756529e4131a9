"""Transformer-XL (Dai et al. 2019): causal blocks that also read the states of the segments before.

    h~     = [SG(h_before) ; h]                                         the memory, through which no gradient flows
    q,k,v  = h W_q, h~ W_k, h~ W_v
    A_ij   = q_i k_j + q_i W_R R_(i-j) + u k_j + v W_R R_(i-j)          positions are distances alone

A stream is cut into segments. `hidden` reads one as if nothing was before it, `remember` with the memory of those
before; `step` reads on token by token, with all that it read as one segment.

Shapes: B batch, N length of a segment, M length of the memory, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import RegardError, require, require_positive, require_share
from regard.layers.adaptive import AdaptiveEmbedding, AdaptiveHead, AdaptiveTables
from regard.layers.attention import SelfAttention
from regard.layers.block import EncoderBlock, Sublayer
from regard.layers.embedding import Embedding, Head, token_table
from regard.layers.feedforward import FeedForward, norm
from regard.layers.memory import empty_memory, held, length_of, remembered, with_memory
from regard.layers.positions import TransformerXLKeys
from regard.models import Sizes
from regard.ops.masks import Mask, causal, same_segment, window
from regard.types import Batch, Sequences, State


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a Transformer-XL."""

    preset: str = key(
        "base", "base or large (the paper's for WikiText-103), small or tiny: the sizes of every key that is not given"
    )
    layers: int = key(16, "blocks")
    model_dim: int = key(410, "width of the token vectors")
    num_heads: int = key(10, "attention heads; model_dim is divided among them")
    ffn_dim: int = key(2100, "inner width of the feed-forward layers")
    activation: Literal["relu", "gelu", "silu", "geglu", "swiglu", "reglu"] = key(
        "relu", "relu, gelu, silu, or gated: geglu, swiglu, reglu"
    )
    norm_first: bool = key(False, "norm before each sublayer; false: after it, as in the paper")
    memory: int = key(150, "states of each layer that the next segment reads; 0: none")
    same_length: bool = key(False, "a token sees as many before it as the memory holds; false: all of its segment too")
    clamp: int = key(0, "distances beyond this one are as this one; 0: all are told apart")
    share_biases: bool = key(True, "the biases u and v are one pair for all layers; false: each has its own")
    cutoffs: tuple[int, ...] = key(
        (), "adaptive embedding and softmax: where bands of rarer tokens begin, as [2000, 10000]"
    )
    shrink: int = key(4, "how many times narrower the vectors of each next band are")
    dropout: float = key(0.1, "dropout of embeddings, sublayers and the last states")
    attention_dropout: float = key(0.0, "dropout of the attention weights")
    activation_dropout: float = key(0.1, "dropout inside the feed-forward layers")
    tie_embeddings: bool = key(True, "embedding and output share their vectors")
    backend: Literal["auto", "reference", "fused"] = key("auto", "which attention backend; auto: the fastest")

    def __post_init__(self) -> None:
        require_positive(self, "layers", "model_dim", "num_heads", "ffn_dim", "shrink")
        require_share(self, "dropout", "attention_dropout", "activation_dropout")
        for name in ("memory", "clamp"):
            require(getattr(self, name) >= 0, f"{name} is too small", got=getattr(self, name), wanted="0 or more")
        heads = f"model_dim ({self.model_dim}) must be divisible by num_heads ({self.num_heads})"
        require(self.model_dim % self.num_heads == 0, heads, got=self.model_dim, wanted=f"{self.num_heads} x width")
        sees = self.memory > 0 or not self.same_length
        require(sees, "a token would see itself alone", got="same_length without memory", wanted="memory of 1 or more")


PRESETS: dict[str, dict[str, object]] = {
    "base": {},
    "large": {
        "layers": 18,
        "model_dim": 1024,
        "num_heads": 16,
        "ffn_dim": 4096,
        "memory": 384,
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "activation_dropout": 0.2,
    },
    "small": {"layers": 6, "model_dim": 256, "num_heads": 8, "ffn_dim": 1024},
    "tiny": {"layers": 4, "model_dim": 128, "num_heads": 4, "ffn_dim": 256, "memory": 64},
}
KINDS = ("causal",)
LAWS = frozenset({"causal", "padding-invariant", "truncates"})


def build(config: Config, sizes: Sizes) -> TransformerXL:
    """A Transformer-XL of this config, with fresh weights."""
    tokens, head = _tables(config, sizes.target)
    model = TransformerXL(
        source=Embedding(tokens, position=None, dropout=config.dropout),
        blocks=[_block(config, keys) for keys in _distances(config)],
        norm=norm("layer", config.model_dim) if config.norm_first else nn.Identity(),
        head=head,
        memory=config.memory,
        same_length=config.same_length,
        dropout=config.dropout,
    )
    for module in model.blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


class TransformerXL(nn.Module):
    """Each token sees those before it in its segment, and the memory; its state predicts the next."""

    def __init__(
        self,
        *,
        source: Embedding,
        blocks: Iterable[EncoderBlock],
        norm: nn.Module,
        head: Head | AdaptiveHead,
        memory: int,
        same_length: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.source, self.norm, self.head, self.dropout = source, norm, head, nn.Dropout(dropout)
        self.blocks: Any = nn.ModuleList(blocks)  # which forgets the types of its modules
        self.memory, self.same_length = memory, same_length

    def hidden(self, batch: Batch) -> Tensor:
        """The states after each token, which predict the next: B x N x D. Texts in one row do not see each other."""
        # no padding in the mask: it stands at the right, where no real token looks
        mask, segments = self._before(self.memory), batch.source.segments
        mask = mask if segments is None else mask & same_segment(segments)
        x = self.source(batch.source.ids)
        for block in self.blocks:
            x = block(x, mask)
        return self._finish(x)

    def empty_memory(self, rows: int, length: int | None = None) -> State:
        """What `remember` begins with: room for `length` states of each layer (as many as the config says)."""
        like = self.blocks[0].attention.norm.weight
        return empty_memory(rows, len(self.blocks), self.memory if length is None else length, like)

    def remember(self, batch: Batch, memory: State) -> tuple[Tensor, State]:
        """The states after each token of a segment, and the memory for the next one of these rows."""
        if batch.source.segments is not None:
            raise RegardError("a segment with memory is one text", got="several texts in a row", wanted="no segments")
        ids, room = batch.source.ids, length_of(memory)
        mask = self._before(room) & held(memory, ids.shape[1])
        x, read = self.source(ids), []
        for i, block in enumerate(self.blocks):
            read.append(with_memory(memory, i, x))
            over = block.attention.norm(read[i]) if block.attention.norm_first else read[i]
            x = block(x, mask, over=over, positions=room)
        return self._finish(x), remembered(memory, read, batch.source.lengths)

    def start(self, source: Sequences, max_length: int) -> State:
        """Room for `max_length` tokens of each row, of which none was read."""
        state = State(torch.zeros_like(source.lengths))
        for i, block in enumerate(self.blocks):
            body = block.attention.body
            cache = body.new_cache(len(source.ids), max_length, body.out.weight)
            state.cache[f"{i}.k"], state.cache[f"{i}.v"] = cache
        return replace(state, timed=frozenset(state.cache))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        hidden, state = self.read(tokens, state)
        return self.head(hidden), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """As `step`, but the states that the head makes logits of: B x n x D."""
        positions = state.position[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        bound = state.bound + tokens.shape[1]
        x, mask = self.source(tokens), self._before(self.memory)
        for i, block in enumerate(self.blocks):
            cache = state.cache[f"{i}.k"], state.cache[f"{i}.v"]
            x = block(x, mask, positions=positions, cache=cache, bound=bound)
        return self._finish(x), state.advance(tokens.shape[1])

    def _before(self, memory: int) -> Mask:
        return causal() & window(memory) if self.same_length else causal()

    def _finish(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]


def _tables(config: Config, size: int) -> tuple[nn.Embedding | AdaptiveEmbedding, Head | AdaptiveHead]:
    """The token vectors and the head that they are compared with.

    They begin small, as the authors' do. Vectors of unit length come through the residuals to the head nearly as they
    are, and a fresh model repeats the token that it just read.
    """
    if not config.cutoffs:
        table = token_table(size, config.model_dim)
        head = Head(config.model_dim, size, table if config.tie_embeddings else None)
        for weight in {table.weight, head.weight}:
            nn.init.normal_(weight, std=0.02)
        return table, head
    bands = AdaptiveTables(size, config.model_dim, config.cutoffs, config.shrink)
    other = bands if config.tie_embeddings else AdaptiveTables(size, config.model_dim, config.cutoffs, config.shrink)
    for weight in [*bands.bands, *other.bands]:
        nn.init.normal_(weight, std=0.02)
    return AdaptiveEmbedding(bands), AdaptiveHead(other)


def _distances(config: Config) -> list[TransformerXLKeys]:
    """The position scheme of each layer; the projection W_R is its own, u and v may be those of the first."""
    found: list[TransformerXLKeys] = []
    for _ in range(config.layers):
        shared = (found[0].content_bias, found[0].position_bias) if found and config.share_biases else None
        keys = TransformerXLKeys(
            config.model_dim,
            config.num_heads,
            biases=shared,
            clamp=config.clamp or None,
            causal=True,
            dropout=config.dropout,
        )
        found.append(keys)
    return found


def _block(config: Config, keys: TransformerXLKeys) -> EncoderBlock:
    attention = SelfAttention(
        config.model_dim,
        config.num_heads,
        bias=False,
        dropout=config.attention_dropout,
        relative=keys,
        backend=config.backend,
    )
    feedforward = FeedForward(
        config.model_dim, config.ffn_dim, activation=config.activation, dropout=config.activation_dropout
    )
    return EncoderBlock(
        attention,
        feedforward,
        lambda body: Sublayer(
            body, norm("layer", config.model_dim), norm_first=config.norm_first, dropout=config.dropout
        ),
    )
