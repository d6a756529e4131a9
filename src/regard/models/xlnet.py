"""XLNet (Yang et al. 2019): an encoder that learns to predict the tokens of a text in any order, by two streams.

The content stream h of a token sees the token itself and what comes before it in the order; the query stream g stands
at a place and sees only what comes before it, so that it can predict what stands there:

    h_i = Attention(Q = h_i, KV = h_j, j before or at i)                g_i = Attention(Q = g_i, KV = h_j, j before i)

Both read the same states with the same weights under two masks. As in Transformer-XL, positions are distances and a
memory reaches into the segment before; which of two texts a token is of is relative too. Without an order (`hidden`)
every token sees all of them, and there is no g.

Shapes: B batch, N length, T predicted places, M length of the memory, D model width, H heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.config import key, read_section
from regard.errors import require, require_positive, require_share
from regard.layers.attention import SelfAttention
from regard.layers.block import EncoderBlock, Sublayer
from regard.layers.embedding import Embedding, Head
from regard.layers.feedforward import FeedForward, norm
from regard.layers.memory import empty_memory, held, length_of, remembered, with_memory
from regard.layers.output import last_of
from regard.layers.positions import TransformerXLKeys
from regard.models import Sizes, _foreign
from regard.models._foreign import Pair, known, linear, same
from regard.ops.masks import Mask, padding, visible
from regard.ops.terms import RelativeKeys, SegmentKeys, Term
from regard.types import Batch, Sequences, Specials, State


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of an XLNet."""

    preset: str = key("base", "base, large or tiny: the sizes of every key that is not given")
    layers: int = key(12, "blocks")
    model_dim: int = key(768, "width of the token vectors")
    num_heads: int = key(12, "attention heads; model_dim is divided among them")
    ffn_dim: int = key(3072, "inner width of the feed-forward layers")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = key("gelu", "gelu, gelu-tanh, relu or silu")
    norm_eps: float = key(1e-12, "what the norms add to the variance")
    memory: int = key(384, "states of each layer that the next segment reads; 0: none")
    reuse: int = key(0, "how many tokens of a segment go into the memory, from its first on; 0: all of them")
    clamp: int = key(0, "distances beyond this one are as this one; 0: all are told apart")
    bi_data: bool = key(False, "the second half of every batch is read backwards: its distances are mirrored")
    dropout: float = key(0.1, "dropout of embeddings, distances, attention weights and sublayers")
    tie_embeddings: bool = key(True, "embedding and output share one weight")
    backend: Literal["auto", "reference", "fused"] = key("auto", "which attention backend; auto: the fastest")

    def __post_init__(self) -> None:
        require_positive(self, "layers", "model_dim", "num_heads", "ffn_dim")
        require_share(self, "dropout")
        for name in ("memory", "reuse", "clamp"):
            require(getattr(self, name) >= 0, f"{name} is too small", got=getattr(self, name), wanted="0 or more")
        heads = f"model_dim ({self.model_dim}) must be divisible by num_heads ({self.num_heads})"
        require(self.model_dim % self.num_heads == 0, heads, got=self.model_dim, wanted=f"{self.num_heads} x width")
        require(self.model_dim % 2 == 0, "distances are waves in pairs", got=self.model_dim, wanted="an even model_dim")
        require(self.norm_eps > 0, "norm_eps is too small", got=self.norm_eps, wanted="more than 0")


PRESETS: dict[str, dict[str, object]] = {
    "base": {},
    "large": {"layers": 24, "model_dim": 1024, "num_heads": 16, "ffn_dim": 4096},
    "tiny": {"layers": 2, "model_dim": 128, "num_heads": 4, "ffn_dim": 512, "memory": 64},
}
KINDS = ("encoder",)
LAWS = frozenset({"padding-invariant"})


