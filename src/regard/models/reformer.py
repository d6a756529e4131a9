"""The Reformer (Kitaev et al. 2020): a causal model for long texts.

    attention    among tokens of one hash bucket, or of one part of the text: N log N, not N^2     ops/hashing.py
    blocks       y1 = x1 + Attention(x2), y2 = x2 + FeedForward(y1), undone in the backward pass   layers/reversible.py
    feed-forward some tokens at a time
    positions    a row's vector beside a column's, so that 64k of them are few parameters

No token reads a later one, but in hashed layers later ones share in saying who is near: the order by bucket is of the
whole text, and where it is cut into chunks depends on all of it. So beyond one chunk a prefix, or another amount of
padding, may give other values, and steps read what is near among the tokens so far (as in transformers): a prompt that
is read at once gives what `hidden` gives, later tokens nearly that. Up to one chunk, and in local layers, it is exact.

Shapes: B batch, N length, D model width, V vocabulary; both halves of the stream side by side are 2 D wide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key, read_section
from regard.errors import require, require_positive, require_share
from regard.layers.embedding import Embedding, Head, token_table
from regard.layers.feedforward import FeedForward, norm
from regard.layers.hashed import Cache, HashedAttention, LocalAttention, Text
from regard.layers.positions import Axial, Learned
from regard.layers.reversible import Branch, ReversibleBlock, ReversibleStack
from regard.models import Sizes, _foreign
from regard.models._foreign import Pair, known, linear, same
from regard.ops.hashing import Near, padded_length
from regard.ops.positions import places_in_segments
from regard.types import Batch, Sequences, Specials, State


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a Reformer."""

    preset: str = key("base", "base, enwik8 (the paper's size for 64k bytes) or tiny: every key that is not given")
    layers: tuple[Literal["local", "lsh"], ...] = key(
        ("local", "lsh") * 3, "what the attention of each block reads: local (its part of the text), lsh (its bucket)"
    )
    model_dim: int = key(256, "width of the token vectors")
    num_heads: int = key(4, "attention heads")
    head_dim: int = key(64, "width of a head")
    ffn_dim: int = key(512, "inner width of the feed-forward layers")
    ffn_chunk: int = key(0, "tokens that a feed-forward layer takes at a time, to save memory; 0: all")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = key("relu", "relu, gelu, gelu-tanh, silu")
    norm_eps: float = key(1e-12, "what the norms add to the variance")
    lsh_chunk: int = key(64, "tokens, in the order of their buckets, that read each other")
    lsh_before: int = key(1, "chunks before its own that such a token also reads")
    num_hashes: int = key(1, "rounds of hashing: each finds what others miss")
    num_buckets: tuple[int, ...] = key(
        (), "buckets of a hash, as [32], or as factors, as [8, 16]; []: two for each chunk of the text"
    )
    hash_seed: int = key(-1, "the seed of the hashes, for the same ones in each pass; -1: new ones in each")
    local_chunk: int = key(64, "tokens, in the order of the text, that read each other")
    local_before: int = key(1, "chunks before its own that such a token also reads")
    position: Literal["axial", "learned"] = key("axial", "axial (of a row and a column) or learned (each its own)")
    axial_shape: tuple[int, int] = key((64, 64), "rows and columns of axial positions: as many as a text has tokens")
    axial_dims: tuple[int, int] = key((64, 192), "widths of a row's and a column's vector; together model_dim")
    max_length: int = key(4096, "length of the longest text")
    dropout: float = key(0.05, "dropout of embeddings, sublayers and the last states")
    lsh_dropout: float = key(0.0, "dropout of the attention weights of lsh")
    local_dropout: float = key(0.05, "dropout of the attention weights of local attention")

    def __post_init__(self) -> None:
        sizes = (
            "model_dim",
            "num_heads",
            "head_dim",
            "ffn_dim",
            "lsh_chunk",
            "num_hashes",
            "local_chunk",
            "max_length",
        )
        require_positive(self, *sizes)
        require_share(self, "dropout", "lsh_dropout", "local_dropout")
        require(len(self.layers) > 0, "a model has layers", got="none", wanted='as ["local", "lsh"]')
        for name in ("ffn_chunk", "lsh_before", "local_before"):
            require(getattr(self, name) >= 0, f"{name} is too small", got=getattr(self, name), wanted="0 or more")
        require(self.hash_seed >= -1, "hash_seed is too small", got=self.hash_seed, wanted="0 or more, or -1")
        require(self.norm_eps > 0, "norm_eps is too small", got=self.norm_eps, wanted="more than 0")
        even = all(count > 0 and count % 2 == 0 for count in self.num_buckets)
        require(even, "half of the buckets are the other half's opposites", got=self.num_buckets, wanted="even numbers")
        if self.position == "axial":
            require(
                min(*self.axial_shape, *self.axial_dims) > 0, "axial positions have a size", got=0, wanted="1 or more"
            )
            wide = f"axial_dims must add up to model_dim ({self.model_dim})"
            require(sum(self.axial_dims) == self.model_dim, wide, got=self.axial_dims, wanted=self.model_dim)

    @property
    def chunks(self) -> list[int]:
        """Of the kinds of layers that there are."""
        return [{"local": self.local_chunk, "lsh": self.lsh_chunk}[kind] for kind in dict.fromkeys(self.layers)]


