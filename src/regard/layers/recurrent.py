"""Recurrent layers: reading on from a state, reading both ways untouched by padding, writing with attention.

Shapes: B batch, N length, D width, H hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import require
from regard.layers.copying import Copying
from regard.layers.dropout import WordDropout
from regard.layers.embedding import Embedding
from regard.layers.pooling import read_places
from regard.ops.attention import score, score_additive
from regard.ops.call import is_captured

LAYERS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
CELLS: dict[str, Callable[..., nn.Module]] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}
STATES = {"rnn": "h", "lstm": "hc", "gru": "h"}  # what each remembers, one letter a tensor
_FUNCTIONS: dict[str, Callable[..., Any]] = {"RNN_TANH": torch.rnn_tanh, "LSTM": torch.lstm, "GRU": torch.gru}


def recur(
    layer: nn.RNNBase,
    x: Tensor,
    state: tuple[Tensor, ...],
    *,
    lengths: Tensor | None = None,
    weight_dropout: float = 0.0,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Reads on from a state (h, or h and c: B x H): B x N x D -> B x N x H, and the state after the last place.

    With `lengths` it is the state after the last real place of each row; as no library gives an LSTM's c of every
    place, that goes step by step. `weight_dropout` drops weights between one step and the next, the same at all steps
    (Merity et al. 2018).
    """
    state = tuple(part.to(x.dtype) for part in state)
    if lengths is None and not (weight_dropout and layer.training):
        with _without_cudnn(is_captured(x)):  # its recurrent layers cannot be a part of a CUDA graph
            out, after = layer(x, state[0][None] if len(state) == 1 else tuple(part[None] for part in state))
        return out, (after[0],) if len(state) == 1 else tuple(part[0] for part in after)
    weights: list[Tensor] = [*layer.all_weights[0]]
    weights[1] = F.dropout(weights[1], weight_dropout, layer.training)
    with _without_cudnn(True):  # it would have to gather the weights anew each time
        if lengths is None:
            return _read(layer, x, state, weights)
        outputs = []
        for place, piece in enumerate(x.split(1, dim=1)):
            output, after = _read(layer, piece, state, weights)
            state = tuple(torch.where((place < lengths)[:, None], *parts) for parts in zip(after, state, strict=True))
            outputs.append(output)
    return torch.cat(outputs, dim=1), state


