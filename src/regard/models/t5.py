"""T5 (Raffel et al. 2020): every task as text to text, by a Transformer with a few parts exchanged.

Where a token stands is said only inside self-attention, by a learned value for each head and bucket of distances: one
table for all blocks of a stack, none in cross-attention. Norms come first, divide by the root of the mean square, and
have no bias, as no layer has one. Version 1.1 gates the feed-forward layers (Shazeer 2020) and gives the output a
weight of its own.

T5's own scores are not scaled; its queries begin small in their place, which Adafactor respects, as it moves a weight
in proportion to its size. AdamW moves all by as much: soon each token would read a single other one, and nothing is
learned from a softmax that hard. So fresh models scale their scores (`scaled`).

Shapes: D model width, H heads, d head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key, read_section
from regard.errors import ConfigError, require, require_positive, require_share
from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.block import DecoderBlock, EncoderBlock, Sublayer
from regard.layers.embedding import Embedding, Head
from regard.layers.feedforward import GATED, FeedForward, norm
from regard.layers.positions import T5Bias
from regard.models import Sizes, _foreign
from regard.models._foreign import Pair, known, linear, same
from regard.models.transformer import Stack, Transformer
from regard.types import Specials

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "reglu", "geglu-tanh", "swiglu"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a T5."""

    preset: str = key("small", "small, base, large, v1.1-small, v1.1-base, v1.1-large or tiny: the keys not given")
    encoder_layers: int = key(6, "blocks of the encoder")
    decoder_layers: int = key(6, "blocks of the decoder")
    model_dim: int = key(512, "width of the token vectors")
    num_heads: int = key(8, "attention heads")
    head_dim: int = key(64, "width of each head; num_heads x head_dim need not be model_dim")
    ffn_dim: int = key(2048, "inner width of the feed-forward layers")
    activation: Activation = key("relu", "relu, gelu, gelu-tanh, silu, or gated: reglu, geglu-tanh (v1.1), swiglu")
    scaled: bool = key(
        True, "scores are divided by the root of head_dim; false: T5's own queries, which begin that much smaller"
    )
    num_buckets: int = key(32, "buckets of distances, each with a learned value for every head")
    max_distance: int = key(128, "the distance from which on all share the last bucket")
    norm_eps: float = key(1e-6, "what the norms add to the mean square")
    dropout: float = key(0.1, "dropout of embeddings, sublayers, attention weights and of what leaves a stack")
    tie_embeddings: bool = key(True, "the output shares the embedding's weight and is scaled by model_dim**-0.5")
    backend: Literal["auto", "reference", "fused", "flex"] = key("auto", "which attention backend; auto: the fastest")

    def __post_init__(self) -> None:
        require_positive(self, "encoder_layers", "decoder_layers", "model_dim", "num_heads", "head_dim", "ffn_dim")
        require_share(self, "dropout", "norm_eps")
        require(self.num_buckets >= 4, "num_buckets is too small", got=self.num_buckets, wanted="4 or more")
        room = f"max_distance ({self.max_distance}) must be larger than half of num_buckets ({self.num_buckets})"
        fits = self.max_distance > self.num_buckets // 2
        require(fits, room, got=self.max_distance, wanted=f"{self.num_buckets // 2 + 1} or more")


def _preset(layers: int, model_dim: int, num_heads: int, ffn_dim: int, **more: Any) -> dict[str, Any]:
    sizes = {"model_dim": model_dim, "num_heads": num_heads, "ffn_dim": ffn_dim}
    return {"encoder_layers": layers, "decoder_layers": layers, **sizes, **more}


_V1_1 = {"activation": "geglu-tanh", "tie_embeddings": False}
PRESETS: dict[str, dict[str, Any]] = {
    "small": {},
    "base": _preset(12, 768, 12, 3072),
    "large": _preset(24, 1024, 16, 4096),
    "v1.1-small": _preset(8, 512, 6, 1024, **_V1_1),
    "v1.1-base": _preset(12, 768, 12, 2048, **_V1_1),
    "v1.1-large": _preset(24, 1024, 16, 2816, **_V1_1),
    "tiny": _preset(4, 128, 4, 256, head_dim=32),
}
KINDS = ("seq2seq",)
LAWS = frozenset({"causal", "padding-invariant", "truncates"})