_ENWIK8 = {"layers": ["local", "local", "lsh", "local"] * 3, "model_dim": 1024, "num_heads": 8, "head_dim": 128}
_ENWIK8 |= {"ffn_dim": 4096, "lsh_chunk": 256, "num_hashes": 4, "num_buckets": [512], "local_chunk": 128}
_ENWIK8 |= {"axial_shape": [128, 512], "axial_dims": [256, 768], "max_length": 65536}
_TINY = {"layers": ["local", "lsh"], "model_dim": 128, "num_heads": 2, "ffn_dim": 256, "lsh_chunk": 32}
_TINY |= {"local_chunk": 32, "axial_shape": [32, 32], "axial_dims": [32, 96], "max_length": 1024}
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "enwik8": _ENWIK8 | {"dropout": 0.2, "lsh_dropout": 0.1, "local_dropout": 0.2},
    "tiny": _TINY,
}
KINDS = ("causal",)
# not "causal" or "padding-invariant": see above for what it is
LAWS = frozenset({"truncates"})


def build(config: Config, sizes: Sizes) -> Reformer:
    """A Reformer of this config, with fresh weights."""
    position: Axial | Learned = Learned(config.max_length, config.model_dim)
    if config.position == "axial":
        position = Axial(config.axial_shape, config.axial_dims)
    table = token_table(sizes.target, config.model_dim)
    random = max(config.dropout, config.lsh_dropout, config.local_dropout) > 0
    return Reformer(
        source=Embedding(table, position=position, scale=False, dropout=config.dropout),
        stack=ReversibleStack((_block(config, kind) for kind in config.layers), random=random),
        norm=norm("layer", 2 * config.model_dim, config.norm_eps),
        head=_head(config, sizes.target),
        chunks=config.chunks,
        dropout=config.dropout,
    )


