"""The optimiser and the schedules of its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn

from regard.train.config import TrainConfig


def make_optimizer(
    model: nn.Module, config: TrainConfig, device: torch.device, rates: Mapping[str, float] | None = None
) -> torch.optim.AdamW:
    """AdamW, with weight decay for matrices only; on a GPU its state lives there, so that a step can be captured.

    `rates` are the parameters, by name, that learn at another rate than the others: a multiple of it.
    """
    alike: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            alike.setdefault(((rates or {}).get(name, 1.0), parameter.dim() >= 2), []).append(parameter)
    cuda = device.type == "cuda"
    groups = []
    for (share, decays), parameters in sorted(alike.items(), key=lambda item: (-item[0][0], not item[0][1])):
        rate = config.learning_rate * share
        groups.append(
            {
                "params": parameters,
                "lr": torch.tensor(rate, device=device) if cuda else rate,
                "share": share,
                # the decay is a share of the rate: what learns faster than all is not to shrink faster
                "weight_decay": config.weight_decay / max(1.0, share) if decays else 0.0,
            }
        )
    return torch.optim.AdamW(groups, betas=config.betas, eps=1e-9, fused=True, capturable=cuda)


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
    """Sets the highest one, and of it each group's share; in place where it lives on the device, as captures need."""
    for group in optimizer.param_groups:
        own = rate * group["share"]
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def _after_warmup(step: int, warmup: int, config: TrainConfig) -> float:
    if config.schedule == "inverse-sqrt":
        return math.sqrt(warmup / step)
    left = max(0, config.max_steps - step)
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (1 - left / max(1, config.max_steps - warmup))))
    return min(1.0, left / max(1.0, config.decay_share * config.max_steps))
