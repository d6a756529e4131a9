"""Marian and BART as forms of our Transformer, with their weights both ways.

Both norm after each sublayer and have one table for source, target and output, and a bias of each token there. Marian
(Junczys-Dowmunt et al. 2018) adds sinusoids, all sines before all cosines; BART (Lewis et al. 2020) adds learned
positions, of which it leaves the first two out, and norms the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from regard.config import read_section
from regard.errors import ConfigError
from regard.models import Sizes, _foreign
from regard.models._foreign import Pair, known, linear, same
from regard.types import Specials

if TYPE_CHECKING:  # transformer.py gives the names of this file as its own
    from regard.models.transformer import Config

MODEL_TYPES = ("marian", "bart")
UNUSED = ("embed_positions.weight", "encoder.version", "decoder.version")  # older files hold Marian's sinusoids

# What each of them is, whatever its config says, and what is usual where that says nothing.
_BOTH = {"norm": "layer", "norm_first": False, "tie_embeddings": True, "copy": False}
_FORMS: dict[str, dict[str, Any]] = {
    "marian": {**_BOTH, "position": "sinusoidal-halves", "first_position": 0, "embedding_norm": False},
    "bart": {**_BOTH, "position": "learned", "first_position": 2, "embedding_norm": True},
}
_ARCHITECTURES = {"marian": "MarianMTModel", "bart": "BartForConditionalGeneration"}
_VOCABULARIES = {"marian": 58101, "bart": 50265}
_SPECIALS: dict[str, dict[str, tuple[str | int, ...]]] = {
    "marian": {"start": ("decoder_start", "pad", 58100), "end": ("eos", 0), "pad": ("pad", 58100)},
    "bart": {"start": ("decoder_start", 2), "end": ("eos", 2), "pad": ("pad", 1)},
}
_STACK = {"layers": 12, "attention_heads": 16, "ffn_dim": 4096}
_USUAL = {f"{stack}_{name}": value for name, value in _STACK.items() for stack in ("encoder", "decoder")}
_USUAL |= {"d_model": 1024, "max_position_embeddings": 1024, "scale_embedding": False}

_KEYS = {
    "encoder_layers": "encoder_layers",
    "decoder_layers": "decoder_layers",
    "model_dim": "d_model",
    "num_heads": "encoder_attention_heads",
    "ffn_dim": "encoder_ffn_dim",
    "max_length": "max_position_embeddings",
    "scale_embeddings": "scale_embedding",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
}
_TWINS = {"decoder_attention_heads": "encoder_attention_heads", "decoder_ffn_dim": "encoder_ffn_dim"}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "silu": "silu", "swish": "silu"}
# With another value theirs is, or once was, another model.
_ONLY: dict[str, object] = {
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True,
}
_ONLY |= {"normalize_before": False, "add_final_layer_norm": False, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}


def from_foreign(config: dict[str, Any]) -> tuple[Config, Sizes]:
    """Our config and vocabulary from their config.json."""
    from regard.models.transformer import Config

    kind = known(config, "model_type", {name: name for name in MODEL_TYPES}, None)
    said = {**_USUAL, **config}
    for name, value in _ONLY.items():
        known(said, name, {value: value}, value)
    for name, twin in _TWINS.items():
        known(said, name, {said[twin]: twin}, None)
    vocabulary = said.get("vocab_size", _VOCABULARIES[kind])
    known(said, "decoder_vocab_size", {vocabulary: vocabulary}, vocabulary)
    table = _FORMS[kind] | {ours: said[theirs] for ours, theirs in _KEYS.items() if theirs in said}
    table |= {"activation": known(config, "activation_function", _ACTIVATIONS, "gelu"), "output_bias": True}
    return read_section(Config, table, where="config.json"), Sizes(vocabulary, vocabulary, shared=True)


def to_foreign(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Their config.json from ours, without the special tokens, which are the tokenizer's."""
    kind, values = "bart" if config.position == "learned" else "marian", asdict(config)
    wanted = {**_FORMS[kind], "num_kv_heads": config.num_heads if config.num_kv_heads else 0}
    against = [f"{name} = {values[name]}" for name, value in wanted.items() if values[name] != value]
    against += [] if config.activation in _ACTIVATIONS.values() else [f"activation = {config.activation}"]
    against += [] if sizes.shared else ["two vocabularies"]
    if against:
        form = ", ".join(f"{name} = {value}" for name, value in _FORMS[kind].items())
        what = f"this Transformer is no {'BART' if kind == 'bart' else 'Marian'}"
        raise ConfigError(what, got=", ".join(against), wanted=f"one vocabulary, full heads, {form}")
    activation = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation)
    found = {theirs: values[ours] for ours, theirs in _KEYS.items()}
    return {
        "model_type": kind,
        "architectures": [_ARCHITECTURES[kind]],
        "vocab_size": sizes.source,
        **found,
        **{name: found[twin] for name, twin in _TWINS.items()},
        "activation_function": activation,
        "is_encoder_decoder": True,
    }