class Reformer(nn.Module):
    """Each token sees those before it that are near; its state predicts the next."""

    def __init__(
        self,
        *,
        source: Embedding,
        stack: ReversibleStack,
        norm: nn.Module,
        head: Head,
        chunks: list[int],
        dropout: float,
    ) -> None:
        super().__init__()
        self.source, self.stack, self.norm, self.head = source, stack, norm, head
        self.chunks, self.dropout = chunks, nn.Dropout(dropout)

    def hidden(self, batch: Batch) -> Tensor:
        """The states after each token, which predict the next: B x N x 2 D. Texts in one row do not see each other."""
        ids, segments = batch.source.ids, batch.source.segments
        text = Text(batch.source.lengths, padded_length(ids.shape[1], self.chunks), segments)
        x, options = self.source(ids, None if segments is None else places_in_segments(segments)), []
        for attention in self._attentions():
            # drawn here and not in a block, whose second run would draw anew
            drawn = {"rotations": attention.rotations(text.length)} if isinstance(attention, HashedAttention) else {}
            options.append({"text": text, **drawn})
        return self._run(x, options)

    def start(self, source: Sequences, max_length: int) -> State:
        """Room for `max_length` tokens of each row, of which none was read, and the hashes of all of them."""
        state, rows = State(torch.zeros_like(source.lengths)), len(source.ids)
        for i, attention in enumerate(self._attentions()):
            for j, tensor in enumerate(attention.new_cache(rows, max_length)):
                state.cache[f"{i}.{j}"] = tensor
            drawn = attention.rotations(max_length) if isinstance(attention, HashedAttention) else None
            if drawn is not None:
                state.memory[f"{i}.rotations"] = drawn.expand(rows, *drawn.shape[1:])
        return replace(state, timed=frozenset(state.cache))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Consumes B x n more tokens: the logits after each of them, B x n x V, and the state that remembers them."""
        num_tokens, text, options = tokens.shape[1], None, []
        positions = state.position[:, None] + torch.arange(num_tokens, device=tokens.device)
        bound = state.bound + num_tokens
        if state.bound == 0:  # nothing was read, so this is a text of its own
            text = Text(torch.full_like(state.position, num_tokens), padded_length(num_tokens, self.chunks))
        for i, attention in enumerate(self._attentions()):
            tensors = tuple(tensor for name, tensor in state.cache.items() if name.startswith(f"{i}."))
            said = {"text": text, "cache": Cache(tensors, positions, bound)}
            hashed = {"rotations": state.memory.get(f"{i}.rotations")}
            options.append(said | (hashed if isinstance(attention, HashedAttention) else {}))
        x = self._run(self.source(tokens, positions, bound), options)
        return self.head(x), state.advance(num_tokens)

    def _run(self, x: Tensor, options: list[dict[str, Any]]) -> Tensor:
        return self.dropout(self.norm(torch.cat(self.stack(x, x, options), dim=-1)))  # type: ignore[no-any-return]

    def _attentions(self) -> list[LocalAttention | HashedAttention]:
        return [block.attention.body for block in self.stack.blocks]


def _block(config: Config, kind: str) -> ReversibleBlock:
    sizes = (config.model_dim, config.num_heads, config.head_dim)
    attention: nn.Module = LocalAttention(
        *sizes, near=Near(config.local_chunk, config.local_before), dropout=config.local_dropout
    )
    if kind == "lsh":
        attention = HashedAttention(
            *sizes,
            near=Near(config.lsh_chunk, config.lsh_before),
            num_hashes=config.num_hashes,
            num_buckets=config.num_buckets,
            max_length=config.max_length,
            seed=None if config.hash_seed < 0 else config.hash_seed,
            dropout=config.lsh_dropout,
        )
    feedforward = FeedForward(config.model_dim, config.ffn_dim, activation=config.activation, dropout=config.dropout)
    return ReversibleBlock(
        Branch(attention, norm("layer", config.model_dim, config.norm_eps), dropout=config.dropout),
        Branch(
            feedforward,
            norm("layer", config.model_dim, config.norm_eps),
            dropout=config.dropout,
            chunk=config.ffn_chunk,
        ),
    )


def _head(config: Config, size: int) -> Head:
    head = Head(2 * config.model_dim, size)
    # Files hold a bias. Transformers 5 neither adds nor trains it, earlier ones did both: what was trained is added,
    # and as none is trained here, a model that we write is the same there.
    del head.bias
    head.register_buffer("bias", torch.zeros(size))
    return head


# --- the same weights in transformers ---------------------------------------------------------------------------------

MODEL_TYPES = ("reformer",)
UNUSED = ("lm_head.decoder.bias",)  # that of the head, by an older name
_KEYS = {  # ours: theirs
    "layers": "attn_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "head_dim": "attention_head_size",
    "ffn_dim": "feed_forward_size",
    "ffn_chunk": "chunk_size_feed_forward",
    "norm_eps": "layer_norm_eps",
    "lsh_chunk": "lsh_attn_chunk_length",
    "lsh_before": "lsh_num_chunks_before",
    "num_hashes": "num_hashes",
    "hash_seed": "hash_seed",
    "local_chunk": "local_attn_chunk_length",
    "local_before": "local_num_chunks_before",
    "axial_shape": "axial_pos_shape",
    "axial_dims": "axial_pos_embds_dim",
    "max_length": "max_position_embeddings",
    "dropout": "hidden_dropout_prob",
    "lsh_dropout": "lsh_attention_probs_dropout_prob",
    "local_dropout": "local_attention_probs_dropout_prob",
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "silu": "silu"}
# what would make another model, with the value that it has where they do not say it
_ONLY: dict[str, tuple[Any, Any]] = {"is_decoder": (True, False), "tie_word_embeddings": (False, False)}
_ONLY |= {"lsh_num_chunks_after": (0, 0), "local_num_chunks_after": (0, 0)}


def from_foreign(config: dict[str, Any]) -> tuple[Config, Sizes]:
    """Our config for their config.json, and the vocabulary."""
    for name, (wanted, usual) in _ONLY.items():
        known(config, name, {wanted: wanted}, usual)
    found = {ours: config[theirs] for ours, theirs in _KEYS.items() if config.get(theirs) is not None}
    buckets = config.get("num_buckets")
    table = {
        "num_heads": 12,
        **found,
        "num_buckets": [] if buckets is None else [buckets] if isinstance(buckets, int) else buckets,
        "activation": known(config, "hidden_act", _ACTIVATIONS, "relu"),
        "position": "axial" if config.get("axial_pos_embds", True) else "learned",
    }
    size = config.get("vocab_size", 320)
    return read_section(Config, table, where="config.json"), Sizes(size, size, shared=True)


def to_foreign(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Their config.json for our config, without the tokenizer's special tokens."""
    values = asdict(config)
    found = {theirs: values[ours] for ours, theirs in _KEYS.items()}
    buckets: Any = list(config.num_buckets) or None
    found |= {"hash_seed": None if config.hash_seed < 0 else config.hash_seed}
    found |= {"num_buckets": config.num_buckets[0] if len(config.num_buckets) == 1 else buckets}
    found |= {"axial_pos_embds": config.position == "axial", "vocab_size": sizes.target, "eos_token_id": None}
    found |= {name: wanted for name, (wanted, _) in _ONLY.items()}
    activation = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation)
    return {"model_type": "reformer", "architectures": ["ReformerModelWithLMHead"], "hidden_act": activation, **found}


