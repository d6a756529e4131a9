"""Heads off, ablated and pruned, on real models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.errors import ConfigError, RegardError
from regard.layers.attention import SelfAttention, merge_heads, split_heads
from regard.look.intervene import (
    ablate,
    all_heads,
    heads_off,
    layers,
    mean_outputs,
    named,
    prune,
    prune_curve,
    prune_order,
)
from regard.models import Sizes, convolutional, transformer
from regard.ops.attention import attend
from regard.tasks.translation import sum_loss
from regard.types import Batch, Sequences

NAMES = [
    "encoder.blocks.0.attention.body",
    "encoder.blocks.1.attention.body",
    "decoder.blocks.0.attention.body",
    "decoder.blocks.0.cross.body",
    "decoder.blocks.1.attention.body",
    "decoder.blocks.1.cross.body",
]


@pytest.fixture
def model() -> transformer.Transformer:
    config = transformer.Config(
        encoder_layers=2, decoder_layers=2, model_dim=24, num_heads=3, num_kv_heads=1, ffn_dim=32
    )
    return transformer.build(config, Sizes(20, 20, False)).eval()


@pytest.fixture
def batch() -> Batch:
    source, target = torch.randint(4, 20, (2, 6)), torch.randint(4, 20, (2, 5))
    return Batch(Sequences(source, torch.tensor([6, 6])), Sequences(target, torch.tensor([5, 5])))


def scorer(model: Any, batch: Batch) -> Callable[[], dict[str, Any]]:
    def score() -> dict[str, Any]:
        with torch.no_grad():
            total, count = sum_loss(model, batch, 0.0)
            best = model.head(model.hidden(batch)).argmax(-1)
        return {"loss": total / count, "mean": best.float().mean(), "answers": [str(row.tolist()) for row in best]}

    return score


def alone(layer: SelfAttention, x: Tensor, heads: list[int], instead: Tensor | None = None) -> Tensor:
    """The layer's formula with these heads replaced by hand, head by head."""
    q, k, v = (split_heads(part, layer.head_dim) for part in layer.qkv(x).split(layer.sizes, dim=-1))
    out = list(attend(q, k, v).unbind(1))
    for head in heads:
        out[head] = torch.zeros_like(out[head]) if instead is None else instead[head].expand_as(out[head])
    return layer.out(merge_heads(torch.stack(out, 1)))


def test_a_layer_is_what_has_out_and_head_dim(model: nn.Module) -> None:
    assert list(layers(model)) == NAMES
    assert all_heads(model) == [(name, head) for name in NAMES for head in range(3)]


def test_a_masked_head_gives_nothing_and_a_mean_one_its_mean() -> None:
    layer, x = SelfAttention(24, 3, num_kv_heads=1), torch.randn(2, 5, 24)
    means = torch.randn(3, 8)
    whole = layer(x)
    with heads_off(layer, {("", 1), (0, 2)}):
        assert_close(layer(x), alone(layer, x, [1, 2]), rtol=0, atol=1e-6)
    with heads_off(layer, [("", 2)], "mean", {"": means}):
        assert_close(layer(x), alone(layer, x, [2], means), rtol=0, atol=1e-6)
    assert torch.equal(layer(x), whole), "after the block all is as it was"
    with heads_off(layer, []):
        assert torch.equal(layer(x), whole)


def test_heads_come_back_after_an_error() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    whole = layer(x)
    with pytest.raises(ZeroDivisionError), heads_off(layer, [(0, 0)]):
        raise ZeroDivisionError
    assert torch.equal(layer(x), whole)


def test_gradients_flow_around_a_masked_head() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8, requires_grad=True)
    with heads_off(layer, [(0, 0)]):
        layer(x).sum().backward()
    by_head = layer.out.weight.grad.unflatten(1, (2, 4)).abs().sum((0, 2))
    assert by_head[0] == 0
    assert by_head[1] > 0


