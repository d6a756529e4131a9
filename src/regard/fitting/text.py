"""The text of a recipe: what was chosen with its reason, and every other key with its default, as a comment."""

from __future__ import annotations

import dataclasses
import os
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.config import toml_value
from regard.data.config import FILE_KEYS, DataConfig
from regard.data.readers import data_suffix
from regard.data.tokenizers import TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.fitting.choices import Choice, Choices
from regard.fitting.profile import Profile
from regard.models import family, names, with_preset
from regard.tasks import task as find_task
from regard.train.config import TrainConfig
from regard.train.finetune import FinetuneConfig
from regard.train.observe import ObserveConfig

WIDTH = 116  # of a line in a recipe


def render(task: str, out: Path, splits: dict[str, list[Path]], choices: Choices, profiles: dict[str, Profile]) -> str:
    """The recipe: what was chosen with its reason, and every other key with its default, as a comment."""
    train = profiles["train"]
    given = [(name, paths) for name, paths in splits.items() if paths]
    files = {name: Choice([_from(out, path) for path in paths], _count(profiles[name])) for name, paths in given}
    others = ", ".join(names(find_task(task).KIND))
    chosen = {"family": Choice("transformer", f"`regard models` lists the others: {others}"), **choices["model"]}
    name = chosen["family"].value
    preset = with_preset(name, {"preset": chosen["preset"].value})
    on_val = "" if splits["test"] else " --split val"
    lines = [
        f"# {out.stem}: {task} learned from {', '.join(path.name for path in splits['train'])}",
        f"# command: regard train {shell(out)} && regard evaluate {shell(f'runs/{out.stem}')}{on_val}",
        "# Written by `regard new`. A key behind # has the value that is shown; take the # away to change it.",
        *(line for about in train.describe() for line in _wrapped(about)),
        f"run = {toml_value(f'runs/{out.stem}')}",
        *_files(task, splits, files, choices),
        *_section("tokenizer", TokenizerConfig, choices["tokenizer"]),
        *_section("model", family(name).Config, chosen, preset),
        *_section("finetune", FinetuneConfig, {}),
        *_section("train", TrainConfig, choices["train"]),
        *_section("observe", ObserveConfig, {}),
        *_section("decode", DecodeConfig, choices["decode"]),
    ]
    return "\n".join(lines) + "\n"


def _files(task: str, splits: dict[str, list[Path]], files: dict[str, Choice], choices: Choices) -> list[str]:
    """[task] and [data], one of which names the files."""
    config, chosen = find_task(task).Config, {"name": Choice(task), **choices["task"]}
    if "part" not in choices:
        return [*_section("task", config, chosen), *_section("data", DataConfig, {**files, **choices["data"]})]
    part = find_task(task).Part
    return [
        *_section("task", config, chosen, without=("parts",)),
        "",
        *_wrapped("One of the tasks. Another is one more [[task.parts]], with its own name, prefix and files."),
        *_section("[task.parts]", part, {**_named(splits["train"]), **files, **choices["part"]})[1:],
        *_section("data", DataConfig, choices["data"], without=FILE_KEYS),
    ]


def _named(paths: list[Path]) -> dict[str, Choice]:
    """What a part is called after its files, and what is put before its sources."""
    ending = data_suffix(paths[-1]).removeprefix(".")
    if ending == "json":
        return {
            "name": Choice("answer"),
            "prefix": Choice("", "a source says itself what it is: question: .. context: .."),
        }
    stem = paths[-1].name.partition(".")[0] or "first"
    name = ending if len(paths) > 1 and ending.isalpha() and ending != "txt" else stem
    why = f"stands before each source, in training and where the model is asked: {name}: .."
    return {"name": Choice(name), "prefix": Choice(f"{name}: ", why)}


def _section(
    name: str,
    config: Any,
    chosen: dict[str, Choice],
    preset: dict[str, Any] | None = None,
    without: Sequence[str] = (),
) -> list[str]:
    lines = ["", f"[{name}]"]
    for key, choice in chosen.items():
        lines += [*_wrapped(choice.why), f"{key} = {toml_value(choice.value)}"]
    for field in dataclasses.fields(config):
        if field.name not in (*chosen, *without):
            value = (preset or {}).get(field.name, field.default)
            lines.append(f"# {field.name} = {toml_value(value)}  # {field.metadata['doc']}")
    return lines


def _wrapped(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False)]


def _count(profile: Profile) -> str:
    bad = f", {profile.report.num_left_out:,} bad lines left out" if profile.report.num_left_out else ""
    return f"{profile.num_examples:,} examples{bad}"


def _from(recipe: Path, path: Path) -> str:
    """A path as the recipe says it: from its own folder, or whole where the user gave it so."""
    return str(path) if path.is_absolute() else Path(os.path.relpath(path, recipe.parent)).as_posix()


def shell(word: object) -> str:
    """A word as a shell takes it: in quotes where it has to be."""
    return shlex.quote(str(word))
