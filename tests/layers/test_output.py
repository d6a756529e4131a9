"""Heads, as the papers write them, and the one that is not there."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from regard.errors import RegardError
from regard.layers.output import MaskedHead, NoHead

EXACT = {"rtol": 0.0, "atol": 1e-12}


def test_the_masked_head() -> None:
    """norm(gelu(x W + b)) E^T + c, with the table E of the tokens  (Devlin et al. 2019, 3.1 and A.2)"""
    tokens, x = nn.Embedding(7, 4), torch.randn(2, 3, 4)
    head = MaskedHead(tokens, activation="gelu", norm_eps=1e-3)
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    inner = x @ head.dense.weight.T + head.dense.bias
    inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
    mean, variance = inner.mean(-1, keepdim=True), inner.var(-1, keepdim=True, correction=0)
    inner = (inner - mean) / (variance + 1e-3).sqrt() * head.norm.weight + head.norm.bias  # type: ignore[operator]
    assert head.weight is tokens.weight
    assert_close(head.transform(x), inner, **EXACT)
    assert_close(head(x), inner @ tokens.weight.T + head.bias, **EXACT)


def test_a_head_that_is_not_there_says_how_to_get_one() -> None:
    with pytest.raises(RegardError) as error:
        NoHead("masked_head")(torch.zeros(1, 2, 3))
    assert str(error.value) == (
        "this model has no such head\n  got:    masked_head = false\n"
        "  try:    take weights that have it, or train one: model.masked_head = true"
    )
