"""The `[train]` section of a recipe."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from regard.config import key
from regard.errors import require


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is trained; the same keys for every task and family."""

    seed: int = key(1, "first weights, order of the data and dropout follow from it")
    device: str = key("auto", "auto (a GPU when there is one), cpu, cuda or cuda:1")
    precision: Literal["auto", "fp32", "bf16"] = key("auto", "fp32, bf16 (weights stay fp32), or auto: bf16 on a GPU")
    max_steps: int = key(10000, "updates of the weights")
    batch_tokens: int = key(4096, "tokens of a batch, the longer side with its padding")
    accumulate: int = key(1, "batches that make one update; the same as one batch that much larger")
    bucket: int = key(4, "lengths are rounded up to a multiple of it, so that few shapes of batches exist")
    learning_rate: float = key(5e-4, "the highest learning rate")
    embedding_rate: float = key(1.0, "embeddings learn at this multiple of the rate; of use to T5's, which begin large")
    schedule: Literal["inverse-sqrt", "cosine", "constant"] = key(
        "inverse-sqrt", "after the warm-up: inverse-sqrt, cosine to 0, or constant with a decay to 0 at the end"
    )
    warmup_steps: int = key(1000, "the learning rate rises to its highest in this many updates")
    decay_share: float = key(0.2, "the share of all updates in which schedule = constant falls to 0")
    betas: tuple[float, float] = key((0.9, 0.98), "AdamW's two momenta")
    weight_decay: float = key(0.01, "AdamW's pull of matrices towards zero")
    clip: float = key(1.0, "largest norm of the gradient; 0 clips nothing")
    ema: float = key(0.0, "decay of a moving average of the weights, as 0.999; validation and the result use it")
    average: int = key(0, "the result is the mean of this many last checkpoints where validation finds it better")
    validate_every: int = key(500, "updates between two validations")
    best: str = key("loss", "what validation judges by: loss, or a metric of the task (decoded greedily)")
    patience: int = key(0, "stop after this many validations without a better one; 0 goes on to max_steps")
    checkpoint_every: int = key(500, "updates between two checkpoints")
    keep: int = key(2, "checkpoints kept, besides what `average` needs")
    log_every: int = key(50, "updates between two lines of metrics.jsonl")
    tensorboard: bool = key(False, "also write the metrics for TensorBoard, into the run folder")
    capture: bool = key(True, "on a GPU, replay each shape's step as one captured graph; false: launch every kernel")

    def __post_init__(self) -> None:
        positive = ("max_steps", "batch_tokens", "accumulate", "bucket", "validate_every", "checkpoint_every", "keep")
        for name in (*positive, "log_every"):
            require(getattr(self, name) >= 1, f"{name} is too small", got=getattr(self, name), wanted="1 or more")
        for name in ("warmup_steps", "weight_decay", "clip", "average", "patience"):
            require(getattr(self, name) >= 0, f"{name} is negative", got=getattr(self, name), wanted="0 or more")
        fits = 0 < self.learning_rate < math.inf
        require(fits, "learning_rate must rise above 0", got=self.learning_rate, wanted="for example 5e-4")
        fits = 0 < self.embedding_rate < math.inf
        require(fits, "embedding_rate is a multiple of the rate", got=self.embedding_rate, wanted="more than 0, as 16")
        require(0 <= self.seed < 2**63, "seed is out of range", got=self.seed, wanted="0 to 2**63 - 1")
        require(all(0 <= beta < 1 for beta in self.betas), "betas are decays", got=self.betas, wanted="0 <= x < 1")
        require(0 <= self.ema < 1, "ema is a decay", got=self.ema, wanted="0 (off) or for example 0.999")
        require(0 < self.decay_share <= 1, "decay_share is a share", got=self.decay_share, wanted="0 < x <= 1")
        falls = self.schedule == "constant" or self.decay_share == 0.2
        require(falls, "decay_share is of the constant schedule", got=self.schedule, wanted='schedule = "constant"')
        require(self.average != 1, "the mean of one checkpoint is itself", got=1, wanted="0 (off), 2 or more")
        require(not (self.ema and self.average), "ema and average are two ways to one thing", got="both", wanted="one")