def build(config: Config, sizes: Sizes) -> Transformer:
    """A T5 of this config, with fresh weights; a shared vocabulary has one table, even where the output has its own."""
    source_table = nn.Embedding(sizes.source, config.model_dim)
    target_table = source_table if sizes.shared else nn.Embedding(sizes.target, config.model_dim)
    encoder_bias, decoder_bias = _bias(config, bidirectional=True), _bias(config, bidirectional=False)
    model = Transformer(
        source=Embedding(source_table, position=None, scale=False, dropout=config.dropout),
        encoder=Stack([_encoder_block(config, encoder_bias) for _ in range(config.encoder_layers)], End(config)),
        target=Embedding(target_table, position=None, scale=False, dropout=config.dropout),
        decoder=Stack(
            [_decoder_block(config, decoder_bias) for _ in range(config.decoder_layers)],
            End(config, scale=config.model_dim**-0.5 if config.tie_embeddings else 1.0),
        ),
        head=Head(config.model_dim, sizes.target, target_table if config.tie_embeddings else None),
    )
    _initialise(model, config)
    return model


class End(nn.Module):
    """What ends a stack: a norm and dropout. Before a tied output the states are scaled as well, as its weight is that
    of embeddings with numbers of about one; here and not in the head, so that a loss need only know the weight."""

    def __init__(self, config: Config, *, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.dropout = norm("rms", config.model_dim, config.norm_eps), nn.Dropout(config.dropout)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x)) * self.scale  # type: ignore[no-any-return]


def _encoder_block(config: Config, bias: T5Bias) -> EncoderBlock:
    return EncoderBlock(_attention(config, bias), _feedforward(config), lambda body: _sublayer(config, body))


def _decoder_block(config: Config, bias: T5Bias) -> DecoderBlock:
    cross = CrossAttention(
        config.model_dim,
        config.num_heads,
        head_dim=config.head_dim,
        scale=_scale(config),
        bias=False,
        dropout=config.dropout,
        backend=config.backend,
    )
    wrap = lambda body: _sublayer(config, body)  # noqa: E731
    return DecoderBlock(_attention(config, bias), cross, _feedforward(config), wrap)


def _attention(config: Config, bias: T5Bias) -> SelfAttention:
    return SelfAttention(
        config.model_dim,
        config.num_heads,
        head_dim=config.head_dim,
        scale=_scale(config),
        bias=False,
        dropout=config.dropout,
        relative=bias,
        backend=config.backend,
    )


def _scale(config: Config) -> float:
    return config.head_dim**-0.5 if config.scaled else 1.0


def _bias(config: Config, *, bidirectional: bool) -> T5Bias:
    return T5Bias(
        config.num_heads,
        bidirectional=bidirectional,
        num_buckets=config.num_buckets,
        max_distance=config.max_distance,
    )


def _feedforward(config: Config) -> FeedForward:
    return FeedForward(
        config.model_dim, config.ffn_dim, activation=config.activation, dropout=config.dropout, bias=False
    )


def _sublayer(config: Config, body: nn.Module) -> Sublayer:
    return Sublayer(body, norm("rms", config.model_dim, config.norm_eps), norm_first=True, dropout=config.dropout)


