"""Validation: what it measures, what it judges by, when it stops a training, and which weights are the result."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, RunError
from regard.tasks.metrics import Score
from regard.train import checkpoint
from regard.train.log import MetricsLog
from regard.train.loop import Trainer

Make = Callable[..., Trainer]


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def scripted(trainer: Trainer, values: list[float]) -> Trainer:
    """Lets validation find these losses, one after the other."""
    found = iter(values)
    trainer._measure = lambda: {"loss": next(found)}  # type: ignore[method-assign]
    return trainer


def weights_at(run: Path, step: int) -> dict[str, Tensor]:
    return checkpoint.load_weights(run / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


# --- what is measured


def test_the_validation_loss_is_a_mean_over_tokens_without_smoothing(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, task={"label_smoothing": 0.3}, batch_tokens=24)
    plan = trainer._plan(trainer.val_split, 0, shuffle=False)
    assert len(plan) > 2
    batches = [trainer.val_split.collate(planned) for planned in plan]
    assert sorted(row for batch in batches for row in batch.rows) == list(range(12))
    trainer.model.eval()
    sums = [trainer.task.loss(trainer.model, batch, smoothing=0.0) for batch in batches]
    wanted = sum(loss.item() for loss, _ in sums) / sum(int(count) for _, count in sums)
    trainer.model.train()
    values = trainer._measure()
    assert values["loss"] == pytest.approx(wanted, rel=1e-6)
    assert values["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-6)
    assert list(values) == ["loss", "perplexity"]  # nothing is decoded that nobody asked for
    assert trainer.model.training
    smoothed = [trainer.task.loss(trainer.model.eval(), batch) for batch in batches]
    assert values["loss"] != pytest.approx(sum(x.item() for x, _ in smoothed) / sum(int(n) for _, n in smoothed))


def test_a_hopeless_loss_has_a_perplexity_too(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    loss = trainer.task.loss
    trainer.task.loss = lambda *a, **k: (loss(*a, **k)[0] * 1e6, torch.tensor(1))  # type: ignore[method-assign]
    assert trainer._measure()["perplexity"] == math.exp(100)


@pytest.mark.parametrize(("name", "values"), [("bleu", [10.0, 30.0, 20.0]), ("phoneme_error", [30.0, 10.0, 20.0])])
def test_a_metric_is_decoded_and_judged_in_its_direction(
    trainer_of: Make, tmp_path: Path, name: str, values: list[float]
) -> None:
    trainer = trainer_of(tmp_path, best=name, checkpoint_every=2, keep=3)
    found, asked = iter(values), []
    predict = trainer.task.predict

    def watched(model: Any, sources: Any, config: DecodeConfig, **words: Any) -> Any:
        asked.append((len(sources), config.method, model.training))
        return predict(model, sources, config, **words)

    def score(predictions: Any, examples: Any) -> list[Score]:
        assert len(predictions) == len(examples) == 12
        return [Score(name, next(found), "")]

    trainer.task.predict, trainer.task.score = watched, score  # type: ignore[method-assign]
    trainer.fit()
    assert asked == [(12, "greedy", False)] * 3
    assert (trainer.clock.best, trainer.clock.best_step) == (values[1], 4)
    assert_equal(checkpoint.load_weights(tmp_path / "model.safetensors"), weights_at(tmp_path, 4))
    assert [line[f"val_{name}"] for line in metrics(tmp_path) if "val_loss" in line] == values


def test_all_metrics_of_the_task_are_logged(trainer_of: Make, tmp_path: Path) -> None:
    trainer_of(tmp_path, best="bleu", max_steps=2).fit()
    line = metrics(tmp_path)[-1]
    assert list(line) == ["step", "val_loss", "val_perplexity", "val_bleu", "val_phoneme_error"]


@pytest.mark.parametrize(("best", "remedy"), [("blue", ""), ("chrf", "\n  try:    add it to task.metrics")])
def test_what_cannot_be_judged_by(trainer_of: Make, tmp_path: Path, best: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as error:
        trainer_of(tmp_path, best=best)
    text = f'"train.best" names nothing to judge by\n  got:    {best}\n  wanted: loss, bleu, phoneme_error{remedy}'
    assert str(error.value) == text


# --- early stopping


def test_patience_is_for_what_gets_better_not_for_what_stands(trainer_of: Make, tmp_path: Path) -> None:
    """Of two that are as good by the metric the surer one is kept, but it is not a better one."""
    trainer = trainer_of(tmp_path, patience=2, validate_every=1, checkpoint_every=1, max_steps=50, best="bleu")
    values = iter([{"loss": 3.0 - i / 10, "perplexity": 1.0, "bleu": bleu} for i, bleu in enumerate([1, 2, 2, 2, 9])])
    trainer._measure = lambda: next(values)  # type: ignore[method-assign]
    trainer.fit()
    assert trainer.clock.step == trainer.clock.best_step == 4


def test_patience_ends_a_training(trainer_of: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: dict[str, Any] = {"validate_every": 1, "checkpoint_every": 1, "keep": 9, "max_steps": 50}
    scripted(trainer_of(tmp_path, patience=2, **words), [3.0, 2.0, 2.5, 1.9, 2.0, 2.1, 1.0]).fit()
    assert [line["step"] for line in metrics(tmp_path) if "val_loss" in line] == [1, 2, 3, 4, 5, 6]
    assert "is of step 4, validation loss 1.9\n" in capsys.readouterr().err
    assert_equal(checkpoint.load_weights(tmp_path / "model.safetensors"), weights_at(tmp_path, 4))

    trainer_of(tmp_path, patience=2, **words).fit()  # it is finished, and stays so
    assert capsys.readouterr().err == f"{tmp_path}: already trained, 6 steps\n"

    scripted(trainer_of(tmp_path, patience=3, **words), [1.8, 5.0, 5.0, 5.0]).fit()  # more patience goes on
    assert "going on from step 6\n" in capsys.readouterr().err
    assert [line["step"] for line in metrics(tmp_path) if "val_loss" in line][6:] == [7, 8, 9, 10]
    assert_equal(checkpoint.load_weights(tmp_path / "model.safetensors"), weights_at(tmp_path, 7))


def test_patience_survives_a_resume(trainer_of: Make, tmp_path: Path, kill: Callable[[Trainer, int], None]) -> None:
    words: dict[str, Any] = {"validate_every": 1, "checkpoint_every": 1, "patience": 3, "max_steps": 50}
    kill(scripted(trainer_of(tmp_path, **words), [2.0, 3.0, 3.0]), 3)
    scripted(trainer_of(tmp_path, **words), [3.0, 3.0, 3.0]).fit()
    assert metrics(tmp_path)[-1]["step"] == 4


# --- the mean of checkpoints


@pytest.mark.parametrize(("measured", "kept"), [(1.5, True), (2.5, False)])
def test_the_mean_of_the_last_checkpoints_is_kept_where_it_is_better(
    trainer_of: Make, tmp_path: Path, measured: float, kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words: dict[str, Any] = {"average": 3, "checkpoint_every": 1, "keep": 1}
    scripted(trainer_of(tmp_path, **words), [3.0, 2.0, 4.0, measured]).fit()
    said = capsys.readouterr().err
    steps = [weights_at(tmp_path, step) for step in (4, 5, 6)]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3  # as many as are needed
    result = checkpoint.load_weights(tmp_path / "model.safetensors")
    verdict = "kept" if kept else "not better than the best one"
    assert f"mean of 3 checkpoints: loss {measured:.4g}, {verdict}\n" in said
    assert metrics(tmp_path)[-1].keys() == {"step", "averaged_loss"}
    if kept:
        for name, tensor in result.items():
            torch.testing.assert_close(tensor, sum(w[name] for w in steps) / 3, rtol=1e-6, atol=1e-7)
        assert "is of step 6, validation loss 1.5\n" in said
    else:
        assert_equal(result, steps[0])
        assert "is of step 4, validation loss 2\n" in said


def test_a_mean_that_was_kept_is_the_one_to_beat_when_training_goes_on(trainer_of: Make, tmp_path: Path) -> None:
    words: dict[str, Any] = {"average": 2, "checkpoint_every": 1, "validate_every": 2}
    scripted(trainer_of(tmp_path, max_steps=2, **words), [3.0, 1.0]).fit()
    mean = checkpoint.load_weights(tmp_path / "model.safetensors")
    scripted(trainer_of(tmp_path, max_steps=4, **words), [2.0, 1.5]).fit()
    assert_equal(checkpoint.load_weights(tmp_path / "model.safetensors"), mean)


def test_a_single_checkpoint_has_no_mean(trainer_of: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer_of(tmp_path, average=5, max_steps=2).fit()
    said = capsys.readouterr().err
    assert "mean of" not in said
    assert "train.average found one checkpoint alone, so there is nothing to average\n" in said


# --- numbers that are none


def test_a_loss_that_is_no_number_ends_the_training(trainer_of: Make, tmp_path: Path) -> None:
    with pytest.raises(RunError) as error:
        trainer_of(tmp_path, learning_rate=1e30, warmup_steps=0, validate_every=100).fit()
    lines = str(error.value).splitlines()
    assert lines[0] == "the loss is no longer a number"
    assert lines[1].startswith("  got:    loss nan, gradient norm nan at step ")
    assert lines[2] == f"  where:  {tmp_path}"
    assert lines[3] == (
        "  try:    a lower train.learning_rate, more train.warmup_steps, or train.precision=fp32; "
        "it goes on from the last checkpoint before this step"
    )


@pytest.mark.parametrize(
    ("words", "got"),
    [
        ({"validate_every": 100, "log_every": 1}, "loss nan, gradient norm nan at step 4"),
        ({"validate_every": 1, "log_every": 100, "best": "bleu"}, "validation loss nan at step 4"),
        ({"validate_every": 100, "log_every": 3}, "weights that are no numbers at step 4"),
    ],
    ids=["logged", "validated", "saved"],
)
def test_nothing_is_kept_that_is_no_number(trainer_of: Make, tmp_path: Path, words: dict[str, Any], got: str) -> None:
    """Whatever finds it first; the same command then goes on from what is whole."""
    words = {"checkpoint_every": 1, "keep": 1, **words}
    trainer = trainer_of(tmp_path, **words)
    update = trainer.step.update

    def spoil() -> None:
        if trainer.clock.step == 3:
            trainer.step.loss_sum.fill_(math.nan)
            for parameter in trainer.step.parameters:
                assert parameter.grad is not None
                parameter.grad.fill_(math.nan)
        update()

    trainer.step.update = spoil  # type: ignore[method-assign]
    with pytest.raises(RunError, match=f"got:    {got}\n"):
        trainer.fit()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    for path in tmp_path.rglob("*.safetensors"):
        assert all(tensor.isfinite().all() for tensor in checkpoint.load_weights(path).values())
    assert all(math.isfinite(value) for line in metrics(tmp_path) for value in line.values())
    trainer_of(tmp_path, **words).fit()
    assert metrics(tmp_path)[-1]["step"] == 6


# --- logs


def test_metrics_say_what_was_done(trainer_of: Make, tmp_path: Path) -> None:
    trainer_of(tmp_path, accumulate=5, log_every=3, max_steps=4, warmup_steps=4).fit()
    third, fourth = (line for line in metrics(tmp_path) if "loss" in line)
    assert third.keys() == {"step", "loss", "learning_rate", "gradient_norm", "tokens_per_second", "epoch"}
    assert (third["step"], third["epoch"], third["learning_rate"]) == (3, 2, 0.0075)  # nine batches: two updates
    assert (fourth["step"], fourth["learning_rate"]) == (4, 0.01)
    assert all(line["tokens_per_second"] > 0 for line in (third, fourth))


def test_the_logged_loss_is_the_mean_over_the_tokens_since_the_last_line(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, log_every=3, max_steps=3)
    loss, seen = trainer.task.loss, []

    def watched(model: Any, batch: Any, **words: Any) -> Any:
        total, count = loss(model, batch, **words)
        if not words:
            seen.append((total.item(), int(count)))
        return total, count

    trainer.task.loss = watched  # type: ignore[method-assign]
    trainer.fit()
    assert len(seen) == 3
    wanted = sum(total for total, _ in seen) / sum(count for _, count in seen)
    assert next(line["loss"] for line in metrics(tmp_path) if "loss" in line) == pytest.approx(wanted, rel=1e-6)


def points(run: Path) -> dict[str, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.fixture
def quiet_tensorboard() -> Iterator[None]:
    """TensorBoard's reader and its parts are not free of warnings of their own."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet_tensorboard")
