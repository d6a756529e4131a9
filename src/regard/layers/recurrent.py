"""Recurrent layers: a bidirectional encoder that padding cannot touch, and an attention for recurrent decoders.

Shapes: B batch, N length, D width, H hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from regard.errors import require
from regard.ops.attention import read, record_weights, score, score_additive, weigh
from regard.ops.masks import padding

LAYERS: dict[str, Callable[..., nn.Module]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
CELLS: dict[str, Callable[..., nn.Module]] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


class BidirectionalLayer(nn.Module):
    """One layer that reads forwards and backwards: B x N x D -> B x N x 2H.

    The backward reading goes over each row's own reversal, so padding stays at the right, after what is real, and
    the lengths need never leave the device.
    """

    def __init__(self, cell: str, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.forwards = LAYERS[cell](input_dim, hidden_dim, batch_first=True)
        self.backwards = LAYERS[cell](input_dim, hidden_dim, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mirror = reversal(x.shape[1], lengths)[:, :, None]
        with _capturable(x):
            ahead, _ = self.forwards(x)
            back, _ = self.backwards(x.gather(1, mirror.expand_as(x)))
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
        places = torch.arange(keys.shape[1], device=keys.device)
        allowed = padding(lengths).block(places[:1], places)[:, 0]  # B x 1 x M
        weights, values = weigh(scores, allowed).to(memory.dtype)[:, None], memory[:, None]  # one head
        out = read(weights, values)
        record_weights(weights, values, out)
        return out[:, 0, 0]


@contextlib.contextmanager
def _capturable(x: Tensor) -> Iterator[None]:
    """Inside, recurrent layers can be captured as a CUDA graph, which cuDNN's cannot."""
    capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
    enabled, torch.backends.cudnn.enabled = torch.backends.cudnn.enabled, torch.backends.cudnn.enabled and not capturing
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


def last_real(x: Tensor, lengths: Tensor) -> Tensor:
    """The state at the last real place of each row: B x N x D -> B x D (the first place of an empty row)."""
    place = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[-1])
    return x.gather(1, place)[:, 0]
