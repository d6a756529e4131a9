"""Encoders whose attention does not cost the square of the length: Longformer, linear attention, Linformer.

Each is BERT's encoder with another attention in its blocks:

- "window" (Longformer, Beltagy et al. 2020): a token reads its neighbours; the first ones read all, and all read them;
- "linear" (Katharopoulos et al. 2020): phi(q) (sum phi(k) v^T) / phi(q) (sum phi(k)), with phi = elu + 1;
- "low-rank" (Linformer, Wang et al. 2020): softmax(q (E k)^T) F v, where E and F mix the whole text into a few slots.

Shapes: B batch, N length, D model width, V vocabulary, R slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn

from regard.config import key, read_section
from regard.errors import require, require_positive
from regard.layers.block import EncoderBlock, Sublayer
from regard.layers.efficient import LinearAttention, LowRankAttention, WindowAttention
from regard.layers.feedforward import FeedForward, norm
from regard.layers.output import MaskedHead, NoHead
from regard.layers.positions import Learned
from regard.models import Sizes, _foreign
from regard.models._efficient import Common
from regard.models._foreign import Pair, known, linear, same
from regard.models.bert import Bert, Embedding, begin
from regard.types import Specials


@dataclass(frozen=True, kw_only=True)
class Config(Common):
    """The `[model]` section of an efficient encoder."""

    preset: str = key("longformer", "longformer, longformer-large, linear, linformer or tiny: the keys not given")
    global_tokens: int = key(1, "how many tokens, from the first on, see all and are seen by all; for windows")
    global_projections: bool = key(True, "global tokens read by projections of their own; for windows")
    rank: int = key(256, "slots that a text is mixed into; for low-rank attention")
    sharing: Literal["heads", "keys-values", "layers"] = key(
        "heads", "low-rank mixtures are one for all heads; also for keys and values; or also for all layers"
    )
    first_position: int = key(1, "where positions start in their table: behind the id of the padding")
    segment_kinds: int = key(1, "how many texts of a row are told apart; 1: none")
    masked_head: bool = key(True, "a head that says what stands at a hidden place")
    pooler: bool = key(False, "a layer over the first token's state, for whole rows; false: that state as it is")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "rank", "segment_kinds")
        for name in ("global_tokens", "first_position"):
            require(getattr(self, name) >= 0, f"{name} is too small", got=getattr(self, name), wanted="0 or more")


PRESETS: dict[str, dict[str, Any]] = {
    "longformer": {},
    "longformer-large": {"layers": 24, "model_dim": 1024, "num_heads": 16, "ffn_dim": 4096},
    "linear": {"attention": "linear"},
    "linformer": {"attention": "low-rank", "max_length": 512, "rank": 128},
    "tiny": {"layers": 2, "model_dim": 128, "num_heads": 4, "ffn_dim": 512, "window": (32,), "rank": 32},
}
KINDS = ("encoder",)
LAWS = frozenset({"padding-invariant"})


def build(config: Config, sizes: Sizes) -> Efficient:
    """An encoder of this config, with fresh weights."""
    dim = config.model_dim
    tokens = nn.Embedding(sizes.source, dim)
    attentions = {"window": _windows, "linear": _linear, "low-rank": _low_rank}[config.attention](config)
    model = Efficient(
        source=Embedding(
            tokens,
            segments=nn.Embedding(config.segment_kinds, dim),
            positions=Learned(config.max_length, dim, first=config.first_position),
            norm=norm("layer", dim, config.norm_eps),
            dropout=config.dropout,
        ),
        blocks=nn.ModuleList(_block(config, attention) for attention in attentions),
        head=_head(config, tokens),
        pooler=nn.Sequential(nn.Linear(dim, dim), nn.Tanh()) if config.pooler else nn.Identity(),
        next_sentence=NoHead("next_sentence"),
    )
    begin(model)
    return model


class Efficient(Bert):
    """BERT's frame: it reads texts from both sides, by attention that is cheaper."""

    reads_branches = False


def _windows(config: Config) -> Iterator[nn.Module]:
    for layer in range(config.layers):
        yield WindowAttention(
            config.model_dim,
            config.num_heads,
            reach=config.window_of(layer),
            first=config.global_tokens,
            separate=config.global_projections,
            dropout=config.attention_dropout,
            backend=config.backend,
        )


def _linear(config: Config) -> Iterator[nn.Module]:
    for _ in range(config.layers):
        yield LinearAttention(config.model_dim, config.num_heads)


def _low_rank(config: Config) -> Iterator[nn.Module]:
    def new() -> nn.Parameter:
        return nn.Parameter(torch.randn(config.rank, config.max_length) * config.max_length**-0.5)

    shared = new() if config.sharing == "layers" else None
    for _ in range(config.layers):
        keys = new() if shared is None else shared
        mix = keys, new() if config.sharing == "heads" else keys
        yield LowRankAttention(
            config.model_dim, config.num_heads, mix=mix, dropout=config.attention_dropout, backend=config.backend
        )


def _block(config: Config, attention: nn.Module) -> EncoderBlock:
    def wrap(body: nn.Module) -> Sublayer:
        return Sublayer(
            body, norm("layer", config.model_dim, config.norm_eps), norm_first=False, dropout=config.dropout
        )

    return EncoderBlock(attention, FeedForward(config.model_dim, config.ffn_dim, activation=config.activation), wrap)


def _head(config: Config, tokens: nn.Embedding) -> nn.Module:
    if not config.masked_head:
        return NoHead("masked_head")
    return MaskedHead(tokens, activation="gelu", norm_eps=config.norm_eps)