def build(config: Config, sizes: Sizes) -> XLNet:
    """An XLNet of this config, with fresh weights."""
    tokens = nn.Embedding(sizes.target, config.model_dim)
    head = Head(config.model_dim, sizes.target, tokens if config.tie_embeddings else None, bias=True)
    model = XLNet(
        source=Embedding(tokens, position=None, scale=False, dropout=config.dropout),
        blocks=[_block(config) for _ in range(config.layers)],
        head=head,
        memory=config.memory,
        reuse=config.reuse,
        bi_data=config.bi_data,
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def seen_in_order(ranks: Tensor) -> Tensor:
    """Who comes before whom, from the place of each token in the order (B x N): B x N x N, true where i sees j.

    Tokens of rank -1 are the context: everyone sees them, and they see each other.

    >>> seen_in_order(torch.tensor([[-1, 1, 0]]))[0].int().tolist()
    [[1, 0, 0], [1, 0, 1], [1, 0, 0]]
    """
    return (ranks[:, None] < 0) | (ranks[:, None] < ranks[:, :, None])


class XLNet(nn.Module):
    """Reads a text from both sides, or predicts its tokens in some order."""

    def __init__(
        self, *, source: Embedding, blocks: Iterable[EncoderBlock], head: Head, memory: int, reuse: int, bi_data: bool
    ) -> None:
        super().__init__()
        self.source, self.head, self.memory, self.reuse, self.bi_data = source, head, memory, reuse, bi_data
        self.blocks: Any = nn.ModuleList(blocks)  # which forgets the types of its modules
        self.mask = nn.Parameter(torch.zeros(1, 1, source.tokens.embedding_dim))  # w: what the query stream begins with

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token of `batch.source`, which sees all of them: B x N x D."""
        return self.remember(batch, self.empty_memory(len(batch.source.ids), 0))[0]

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The state of a whole row, from its last token: B x D."""
        return last_of(hidden, lengths)

    def empty_memory(self, rows: int, length: int | None = None) -> State:
        """What `remember` begins with: room for `length` states of each layer (as many as the config says)."""
        return empty_memory(rows, len(self.blocks), self.memory if length is None else length, self.mask)

    def remember(self, batch: Batch, memory: State) -> tuple[Tensor, State]:
        """The states of each token of a segment, and the memory for the next one of these rows."""
        states, _, memory = self(batch.source, memory)
        return states, memory

    def predict(self, batch: Batch, seen: Tensor, places: Tensor, memory: State | None = None) -> tuple[Tensor, State]:
        """The states that predict what stands at `places` (B x T) from what each place sees (B x N x N): B x T x D.

        `seen` is true where the token at i sees the one at j; see `seen_in_order`. A place that sees nothing reads
        nothing.
        """
        memory = self.empty_memory(len(places), 0) if memory is None else memory
        _, states, memory = self(batch.source, memory, seen, places)
        return states, memory

    def forward(
        self, source: Sequences, memory: State, seen: Tensor | None = None, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, State]:
        """Both streams, h (B x N x D) and, where there are places, g (B x T x D), and the memory for the next."""
        if self.bi_data:
            what, remedy = "bi_data reads half of a batch backwards", "model.bi_data = false, as it is for pretraining"
            require(
                len(source.ids) % 2 == 0, what, got=f"{len(source.ids)} rows", wanted="an even number", remedy=remedy
            )
        room = length_of(memory)
        content_mask, query_mask = _masks(source, memory, seen)
        # what is remembered is of the first text
        segments = None if source.segments is None else F.pad(source.segments, (room, 0))
        h, read = self.source(source.ids), []
        g = None if places is None else self.source.dropout(self.mask.expand(*places.shape, -1))
        for i, block in enumerate(self.blocks):
            over = with_memory(memory, i, h)
            terms = block.attention.body.relative.of_segments(segments)
            h = block(h, content_mask, over=over, positions=room, terms=terms)
            if places is not None:
                g = block(g, query_mask, over=over, positions=room + places, terms=terms)
            read.append(over)
        kept = source.lengths.clamp(max=self.reuse) if self.reuse else source.lengths
        h, g = self.source.dropout(h), None if g is None else self.source.dropout(g)
        return h, g, remembered(memory, read, kept)


class Distances(TransformerXLKeys):
    """Transformer-XL's distances, and beside them whether a key is of the query's own segment (2.5)."""

    def __init__(self, config: Config) -> None:
        super().__init__(
            config.model_dim, config.num_heads, clamp=config.clamp or None, halves=True, dropout=config.dropout
        )
        self.mirrored = config.bi_data
        self.segment_bias = nn.Parameter(torch.zeros_like(self.content_bias))
        self.segment_keys = nn.Parameter(torch.zeros(2, *self.content_bias.shape))  # of the same segment, of another

    def terms(self, span: int) -> tuple[Term, ...]:
        table = self.table(span)
        table = torch.stack([table, table.flip(1)]) if self.mirrored else table
        return (RelativeKeys(table, self.shift(self.position_bias)),)

    def of_segments(self, segments: Tensor | None) -> tuple[Term, ...]:
        """What the segments (B x positions) add to the scores."""
        return () if segments is None else (SegmentKeys(self.segment_keys, segments, self.shift(self.segment_bias)),)


def _masks(source: Sequences, memory: State, seen: Tensor | None) -> tuple[Mask, Mask]:
    """Whom the content stream sees, and whom the query stream: the same, but not the token at its own place."""
    room = length_of(memory)
    real = padding(source.lengths + room)
    real = real & held(memory, source.ids.shape[1]) if room else real
    if seen is None:
        return real, real
    # masks speak of places among the keys, where a token stands after the memory
    before = F.pad(seen, (room, 0, room, 0), value=True)
    itself = torch.eye(before.shape[1], dtype=torch.bool, device=seen.device)
    return real & visible(before | itself), real & visible(before)


def _block(config: Config) -> EncoderBlock:
    dim = config.model_dim
    relative = Distances(config)
    attention = SelfAttention(
        dim, config.num_heads, bias=False, dropout=config.dropout, relative=relative, backend=config.backend
    )

    def wrap(body: nn.Module) -> Sublayer:
        return Sublayer(body, norm("layer", dim, config.norm_eps), norm_first=False, dropout=config.dropout)

    feedforward = FeedForward(dim, config.ffn_dim, activation=config.activation, dropout=config.dropout)
    return EncoderBlock(attention, feedforward, wrap)


# --- the weights of others --------------------------------------------------------------------------------------------

MODEL_TYPES = ("xlnet",)
UNUSED = ()
_KEYS = {
    "layers": "n_layer",
    "model_dim": "d_model",
    "num_heads": "n_head",
    "ffn_dim": "d_inner",
    "norm_eps": "layer_norm_eps",
    "memory": "mem_len",
    "reuse": "reuse_len",
    "bi_data": "bi_data",
    "dropout": "dropout",
    "tie_embeddings": "tie_word_embeddings",
}
_ALIASES = {"num_hidden_layers": "n_layer", "hidden_size": "d_model", "num_attention_heads": "n_head"}
_ALIASES |= {"n_token": "vocab_size"}
# what they take where their config.json does not say it, if it is not what we do
_USUAL = {"n_layer": 24, "d_model": 1024, "n_head": 16, "d_inner": 4096, "mem_len": 512, "vocab_size": 32000}
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "relu": "relu", "silu": "silu"}
_ONLY: dict[str, object] = {"attn_type": "bi", "model_type": "xlnet"}  # another value makes another model of it


