"""The base of a fine-tuning: where a model, its tokenizer and its weights are taken from."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard import models, tasks
from regard.config import read_toml, to_table
from regard.data.tokenizers import TokenizerConfig
from regard.errors import ConfigError, RunError
from regard.models import Sizes
from regard.recipe import RECIPE, Recipe, parse, read_model, said_where
from regard.train import checkpoint
from regard.train.finetune import body_of
from regard.train.progress import say


@dataclass(frozen=True)
class Base:
    """A trained model that another begins with."""

    folder: Path
    family: str
    model: dict[str, Any]  # its `[model]` section, without the family
    tokenizer: TokenizerConfig
    sizes: Sizes  # of its vocabularies

    @property
    def tokenizer_files(self) -> list[Path]:
        """Its tokenizers, and what stands beside them."""
        return sorted(self.folder.glob("tokenizer*.json"))

    def weights(self) -> dict[str, Tensor]:
        """Its tensors in the names of its family, and those of its task under their own."""
        found = checkpoint.load_weights(self.folder / checkpoint.MODEL)
        return {name.removeprefix("body."): tensor for name, tensor in found.items()}


def read_base(folder: Path) -> Base:
    """What a run folder gives to one that is fine-tuned from it."""
    if not (folder / RECIPE).is_file():
        foreign = (folder / "config.json").is_file()
        raise RunError(
            "the base of the fine-tuning is no run",
            got=f"{folder}, a model of others" if foreign else folder,
            wanted=f"a folder with {RECIPE} and {checkpoint.MODEL}",
            remedy=f"regard convert {folder} runs/NAME" if foreign else "finetune.base=DIR, or train it first",
        )
    where = str(folder / RECIPE)
    recipe = parse(read_toml(where), where=where, folder=folder, trains=False)
    task_file = tasks.task(recipe.task_name)
    missing = [name for name in (task_file.FILES[0], checkpoint.MODEL) if not (folder / name).is_file()]
    if missing:
        raise RunError("the base has not been trained", got=f"no {missing[0]}", where=folder, remedy="train it first")
    task = task_file.Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=lambda split: (), folder=folder)
    return Base(folder, recipe.family, to_table(recipe.model), recipe.tokenizer, task.sizes)


def settled(recipe: Recipe) -> Recipe:
    """The recipe with the family, model and tokenizer of its base; what it says itself may change no shape.

    A run that has begun needs its base no more: all of this stands in its own recipe.
    """
    if not recipe.finetune.base:
        return recipe
    run, folder = Path(recipe.run), Path(recipe.finetune.base).expanduser().resolve()
    base = read_base(run if checkpoint.has_begun(run) and (run / RECIPE).is_file() else folder)
    kind, where = tasks.task(recipe.task_name).KIND, f"finetune.base = {recipe.finetune.base}"
    with said_where(where):
        models.family(base.family, kind)
    if recipe.family not in ("", base.family):
        raise ConfigError("the base is of another family", got=recipe.family, wanted=base.family, where=where)
    if recipe.tokenizer not in (TokenizerConfig(), base.tokenizer):
        raise ConfigError(
            "the tokenizer is that of the base",
            got="other keys in [tokenizer]",
            where=where,
            remedy="leave [tokenizer] out",
        )
    given = to_table(recipe.model) if recipe.family else recipe.model
    own = read_model(base.family, {**base.model, **given}, kind, "the recipe")
    _check_shapes(base, own, kind, where)
    return dataclasses.replace(
        recipe,
        family=base.family,
        model=own,
        tokenizer=base.tokenizer,
        finetune=dataclasses.replace(recipe.finetune, base=str(folder)),
    )


def _check_shapes(base: Base, own: Any, kind: str, where: str) -> None:
    """Raises where keys of `[model]` ask for other weights than the base has."""
    theirs = read_model(base.family, base.model, kind, where)
    shapes = [_shapes(base.family, config, base.sizes, kind) for config in (theirs, own)]
    if shapes[0] != shapes[1]:
        changed = {name: value for name, value in to_table(own).items() if value != base.model.get(name)}
        raise ConfigError(
            "keys of [model] ask for other weights than the base has",
            got=", ".join(f"{name} = {value}" for name, value in changed.items()),
            wanted=", ".join(f"{name} = {base.model.get(name)}" for name in changed),
            where=where,
            remedy="with a base, [model] may change dropout and what else changes no shape; leave the rest out",
        )


def _shapes(family: str, config: Any, sizes: Sizes, kind: str) -> dict[str, torch.Size]:
    with torch.device("meta"):
        model = models.build(family, config, sizes, kind)
    return {name: tensor.shape for name, tensor in checkpoint.weights(model).items()}


def copy_tokenizer(base: Base, folder: Path, wanted: Sequence[str]) -> None:
    """Puts the tokenizer of the base into a run folder, under the names that the task has for it.

    One tokenizer serves both sides of a task with two, and the one of two sides that share it a task with one.
    """
    there = {file.name: file for file in base.tokenizer_files}
    common = there.get("tokenizer.json") or (there.get("tokenizer.source.json") if base.tokenizer.shared else None)
    found = {name: there.get(name, common) for name in wanted if name.startswith("tokenizer")}
    missing = [name for name, file in found.items() if file is None]
    if missing:
        got = ", ".join(there) or "none"
        raise RunError("the base has no tokenizer for this task", got=got, wanted=missing[0], where=base.folder)
    try:
        for name, file in reversed(found.items()):  # the first last: when it is there, all are
            assert file is not None
            beside = file.with_suffix(".specials.json")
            if beside.exists():
                shutil.copyfile(beside, (folder / name).with_suffix(".specials.json"))
            shutil.copyfile(file, folder / name)
    except OSError as error:
        raise checkpoint.not_written(folder, error) from None


def take_weights(model: nn.Module, base: Base) -> None:
    """Copies the weights of the base into a model, by name, and says what was taken and what was not."""
    body, prefix = body_of(model)
    own, given = checkpoint.weights(body), base.weights()
    taken = [name for name in own if name in given and given[name].shape == own[name].shape]
    if not taken:
        got = ", ".join(list(given)[:3])
        raise RunError("no weight of the base has a place in the model", got=got, where=base.folder)
    for name in taken:
        own[name].copy_(given[name])
    fresh = [name for name in checkpoint.weights(model) if name.removeprefix(prefix) not in taken]
    left = [name for name in given if name not in taken]
    say(f"base:  {len(taken)} weights taken from {base.folder}{_some('fresh', fresh)}{_some('not taken', left)}")


def _some(what: str, names: list[str]) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"; {what}: {', '.join(names[:4])}{more}" if names else ""
