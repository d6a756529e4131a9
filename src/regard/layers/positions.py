"""Where a token stands: added to its embedding (absolute) or said inside attention (relative).

Shapes: B batch, N length, H heads, d head width, D model width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.ops.call import places
from regard.ops.positions import rotate, sinusoid
from regard.ops.terms import Alibi, Buckets, RelativeKeys, Term, alibi_slopes


class Sinusoidal(nn.Module):
    """The fixed sinusoids of the paper, for any length. `halves`: see `sinusoid`."""

    def __init__(self, model_dim: int, *, halves: bool = False) -> None:
        super().__init__()
        self.model_dim, self.halves = model_dim, halves

    def forward(self, positions: Tensor) -> Tensor:
        """Positions of any shape -> the same x D."""
        return sinusoid(positions, self.model_dim, halves=self.halves)


class Learned(nn.Module):
    """One learned vector a position, up to a fixed length; `first` rows of the table come before position 0."""

    def __init__(self, max_length: int, model_dim: int, *, first: int = 0) -> None:
        super().__init__()
        self.first = first
        self.weight = nn.Parameter(torch.randn(first + max_length, model_dim) * model_dim**-0.5)

    def forward(self, positions: Tensor) -> Tensor:
        """Positions of any shape -> the same x D."""
        return self.weight[positions + self.first]

    @property
    def longest(self) -> int:
        """How many positions were learned."""
        return len(self.weight) - self.first

    def check(self, length: int) -> None:
        """Raises where a text is longer than what was learned."""
        if length > self.longest:
            raise RegardError(
                "the text is longer than the learned positions",
                got=f"{length} tokens",
                wanted=f"at most {self.longest}",
                remedy="read less at a time (task.context, data.max_length), or train with more model.max_length",
            )


class Axial(nn.Module):
    """Positions as places in a table (Kitaev et al. 2020): one learned vector a row, one a column, side by side."""

    def __init__(self, shape: tuple[int, int], dims: tuple[int, int]) -> None:
        super().__init__()
        (rows, columns), (row_dim, column_dim) = shape, dims
        self.rows = nn.Parameter(torch.randn(rows, row_dim) * sum(dims) ** -0.5)
        self.columns = nn.Parameter(torch.randn(columns, column_dim) * sum(dims) ** -0.5)

    def forward(self, positions: Tensor) -> Tensor:
        """Positions of any shape -> the same x D."""
        width = len(self.columns)
        return torch.cat([self.rows[positions // width], self.columns[positions % width]], dim=-1)

    @property
    def longest(self) -> int:
        """How many places the table has."""
        return len(self.rows) * len(self.columns)

    def check(self, length: int) -> None:
        """Raises where a text is longer than the table."""
        if length > self.longest:
            raise RegardError(
                "the text is longer than the axial positions",
                got=f"{length} tokens",
                wanted=f"at most {len(self.rows)} x {len(self.columns)}",
                remedy="raise model.axial_shape and train again",
            )


class Relative(nn.Module):
    """A position scheme inside attention: it may turn queries and keys, and may add terms to the scores."""

    def queries(self, x: Tensor, positions: Tensor | int | None) -> Tensor:
        """Queries (B x H x N x d) that stand at `positions` (a number: from there on; None: 0 .. N-1)."""
        return x

    def keys(self, x: Tensor, positions: Tensor | int | None) -> Tensor:
        """Keys that stand there."""
        return x

    def terms(self, span: int) -> tuple[Term, ...]:
        """What is added to the scores, where no distance reaches `span`."""
        return ()


class Rotary(Relative):
    """Rotary positions (Su et al. 2021)."""

    def __init__(self, base: float = 10000.0) -> None:
        super().__init__()
        self.base = base

    def queries(self, x: Tensor, positions: Tensor | int | None) -> Tensor:
        return rotate(x, places(positions, x), self.base)

    keys = queries


class AlibiBias(Relative):
    """Linear biases (Press et al. 2022): nothing to learn."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)
        self.slopes: Tensor

    def terms(self, span: int) -> tuple[Term, ...]:
        return (Alibi(self.slopes),)