def specials(config: Mapping[str, Any]) -> Specials:
    """The special ids of their config.json: a Marian's output begins with the padding, a BART's with the end token."""
    return _foreign.specials(config, **_SPECIALS[config["model_type"]])


def settle(config: Config, tensors: Mapping[str, Tensor]) -> tuple[Config, dict[str, Tensor]]:
    """The config with the output bias that a file has or has not (theirs is zero then), and its tensors under the names
    of `pairs`: files of the bare model leave "model." out."""
    beside = ("final_logits_bias", "lm_head.weight")
    short = "shared.weight" in tensors
    named = {f"model.{name}" if short and name not in beside else name: x for name, x in tensors.items()}
    return replace(config, output_bias="final_logits_bias" in tensors), named


def copies(config: Config) -> dict[str, str]:
    """One table for both texts and the output."""
    names = ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    return {f"{name}.weight": "model.shared.weight" for name in names}


def pairs(config: Config) -> list[Pair]:
    """Which of our tensors is which of theirs."""
    found = [same("source.tokens.weight", "model.shared.weight")]
    if config.output_bias:
        found.append(Pair("head.bias", ("final_logits_bias",), shape=(1, -1)))
    stacks = (("source", "encoder", config.encoder_layers), ("target", "decoder", config.decoder_layers))
    for embedding, stack, layers in stacks:
        theirs = f"model.{stack}"
        if config.position == "learned":
            found.append(same(f"{embedding}.position.weight", f"{theirs}.embed_positions.weight"))
        if config.embedding_norm:
            found += linear(f"{embedding}.norm", f"{theirs}.layernorm_embedding")
        for i in range(layers):
            found += _block_pairs(f"{stack}.blocks.{i}", f"{theirs}.layers.{i}", cross=stack == "decoder")
    return found


def _block_pairs(ours: str, theirs: str, *, cross: bool) -> list[Pair]:
    q, k, v, out = (f"{theirs}.self_attn.{name}_proj" for name in ("q", "k", "v", "out"))
    found = linear(f"{ours}.attention.body.qkv", q, k, v) + linear(f"{ours}.attention.body.out", out)
    found += linear(f"{ours}.attention.norm", f"{theirs}.self_attn_layer_norm")
    if cross:
        q, k, v, out = (f"{theirs}.encoder_attn.{name}_proj" for name in ("q", "k", "v", "out"))
        found += linear(f"{ours}.cross.body.q", q) + linear(f"{ours}.cross.body.kv", k, v)
        found += linear(f"{ours}.cross.body.out", out) + linear(
            f"{ours}.cross.norm", f"{theirs}.encoder_attn_layer_norm"
        )
    found += linear(f"{ours}.feedforward.body.up", f"{theirs}.fc1")
    found += linear(f"{ours}.feedforward.body.down", f"{theirs}.fc2")
    return found + linear(f"{ours}.feedforward.norm", f"{theirs}.final_layer_norm")
