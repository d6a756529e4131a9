"""`regard new`: a commented recipe, fitted to the files that it was shown."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from regard.cli.output import say
from regard.errors import ConfigError

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
    from regard.fitting.labels import FEWEST, fit_labels
    from regard.fitting.pairs import fit
    from regard.fitting.profile import look, look_labelled
    from regard.fitting.text import no_validation, render, shell
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
        raise no_validation(task, train, profile.num_examples, out)
    others = {name: see(splits[name], name) for name in ("val", "test") if splits[name]}
    choices = fit_labels(profile, held_out=not val) if labelled else fit(profile)
    run = _write(out, render(task, out, splits, choices, {"train": profile, **others}))
    for name, seen in {"train": profile, **others}.items():
        say(f"{name}: {seen.num_examples:,} examples")
        if seen.report.num_bad:
            say(seen.report.describe())
    say("\n".join(profile.describe()))
    say(f"wrote {out}; next: regard train {shell(out)}, which fills {run}")


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
