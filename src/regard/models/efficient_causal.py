"""Language models whose attention does not cost the square of the length: a sliding window, or linear attention.

Each is GPT with another attention in its blocks:

- "window" (Beltagy et al. 2020, 4): a token reads those before it that are near, so that a text of n tokens costs n w;
- "linear" (Katharopoulos et al. 2020, 3.3): a recurrent network, whose state is one matrix a head whatever it has read.

Low-rank attention mixes a whole text into its slots, what comes after a token as well: it cannot continue one.

Shapes: B batch, N length, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import require
from regard.layers.block import EncoderBlock, Sublayer
from regard.layers.efficient import LinearAttention, WindowAttention
from regard.layers.embedding import Embedding, Head, token_table
from regard.layers.feedforward import FeedForward, norm
from regard.layers.positions import Learned, Sinusoidal
from regard.models import Sizes
from regard.models._efficient import Common
from regard.models.gpt import GPT, begin
from regard.ops.masks import causal
from regard.types import Sequences, State


@dataclass(frozen=True, kw_only=True)
class Config(Common):
    """The `[model]` section of an efficient language model."""

    preset: str = key("base", "base, linear or tiny: the keys that are not given")
    num_kv_heads: int = key(0, "key and value heads, for grouped queries; 0: as many as num_heads")
    position: Literal["learned", "sinusoidal"] = key("learned", "learned, or sinusoidal: for texts of any length")
    tie_embeddings: bool = key(True, "embedding and output share one weight")

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = "low-rank attention reads a whole text at once, and cannot continue one"
        require(self.attention != "low-rank", whole, got='attention = "low-rank"', wanted='"window" or "linear"')
        groups = f"num_heads ({self.num_heads}) must be divisible by num_kv_heads ({self.num_kv_heads})"
        fits = self.num_kv_heads >= 0 and self.num_heads % (self.num_kv_heads or 1) == 0
        require(fits, groups, got=self.num_kv_heads, wanted="a divisor of num_heads, or 0")


PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "linear": {"attention": "linear"},
    "tiny": {"layers": 4, "model_dim": 128, "num_heads": 4, "ffn_dim": 512, "max_length": 1024, "window": (64,)},
}
KINDS = ("causal",)


def _laws(config: Config) -> frozenset[str]:
    # a window forgets nothing that it could go back to; sums cannot be taken apart again
    laws = frozenset({"causal", "padding-invariant"})
    return laws | {"truncates"} if config.attention == "window" else laws


LAWS = _laws


def build(config: Config, sizes: Sizes) -> EfficientCausal:
    """A language model of this config, with fresh weights."""
    dim = config.model_dim
    table = token_table(sizes.target, dim)
    model = EfficientCausal(
        source=Embedding(
            table,
            position=Learned(config.max_length, dim) if config.position == "learned" else Sinusoidal(dim),
            scale=False,
            dropout=config.dropout,
        ),
        blocks=[_block(config, layer) for layer in range(config.layers)],
        norm=norm("layer", dim, config.norm_eps),
        head=Head(dim, sizes.target, table if config.tie_embeddings else None),
    )
    begin(model, config.layers)
    return model


class EfficientCausal(GPT):
    """GPT's frame: each token sees those before it, or those that are near; its state predicts the next."""

    def start(self, source: Sequences, max_length: int) -> State:
        """A state that has read nothing: windows have room for `max_length` tokens, sums need none."""
        state = State(torch.zeros_like(source.lengths))
        for i, block in enumerate(self.blocks):
            body = block.attention.body
            cache = body.new_cache(len(source.ids), max_length, self.head.weight)
            state.cache |= {f"{i}.{part}": tensor for part, tensor in enumerate(cache)}
        timed = isinstance(body, WindowAttention)
        return replace(state, timed=frozenset(state.cache) if timed else frozenset())

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the states after each of them, B x n x D, and the state that remembers them."""
        positions = state.position[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
        bound = state.bound + tokens.shape[1]
        # what the layers write into is the new state's; only a timed cache may be written in place
        caches = {name: cache if name in state.timed else cache.clone() for name, cache in state.cache.items()}
        x = self.source(tokens, positions, bound)
        for i, block in enumerate(self.blocks):
            if state.timed:
                cache = caches[f"{i}.0"], caches[f"{i}.1"]
                x = block(x, causal(), positions=positions, cache=cache, bound=bound)
            else:
                x = block(x, causal(), cache=(caches[f"{i}.0"],))
        return self.norm(x), replace(state.advance(tokens.shape[1]), cache=caches)


def _block(config: Config, layer: int) -> EncoderBlock:
    dim, kv_heads = config.model_dim, config.num_kv_heads or None
    attention: nn.Module
    if config.attention == "window":
        attention = WindowAttention(
            dim,
            config.num_heads,
            reach=config.window_of(layer),
            num_kv_heads=kv_heads,
            dropout=config.attention_dropout,
            backend=config.backend,
        )
    else:
        attention = LinearAttention(dim, config.num_heads, num_kv_heads=kv_heads)

    def wrap(body: nn.Module) -> Sublayer:
        return Sublayer(body, norm("layer", dim, config.norm_eps), norm_first=True, dropout=config.dropout)

    return EncoderBlock(attention, FeedForward(dim, config.ffn_dim, activation=config.activation), wrap)
