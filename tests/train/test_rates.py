"""Rates and ranks that a model has no use for, and layers that are none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from regard import models
from regard.errors import ConfigError
from regard.models import Sizes, bert, convolutional
from regard.train.config import TrainConfig
from regard.train.finetune import FinetuneConfig, prepare


def model_of() -> Any:
    config = bert.Config(layers=2, model_dim=16, num_heads=2, ffn_dim=32)
    return models.build("bert", config, Sizes(10, 10, shared=True), "encoder")


@pytest.mark.parametrize("keys", [{"freeze": ("embeddings",)}, {"lora_rank": 2}])
def test_a_rate_of_embeddings_that_do_not_learn_is_refused(keys: dict[str, Any]) -> None:
    prepare(model_of(), FinetuneConfig(base="b", **keys))
    with pytest.raises(ConfigError) as error:
        prepare(model_of(), FinetuneConfig(base="b", **keys), embedding_rate=4.0)
    assert str(error.value).startswith("train.embedding_rate has no use here: no embedding learns\n  got:    4.0\n")


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_rate_of_embeddings_that_is_none(rate: float) -> None:
    with pytest.raises(ConfigError, match="embedding_rate is a multiple of the rate"):
        TrainConfig(embedding_rate=rate)


def test_convolutions_side_by_side_learn_at_one_rate() -> None:
    config = convolutional.Config(preset="tiny", hidden_dim=16, embedding_dim=16, kernels=(2, 3))
    model = models.build("convolutional", config, Sizes(10, 10, shared=True), "encoder")
    rates = prepare(model, FinetuneConfig(base="b", layer_decay=0.5))
    assert {rate for name, rate in rates.items() if name.startswith("layers.")} == {1}
    assert rates["source.tokens.weight"] == 0.5
    with pytest.raises(ConfigError, match="no such layers\n  got:    layers:0-0\n  wanted: names of weights"):
        prepare(model, FinetuneConfig(base="b", freeze=("layers:0",)))


def test_a_rank_that_a_matrix_cannot_have() -> None:
    prepare(model_of(), FinetuneConfig(base="b", lora_rank=16, lora_targets=("*qkv",)))
    with pytest.raises(ConfigError) as error:
        prepare(model_of(), FinetuneConfig(base="b", lora_rank=17, lora_targets=("*qkv",)))
    assert str(error.value) == (
        "finetune.lora_rank is more than a matrix has\n  got:    17 for blocks.0.attention.body.qkv, 48 x 16\n"
        "  wanted: at most 16; small ranks are the use of LoRA, as 8\n"
        "  try:    a smaller lora_rank, or lora_targets without it"
    )