def _read(
    layer: nn.RNNBase, x: Tensor, state: tuple[Tensor, ...], weights: list[Tensor]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What the layer gives with these weights in place of its own."""
    before = [part.to(x.dtype)[None] for part in state]
    plain = (True, 1, 0.0, layer.training, False, True)  # biases, one layer, no dropout, one way, the batch first
    out, *after = _FUNCTIONS[layer.mode](x, before if len(before) > 1 else before[0], weights, *plain)
    return out, tuple(part[0] for part in after)


class RecurrentEmbedding(Embedding):
    """Token vectors times sqrt(D), whole tokens dropped, then parts of what is left."""

    def __init__(self, table: nn.Embedding, dropout: nn.Module, word_dropout: float) -> None:
        super().__init__(table, position=None)
        self.parts, self.words = dropout, WordDropout(word_dropout, table.num_embeddings)

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        return self.parts(self.words(super().forward(ids), ids))  # type: ignore[no-any-return]


class BidirectionalLayer(nn.Module):
    """One layer that reads forwards and backwards: B x N x D -> B x N x 2H.

    The backward reading goes over each row's own reversal, so padding stays at the right, after what is real, and
    the lengths need never leave the device.
    """

    def __init__(self, cell: str, input_dim: int, hidden_dim: int, *, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.forwards = LAYERS[cell](input_dim, hidden_dim, batch_first=True)
        self.backwards = LAYERS[cell](input_dim, hidden_dim, batch_first=True)
        self.states, self.weight_dropout = len(STATES[cell]), weight_dropout

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mirror = reversal(x.shape[1], lengths)[:, :, None]
        nothing = (x.new_zeros(len(x), self.forwards.hidden_size),) * self.states
        ahead, _ = recur(self.forwards, x, nothing, weight_dropout=self.weight_dropout)
        turned = x.gather(1, mirror.expand_as(x))
        back, _ = recur(self.backwards, turned, nothing, weight_dropout=self.weight_dropout)
        return torch.cat([ahead, back.gather(1, mirror.expand_as(back))], dim=-1)


class RecurrentAttention(nn.Module):
    """One query a row against the encoder's states: Bahdanau's additive or Luong's general multiplicative score.

    Keys are projected once by `project`; a step weighs and reads as every other attention here.
    """

    attends = "cross"

    def __init__(self, kind: str, query_dim: int, memory_dim: int, attention_dim: int) -> None:
        super().__init__()
        require(
            kind in ("additive", "multiplicative"), "no such attention", got=kind, wanted="additive, multiplicative"
        )
        self.additive = kind == "additive"
        width = attention_dim if self.additive else query_dim
        self.keys = nn.Linear(memory_dim, width, bias=False)
        if self.additive:
            self.query = nn.Linear(query_dim, width)
            self.vector = nn.Parameter(torch.randn(width) * width**-0.5)

    def project(self, memory: Tensor) -> Tensor:
        """B x M x memory width -> the keys, B x M x width."""
        return self.keys(memory)  # type: ignore[no-any-return]

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """B x query width -> the context read from the memory, B x memory width."""
        if self.additive:
            scores = score_additive(self.query(query)[:, None], keys, self.vector)  # B x 1 x M
        else:
            scores = score(query[:, None], keys, scale=1.0)
        return read_places(scores, memory, lengths)


class RecurrentDecoder(nn.Module):
    """One step at a time: the layers' cells, what was read from the source, and the output state."""

    def __init__(
        self,
        *,
        cell: str,
        layers: int,
        embedding_dim: int,
        hidden_dim: int,
        attention: str,
        dropout: float,
        copying: Copying | None = None,
    ) -> None:
        super().__init__()
        self.cell, self.kind, self.layers, self.copying = cell, attention, layers, copying
        sizes = [embedding_dim + hidden_dim, *[hidden_dim] * (layers - 1)]
        self.cells = nn.ModuleList(CELLS[cell](size, hidden_dim) for size in sizes)
        self.begin = nn.Linear(hidden_dim, layers * hidden_dim)
        self.attention = (
            None if attention == "none" else RecurrentAttention(attention, hidden_dim, hidden_dim, hidden_dim)
        )
        self.combine = nn.Linear(2 * hidden_dim, hidden_dim)
        self.readout = nn.Linear(hidden_dim + embedding_dim, embedding_dim)
        self.dropout = nn.Dropout(dropout)

    def start(self, memory: Tensor, summary: Tensor, lengths: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What stays as it is for a source, with the first state in it, s_0 = tanh(W summary); and the cache."""
        first = torch.tanh(self.begin(summary)).chunk(self.layers, dim=-1)
        cache = {f"{i}.h": h for i, h in enumerate(first)}
        kept = {"summary": summary, "lengths": lengths, **cache}
        if self.attention is not None:
            kept |= {"states": memory, "keys": self.attention.project(memory)}
        if self.cell == "lstm":
            cache |= {f"{i}.c": torch.zeros_like(h) for i, h in enumerate(first)}  # beginnings of zeros need no memory
        if self.kind == "multiplicative":
            cache["fed"] = torch.zeros_like(summary)
        return kept, cache

    def forward(self, x: Tensor, kept: dict[str, Tensor], cache: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One step: B x D embedded tokens -> the output state B x D, and the cache after it."""
        new: dict[str, Tensor] = {}
        top = f"{self.layers - 1}.h"
        if self.kind == "additive":
            context = self._read(cache[top], kept)
        else:
            context = cache["fed"] if self.kind == "multiplicative" else kept["summary"]
        y = torch.cat([x, context.to(x.dtype)], dim=-1)
        for i, cell in enumerate(self.cells):
            state = (cache[f"{i}.h"], cache[f"{i}.c"]) if self.cell == "lstm" else cache[f"{i}.h"]
            after = cell(y, state)
            new[f"{i}.h"] = after[0] if self.cell == "lstm" else after
            if self.cell == "lstm":
                new[f"{i}.c"] = after[1]
            y = self.dropout(new[f"{i}.h"])
        if self.kind == "multiplicative":
            context = self._read(new[top], kept)
        y = torch.tanh(self.combine(torch.cat([y, context.to(y.dtype)], dim=-1)))
        if self.kind == "multiplicative":
            new["fed"] = y
        return self.dropout(self.readout(torch.cat([y, x], dim=-1))), new

    def _read(self, query: Tensor, kept: dict[str, Tensor]) -> Tensor:
        assert self.attention is not None
        return self.attention(query, kept["keys"], kept["states"], kept["lengths"])  # type: ignore[no-any-return]


@contextlib.contextmanager
def _without_cudnn(off: bool) -> Iterator[None]:
    enabled, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, torch.backends.cudnn.enabled and not off
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled


def reversal(length: int, lengths: Tensor) -> Tensor:
    """The index that reverses the real part of each row and leaves padding alone: B x N.

    >>> reversal(4, torch.tensor([3])).tolist()
    [[2, 1, 0, 3]]
    """
    places = torch.arange(length, device=lengths.device)
    mirrored = lengths[:, None] - 1 - places
    return torch.where(mirrored >= 0, mirrored, places)
