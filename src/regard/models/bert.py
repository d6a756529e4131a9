"""BERT (Devlin et al. 2019): an encoder that reads one text or two from both sides, and learns from what was hidden.

    x = norm(token + segment + position), then blocks of attention and feed-forward, with the norm after each

On it stand a head that says what was hidden, a pooler that makes one state of a row, and on that a head that says
whether the second text follows the first. RoBERTa (Liu et al. 2019) is the same without the last, with one kind of
segment, and with positions that start after that of its padding. TENER (Yan et al. 2019) has no positions but
distances inside attention, whose scores are not scaled; its keys are projected here, as all keys are. K-BERT (Liu et
al. 2020) reads texts with branches: each has a position and a part of the text of its own.

Shapes: B batch, N length, D model width, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.config import key, read_section
from regard.errors import require, require_positive, require_share
from regard.layers.attention import SelfAttention
from regard.layers.block import EncoderBlock, Sublayer
from regard.layers.feedforward import FeedForward, norm
from regard.layers.ngrams import hash_ngrams
from regard.layers.output import MaskedHead, NoHead
from regard.layers.positions import DirectedSinusoids, Learned
from regard.models import Sizes, _foreign
from regard.models._foreign import Pair, known, linear, same
from regard.ops.masks import branching, padding
from regard.ops.positions import soft_positions
from regard.types import Batch, Sequences, Specials


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a BERT."""

    preset: str = key("base", "base, large, roberta, roberta-large, small, tiny or tener: the keys that are not given")
    layers: int = key(12, "blocks of the encoder")
    model_dim: int = key(768, "width of the token vectors")
    num_heads: int = key(12, "attention heads; model_dim is divided among them")
    ffn_dim: int = key(3072, "inner width of the feed-forward layers")
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = key("gelu", "gelu, gelu-tanh, relu or silu")
    norm_eps: float = key(1e-12, "what the norms add to the variance")
    position: Literal["learned", "tener"] = key(
        "learned",
        "learned: a vector a position; tener: sinusoids of distances inside attention, for texts of any length",
    )
    max_length: int = key(512, "how many positions are learned")
    first_position: int = key(0, "where positions start in their table; in RoBERTa behind the id of the padding")
    segment_kinds: int = key(2, "how many texts of a row are told apart; 1: none")
    bigrams: int = key(0, "vectors for pairs of a token and the one before it, which pairs share by chance; 0: none")
    dropout: float = key(0.1, "dropout of embeddings and sublayers")
    attention_dropout: float = key(0.1, "dropout of the attention weights")
    masked_head: bool = key(True, "a head that says what stands at a hidden place")
    pooler: bool = key(True, "a layer over the first token's state, for whole rows; false: that state as it is")
    next_sentence: bool = key(True, "a head that says whether the second text follows the first; needs the pooler")
    backend: Literal["auto", "reference", "fused", "flex"] = key("auto", "which attention backend; auto: the fastest")

    def __post_init__(self) -> None:
        require_positive(self, "layers", "model_dim", "num_heads", "ffn_dim", "max_length", "segment_kinds")
        require_share(self, "dropout", "attention_dropout")
        heads = f"model_dim ({self.model_dim}) must be divisible by num_heads ({self.num_heads})"
        require(self.model_dim % self.num_heads == 0, heads, got=self.model_dim, wanted=f"{self.num_heads} x width")
        require(self.norm_eps > 0, "norm_eps is too small", got=self.norm_eps, wanted="more than 0")
        require(self.bigrams >= 0, "bigrams is too small", got=self.bigrams, wanted="0 (none) or for example 20000")
        require(self.first_position >= 0, "first_position is too small", got=self.first_position, wanted="0 or more")
        reads = self.pooler or not self.next_sentence
        require(reads, "next_sentence reads what the pooler gives", got="pooler = false", wanted="both, or neither")


