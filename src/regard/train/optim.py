"""The optimiser and the schedules of its learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from regard.train.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW, with weight decay for matrices only; on a GPU its state lives there, so that a step can be captured."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    cuda = device.type == "cuda"
    rate = torch.tensor(config.learning_rate, device=device) if cuda else config.learning_rate
    return torch.optim.AdamW(groups, lr=rate, betas=config.betas, eps=1e-9, fused=True, capturable=cuda)


def learning_rate(step: int, config: TrainConfig) -> float:
    """The learning rate of update `step`, counted from 1.

    >>> config = TrainConfig(learning_rate=1.0, warmup_steps=4)
    >>> [learning_rate(step, config) for step in (1, 4, 16)]
    [0.25, 1.0, 0.5]
    """
    warmup = max(1, config.warmup_steps)
    if step < warmup:
        return config.learning_rate * step / warmup
    return config.learning_rate * _after_warmup(step, warmup, config)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets it in place where it lives on the device, which a captured step needs."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _after_warmup(step: int, warmup: int, config: TrainConfig) -> float:
    if config.schedule == "inverse-sqrt":
        return math.sqrt(warmup / step)
    left = max(0, config.max_steps - step)
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (1 - left / max(1, config.max_steps - warmup))))
    return min(1.0, left / max(1.0, config.decay_share * config.max_steps))
