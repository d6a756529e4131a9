"""GPT (Radford et al. 2018, 2019): a stack of causal blocks that continues a text; Llama's form of it is a preset.

Shapes: B batch, N length, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key, read_section
from regard.errors import require, require_positive, require_share
from regard.layers.attention import SelfAttention
from regard.layers.block import EncoderBlock, Sublayer
from regard.layers.embedding import Embedding, Head, token_table
from regard.layers.feedforward import FeedForward, norm
from regard.layers.positions import Learned, Rotary
from regard.models import Sizes, _foreign
from regard.models._foreign import Pair, known, linear, same
from regard.ops.masks import causal, same_segment
from regard.ops.positions import places_in_segments
from regard.types import Batch, Sequences, Specials, State

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "geglu", "geglu-tanh", "swiglu", "reglu"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a GPT."""

    preset: str = key("gpt2", "gpt2, nano (nanoGPT's for Shakespeare), llama or tiny: every key that is not given")
    layers: int = key(12, "blocks")
    model_dim: int = key(768, "width of the token vectors")
    num_heads: int = key(12, "attention heads")
    num_kv_heads: int = key(0, "key and value heads, for grouped queries; 0: as many as num_heads")
    head_dim: int = key(0, "width of a head; 0: model_dim divided among them")
    ffn_dim: int = key(3072, "inner width of the feed-forward layers")
    activation: Activation = key("gelu-tanh", "relu, gelu, gelu-tanh, silu, or gated: geglu, geglu-tanh, swiglu, reglu")
    norm: Literal["layer", "rms"] = key("layer", "layer norm or root-mean-square norm, before each sublayer")
    norm_eps: float = key(1e-5, "what the norms add to the variance")
    position: Literal["learned", "rotary"] = key("learned", "learned or rotary")
    rotary_base: float = key(
        10000.0, "base of rotary positions: the larger, the longer the texts whose places it tells apart"
    )
    max_length: int = key(1024, "how many positions are learned; with rotary ones, how long the texts are meant to be")
    bias: bool = key(True, "biases in feed-forward layers and layer norms")
    attention_bias: bool = key(True, "biases in attention")
    dropout: float = key(0.1, "dropout of sublayers")
    embedding_dropout: float = key(0.1, "dropout of embeddings")
    attention_dropout: float = key(0.1, "dropout of the attention weights")
    tie_embeddings: bool = key(True, "embedding and output share one weight")
    backend: Literal["auto", "reference", "fused", "flex"] = key("auto", "which attention backend; auto: the fastest")

    def __post_init__(self) -> None:
        require_positive(self, "layers", "model_dim", "num_heads", "ffn_dim", "max_length")
        require_share(self, "dropout", "embedding_dropout", "attention_dropout")
        require(self.head_dim >= 0, "head_dim is too small", got=self.head_dim, wanted="0 or more")
        heads = f"model_dim ({self.model_dim}) must be divisible by num_heads ({self.num_heads})"
        require(self.model_dim % self.num_heads == 0, heads, got=self.model_dim, wanted=f"{self.num_heads} x width")
        groups = f"num_heads ({self.num_heads}) must be divisible by num_kv_heads ({self.num_kv_heads})"
        fits = self.num_kv_heads >= 0 and self.num_heads % (self.num_kv_heads or 1) == 0
        require(fits, groups, got=self.num_kv_heads, wanted="a divisor of num_heads, or 0")
        pairs = self.position != "rotary" or self.head_width % 2 == 0
        require(pairs, "rotary positions turn pairs", got=f"heads of width {self.head_width}", wanted="an even width")
        for name, value in (("norm_eps", self.norm_eps), ("rotary_base", self.rotary_base)):
            require(value > 0, f"{name} is too small", got=value, wanted="more than 0")

    @property
    def head_width(self) -> int:
        return self.head_dim or self.model_dim // self.num_heads


