"""Gated convolutions over time (Gehring et al. 2017), centred or causal.

Shapes: B batch, N length, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GatedConvolution(nn.Module):
    """dropout, then a convolution of width `kernel`, then a gated linear unit: B x N x D -> B x N x D."""

    def __init__(self, dim: int, kernel: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.kernel, self.causal, self.dropout = kernel, causal, nn.Dropout(dropout)
        self.convolution = nn.Conv1d(dim, 2 * dim, kernel)
        nn.init.normal_(self.convolution.weight, std=(4 * (1 - dropout) / (kernel * dim)) ** 0.5)
        nn.init.zeros_(self.convolution.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gives the output and, for the next step of a causal one, the last kernel - 1 inputs.

        `before` are the inputs that came before x (B x kernel - 1 x D); none means the start of the text.
        """
        if before is None:
            width = self.kernel - 1
            x = F.pad(x, (0, 0, width, 0) if self.causal else (0, 0, width // 2, width - width // 2))
        else:
            x = torch.cat([before.to(x.dtype), x], dim=1)
        out = F.glu(self.convolution(self.dropout(x).transpose(1, 2)), dim=1).transpose(1, 2)
        return out, x[:, x.shape[1] - (self.kernel - 1) :]