_LARGE = {"layers": 24, "model_dim": 1024, "num_heads": 16, "ffn_dim": 4096}
_ROBERTA = {"first_position": 1, "segment_kinds": 1, "norm_eps": 1e-5, "pooler": False, "next_sentence": False}
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "large": _LARGE,
    "roberta": _ROBERTA,
    "roberta-large": _LARGE | _ROBERTA,
    "small": {"layers": 4, "model_dim": 512, "num_heads": 8, "ffn_dim": 2048},
    "tener": {"layers": 2, "model_dim": 256, "num_heads": 4, "ffn_dim": 512, "activation": "relu", "position": "tener"}
    | {"segment_kinds": 1, "dropout": 0.15, "attention_dropout": 0.0, "masked_head": False}
    | {"pooler": False, "next_sentence": False},
    "tiny": {"layers": 2, "model_dim": 128, "num_heads": 2, "ffn_dim": 512},
}
KINDS = ("encoder",)
LAWS = frozenset({"padding-invariant"})


def build(config: Config, sizes: Sizes) -> Bert:
    """A BERT of this config, with fresh weights."""
    dim = config.model_dim
    tokens = nn.Embedding(sizes.source, dim)
    # RoBERTa's is a GELU, whatever the blocks have
    activation = "gelu" if config.first_position else config.activation
    head = MaskedHead(tokens, activation=activation, norm_eps=config.norm_eps)
    model = Bert(
        source=Embedding(
            tokens,
            segments=nn.Embedding(config.segment_kinds, dim),
            positions=Learned(config.max_length, dim, first=config.first_position)
            if config.position == "learned"
            else None,
            norm=norm("layer", dim, config.norm_eps),
            dropout=config.dropout,
            bigrams=nn.Embedding(config.bigrams, dim) if config.bigrams else None,
        ),
        blocks=nn.ModuleList(_block(config) for _ in range(config.layers)),
        head=head if config.masked_head else NoHead("masked_head"),
        pooler=nn.Sequential(nn.Linear(dim, dim), nn.Tanh()) if config.pooler else nn.Identity(),
        next_sentence=nn.Linear(dim, 2) if config.next_sentence else NoHead("next_sentence"),
    )
    begin(model)
    return model