def specials(config: Mapping[str, Any]) -> Specials:
    """The special ids of their config.json."""
    return _foreign.specials(config, start=("bos", "eos", 2), end=("eos", 2), pad=("pad", 0))


settle, copies = _foreign.plain, _foreign.no_copies


def pairs(config: Config) -> list[Pair]:
    """Which of our tensors is which of theirs."""
    positions = "reformer.embeddings.position_embeddings"
    found = [same("source.tokens.weight", "reformer.embeddings.word_embeddings.weight")]
    if config.position == "learned":
        found += [same("source.position.weight", f"{positions}.embedding.weight")]
    else:
        for axis, ours in enumerate(("rows", "columns")):
            shape = [1, 1, config.axial_dims[axis]]
            shape[axis] = config.axial_shape[axis]
            found += [Pair(f"source.position.{ours}", (f"{positions}.weights.{axis}",), shape=tuple(shape))]
    for i, kind in enumerate(config.layers):
        ours, theirs = f"stack.blocks.{i}", f"reformer.encoder.layers.{i}"
        attention, inner = f"{ours}.attention.body", f"{theirs}.attention.self_attention"
        if kind == "lsh":
            found += linear(f"{attention}.qk", f"{inner}.query_key", bias=False)
            found += linear(f"{attention}.v", f"{inner}.value", bias=False)
        else:
            found += linear(f"{attention}.qkv", f"{inner}.query", f"{inner}.key", f"{inner}.value", bias=False)
        found += linear(f"{attention}.out", f"{theirs}.attention.output.dense", bias=False)
        found += linear(f"{ours}.attention.norm", f"{theirs}.attention.layer_norm")
        found += linear(f"{ours}.feedforward.norm", f"{theirs}.feed_forward.layer_norm")
        found += linear(f"{ours}.feedforward.body.up", f"{theirs}.feed_forward.dense.dense")
        found += linear(f"{ours}.feedforward.body.down", f"{theirs}.feed_forward.output.dense")
    found += linear("norm", "reformer.encoder.layer_norm")
    return [*found, same("head.weight", "lm_head.decoder.weight"), same("head.bias", "lm_head.bias")]