@torch.no_grad()
def _initialise(model: nn.Module, config: Config) -> None:
    """Every output of a layer begins with a variance of one; queries with 1 / d where scores are not scaled."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)
        elif isinstance(module, T5Bias):
            nn.init.normal_(module.weight, std=config.model_dim**-0.5)
    for module in [] if config.scaled else model.modules():
        if isinstance(module, (SelfAttention, CrossAttention)):
            projection = module.qkv if isinstance(module, SelfAttention) else module.q
            projection.weight[: config.num_heads * config.head_dim] *= config.head_dim**-0.5


# --- the same weights in transformers ---------------------------------------------------------------------------------

MODEL_TYPES = ("t5",)
UNUSED = ("EncDecAttention.relative_attention_bias.weight",)  # in the first files of v1.0, and read by nobody
_KEYS = {
    "encoder_layers": "num_layers",
    "decoder_layers": "num_decoder_layers",
    "model_dim": "d_model",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "ffn_dim": "d_ff",
    "num_buckets": "relative_attention_num_buckets",
    "max_distance": "relative_attention_max_distance",
    "norm_eps": "layer_norm_epsilon",
    "dropout": "dropout_rate",
}
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "silu": "silu",
    "gated-relu": "reglu",
    "gated-gelu": "geglu-tanh",
    "gated-silu": "swiglu",
}


def from_foreign(config: dict[str, Any]) -> tuple[Config, Sizes]:
    """Our config and vocabulary from their config.json; the values that it leaves out are the same in both."""
    known(config, "is_encoder_decoder", {True: True}, True)
    said = {"num_decoder_layers": config.get("num_layers"), **config}
    table = {ours: said[theirs] for ours, theirs in _KEYS.items() if said.get(theirs) is not None}
    # one fact by two names: 1.1 unties, and where a newer file says otherwise it says apart that nothing is scaled
    scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings") is not False)
    table |= {"activation": _activation(config), "tie_embeddings": scaled, "scaled": False}
    vocabulary = config.get("vocab_size", 32128)
    return read_section(Config, table, where="config.json"), Sizes(vocabulary, vocabulary, shared=True)


def to_foreign(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Their config.json from ours, without the special tokens, which are the tokenizer's."""
    if not sizes.shared:
        got = f"{sizes.source} source and {sizes.target} target tokens of their own"
        raise ConfigError("their T5 has one vocabulary", got=got, wanted="a shared one")
    theirs, values = {ours: name for name, ours in _ACTIVATIONS.items()}, asdict(config)
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": sizes.source,
        **{name: values[ours] for ours, name in _KEYS.items()},
        "feed_forward_proj": theirs[config.activation],
        "tie_word_embeddings": config.tie_embeddings,
        "is_encoder_decoder": True,
    }


def specials(config: Mapping[str, Any]) -> Specials:
    """The special ids of their config.json: an output begins with the padding token, unless it says another."""
    return _foreign.specials(config, start=("decoder_start", "pad", 0), end=("eos", 1), pad=("pad", 0))


settle = _foreign.plain


def copies(config: Config) -> dict[str, str]:
    """One table for both texts; and the output's weight, which newer files tie where nothing is scaled."""
    return {f"{name}.weight": "shared.weight" for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head")}


def pairs(config: Config) -> list[Pair]:
    """Which of our tensors is which of theirs."""
    found = [same("source.tokens.weight", "shared.weight")]
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found.append(same(f"{stack}.blocks.0.attention.body.relative.weight", bias))
        for i in range(layers):
            found += _block_pairs(config, f"{stack}.blocks.{i}", f"{stack}.block.{i}.layer", cross=stack == "decoder")
        found.append(same(f"{stack}.norm.norm.weight", f"{stack}.final_layer_norm.weight"))
    return found if config.tie_embeddings else [*found, same("head.weight", "lm_head.weight")]


def _block_pairs(config: Config, ours: str, theirs: str, *, cross: bool) -> list[Pair]:
    q, k, v, o = (f"{theirs}.0.SelfAttention.{name}" for name in "qkvo")
    scale = _scale(config)
    found = linear(f"{ours}.attention.body.qkv", q, k, v, bias=False, scales=(scale, 1.0, 1.0))
    found += linear(f"{ours}.attention.body.out", o, bias=False)
    if cross:
        q, k, v, o = (f"{theirs}.1.EncDecAttention.{name}" for name in "qkvo")
        found += linear(f"{ours}.cross.body.q", q, bias=False, scales=(scale,))
        found += linear(f"{ours}.cross.body.kv", k, v, bias=False)
        found += linear(f"{ours}.cross.body.out", o, bias=False)
    dense = f"{theirs}.{1 + cross}.DenseReluDense"
    up = (f"{dense}.wi_0", f"{dense}.wi_1") if config.activation in GATED else (f"{dense}.wi",)
    found += linear(f"{ours}.feedforward.body.up", *up, bias=False)
    found += linear(f"{ours}.feedforward.body.down", f"{dense}.wo", bias=False)
    names = ("attention", "cross", "feedforward") if cross else ("attention", "feedforward")
    return found + [
        same(f"{ours}.{name}.norm.weight", f"{theirs}.{i}.layer_norm.weight") for i, name in enumerate(names)
    ]


def _activation(config: Mapping[str, Any]) -> str:
    said, found = config.get("feed_forward_proj", "relu"), known(config, "feed_forward_proj", _ACTIVATIONS, "relu")
    inner = "gelu_new" if said == "gated-gelu" else said.removeprefix("gated-")
    # two more keys say the same again, and theirs would believe them where they say something else
    for name, value in (("is_gated_act", said.startswith("gated-")), ("dense_act_fn", inner)):
        known(config, name, {value: value}, value)
    return found