class T5Bias(Relative):
    """Learned biases by bucket of distance (Raffel et al. 2020); T5 shares one among the layers of a stack."""

    def __init__(self, num_heads: int, *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_buckets, num_heads) * 0.02)
        self.bidirectional, self.max_distance = bidirectional, max_distance

    def terms(self, span: int) -> tuple[Term, ...]:
        return (Buckets(self.weight, self.bidirectional, self.max_distance),)


class ShawKeys(Relative):
    """Learned relative keys, clipped at `reach` (Shaw et al. 2018); the paper's relative values are left out,
    as its own ablation found that they add nothing to the keys."""

    def __init__(self, head_dim: int, reach: int = 16) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * reach + 1, head_dim) * head_dim**-0.5)

    def terms(self, span: int) -> tuple[Term, ...]:
        return (RelativeKeys(self.weight[None]),)


class DirectedSinusoids(Relative):
    """Sinusoids of the distance as they are, with biases u and v: TENER (Yan et al. 2019), on scores without a scale.

    A_ij = q_i k_j + q_i R_(i-j) + u k_j + v R_(i-j): as no projection mixes the sines, which are of opposite sign to
    both sides, with the cosines, a head can tell before from after, and how far.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.content_bias, self.position_bias = (
            nn.Parameter(nn.init.xavier_normal_(torch.empty(num_heads, head_dim))) for _ in range(2)
        )

    def queries(self, x: Tensor, positions: Tensor | int | None) -> Tensor:
        return x + self.content_bias[:, None].to(x.dtype)

    def terms(self, span: int) -> tuple[Term, ...]:
        # the paper's R is a function of i - j, the table's rows go by j - i
        distances = torch.arange(span, -span - 1, -1, device=self.content_bias.device)
        table = sinusoid(distances, self.content_bias.shape[1]).to(self.content_bias.dtype)
        return (RelativeKeys(table[None], self.position_bias - self.content_bias),)


class TransformerXLKeys(Relative):
    """Projected sinusoids of the distance, with a content bias u and a position bias v (Dai et al. 2019).

    `biases` (u and v) may be those of another layer. Distances beyond `clamp` are as that one; where nothing ahead is
    read (`causal`) there is no table for it. `halves`: see `sinusoid`.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        biases: tuple[nn.Parameter, nn.Parameter] | None = None,
        clamp: int | None = None,
        causal: bool = False,
        halves: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.model_dim, self.num_heads = model_dim, num_heads
        self.clamp, self.causal, self.halves, self.dropout = clamp, causal, halves, nn.Dropout(dropout)
        self.project = nn.Linear(model_dim, model_dim, bias=False)
        if biases is None:
            u, v = torch.zeros(2, num_heads, model_dim // num_heads)
            biases = nn.Parameter(u), nn.Parameter(v)
        self.content_bias, self.position_bias = biases

    def queries(self, x: Tensor, positions: Tensor | int | None) -> Tensor:
        return x + self.content_bias[:, None].to(x.dtype)

    def terms(self, span: int) -> tuple[Term, ...]:
        return (RelativeKeys(self.table(span), self.shift(self.position_bias), 0 if self.causal else None),)

    def table(self, span: int) -> Tensor:
        """The keys of all distances up to `span`: H x (2 span + 1) x d, or H x (span + 1) x d where it is causal."""
        span = span if self.clamp is None else min(span, self.clamp)
        # the paper's R is a function of i - j, the table's rows go by j - i
        distances = torch.arange(span, -1 if self.causal else -span - 1, -1, device=self.project.weight.device)
        waves = sinusoid(distances, self.model_dim, halves=self.halves).to(self.project.weight.dtype)
        return self.project(self.dropout(waves)).unflatten(-1, (self.num_heads, -1)).transpose(0, 1)  # type: ignore[no-any-return]

    def shift(self, bias: Tensor) -> Tensor:
        """What a term adds to a query that holds u already, for it to hold this bias (H x d) instead."""
        return bias - self.content_bias