def from_foreign(config: dict[str, Any]) -> tuple[Config, Sizes]:
    """Our config for their config.json."""
    config = _USUAL | {_ALIASES.get(name, name): value for name, value in config.items()}
    for name, value in _ONLY.items():
        known(config, name, {value: value}, value)
    architectures = config.get("architectures") or ["XLNetLMHeadModel"]
    known({"architectures": architectures[0]}, "architectures", {"XLNetLMHeadModel": True}, None)
    width = config["d_model"] // config["n_head"]
    known(config, "d_head", {width: width, None: width}, width)
    table = {ours: config[theirs] for ours, theirs in _KEYS.items() if config.get(theirs) is not None}
    table |= {"memory": config["mem_len"] or 0, "clamp": max(config.get("clamp_len", -1), 0)}
    table["activation"] = known(config, "ff_activation", _ACTIVATIONS, "gelu")
    return read_section(Config, table, where="config.json"), Sizes(config["vocab_size"], config["vocab_size"], True)


def to_foreign(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Their config.json for our config."""
    values = asdict(config)
    found = {theirs: values[ours] for ours, theirs in _KEYS.items()}
    found |= {"mem_len": config.memory or None, "reuse_len": config.reuse or None, "clamp_len": config.clamp or -1}
    found["ff_activation"] = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return {"architectures": ["XLNetLMHeadModel"], "vocab_size": sizes.target, **_ONLY, **found, **special}


def specials(config: Mapping[str, Any]) -> Specials:
    """The special ids of their config.json, or of the tokenizer: a text ends with <sep> <cls>."""
    return _foreign.specials(config, start=("cls", "bos", 3), end=("sep", "eos", 4), pad=("pad", 5))


settle = _foreign.plain


def copies(config: Config) -> dict[str, str]:
    """A tied head."""
    return {"lm_loss.weight": "transformer.word_embedding.weight"}


def pairs(config: Config) -> list[Pair]:
    """Which of our tensors is which of theirs."""
    cube = (config.model_dim, config.num_heads, config.model_dim // config.num_heads)
    found = [same("source.tokens.weight", "transformer.word_embedding.weight"), same("mask", "transformer.mask_emb")]
    found += [same("head.bias", "lm_loss.bias")]
    found += [] if config.tie_embeddings else [same("head.weight", "lm_loss.weight")]
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}.attention", f"transformer.layer.{i}.rel_attn"
        q, k, v, o, r = (f"{theirs}.{part}" for part in "qkvor")
        found.append(Pair(f"{ours}.body.qkv.weight", (q, k, v), transposed=True, shape=cube))
        found.append(Pair(f"{ours}.body.out.weight", (o,), shape=cube))
        found.append(Pair(f"{ours}.body.relative.project.weight", (r,), transposed=True, shape=cube))
        for mine, other in {"content": "w", "position": "r", "segment": "s"}.items():
            found.append(same(f"{ours}.body.relative.{mine}_bias", f"{theirs}.r_{other}_bias"))
        found.append(same(f"{ours}.body.relative.segment_keys", f"{theirs}.seg_embed"))
        found += linear(f"{ours}.norm", f"{theirs}.layer_norm")
        ours, theirs = f"blocks.{i}.feedforward", f"transformer.layer.{i}.ff"
        found += linear(f"{ours}.norm", f"{theirs}.layer_norm")
        found += linear(f"{ours}.body.up", f"{theirs}.layer_1") + linear(f"{ours}.body.down", f"{theirs}.layer_2")
    return found