def test_means_are_over_all_places_of_all_batches() -> None:
    layer, batches = SelfAttention(8, 2), [torch.randn(2, 5, 8), torch.randn(1, 3, 8)]

    def outputs(x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, 4) for part in layer.qkv(x).split(layer.sizes, dim=-1))
        return attend(q, k, v).transpose(1, 2).flatten(0, 1)  # places x H x d

    means = mean_outputs(layer, lambda: [layer(x) for x in batches])
    assert list(means) == [""]
    assert_close(means[""], torch.cat([outputs(x) for x in batches]).mean(0).detach(), rtol=0, atol=1e-6)


def test_means_need_every_layer(model: nn.Module, batch: Batch) -> None:
    with pytest.raises(RegardError, match=r"some layers were not run(.|\n)*decoder.blocks.0.attention.body"):
        mean_outputs(model, lambda: model.encode(batch.source))
    assert set(mean_outputs(model, lambda: model.hidden(batch))) == set(NAMES)


def test_the_ablation_table_says_what_changes(model: nn.Module, batch: Batch) -> None:
    score = scorer(model, batch)
    table = ablate(model, score)
    whole = score()
    assert table["mode"] == "mask"
    assert table["loss"] == float(whole["loss"])
    assert table["metrics"] == {"mean": float(whole["mean"])}
    assert [(row["name"], row["head"]) for row in table["heads"]] == all_heads(model)
    assert [row["layer"] for row in table["heads"]] == [layer for layer in range(6) for _ in range(3)]
    row = table["heads"][10]
    with heads_off(model, [(3, 1)]):
        without = score()
    assert row["change"] == float(without["loss"]) - float(whole["loss"]) != 0
    assert row["metrics"] == {"mean": float(without["mean"]) - float(whole["mean"])}
    assert row["metrics"]["mean"] not in (0.0, float(whole["mean"]))
    others = [new for old, new in zip(whole["answers"], without["answers"], strict=True) if new != old]
    assert (row["changed"], row["answer"]) == (bool(others), others[0] if others else None)
    assert any(row["changed"] for row in table["heads"])
    assert ablate(model, score) == table, "equal questions, equal numbers"


def test_ablation_by_means_and_of_chosen_heads(model: nn.Module, batch: Batch) -> None:
    means = mean_outputs(model, lambda: model.hidden(batch))
    table = ablate(model, scorer(model, batch), [(NAMES[5], 2), (0, 1)], "mean", means)
    assert table["mode"] == "mean"
    assert [(row["layer"], row["head"]) for row in table["heads"]] == [(5, 2), (0, 1)]
    with heads_off(model, [(5, 2)], "mean", means):
        assert table["heads"][0]["change"] == float(scorer(model, batch)()["loss"]) - table["loss"]


def test_a_score_without_answers_or_metrics() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    row = ablate(layer, lambda: {"loss": layer(x).sum()}, [(0, 0)])["heads"][0]
    assert (row["metrics"], row["answer"], row["changed"]) == ({}, None, False)


def columns(model: nn.Module, name: str, head: int) -> torch.Tensor:
    """What a head writes with: its columns of W^O."""
    layer = layers(model)[name]
    return layer.heads(layer.out.weight)[:, head]


def test_a_pruned_model_equals_its_heads_off(model: nn.Module, batch: Batch) -> None:
    heads = [(NAMES[0], 1), (3, 0), (3, 2)]
    with heads_off(model, heads):
        wanted = model.hidden(batch)
    prune(model, heads)
    assert_close(model.hidden(batch), wanted, rtol=0, atol=1e-6)
    again = transformer.build(
        transformer.Config(encoder_layers=2, decoder_layers=2, model_dim=24, num_heads=3, num_kv_heads=1, ffn_dim=32),
        Sizes(20, 20, False),
    ).eval()
    again.load_state_dict(model.state_dict())
    assert_close(again.hidden(batch), wanted, rtol=0, atol=1e-6)
    zero = [(name, head) for name, head in all_heads(again) if not columns(again, name, head).any()]
    assert zero == [(NAMES[0], 1), (NAMES[3], 0), (NAMES[3], 2)]


