"""A hop: a question reads the sentences of a story.

Shapes: B batch, S sentences, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.ops.attention import is_observed, read, record_weights, score, weigh
from regard.ops.call import is_captured


class Hop(nn.Module):
    """o = sum_i softmax(u . m_i) c_i; in the first `linear_steps` batches of a training without the softmax."""

    attends, rows_axis, keys_axis = "cross", "question", "sentences"
    steps: Tensor

    def __init__(self, linear_steps: int = 0) -> None:
        super().__init__()
        self.linear_steps = linear_steps
        if linear_steps:
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))  # goes with the weights

    def forward(self, state: Tensor, keys: Tensor, values: Tensor, there: Tensor) -> Tensor:
        """B x D, B x S x D twice, and which sentences there are (B x S) -> what is read of them: B x D."""
        q, k, v = state[:, None, None], keys[:, None], values[:, None]  # one head, one row
        allowed = there[:, None, None]
        scores = score(q, k, scale=1.0)
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        weights = weigh(scores, allowed)
        if self.linear_steps:
            weights = torch.where(self.steps < self.linear_steps, scores * allowed, weights)
            if self.training:
                self.steps += 1
        weights = weights.to(v.dtype)
        out = read(weights, v)
        if is_observed():
            # slots that no row has a sentence for are not shown, where it can be asked which; they weigh nothing
            number = there.shape[1] if is_captured(there) else int(there.sum(1).max())
            record_weights(weights[..., :number], v[:, :, :number], out)
        return out[:, 0, 0]
