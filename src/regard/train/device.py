"""Which device, and how exactly it computes."""

from __future__ import annotations

import torch

from regard.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """The device of this name; auto is a GPU when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError("no such device", got=name, wanted="auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            here = f"cuda:0 to cuda:{count - 1}" if count else "cpu: there is no GPU"
            raise ConfigError("that GPU is not here", got=name, wanted=here, remedy="`regard doctor` lists them")
        torch.set_float32_matmul_precision("high")
    elif device.type != "cpu":
        raise ConfigError("no such device", got=name, wanted="auto, cpu, cuda or cuda:N")
    return device
