"""Writes docs/recipes.md: every key of a recipe, from the dataclasses that read it.

python docs/make_keys.py > docs/recipes.md
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from regard import models, tasks
from regard.config import toml_value
from regard.data.config import DataConfig
from regard.data.tokenizers import TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.train.config import TrainConfig
from regard.train.finetune import FinetuneConfig
from regard.train.observe import ObserveConfig

INTRODUCTION = """\
# Recipes: every key

This page is made by `python docs/make_keys.py > docs/recipes.md`; change the dataclasses, not this page.

A recipe is a TOML file. It says everything that makes a run: the task, the files, the tokenizer, the model, how it is
trained and how it answers. A key that is left out has the default below. An unknown key or a wrong value is an error
that names the nearest known key.

- `regard new translation --train FILE [FILE] --val FILE [FILE] --out RECIPE.toml` writes one for your files, with the
  reason for each choice.
- `regard recipes` lists those that came with regard; `regard train NAME` takes such a name as well as a path.
- `regard train RECIPE section.key=value ...` changes keys for one run. The value is TOML; a plain word needs no
  quotes: `model.preset=small`, `train.betas="[0.9, 0.999]"`.
- The run folder keeps `recipe.toml` with every key written out. The same command on the same folder goes on where it
  stopped. It refuses to go on if the family or a key of `[task]`, `[data]`, `[tokenizer]`, `[model]` or `[finetune]`
  has changed, but for those that a training may go on with, as `data.test`, `task.metrics`, `task.label_smoothing`.

Relative paths in `[data]` start at the recipe's folder, or else at the folder where the command runs. `run` starts at
the folder where the command runs.

## Outside of the sections

| key | values | default | what it does |
|---|---|---|---|
| `run` | text | `"runs/NAME"`, after the recipe's file | the folder that training fills |
"""


def page() -> str:
    """The whole page."""
    blocks = [INTRODUCTION, *_tasks()]
    blocks += [_section("data", DataConfig), _section("tokenizer", TokenizerConfig), *_families()]
    blocks += [_section("finetune", FinetuneConfig)]
    blocks += [_section("train", TrainConfig), _section("observe", ObserveConfig), _section("decode", DecodeConfig)]
    return "\n".join(blocks)


def _tasks() -> Iterator[str]:
    row = f'| `name` | {_either(tasks.names())} | `"translation"` | the task: a file in `src/regard/tasks/` |'
    for name in tasks.names():
        yield _section("task", tasks.task(name).Config, title=f'`[task]` with `name = "{name}"`', first=row)


def _families() -> Iterator[str]:
    row = f'| `family` | {_either(models.names())} | `"transformer"` | the family: a file in `src/regard/models/` |'
    for name in models.names():
        title = f'`[model]` with `family = "{name}"`'
        yield _section("model", models.family(name).Config, title=title, first=row) + _presets(models.family(name))


def _presets(family: ModuleType) -> str:
    lines = ["", "A preset sets these keys, where the recipe does not say them itself:", ""]
    for name, values in family.PRESETS.items():
        said = ", ".join(f"`{key} = {toml_value(value)}`" for key, value in values.items())
        lines.append(f"- `{name}`: {said or 'the defaults above'}")
    return "\n".join(lines) + "\n"


def _section(name: str, config: Any, *, title: str = "", first: str = "") -> str:
    lines = [f"## {title or f'`[{name}]`'}", "", "| key | values | default | what it does |", "|---|---|---|---|"]
    lines += [first] if first else []
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        default = f"`{toml_value(_default(field))}`"
        lines.append(f"| `{field.name}` | {_values(hints[field.name])} | {default} | {field.metadata['doc']} |")
    parts = [(field.name, entry) for field in dataclasses.fields(config) if (entry := _entry(hints[field.name]))]
    below = [_section("", entry, title=f"`[[{name}.{key}]]`, an entry of `{key}`") for key, entry in parts]
    return "\n".join(["\n".join(lines) + "\n", *below])


def _entry(hint: Any) -> Any:
    """The dataclass that a list is made of, or None."""
    return next((inner for inner in typing.get_args(hint) if dataclasses.is_dataclass(inner)), None)


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _values(hint: Any) -> str:
    """How a person says a type."""
    if typing.get_origin(hint) is typing.Literal:
        return _either(typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        return f"list of {_values(parts[0])}" if parts[-1] is Ellipsis else f"{len(parts)} x {_values(parts[0])}"
    if dataclasses.is_dataclass(hint):
        return "entries"
    return {int: "whole number", float: "number", bool: "true, false", str: "text"}[hint]


def _either(names: typing.Iterable[str]) -> str:
    return ", ".join(f'`"{name}"`' for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
