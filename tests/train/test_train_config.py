"""What [train] refuses, in words; and which devices there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from regard.config import read_section, to_table
from regard.errors import ConfigError
from regard.train.config import TrainConfig
from regard.train.device import pick_device


@pytest.mark.parametrize(
    ("table", "what", "got", "wanted"),
    [
        *(
            ({name: 0}, f"{name} is too small", "0", "1 or more")
            for name in (
                "max_steps",
                "batch_tokens",
                "accumulate",
                "bucket",
                "validate_every",
                "checkpoint_every",
                "keep",
                "log_every",
            )
        ),
        *(({name: -1}, f"{name} is negative", "-1", "0 or more") for name in ("warmup_steps", "average", "patience")),
        ({"weight_decay": -0.5}, "weight_decay is negative", "-0.5", "0 or more"),
        ({"clip": float("nan")}, "clip is negative", "nan", "0 or more"),
        ({"learning_rate": 0.0}, "learning_rate must rise above 0", "0.0", "for example 5e-4"),
        ({"seed": -1}, "seed is out of range", "-1", "0 to 2**63 - 1"),
        ({"betas": [0.9, 1.0]}, "betas are decays", "(0.9, 1.0)", "0 <= x < 1"),
        ({"ema": 1.0}, "ema is a decay", "1.0", "0 (off) or for example 0.999"),
        ({"decay_share": 0.0}, "decay_share is a share", "0.0", "0 < x <= 1"),
        ({"decay_share": 0.5}, "decay_share is of the constant schedule", "inverse-sqrt", 'schedule = "constant"'),
        ({"average": 1}, "the mean of one checkpoint is itself", "1", "0 (off), 2 or more"),
        ({"ema": 0.9, "average": 2}, "ema and average are two ways to one thing", "both", "one"),
    ],
)
def test_values_that_cannot_be_meant(table: dict[str, Any], what: str, got: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_section(TrainConfig, table, where="recipe.toml", name="train")
    assert str(error.value) == f"{what}\n  got:    {got}\n  wanted: {wanted}\n  where:  [train] in recipe.toml"


def test_a_config_reads_back_equal() -> None:
    config = TrainConfig(ema=0.99, schedule="constant", betas=(0.8, 0.9), tensorboard=True)
    assert read_section(TrainConfig, to_table(config), where="recipe.toml", name="train") == config


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError) as error:
        pick_device("cuda")
    assert str(error.value) == (
        "that GPU is not here\n  got:    cuda\n  wanted: cpu: there is no GPU\n  try:    `regard doctor` lists them"
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="got:    cuda:2\n  wanted: cuda:0 to cuda:1\n"):
        pick_device("cuda:2")
    for name in ("tpu", "mps", "", "cuda:x"):
        with pytest.raises(ConfigError) as error:
            pick_device(name)
        assert str(error.value) == f"no such device\n  got:    {name}\n  wanted: auto, cpu, cuda or cuda:N"
