"""A co-attention reader: question and text read each other before they are read on (BiDAF, Seo et al. 2017).

Both are read by the same recurrent layer, each for itself. Each place a_i then scores each place b_j of the other text,

    s_ij = w_1 . a_i + w_2 . b_j + w_3 . (a_i * b_j)

and reads the other text by softmax_j(s_ij), which is context-to-query for the text and its mirror for the question.
Each text also reads itself by softmax_i(max_j s_ij): its places that matter to the other (query-to-context). Recurrent
layers read on over x = W [a; read; a * read; a * matter], again each text for itself.

Which place is of which text is told by the segments of a row; a row without is one text, which reads itself. Left out
of the paper: its convolution over characters and its highway layers; its last layers have residuals here.

Shapes: B batch, N length, D embedding width, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.config import key
from regard.errors import require, require_positive, require_share
from regard.layers.coattention import CoAttention, read_apart
from regard.layers.embedding import token_table
from regard.layers.output import MaskedHead
from regard.layers.pooling import AttentionPooling
from regard.layers.recurrent import BidirectionalLayer, RecurrentEmbedding
from regard.models import Sizes
from regard.types import Batch, Sequences


@dataclass(frozen=True, kw_only=True)
class Config:
    """The `[model]` section of a co-attention reader."""

    preset: str = key("base", "base or tiny: the sizes of every key that is not given")
    cell: Literal["rnn", "lstm", "gru"] = key("lstm", "rnn, lstm or gru")
    layers: int = key(2, "recurrent layers after the attention; before it there is one")
    embedding_dim: int = key(128, "width of the token vectors")
    hidden_dim: int = key(256, "width of the states; each direction has half of it")
    dropout: float = key(0.2, "dropout of embeddings and between layers")
    word_dropout: float = key(0.0, "dropout of whole tokens")
    tie_embeddings: bool = key(True, "the head that says what was hidden shares the weight of the embedding")

    def __post_init__(self) -> None:
        require_positive(self, "layers", "embedding_dim", "hidden_dim")
        require(self.hidden_dim % 2 == 0, "hidden_dim is halved", got=self.hidden_dim, wanted="an even number")
        require_share(self, "dropout", "word_dropout")


PRESETS: dict[str, dict[str, object]] = {"base": {}, "tiny": {"layers": 1, "embedding_dim": 32, "hidden_dim": 32}}
KINDS = ("encoder",)
LAWS = frozenset({"padding-invariant"})


def build(config: Config, sizes: Sizes) -> CoAttentionReader:
    """A co-attention reader of this config, with fresh weights."""
    table, width = token_table(sizes.source, config.embedding_dim), config.hidden_dim
    output = table if config.tie_embeddings else token_table(sizes.source, config.embedding_dim)
    return CoAttentionReader(
        source=RecurrentEmbedding(table, nn.Dropout(config.dropout), config.word_dropout),
        reading=BidirectionalLayer(config.cell, config.embedding_dim, width // 2),
        coattention=CoAttention(width),
        layers=nn.ModuleList(BidirectionalLayer(config.cell, width, width // 2) for _ in range(config.layers)),
        head=MaskedHead(output, dim=width),
        pooling=AttentionPooling(width),
        dropout=config.dropout,
    )


class CoAttentionReader(nn.Module):
    """Reads two texts of a row, each for itself and then each with the other."""

    def __init__(
        self,
        *,
        source: RecurrentEmbedding,
        reading: BidirectionalLayer,
        coattention: CoAttention,
        layers: nn.ModuleList,
        head: MaskedHead,
        pooling: AttentionPooling,
        dropout: float,
    ) -> None:
        super().__init__()
        width = pooling.keys.in_features
        self.source, self.reading, self.coattention = source, reading, coattention
        self.narrow, self.layers, self.dropout = nn.Linear(4 * width, width), layers, nn.Dropout(dropout)
        self.head, self.pooling = head, pooling

    def hidden(self, batch: Batch) -> Tensor:
        """The states of each token: B x N x H."""
        source, lengths = batch.source, batch.source.lengths
        second = second_text(source)
        x = self.dropout(read_apart(self.reading, self.source(source.ids), lengths, second))
        x = self.dropout(self.narrow(self.coattention(x, lengths, second)))
        for layer in self.layers:
            x = x + self.dropout(read_apart(layer, x, lengths, second))  # type: ignore[arg-type]
        return x  # type: ignore[no-any-return]

    def pooled(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """The state of a whole row, which an attention reads from all its places: B x H."""
        return self.pooling(hidden, lengths)  # type: ignore[no-any-return]


def second_text(source: Sequences) -> Tensor | None:
    """Which places are tokens of the second text: B x N; None where rows are not parted.

    >>> second_text(Sequences(torch.zeros(1, 4), torch.tensor([3]), torch.tensor([[0, 1, 1, 1]]))).tolist()
    [[False, True, True, False]]
    """
    if source.segments is None:
        return None
    places = torch.arange(source.ids.shape[1], device=source.ids.device)
    return (source.segments > 0) & (places < source.lengths[:, None])
