"""`regard new`: a commented recipe, fitted to the files that it was shown."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from regard.cli.output import say
from regard.config import toml_value
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.cli.fit import Choice, Choices
    from regard.cli.profile import Profile

WIDTH = 116  # of a line in a recipe
FITTED = ("translation", "classification")  # the tasks that it can write a recipe for


class FileLists(TyperCommand):
    """A command whose `--train`, `--val` and `--test` take one file or two, as in `--train a.en a.de`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, ("--train", "--val", "--test")))


def spread(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Repeats a flag before each further word that belongs to it, as the parser wants it.

    >>> spread(["--train", "a.en", "a.de", "--out", "b"], ["--train"])
    ['--train', 'a.en', '--train', 'a.de', '--out', 'b']
    """
    out: list[str] = []
    flag = ""
    for word in words:
        if word.startswith("-"):
            flag = word if word in flags else ""
        elif flag and out[-1] != flag:
            out.append(flag)
        out.append(word)
    return out


def new(
    task: str = typer.Argument(metavar="TASK", help="translation or classification."),
    train: list[Path] = typer.Option(
        ...,
        metavar="FILE [FILE]",
        help="Two parallel text files, one .tsv or one .jsonl (with labels: label, text); also .gz and .xz.",
    ),
    val: list[Path] = typer.Option(None, metavar="FILE [FILE]", help="Held-out examples that choose the best step."),
    test: list[Path] = typer.Option(None, metavar="FILE [FILE]", help="Held-out examples for `regard evaluate`."),
    out: Path = typer.Option(..., metavar="RECIPE.toml", help="Where to write the recipe."),
    force: bool = typer.Option(False, "--force", help="Replace a recipe that is there."),
) -> None:
    """Write a recipe that is fitted to your files.

    It can be trained as it is; its comments give the reason for each choice, and every other key with its default.

    regard new translation --train a.en a.de --val b.en b.de --out mine.toml
    """
    from regard.cli.fit import fit
    from regard.cli.fit_labels import FEWEST, fit_labels
    from regard.cli.profile import look, look_labelled
    from regard.tasks import task as find_task

    find_task(task)
    if task not in FITTED:
        remedy = "begin with one that came with regard (`regard recipes`); docs/recipes.md explains every key"
        raise ConfigError("no recipe is fitted for this task", got=task, wanted=" or ".join(FITTED), remedy=remedy)
    _require_free(out, force)
    splits = {"train": train, "val": val or [], "test": test or []}
    labelled = task == "classification"
    see = look_labelled if labelled else look
    profile = see(train, "training")
    if labelled and profile.num_examples < FEWEST and not val:
        say(f"fewer than {FEWEST} examples: too few to hold some out, so validation is the training file")
        splits["val"] = val = train
    elif not val and not labelled:
        raise _no_validation(task, train, profile.num_examples, out)
    others = {name: see(splits[name], name) for name in ("val", "test") if splits[name]}
    choices = fit_labels(profile, held_out=not val) if labelled else fit(profile)
    run = _write(out, render(task, out, splits, choices, {"train": profile, **others}))
    for name, seen in {"train": profile, **others}.items():
        say(f"{name}: {seen.num_examples:,} examples")
        if seen.report.num_bad:
            say(seen.report.describe())
    say("\n".join(profile.describe()))
    say(f"wrote {out}; next: regard train {_shell(out)}, which fills {run}")


def _require_free(out: Path, force: bool) -> None:
    with _writing(out):
        if out.is_dir():
            raise ConfigError("a folder where the recipe is to be written", got=out, wanted=f"a file, as {out}/my.toml")
        if out.exists() and not force:
            raise ConfigError("the recipe is already there", got=out, remedy="another --out, or --force to replace it")


def _write(out: Path, text: str) -> str:
    """Writes a recipe that was read back before, so that none is left that cannot be trained; gives its run folder."""
    from regard.recipe import parse

    try:
        content = text.encode()
        table = tomllib.loads(text)
    except ValueError as error:  # a line end, or bytes that are no UTF-8, in the name of a file
        raise ConfigError(
            "the recipe cannot name these files", got=error, where=out, remedy="file names of plain text"
        ) from None
    recipe = parse(table, where=str(out), folder=out.parent)
    with _writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(content)
    return recipe.run


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            "the recipe cannot be written",
            got=error.strerror or error,
            where=out,
            remedy="an --out in a folder that you may write to",
        ) from None


def render(task: str, out: Path, splits: dict[str, list[Path]], choices: Choices, profiles: dict[str, Profile]) -> str:
    """The recipe: what was chosen with its reason, and every other key with its default, as a comment."""
    from regard.cli.fit import Choice
    from regard.data.config import DataConfig
    from regard.data.tokenizers import TokenizerConfig
    from regard.decode.config import DecodeConfig
    from regard.models import family, names, with_preset
    from regard.tasks import task as find_task
    from regard.train.config import TrainConfig
    from regard.train.finetune import FinetuneConfig
    from regard.train.observe import ObserveConfig

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
        f"# command: regard train {_shell(out)} && regard evaluate {_shell(f'runs/{out.stem}')}{on_val}",
        "# Written by `regard new`. A key behind # has the value that is shown; take the # away to change it.",
        *(line for about in train.describe() for line in _wrapped(about)),
        f"run = {toml_value(f'runs/{out.stem}')}",
        *_section("task", find_task(task).Config, {"name": Choice(task), **choices["task"]}),
        *_section("data", DataConfig, {**files, **choices["data"]}),
        *_section("tokenizer", TokenizerConfig, choices["tokenizer"]),
        *_section("model", family(name).Config, chosen, preset),
        *_section("finetune", FinetuneConfig, {}),
        *_section("train", TrainConfig, choices["train"]),
        *_section("observe", ObserveConfig, {}),
        *_section("decode", DecodeConfig, choices["decode"]),
    ]
    return "\n".join(lines) + "\n"


def _section(name: str, config: Any, chosen: dict[str, Choice], preset: dict[str, Any] | None = None) -> list[str]:
    lines = ["", f"[{name}]"]
    for key, choice in chosen.items():
        lines += [*_wrapped(choice.why), f"{key} = {toml_value(choice.value)}"]
    for field in dataclasses.fields(config):
        if field.name not in chosen:
            value = (preset or {}).get(field.name, field.default)
            lines.append(f"# {field.name} = {toml_value(value)}  # {field.metadata['doc']}")
    return lines


def _wrapped(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False)]


def _count(profile: Profile) -> str:
    bad = f", {profile.report.num_bad:,} bad lines left out" if profile.report.num_bad else ""
    return f"{profile.num_examples:,} examples{bad}"


def _from(recipe: Path, path: Path) -> str:
    """A path as the recipe says it: from its own folder, or whole where the user gave it so."""
    return str(path) if path.is_absolute() else Path(os.path.relpath(path, recipe.parent)).as_posix()


def _no_validation(task: str, files: Sequence[Path], num_examples: int, out: Path) -> ConfigError:
    """Says how to hold out every n-th line of just these files."""
    every = max(2, min(20, num_examples // 500), num_examples // 2000)
    made = {path: [_beside(path, split) for split in ("train", "val")] for path in files}
    commands = [
        f"{_reader(path)} | awk {_shell(f'{{print > (NR % {every} ? {_awk(train)} : {_awk(val)})}}')}"
        for path, (train, val) in made.items()
    ]
    train, val = (" ".join(map(_shell, names)) for names in zip(*made.values(), strict=True))
    commands.append(f"regard new {task} --train {train} --val {val} --out {_shell(out)}")
    return ConfigError(
        "there is nothing to validate with",
        got="no --val",
        wanted="--val FILE [FILE]: examples that are not trained on, which choose the best step",
        remedy=f"hold out one line in {every}:\n" + "\n".join(f"    {command}" for command in commands),
    )


def _beside(path: Path, split: str) -> str:
    """corpus.en.gz -> corpus.train.en"""
    plain = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    return str(plain.with_name(f"{plain.stem}.{split}{plain.suffix}"))


def _awk(text: str) -> str:
    """A string in a program of awk."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shell(word: object) -> str:
    """A word as a shell takes it: in quotes where it has to be."""
    return shlex.quote(str(word))


def _reader(path: Path) -> str:
    command = {".gz": "gzip -dc", ".xz": "xz -dc"}.get(path.suffix, "cat")
    return f"{command} {_shell(path)}"