def begin(model: nn.Module) -> None:
    """Fresh weights as BERT's are."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, Learned)):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


class Embedding(nn.Module):
    """norm(token + segment + position), and that of the token with the one before it where there are `bigrams`."""

    def __init__(
        self,
        tokens: nn.Embedding,
        *,
        segments: nn.Embedding,
        positions: Learned | None,
        norm: nn.Module,
        dropout: float,
        bigrams: nn.Embedding | None = None,
    ) -> None:
        super().__init__()
        self.tokens, self.segments, self.positions, self.bigrams = tokens, segments, positions, bigrams
        self.norm, self.dropout = norm, nn.Dropout(dropout)

    def forward(self, ids: Tensor, segments: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """B x N ids, which text each is of (None: all of the first), where it stands (None: 0 .. N-1) -> B x N x D."""
        if segments is None or self.segments.num_embeddings == 1:
            segments = torch.zeros_like(ids)
        x = self.tokens(ids) + self.segments(segments)
        if self.positions is not None:
            self.positions.check(ids.shape[1])
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device) if positions is None else positions)
        if self.bigrams is not None:
            x = x + self.bigrams(hash_ngrams(ids, 2, self.bigrams.num_embeddings))
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Reads texts from both sides."""

    def __init__(
        self, *, source: nn.Module, blocks: nn.ModuleList, head: nn.Module, pooler: nn.Module, next_sentence: nn.Module
    ) -> None:
        super().__init__()
        self.source, self.blocks, self.head = source, blocks, head
        self.pooler, self.next_sentence = pooler, next_sentence  # the latter: B x D pooled -> it follows, it does not

    @property
    def reads_branches(self) -> bool:
        """Whether it can read texts with branches: only learned positions say where one begins."""
        return self.source.positions is not None and self.source.bigrams is None

    def states(self, source: Sequences) -> Iterator[Tensor]:
        """The embeddings, then the states after each block, one at a time: B x N x D."""
        mask, positions = padding(source.lengths), None
        if source.branches is not None:
            mask, positions = mask & branching(source.branches), soft_positions(source.branches)
        x = self.source(source.ids, source.segments, positions)
        yield x
        for block in self.blocks:
            x = block(x, mask)
            yield x

    def hidden(self, batch: Batch) -> Tensor:
        """The states after the last block: B x N x D."""
        for x in self.states(batch.source):
            last = x
        return last

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The state of a whole row, from its first token: B x D."""
        return self.pooler(hidden[:, 0])  # type: ignore[no-any-return]


def _block(config: Config) -> EncoderBlock:
    dim = config.model_dim
    tener = config.position == "tener"
    attention = SelfAttention(
        dim,
        config.num_heads,
        scale=1.0 if tener else None,
        dropout=config.attention_dropout,
        relative=DirectedSinusoids(config.num_heads, dim // config.num_heads) if tener else None,
        backend=config.backend,
    )

    def wrap(body: nn.Module) -> Sublayer:
        return Sublayer(body, norm("layer", dim, config.norm_eps), norm_first=False, dropout=config.dropout)

    return EncoderBlock(attention, FeedForward(dim, config.ffn_dim, activation=config.activation), wrap)


# --- weights of others ------------------------------------------------------------------------------------------------

MODEL_TYPES = ("bert", "roberta")
UNUSED = ("position_ids", "token_type_ids")  # counters in older files
_KEYS = {  # where theirs does not say one, it means our base
    "layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "norm_eps": "layer_norm_eps",
    "segment_kinds": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}
_ACTIVATIONS |= {"relu": "relu", "silu": "silu"}
_PARTS = {  # masked_head, pooler, next_sentence
    "Model": (False, True, False),
    "ForMaskedLM": (True, False, False),
    "ForPreTraining": (True, True, True),
    "ForNextSentencePrediction": (False, True, True),
}
# another value would make another model of it; "auto_map" names code of its own
_ONLY: dict[str, object] = {"is_decoder": False, "add_cross_attention": False, "is_encoder_decoder": False}
_ONLY |= {"tie_word_embeddings": True, "position_embedding_type": "absolute", "pruned_heads": None, "auto_map": None}


def from_foreign(config: dict[str, Any]) -> tuple[Config, Sizes]:
    """Our config for their config.json."""
    said = {name: value for name, value in config.items() if value not in (None, [], {})}
    roberta = said["model_type"] == "roberta"
    name, vocabulary = ("Roberta", 50265) if roberta else ("Bert", 30522)
    for only, value in _ONLY.items():
        known(said, only, {value: value}, value)
    architecture = said.get("architectures", [f"{name}Model"])[0]
    classes = {f"{name}{end}": parts for end, parts in _PARTS.items() if not (roberta and parts[2])}
    masked_head, pooler, next_sentence = known({"architectures": architecture}, "architectures", classes, None)
    first = said.get("pad_token_id", 1) + 1 if roberta else 0
    table = {
        "preset": "roberta" if roberta else "base",
        **{ours: said[theirs] for ours, theirs in _KEYS.items() if theirs in said},
        "activation": known(said, "hidden_act", _ACTIVATIONS, "gelu"),
        "first_position": first,
        "max_length": said.get("max_position_embeddings", 512) - first,
        "masked_head": masked_head,
        "pooler": said.get("add_pooling_layer", pooler),
        "next_sentence": next_sentence,
    }
    size = said.get("vocab_size", vocabulary)
    return read_section(Config, table, where="config.json"), Sizes(size, size, True)


def to_foreign(config: Config, sizes: Sizes) -> dict[str, Any]:
    """Their config.json for our config; a pooler that it cannot speak of is said in a key of ours."""
    values, first, heads = asdict(config), config.first_position, (config.masked_head, config.next_sentence)
    for name, only in (("position", "learned"), ("bigrams", 0)):
        require(values[name] == only, f"others have no BERT with this {name}", got=values[name], wanted=only)
    require(not (first and heads[1]), "RoBERTa has no next-sentence head", got="next_sentence = true", wanted="false")
    end, pooler = next((end, parts[1]) for end, parts in _PARTS.items() if parts[::2] == heads)
    return {
        "architectures": [("Roberta" if first else "Bert") + end],
        "model_type": "roberta" if first else "bert",
        "vocab_size": sizes.source,
        **{theirs: values[ours] for ours, theirs in _KEYS.items()},
        "hidden_act": next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation),
        "max_position_embeddings": first + config.max_length,
        "pad_token_id": first - 1 if first else 0,
        **({} if config.pooler == pooler else {"add_pooling_layer": config.pooler}),
    }


def specials(config: Mapping[str, Any]) -> Specials:
    """The special ids of their config.json, which says the padding only: the others are the tokenizer's."""
    start, end, pad = (0, 2, 1) if config["model_type"] == "roberta" else (101, 102, 0)
    return _foreign.specials(config, start=("cls", "bos", start), end=("sep", "eos", end), pad=("pad", pad))