# --- the weights of transformers' Longformer --------------------------------------------------------------------------

MODEL_TYPES = ("longformer",)
UNUSED = ("position_ids",)  # a counter in older files
_KEYS = {
    "layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "norm_eps": "layer_norm_eps",
    "segment_kinds": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
_USUAL = {"norm_eps": 1e-12, "segment_kinds": 2}  # where theirs does not say one and means another than ours
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
_ACTIVATIONS |= {"relu": "relu", "silu": "silu"}
_PARTS = {"LongformerModel": (False, True), "LongformerForMaskedLM": (True, False)}  # masked_head, pooler
_ONLY: dict[str, object] = {"is_decoder": False, "tie_word_embeddings": True, "auto_map": None}


def from_foreign(config: dict[str, Any]) -> tuple[Config, Sizes]:
    """Our config for their config.json. It says of no token that it is global: that is a key of ours, or none is."""
    said = {name: value for name, value in config.items() if value not in (None, [], {})}
    known(said, "model_type", {"longformer": ""}, None)
    for only, value in _ONLY.items():
        known(said, only, {value: value}, value)
    architecture = said.get("architectures", ["LongformerModel"])[0]
    masked_head, pooler = known({"architectures": architecture}, "architectures", _PARTS, None)
    first, both_sides = said.get("pad_token_id", 1) + 1, said.get("attention_window", 512)
    both_sides = both_sides if isinstance(both_sides, list) else [both_sides]
    even = all(size % 2 == 0 for size in both_sides)
    require(even, "a window has two equal sides", got=f"attention_window {both_sides}", wanted="even numbers")
    windows = [size // 2 for size in both_sides]
    table = {
        **_USUAL,
        **{ours: said[theirs] for ours, theirs in _KEYS.items() if theirs in said},
        "window": windows if len(set(windows)) > 1 else windows[:1],
        "global_tokens": said.get("global_tokens", 0),
        "activation": known(said, "hidden_act", _ACTIVATIONS, "gelu"),
        "first_position": first,
        "max_length": said.get("max_position_embeddings", 512) - first,
        "masked_head": masked_head,
        "pooler": said.get("add_pooling_layer", pooler),
    }
    size = said.get("vocab_size", 30522)
    return read_section(Config, table, where="config.json"), Sizes(size, size, True)


def to_foreign(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Their config.json for our config; what it cannot speak of, global tokens and a pooler, are keys of ours."""
    own = config.attention == "window" and config.global_projections and config.first_position > 0
    got = f"attention = {config.attention}, global_projections = {config.global_projections}"
    wanted = "a window with global_projections, and a position for padding"
    require(own, "transformers' Longformer has no other form", got=got, wanted=wanted)
    values, both_sides = asdict(config), [2 * size for size in config.window]
    architecture, pooler = next((name, parts[1]) for name, parts in _PARTS.items() if parts[0] == config.masked_head)
    return {
        "architectures": [architecture],
        "model_type": "longformer",
        "vocab_size": sizes.source,
        **{theirs: values[ours] for ours, theirs in _KEYS.items()},
        "hidden_act": next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation),
        "attention_window": both_sides if len(both_sides) > 1 else both_sides[0],
        "max_position_embeddings": config.first_position + config.max_length,
        "pad_token_id": config.first_position - 1,
        **({} if config.pooler == pooler else {"add_pooling_layer": config.pooler}),
        **({"global_tokens": config.global_tokens} if config.global_tokens else {}),
    }


def specials(config: Mapping[str, Any]) -> Specials:
    """The special ids of their config.json, which says the padding only: the others are the tokenizer's."""
    return _foreign.specials(config, start=("cls", "bos", 0), end=("sep", "eos", 2), pad=("pad", 1))


settle = _foreign.plain


def copies(config: Config) -> dict[str, str]:
    """The masked head's weight is that of the tokens, and its bias has two names."""
    weight = "longformer.embeddings.word_embeddings.weight"
    return {"lm_head.decoder.weight": weight, "lm_head.decoder.bias": "lm_head.bias"}


def pairs(config: Config) -> list[Pair]:
    """Which of our tensors is which of theirs."""
    root = "longformer." if config.masked_head else ""
    found = linear("source.norm", f"{root}embeddings.LayerNorm")
    for ours, theirs in {"tokens": "word", "segments": "token_type", "positions": "position"}.items():
        found.append(same(f"source.{ours}.weight", f"{root}embeddings.{theirs}_embeddings.weight"))
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}", f"{root}encoder.layer.{i}"
        q, k, v = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        found += linear(f"{ours}.attention.body.qkv", q, k, v)
        found += linear(f"{ours}.attention.body.global_q", f"{q}_global")
        found += linear(f"{ours}.attention.body.global_kv", f"{k}_global", f"{v}_global")
        found += linear(f"{ours}.attention.body.out", f"{theirs}.attention.output.dense")
        found += linear(f"{ours}.attention.norm", f"{theirs}.attention.output.LayerNorm")
        found += linear(f"{ours}.feedforward.body.up", f"{theirs}.intermediate.dense")
        found += linear(f"{ours}.feedforward.body.down", f"{theirs}.output.dense")
        found += linear(f"{ours}.feedforward.norm", f"{theirs}.output.LayerNorm")
    if config.masked_head:
        found += linear("head.dense", "lm_head.dense") + linear("head.norm", "lm_head.layer_norm")
        found.append(same("head.bias", "lm_head.bias"))
    return found + (linear("pooler.0", f"{root}pooler.dense") if config.pooler else [])