_NO_BIAS = {"bias": False, "attention_bias": False}
_NANO = {"layers": 6, "model_dim": 384, "num_heads": 6, "ffn_dim": 1536, "max_length": 256, "activation": "gelu"}
_LLAMA = {"num_kv_heads": 4, "ffn_dim": 2048, "activation": "swiglu", "norm": "rms", "position": "rotary"}
_LLAMA |= {"max_length": 2048, "tie_embeddings": False}
PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "nano": _NANO | _NO_BIAS | {"dropout": 0.2, "embedding_dropout": 0.2, "attention_dropout": 0.2},
    "llama": _LLAMA | _NO_BIAS | {"dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0},
    "tiny": {"layers": 4, "model_dim": 128, "num_heads": 4, "ffn_dim": 512, "max_length": 256},
}
KINDS = ("causal",)
LAWS = frozenset({"causal", "padding-invariant", "truncates"})


def build(config: Config, sizes: Sizes) -> GPT:
    """A GPT of this config, with fresh weights."""
    table = token_table(sizes.target, config.model_dim)
    learned = Learned(config.max_length, config.model_dim) if config.position == "learned" else None
    model = GPT(
        source=Embedding(table, position=learned, scale=False, dropout=config.embedding_dropout),
        blocks=[_block(config) for _ in range(config.layers)],
        norm=_norm(config),
        head=Head(config.model_dim, sizes.target, table if config.tie_embeddings else None),
    )
    begin(model, config.layers)
    return model


def begin(model: nn.Module, layers: int) -> None:
    """Fresh weights as GPT-2's are: the residual stream is a sum of 2 x layers parts, and each begins that much smaller
    (Radford et al. 2019, 2.3)."""
    part = 0.02 / (2 * layers) ** 0.5
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() > 1:
            nn.init.normal_(parameter, std=part if name.endswith(("out.weight", "down.weight")) else 0.02)


class GPT(nn.Module):
    """Each token sees those before it; its state predicts the next."""

    def __init__(self, *, source: Embedding, blocks: Iterable[EncoderBlock], norm: nn.Module, head: Head) -> None:
        super().__init__()
        self.source = source
        self.blocks: Iterable[Any] = nn.ModuleList(blocks)  # which forgets the types of its modules
        self.norm, self.head = norm, head

    def hidden(self, batch: Batch) -> Tensor:
        """The states after each token, which predict the next: B x N x D. Texts in one row do not see each other."""
        ids, segments = batch.source.ids, batch.source.segments
        # causal alone: padding stands at the right, where no real token looks
        mask = causal() if segments is None else causal() & same_segment(segments)
        x = self.source(ids, None if segments is None else places_in_segments(segments))
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def start(self, source: Sequences, max_length: int) -> State:
        """Room for `max_length` tokens of each row, of which none was read."""
        state = State(torch.zeros_like(source.lengths))
        for i, block in enumerate(self.blocks):
            cache = block.attention.body.new_cache(len(source.ids), max_length, self.head.weight)
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
        x = self.source(tokens, positions, bound)
        for i, block in enumerate(self.blocks):
            cache = state.cache[f"{i}.k"], state.cache[f"{i}.v"]
            x = block(x, causal(), positions=positions, cache=cache, bound=bound)
        return self.norm(x), state.advance(tokens.shape[1])


def _block(config: Config) -> EncoderBlock:
    attention = SelfAttention(
        config.model_dim,
        config.num_heads,
        num_kv_heads=config.num_kv_heads or None,
        head_dim=config.head_dim or None,
        bias=config.attention_bias,
        dropout=config.attention_dropout,
        relative=Rotary(config.rotary_base) if config.position == "rotary" else None,
        backend=config.backend,
    )
    feedforward = FeedForward(config.model_dim, config.ffn_dim, activation=config.activation, bias=config.bias)
    wrap = lambda body: Sublayer(body, _norm(config), norm_first=True, dropout=config.dropout)  # noqa: E731
    return EncoderBlock(attention, feedforward, wrap)


def _norm(config: Config) -> nn.Module:
    return norm(config.norm, config.model_dim, config.norm_eps, bias=config.bias)


# --- the same weights in transformers ---------------------------------------------------------------------------------