def copies(config: Config) -> dict[str, str]:
    """The masked head's weight is that of the tokens, and its bias has two names."""
    root, head = _roots(config)
    decoder = "lm_head.decoder" if config.first_position else "cls.predictions.decoder"
    return {f"{decoder}.weight": f"{root}embeddings.word_embeddings.weight", f"{decoder}.bias": f"{head}.bias"}


def pairs(config: Config) -> list[Pair]:
    """Which of our tensors is which of theirs."""
    root, head = _roots(config)
    found = linear("source.norm", f"{root}embeddings.LayerNorm")
    for ours, theirs in {"tokens": "word", "segments": "token_type", "positions": "position"}.items():
        found.append(same(f"source.{ours}.weight", f"{root}embeddings.{theirs}_embeddings.weight"))
    for i in range(config.layers):
        ours, theirs = f"blocks.{i}", f"{root}encoder.layer.{i}"
        parts = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        found += linear(f"{ours}.attention.body.qkv", *parts)
        found += linear(f"{ours}.attention.body.out", f"{theirs}.attention.output.dense")
        found += linear(f"{ours}.attention.norm", f"{theirs}.attention.output.LayerNorm")
        found += linear(f"{ours}.feedforward.body.up", f"{theirs}.intermediate.dense")
        found += linear(f"{ours}.feedforward.body.down", f"{theirs}.output.dense")
        found += linear(f"{ours}.feedforward.norm", f"{theirs}.output.LayerNorm")
    if config.masked_head:
        dense, norm = ("dense", "layer_norm") if config.first_position else ("transform.dense", "transform.LayerNorm")
        found += linear("head.dense", f"{head}.{dense}") + linear("head.norm", f"{head}.{norm}")
        found.append(same("head.bias", f"{head}.bias"))
    found += linear("pooler.0", f"{root}pooler.dense") if config.pooler else []
    return found + (linear("next_sentence", "cls.seq_relationship") if config.next_sentence else [])


def settle(config: Config, tensors: Mapping[str, Tensor]) -> tuple[Config, dict[str, Tensor]]:
    """The config with the parts that a file really has, and its tensors under the names of `pairs`.

    bert-base-uncased says that it is a BertForMaskedLM and has every part; its norms have a gamma and a beta.
    """
    root, head = _roots(replace(config, masked_head=True))
    new = {root: "", "gamma": "weight", "beta": "bias"}
    old = re.compile(rf"^{re.escape(root)}|(?<=LayerNorm\.)(gamma|beta)$")
    short = {old.sub(lambda found: new[found[0]], name): tensor for name, tensor in tensors.items()}
    masked, pooler, follows = (f"{part}.bias" in short for part in (head, "pooler.dense", "cls.seq_relationship"))
    config = replace(config, masked_head=masked, pooler=pooler, next_sentence=follows)
    root, beside = _roots(config)[0], ("cls.", "lm_head.")
    return config, {name if name.startswith(beside) else root + name: tensor for name, tensor in short.items()}


def _roots(config: Config) -> tuple[str, str]:
    """What their names of the encoder begin with, where a head stands beside it, and those of the masked head."""
    root, head = ("roberta.", "lm_head") if config.first_position else ("bert.", "cls.predictions")
    return root if config.masked_head or config.next_sentence else "", head
