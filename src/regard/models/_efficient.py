"""What the families of efficient attention share: `efficient.py`, which reads a text, and `efficient_causal.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.config import key
from regard.errors import require, require_positive, require_share


@dataclass(frozen=True, kw_only=True)
class Common:
    """The keys of `[model]` that both have."""

    preset: str = key("base", "the keys that are not given")
    attention: Literal["window", "linear", "low-rank"] = key(
        "window", "a sliding window (Longformer), linear attention, or low-rank: a few slots (Linformer)"
    )
    window: tuple[int, ...] = key(
        (256,), "tokens that a window shows to each side, as [256]; or a number for each layer"
    )
    layers: int = key(12, "blocks")
    model_dim: int = key(768, "width of the token vectors")
    num_heads: int = key(12, "attention heads; model_dim is divided among them")
    ffn_dim: int = key(3072, "inner width of the feed-forward layers")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = key("gelu", "gelu, gelu-tanh, relu or silu")
    norm_eps: float = key(1e-5, "what the norms add to the variance")
    max_length: int = key(4096, "how many positions are learned")
    dropout: float = key(0.1, "dropout of embeddings and sublayers")
    attention_dropout: float = key(0.1, "dropout of the attention weights; linear attention has none to drop")
    backend: Literal["auto", "reference", "fused", "flex", "banded"] = key(
        "auto", "which attention backend; auto: the fastest; linear attention has its own"
    )

    def __post_init__(self) -> None:
        require_positive(self, "layers", "model_dim", "num_heads", "ffn_dim", "max_length")
        require_share(self, "dropout", "attention_dropout")
        heads = f"model_dim ({self.model_dim}) must be divisible by num_heads ({self.num_heads})"
        require(self.model_dim % self.num_heads == 0, heads, got=self.model_dim, wanted=f"{self.num_heads} x width")
        require(self.norm_eps > 0, "norm_eps is too small", got=self.norm_eps, wanted="more than 0")
        sizes = f"one number, or one for each of {self.layers} layers"
        require(len(self.window) in (1, self.layers), "windows do not fit the layers", got=self.window, wanted=sizes)
        require(min(self.window) >= 1, "a window is too small", got=self.window, wanted="1 or more to each side")
        kernel = self.attention == "window" or self.backend != "banded"
        require(kernel, "only a window is banded", got=f'attention = "{self.attention}"', wanted='backend = "auto"')

    def window_of(self, layer: int) -> int:
        """How many tokens the window of a layer shows to each side."""
        return self.window[layer % len(self.window)]
