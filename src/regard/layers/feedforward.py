"""Position-wise feed-forward layers, plain and gated, and the norms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import require

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "geglu": F.gelu,
    "geglu-tanh": ACTIVATIONS["gelu-tanh"],
    "swiglu": F.silu,
    "reglu": F.relu,
}
NORMS: dict[str, tuple[Callable[..., nn.Module], float]] = {"layer": (nn.LayerNorm, 1e-5), "rms": (nn.RMSNorm, 1e-6)}


class FeedForward(nn.Module):
    """FFN(x) = f(x W_1 + b_1) W_2 + b_2; a gated one multiplies f(x W_1) by a second projection of x."""

    def __init__(
        self, model_dim: int, ffn_dim: int, *, activation: str = "relu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        known = [*ACTIVATIONS, *GATED]
        require(activation in known, "no such activation", got=activation, wanted=", ".join(known))
        self.gated = activation in GATED
        self.activation = GATED[activation] if self.gated else ACTIVATIONS[activation]
        self.up = nn.Linear(model_dim, 2 * ffn_dim if self.gated else ffn_dim, bias=bias)
        self.down = nn.Linear(ffn_dim, model_dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """.. x D -> .. x D."""
        up = self.up(x)
        if self.gated:
            gate, value = up.chunk(2, dim=-1)
            inner = self.activation(gate) * value
        else:
            inner = self.activation(up)
        return self.down(self.dropout(inner))  # type: ignore[no-any-return]


def norm(kind: str, dim: int, eps: float | None = None, *, bias: bool = True) -> nn.Module:
    """A layer norm ("layer") or a root-mean-square norm ("rms", without a bias); `eps` is 1e-5 or 1e-6 if not given."""
    require(kind in NORMS, "no such norm", got=kind, wanted=", ".join(NORMS))
    make, usual = NORMS[kind]
    options = {} if kind == "rms" else {"bias": bias}
    return make(dim, eps=usual if eps is None else eps, **options)