MODEL_TYPES = ("gpt2", "llama")
UNUSED = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # constants that older files hold
_KEYS = {  # ours: GPT-2's, Llama's
    "layers": ("n_layer", "num_hidden_layers"),
    "model_dim": ("n_embd", "hidden_size"),
    "num_heads": ("n_head", "num_attention_heads"),
    "num_kv_heads": ("", "num_key_value_heads"),
    "head_dim": ("", "head_dim"),
    "ffn_dim": ("n_inner", "intermediate_size"),
    "norm_eps": ("layer_norm_epsilon", "rms_norm_eps"),
    "max_length": ("n_positions", "max_position_embeddings"),
    "bias": ("", "mlp_bias"),
    "attention_bias": ("", "attention_bias"),
    "dropout": ("resid_pdrop", ""),
    "embedding_dropout": ("embd_pdrop", ""),
    "attention_dropout": ("attn_pdrop", "attention_dropout"),
    "tie_embeddings": ("tie_word_embeddings", "tie_word_embeddings"),
}
# their GPT-2 also answers to the names that their later models have
_ALIASES = {_KEYS[ours][1]: _KEYS[ours][0] for ours in ("layers", "model_dim", "num_heads", "max_length")}
# what their Llama is where it does not say so; their GPT-2 is as ours
_USUAL = {"layers": 32, "model_dim": 4096, "num_heads": 32, "ffn_dim": 11008, "norm_eps": 1e-6, "preset": "llama"}
_PLAIN = {"gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "gelu": "gelu", "relu": "relu", "silu": "silu"}
_GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_pytorch_tanh": "geglu-tanh", "relu": "reglu"}
# what would make another model of GPT-2
_ONLY = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}
_ONLY |= {"reorder_and_upcast_attn": False, "add_cross_attention": False}


def from_foreign(config: dict[str, Any]) -> tuple[Config, Sizes]:
    """Our config for their config.json, and the vocabulary."""
    gpt2 = known(config, "model_type", {"gpt2": True, "llama": False}, None)
    table = _from_gpt2(config) if gpt2 else _from_llama(config)
    size = config.get("vocab_size", 50257 if gpt2 else 32000)
    return read_section(Config, table, where="config.json"), Sizes(size, size, shared=True)


def _from_gpt2(config: dict[str, Any]) -> dict[str, Any]:
    config = {_ALIASES.get(name, name): value for name, value in config.items()}
    for name, value in _ONLY.items():
        known(config, name, {value: value}, value)
    activation = known(config, "activation_function", _PLAIN, "gelu_new")
    table = {ours: config[theirs] for ours, (theirs, _) in _KEYS.items() if config.get(theirs) is not None}
    return {"ffn_dim": 4 * table.get("model_dim", 768), **table, "activation": activation}