def test_the_curve_takes_the_least_important_first_and_asks_again(model: nn.Module, batch: Batch) -> None:
    score, asked = scorer(model, batch), []
    first = {name: torch.arange(3.0) + 3 * i for i, name in enumerate(NAMES)}
    later = {name: -values for name, values in first.items()}

    def importance() -> dict[str, Tensor]:
        asked.append(float(score()["loss"]))  # as the model then is
        return first if len(asked) == 1 else later

    points = prune_curve(model, score, importance, keep=13, every=2)
    # two of the first estimate, then from the other end
    order = [(NAMES[0], 0), (NAMES[0], 1), (NAMES[5], 2), (NAMES[5], 1), (NAMES[5], 0)]
    assert [point["pruned"] for point in points] == [order[:i] for i in range(6)]
    assert [point["kept"] for point in points] == [18, 17, 16, 15, 14, 13]
    assert asked == [points[0]["loss"], points[2]["loss"], points[4]["loss"]], "asked with the heads off that went"
    assert points[0]["loss"] == float(score()["loss"]), "the model is left as it was"
    with heads_off(model, order[:3]):
        assert points[3]["loss"] == float(score()["loss"])
        assert points[3]["metrics"] == {"mean": float(score()["mean"])}


def test_the_curve_reaches_no_heads_at_all(model: nn.Module, batch: Batch) -> None:
    importance = {name: torch.zeros(3) for name in NAMES}
    points = prune_curve(model, scorer(model, batch), lambda: importance, every=100)
    assert points[-1]["kept"] == 0
    assert points[-1]["pruned"] == all_heads(model), "equal ones go in the model's order"
    prune(model, points[-1]["pruned"])
    assert points[-1]["loss"] == pytest.approx(float(scorer(model, batch)()["loss"]), abs=1e-6)


def test_order_is_over_all_layers() -> None:
    importance = {"a": torch.tensor([0.5, 0.1]), "b": torch.tensor([0.1, 0.3])}
    assert prune_order(importance) == [("a", 1), ("b", 0), ("b", 1), ("a", 0)]


def test_errors_name_what_is_there(model: nn.Module) -> None:
    with pytest.raises(
        RegardError, match=r"no such attention layer(.|\n)*got: +encoder(.|\n)*0 to 5, or one of encoder"
    ):
        named(model, [("encoder", 0)])
    for layer in (6, -1):
        with pytest.raises(RegardError, match="no such attention layer"):
            named(model, [(layer, 0)])
    for head in (3, -1):
        with pytest.raises(RegardError, match=r"no such head(.|\n)*0 to 2(.|\n)*decoder.blocks.0.cross.body"):
            named(model, [(3, head)])
    with pytest.raises(ConfigError, match="no such mode"), heads_off(model, [], "zero"):
        pass
    with pytest.raises(ConfigError, match="mode = mean without means"), heads_off(model, [], "mean"):
        pass
    with pytest.raises(ConfigError, match="mode = mask with means"), heads_off(model, [], "mask", {}):
        pass
    with pytest.raises(ConfigError, match="every is too small"):
        prune_curve(model, lambda: {"loss": 0.0}, dict, every=0)
    with pytest.raises(ConfigError, match=r"so many heads cannot be kept(.|\n)*0 to 18"):
        prune_curve(model, lambda: {"loss": 0.0}, dict, keep=19)
    with pytest.raises(RegardError, match=r"does not know every head(.|\n)*encoder.blocks.0.attention.body"):
        prune_curve(model, lambda: {"loss": 0.0}, dict)
    plain = convolutional.build(convolutional.Config(preset="tiny", embedding_dim=8, hidden_dim=8), Sizes(9, 9, False))
    with pytest.raises(RegardError, match=r"no heads to switch off(.|\n)*Convolutional"):
        layers(plain)