def test_tensorboard_has_every_step_once(
    trainer_of: Make, tmp_path: Path, kill: Callable[[Trainer, int], None]
) -> None:
    kill(trainer_of(tmp_path, tensorboard=True), 5)
    assert points(tmp_path)["loss"] == [1, 2, 3, 4, 5]
    trainer = trainer_of(tmp_path, tensorboard=True)
    trainer.fit()
    assert trainer.log.board.file_writer is None  # closed: the end of a process would lose what its thread still holds
    found = points(tmp_path)
    assert found["loss"] == found["learning_rate"] == [1, 2, 3, 4, 5, 6]
    assert found["val_loss"] == found["val_perplexity"] == [2, 4, 6]


def test_tensorboard_that_is_not_installed(trainer_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError) as error:
        trainer_of(tmp_path, tensorboard=True)
    assert str(error.value) == (
        'TensorBoard is not installed\n  got:    train.tensorboard = true\n  try:    pip install "regard[tensorboard]"'
    )


def test_metrics_on_a_full_disk(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path, tensorboard=False)
    log.go_on(0)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError) as error:
        log.write(1, loss=2.0)
    assert str(error.value).startswith(
        f"the disk is full\n  got:    [Errno 28] No space left on device\n  where:  {tmp_path / 'metrics.jsonl'}\n"
    )


def test_of_two_that_are_as_good_the_surer_one_is_kept(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, best="exact_match", task={"metrics": ["exact_match"]}, max_steps=6, validate_every=2)
    found = iter([(50.0, 2.0), (50.0, 1.0), (50.0, 1.5)])

    def measure() -> dict[str, float]:
        score, loss = next(found)
        return {"loss": loss, "exact_match": score}

    trainer._measure = measure  # type: ignore[method-assign]
    trainer.fit()
    assert (trainer.clock.best, trainer.clock.best_loss, trainer.clock.best_step) == (50.0, 1.0, 4)
