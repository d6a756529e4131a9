"""One update: sums over real tokens, divided once; clipped, averaged, in fp32 or bf16."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.train import checkpoint
from regard.train.loop import Trainer
from regard.train.step import Step
from regard.types import Batch, Sequences

Make = Callable[..., Trainer]
FAMILIES = ("transformer", "recurrent", "convolutional")
every_family = pytest.mark.parametrize("family", FAMILIES)


def batches_of(trainer: Trainer) -> list[Batch]:
    plan = trainer._plan(trainer.train_split, 0, shuffle=True)
    return [trainer.train_split.collate(planned) for planned in plan]


def step_of(trainer: Trainer, model: nn.Module, optimizer: torch.optim.Optimizer, **words: Any) -> Step:
    words = {"clip": 0.0, "bf16": False, "ema": 0.0, **words}
    return Step(model, lambda batch: trainer.task.loss(model, batch), optimizer, **words)


def joined(batches: list[Batch]) -> Batch:
    """All rows in one batch, as wide as the widest."""

    def join(sides: list[Sequences]) -> Sequences:
        width = max(side.ids.shape[1] for side in sides)
        ids = torch.cat([F.pad(side.ids, (0, width - side.ids.shape[1])) for side in sides])
        return Sequences(ids, torch.cat([side.lengths for side in sides]))

    targets = [batch.target for batch in batches if batch.target is not None]
    return Batch(join([batch.source for batch in batches]), join(targets))


# --- accumulated = one large batch


@every_family
@pytest.mark.parametrize("clip", [0.0, 0.01], ids=["unclipped", "clipped"])
def test_accumulated_is_one_large_batch(trainer_of: Make, tmp_path: Path, family: str, clip: float) -> None:
    """The same weights after each of three updates of AdamW, in float64 to 1e-6 of what they moved."""
    trainer = trainer_of(tmp_path, family, model={"dropout": 0.0})
    batches = batches_of(trainer)
    assert len({batch.source.ids.shape for batch in batches[:4]}) > 1  # of different shapes
    trainer.model.eval().double()
    parts, whole = copy.deepcopy(trainer.model), copy.deepcopy(trainer.model)
    steps = []
    for model in (parts, whole):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        steps.append(step_of(trainer, model, optimizer, clip=clip))
    for _ in range(3):
        for batch in batches[:4]:
            steps[0].add(batch)
        steps[1].add(joined(batches[:4]))
        for step in steps:
            step.update()
        assert steps[0].read() == pytest.approx(steps[1].read(), rel=1e-6)
    for name, tensor in parts.named_parameters():
        torch.testing.assert_close(tensor, whole.get_parameter(name), rtol=0, atol=1e-9, msg=name)
    moved = max((a - b).abs().max().item() for a, b in zip(parts.parameters(), trainer.model.parameters(), strict=True))
    assert moved > 1e-3  # so that 1e-9 is 1e-6 of it


def test_accumulated_is_one_large_batch_in_the_loop(trainer_of: Make, tmp_path: Path) -> None:
    """A whole epoch as one batch, or as the nine that a small budget makes of it, in float32."""
    words: dict[str, Any] = {"max_steps": 1, "model": {"dropout": 0.0, "attention_dropout": 0.0}}
    trainer_of(tmp_path / "parts", accumulate=100, **words).fit()
    trainer_of(tmp_path / "whole", batch_tokens=100000, **words).fit()
    parts, whole = (
        checkpoint.load_checkpoint(tmp_path / x / "checkpoints/step-00000001")[1] for x in ("parts", "whole")
    )
    moments = [name for name in whole if name.endswith("exp_avg")]  # after one update a tenth of the gradient
    assert len(moments) > 10
    for name in moments:
        torch.testing.assert_close(parts[name], whole[name], rtol=0, atol=1e-6 * whole[name].abs().max().item() + 1e-9)


def test_a_batch_counts_by_its_tokens_not_as_one_of_several(trainer_of: Make, tmp_path: Path) -> None:
    """The gradient of the update is that of the mean over all tokens: with SGD of rate 1, exactly what is moved."""
    trainer = trainer_of(tmp_path, model={"dropout": 0.0, "attention_dropout": 0.0})
    batches = batches_of(trainer)[:3]
    model = copy.deepcopy(trainer.model)
    losses = [trainer.task.loss(trainer.model, batch) for batch in batches]
    counts = [int(count) for _, count in losses]
    assert len(set(counts)) > 1
    mean = sum((loss for loss, _ in losses), torch.zeros(())) / sum(counts)
    gradients = torch.autograd.grad(mean, list(trainer.model.parameters()))
    step = step_of(trainer, model, torch.optim.SGD(model.parameters(), lr=1.0))
    for batch in batches:
        step.add(batch)
    step.update()
    loss, norm = step.read()
    assert loss == pytest.approx(mean.item(), rel=1e-6)
    assert norm == pytest.approx(torch.cat([g.flatten() for g in gradients]).norm().item(), rel=1e-5)
    pairs = zip(model.parameters(), trainer.model.parameters(), gradients, strict=True)
    for after, before, gradient in pairs:
        torch.testing.assert_close(before - after, gradient, rtol=0, atol=1e-6)


def test_every_update_begins_at_zero() -> None:
    """No gradient, token or loss of the update before it is counted again."""
    weight = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    model, count = nn.ParameterList([weight]), torch.tensor(2)
    step = Step(model, lambda batch: (weight * batch, count), optimizer, clip=0.0, bf16=False, ema=0.0)  # type: ignore[operator]
    moved = []
    for gradient in (4.0, 6.0, 0.0):
        before = weight.item()
        step.add(gradient)  # type: ignore[arg-type]
        step.update()
        moved.append(before - weight.item())
        assert step.read() == (before * gradient / 2, gradient / 2)
    assert moved == [2.0, 3.0, 0.0]


# --- padding


@every_family
def test_padding_is_never_counted(trainer_of: Make, tmp_path: Path, family: str) -> None:
    """Wider padding, rows of nothing, and whatever stands in the padding: the same loss, count and gradients."""
    trainer = trainer_of(tmp_path, family)
    model, batch = trainer.model.eval(), batches_of(trainer)[0]

    def wider(side: Sequences, fill: int) -> Sequences:
        ids = F.pad(side.ids, (0, 5, 0, 2))
        padded = torch.arange(ids.shape[1]) >= F.pad(side.lengths, (0, 2))[:, None]
        return Sequences(ids.masked_fill(padded, fill), F.pad(side.lengths, (0, 2)))

    def measured(of: Batch) -> list[Tensor]:
        loss, count = trainer.task.loss(model, of)
        return [loss, count, *torch.autograd.grad(loss, list(model.parameters()))]

    assert batch.target is not None
    wanted = measured(batch)
    real = int((batch.target.lengths - 1).clamp(min=0).sum())
    assert wanted[1] == real
    for fill in (0, 7):
        wide = replace(batch, source=wider(batch.source, fill), target=wider(batch.target, fill))
        for got, want in zip(measured(wide), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


# --- label smoothing


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_smoothed_cross_entropy_of_torch(trainer_of: Make, tmp_path: Path, smoothing: float) -> None:
    trainer = trainer_of(tmp_path, task={"label_smoothing": smoothing})
    model, batch = trainer.model.eval(), batches_of(trainer)[0]
    assert batch.target is not None
    logits: Tensor = model.head(model.hidden(batch))  # type: ignore[operator]
    labels = batch.target.ids[:, 1:].clone()
    for row, length in enumerate(batch.target.lengths.tolist()):
        labels[row, max(length - 1, 0) :] = -100
    wanted = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing)
    loss, count = trainer.task.loss(model, batch)
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=1e-5)
    assert count == (labels >= 0).sum()
    plain, _ = trainer.task.loss(model, batch, smoothing=0.0)
    assert (plain == loss) == (smoothing == 0)


# --- clipping


def test_clipping_scales_the_gradient_to_its_largest_norm() -> None:
    weight = nn.Parameter(torch.zeros(2))
    model = nn.ParameterList([weight])

    def loss(batch: Any) -> tuple[Tensor, Tensor]:
        return (weight * torch.tensor(batch)).sum(), torch.tensor(2)

    def moved(gradient: list[float], clip: float) -> Tensor:
        with torch.no_grad():
            weight.zero_()
        step = Step(model, loss, torch.optim.SGD([weight], lr=1.0), clip=clip, bf16=False, ema=0.0)
        step.add(gradient)  # type: ignore[arg-type]
        step.update()
        assert step.read()[1] == pytest.approx(torch.tensor(gradient).norm().item() / 2)  # of 2 tokens, unclipped
        return -weight.detach()

    torch.testing.assert_close(moved([6.0, 8.0], 0.0), torch.tensor([3.0, 4.0]))
    torch.testing.assert_close(moved([6.0, 8.0], 1.0), torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(moved([6.0, 8.0], 6.0), torch.tensor([3.0, 4.0]))  # a small one is left alone
    torch.testing.assert_close(moved([0.0, 0.0], 1.0), torch.zeros(2))


# --- the moving average


def test_the_moving_average_by_its_formula() -> None:
    """a <- d a + (1 - d) w with d = min(ema, (1 + t) / (10 + t)), t the number of updates."""
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    step = Step(
        nn.ParameterList([weight]),
        lambda batch: (weight.sum(), torch.tensor(1)),
        torch.optim.SGD([weight], lr=0.25),
        clip=0.0,
        bf16=False,
        ema=0.4,
    )
    average, decays = weight.detach().clone(), []
    for t in range(1, 9):
        step.add(None)  # type: ignore[arg-type]
        step.update()
        decays.append(min(0.4, (1 + t) / (10 + t)))
        average = decays[-1] * average + (1 - decays[-1]) * weight.detach()
        torch.testing.assert_close(step.shadow[0], average)
    assert decays[0] == 2 / 11
    assert decays[-1] == decays[-2] == 0.4
    held = weight.detach().clone()
    with step.averaged():
        assert torch.equal(weight, step.shadow[0])
    assert torch.equal(weight, held)
    with pytest.raises(ZeroDivisionError), step.averaged():
        raise ZeroDivisionError
    assert torch.equal(weight, held)


def test_without_an_average_there_is_nothing_to_swap() -> None:
    weight = nn.Parameter(torch.ones(2))
    step = Step(
        nn.ParameterList([weight]),
        lambda batch: (weight.sum(), torch.tensor(1)),
        torch.optim.SGD([weight], lr=1.0),
        clip=0.0,
        bf16=False,
        ema=0.0,
    )
    with step.averaged():
        assert torch.equal(weight, torch.ones(2))


def test_validation_and_result_use_the_average(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, ema=0.9, max_steps=3, validate_every=3)
    trainer.fit()
    result = checkpoint.load_weights(tmp_path / "model.safetensors")
    trained, tensors, _ = checkpoint.load_checkpoint(tmp_path / "checkpoints/step-00000003")
    for i, (name, weight) in enumerate(trainer.model.named_parameters()):
        assert torch.equal(weight, trained[name])  # training itself goes on with the weights as they are
        assert torch.equal(result[name], tensors[f"ema.{i}"])
        assert not torch.equal(result[name], weight), name


# --- bf16


@every_family
def test_bf16_trains(trainer_of: Make, tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights and their gradients stay float32; the loss falls as in fp32, but not to the same bits."""
    losses = {}
    for precision in ("bf16", "fp32"):
        words: dict[str, Any] = {"max_steps": 12, "validate_every": 12, "checkpoint_every": 12}
        trainer_of(tmp_path / precision, family, precision=precision, model={"dropout": 0.0}, **words).fit()
        assert f"parameters on cpu, {precision}\n" in capsys.readouterr().err
        lines = (tmp_path / precision / "metrics.jsonl").read_text().splitlines()
        losses[precision] = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    assert losses["bf16"][-1] < losses["bf16"][0] - 0.1
    assert losses["bf16"] != losses["fp32"]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.05)
    assert {x.dtype for x in checkpoint.load_weights(tmp_path / "bf16/model.safetensors").values()} == {torch.float32}