def _from_llama(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    known({"rope_type": rope.get("type", "default"), **rope}, "rope_type", {"default": ""}, "default")
    activation = known(config, "hidden_act", _GATED, "silu")
    found = {ours: config[theirs] for ours, (_, theirs) in _KEYS.items() if config.get(theirs) is not None}
    table = PRESETS["llama"] | _USUAL | {"num_kv_heads": 0, "head_dim": 0} | found
    # 0 is our word for what follows from the other sizes
    if table["num_kv_heads"] == table["num_heads"]:
        table["num_kv_heads"] = 0
    if table["head_dim"] * table["num_heads"] == table["model_dim"]:
        table["head_dim"] = 0
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    return table | {"activation": activation, "rotary_base": base}


def to_foreign(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Their config.json for our config, without the tokenizer's special tokens; Llama's cannot say all our dropout."""
    gpt2 = _is_gpt2(config)
    values = asdict(config) | {"num_kv_heads": config.num_kv_heads or config.num_heads, "head_dim": config.head_width}
    found = {names[not gpt2]: values[ours] for ours, names in _KEYS.items() if names[not gpt2]}
    found |= {"vocab_size": sizes.target, "bos_token_id": None, "eos_token_id": None}
    activation = next(theirs for theirs, ours in (_PLAIN if gpt2 else _GATED).items() if ours == config.activation)
    if gpt2:
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": activation, **found}
    found |= {"hidden_act": activation, "rope_parameters": {"rope_type": "default", "rope_theta": config.rotary_base}}
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **found}


def specials(config: Mapping[str, Any]) -> Specials:
    """The special ids of their config.json; GPT-2 has one for all of them, at the end of its vocabulary."""
    start, end = (1, 2) if config["model_type"] == "llama" else (50256, 50256)
    bos: tuple[str | int, ...] = ("bos", start) if start != end else ("bos", "eos", start)
    return _foreign.specials(config, start=bos, end=("eos", end), pad=("pad", "eos", end))


def settle(config: Config, tensors: Mapping[str, Tensor]) -> tuple[Config, dict[str, Tensor]]:
    """The tensors under the names of `pairs`: the first files of GPT-2, and of models without a head, leave the first
    part of them out."""
    root = "transformer." if "wte.weight" in tensors else "model." if "embed_tokens.weight" in tensors else ""
    return config, {name if name == "lm_head.weight" else f"{root}{name}": x for name, x in tensors.items()}


def copies(config: Config) -> dict[str, str]:
    """A tied head."""
    table = "transformer.wte.weight" if _is_gpt2(config) else "model.embed_tokens.weight"
    return {"lm_head.weight": table} if config.tie_embeddings else {}


def pairs(config: Config) -> list[Pair]:
    """Which of our tensors is which of theirs."""
    found = _gpt2_pairs(config) if _is_gpt2(config) else _llama_pairs(config)
    return found if config.tie_embeddings else [*found, same("head.weight", "lm_head.weight")]


def _gpt2_pairs(config: Config) -> list[Pair]:
    found = [same("source.tokens.weight", "transformer.wte.weight")]
    found += [same("source.position.weight", "transformer.wpe.weight"), *linear("norm", "transformer.ln_f")]
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}", f"transformer.h.{i}"
        found += linear(f"{ours}.attention.norm", f"{theirs}.ln_1")
        found += linear(f"{ours}.attention.body.qkv", f"{theirs}.attn.c_attn", transposed=True)
        found += linear(f"{ours}.attention.body.out", f"{theirs}.attn.c_proj", transposed=True)
        found += linear(f"{ours}.feedforward.norm", f"{theirs}.ln_2")
        found += linear(f"{ours}.feedforward.body.up", f"{theirs}.mlp.c_fc", transposed=True)
        found += linear(f"{ours}.feedforward.body.down", f"{theirs}.mlp.c_proj", transposed=True)
    return found


def _llama_pairs(config: Config) -> list[Pair]:
    found = [same("source.tokens.weight", "model.embed_tokens.weight"), same("norm.weight", "model.norm.weight")]
    queries, keys = config.num_heads * config.head_width, (config.num_kv_heads or config.num_heads) * config.head_width
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        q, k, v, o = (f"{theirs}.self_attn.{part}_proj" for part in "qkvo")
        gate, up, down = (f"{theirs}.mlp.{part}_proj" for part in ("gate", "up", "down"))
        found += [same(f"{ours}.attention.norm.weight", f"{theirs}.input_layernorm.weight")]
        found += linear(f"{ours}.attention.body.qkv", q, k, v, bias=config.attention_bias, sizes=(queries, keys, keys))
        found += linear(f"{ours}.attention.body.out", o, bias=config.attention_bias)
        found += [same(f"{ours}.feedforward.norm.weight", f"{theirs}.post_attention_layernorm.weight")]
        found += linear(f"{ours}.feedforward.body.up", gate, up, bias=config.bias)
        found += linear(f"{ours}.feedforward.body.down", down, bias=config.bias)
    return found


def _is_gpt2(config: Config) -> bool:
    """Whether this is their GPT-2 and not their Llama; raises where it is neither."""
    gpt2 = config.position == "learned"
    forms: dict[str, Collection[object]] = {"norm": ["rms"], "activation": _GATED.values()}
    if gpt2:
        forms = {"norm": ["layer"], "activation": _PLAIN.values(), "bias": [True], "attention_bias": [True]}
        forms |= {"num_kv_heads": [0, config.num_heads], "head_dim": [0, config.model_dim // config.num_heads]}
    for name, theirs in forms.items():
        what = f"the {'GPT-2' if gpt2 else 'Llama'} of transformers has no other {name}"
        got, wanted = asdict(config)[name], dict.fromkeys(theirs)
        require(got in wanted, what, got=got, wanted=", ".join(map(str, wanted)))
    return gpt2
