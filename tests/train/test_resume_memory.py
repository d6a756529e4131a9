"""A language model with a memory goes on after a stop as if there had been none: its memory is in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import models, tasks
from regard.data.config import resolve
from regard.recipe import parse
from regard.train import checkpoint
from regard.train.loop import Trainer

Kill = Callable[[Trainer, int], None]
Same = Callable[[Path, Path], None]
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"layers": 1, "model_dim": 16, "num_heads": 2, "ffn_dim": 24, "max_length": 16},
    "transformer_xl": {"layers": 1, "model_dim": 16, "num_heads": 2, "ffn_dim": 24, "memory": 12},
    "recurrent": {"cell": "lstm", "embedding_dim": 8, "hidden_dim": 16, "weight_dropout": 0.2, "locked_dropout": True},
    "convolutional": {"decoder_layers": 2, "embedding_dim": 8, "hidden_dim": 16},
}
TRAIN = {"device": "cpu", "max_steps": 8, "batch_tokens": 48, "learning_rate": 1e-2, "warmup_steps": 2}
TRAIN |= {"validate_every": 3, "checkpoint_every": 2, "log_every": 1}


def make(run: Path, family: str, **train: Any) -> Trainer:
    """A trainer as `regard train` makes it, on a run folder that may have begun."""
    run.mkdir(exist_ok=True)
    (run.parent / "text.txt").write_text("".join(f"{n} bottles on the wall\n" for n in range(15)))
    table = {
        "task": {"name": "language-modeling", "context": 16},
        "data": {"train": ["text.txt"], "val_share": 0.2},
        "tokenizer": {"kind": "characters"},
        "model": {"family": family, **MODELS[family]},
        "train": {**TRAIN, **train},
    }
    recipe = parse(table, where="recipe.toml", folder=run.parent)
    task_file = tasks.task(recipe.task_name)
    task = task_file.Task.open(
        recipe.task,
        recipe.data,
        recipe.tokenizer,
        paths=lambda split: resolve(recipe.data, run.parent, [split]).get(split, ()),
        folder=run,
    )
    torch.manual_seed(recipe.train.seed)
    model = task.dress(models.build(family, recipe.model, task.sizes, task_file.KIND))
    configs = recipe.train, recipe.decode, recipe.observe
    return Trainer(task, model, *configs, folder=run, cache=run.parent / "cache", device=torch.device("cpu"))


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("step", [3, 6])
def test_resume_is_exact(kill: Kill, same: Same, tmp_path: Path, family: str, step: int) -> None:
    """In the middle of an epoch, after a validation, and past its end."""
    whole = make(tmp_path / "whole", family)
    batches = len(whole._plan(whole.train_split, 0, shuffle=True))
    assert 5 <= batches <= 7  # a second epoch begins
    whole.fit()
    kill(make(tmp_path / "parts", family), step)
    make(tmp_path / "parts", family).fit()
    same(tmp_path / "whole", tmp_path / "parts")
    _, tensors, _ = checkpoint.load_checkpoint(checkpoint.checkpoints(tmp_path / "whole" / checkpoint.FOLDER)[-1])
    held = {name: tensor for name, tensor in tensors.items() if name.startswith("task.")}
    assert bool(held) is (family != "gpt")
    assert all(tensor.count_nonzero() for tensor in held.values())


def test_without_its_memory_a_resume_would_not_be_exact(kill: Kill, same: Same, tmp_path: Path) -> None:
    """So the tests above could fail."""
    make(tmp_path / "whole", "recurrent").fit()
    kill(make(tmp_path / "parts", "recurrent"), 3)
    forgetful = make(tmp_path / "parts", "recurrent")
    forgetful.task.restore = lambda tensors: None  # type: ignore[method-assign]
    forgetful.fit()
    with pytest.raises(AssertionError):
        same(tmp_path / "whole", tmp_path / "parts")


def test_a_run_goes_on_with_larger_batches(kill: Kill, tmp_path: Path) -> None:
    kill(make(tmp_path / "run", "recurrent"), 3)
    trainer = make(tmp_path / "run", "recurrent", batch_tokens=64)
    trainer.fit()
    assert trainer.clock.step == 8
    assert len(trainer.task.tensors()["position"]) == 4
