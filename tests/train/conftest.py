"""A tiny translation and its trainer, through the real task, model and loop; one thread, so that bits are the same."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import models, tasks
from regard.data.config import resolve
from regard.recipe import Recipe, parse
from regard.train import checkpoint
from regard.train.loop import Trainer

MODELS: dict[str, dict[str, Any]] = {
    "transformer": {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "model_dim": 16,
        "num_heads": 2,
        "ffn_dim": 32,
        "attention_dropout": 0.1,
    },
    "recurrent": {"embedding_dim": 8, "hidden_dim": 16},
    "convolutional": {"encoder_layers": 1, "decoder_layers": 1, "embedding_dim": 8, "hidden_dim": 16},
}
# nine batches an epoch
TRAIN: dict[str, Any] = {
    "device": "cpu",
    "max_steps": 6,
    "batch_tokens": 48,
    "bucket": 4,
    "learning_rate": 1e-2,
    "warmup_steps": 2,
    "validate_every": 2,
    "checkpoint_every": 3,
    "log_every": 1,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)


def write_reversals(path: Path, number: int, seed: int) -> None:
    """Rows of letters, and the same from behind."""
    draw = random.Random(seed)
    rows = [[draw.choice("abcdef") for _ in range(draw.randint(2, 9))] for _ in range(number)]
    path.write_text("".join(f"{' '.join(row)}\t{' '.join(reversed(row))}\n" for row in rows), encoding="utf-8")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv and val.tsv, and the encoded text beside them."""
    folder = tmp_path_factory.mktemp("data")
    write_reversals(folder / "train.tsv", 50, seed=1)
    write_reversals(folder / "val.tsv", 12, seed=2)
    return folder


@pytest.fixture
def recipe_of(data: Path) -> Callable[..., Recipe]:
    """A recipe of the tiny translation; words are keys of [train]."""

    def make(
        run: Path,
        family: str = "transformer",
        *,
        model: dict[str, Any] | None = None,
        task: object = None,
        observe: object = None,
        **train: Any,
    ) -> Recipe:
        table = {
            "run": str(run),
            "task": {"metrics": ["bleu", "phoneme_error"], **(task or {})},  # type: ignore[dict-item]
            "data": {"train": ["train.tsv"], "val": ["val.tsv"]},
            "tokenizer": {"kind": "words"},
            "model": {"family": family, **MODELS[family], **(model or {})},
            "train": {**TRAIN, **train},
            "observe": observe or {},
        }
        return parse(table, where="recipe.toml", folder=data)

    return make


Make = Callable[..., Trainer]


@pytest.fixture
def trainer_of(recipe_of: Callable[..., Recipe], data: Path) -> Make:
    """A trainer as `regard train` makes it, on a run folder that may have begun."""

    def make(run: Path, family: str = "transformer", **words: Any) -> Trainer:
        recipe = recipe_of(run, family, **words)
        run.mkdir(parents=True, exist_ok=True)

        def paths(split: str) -> tuple[Path, ...]:
            return resolve(recipe.data, data, [split]).get(split, ())

        task = tasks.task("translation").Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=paths, folder=run)
        torch.manual_seed(recipe.train.seed)
        model = models.family(family).build(recipe.model, task.sizes)
        return Trainer(
            task,
            model,
            recipe.train,
            recipe.decode,
            recipe.observe,
            folder=run,
            cache=data / "cache",
            device=torch.device("cpu"),
        )

    return make


class Killed(BaseException):
    """The end of a process, as far as one process can play it."""


@pytest.fixture
def kill() -> Callable[[Trainer, int], None]:
    """Lets a trainer run until it would make its update after this step, and no further."""

    def run(trainer: Trainer, step: int) -> None:
        update = trainer.step.update

        def fatal() -> None:
            if trainer.clock.step >= step:
                raise Killed
            update()

        trainer.step.update = fatal  # type: ignore[method-assign]
        with pytest.raises(Killed):
            trainer.fit()

    return run


def everything(run: Path) -> dict[str, object]:
    """All that a run folder holds but times: weights of the result and of the last checkpoint, its state, metrics."""
    last = checkpoint.checkpoints(run / checkpoint.FOLDER)[-1]
    model, tensors, state = checkpoint.load_checkpoint(last)
    found: dict[str, object] = {"result": checkpoint.load_weights(run / checkpoint.MODEL), "model": model}
    found |= {"tensors": tensors, "state": {k: v for k, v in state.items() if k != "seconds"}}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]
    return found


@pytest.fixture
def same() -> Callable[[Path, Path], None]:
    """Asserts that two run folders hold the same, to the last bit."""

    def compare(a: Path, b: Path) -> None:
        ours, theirs = everything(a), everything(b)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            other = theirs[name]
            if name in ("state", "metrics"):
                assert value == other
                continue
            assert isinstance(value, dict)
            assert isinstance(other, dict)
            assert value.keys() == other.keys()
            differing = [key for key, tensor in value.items() if not torch.equal(tensor, other[key])]
            assert differing == [], name

    return compare
