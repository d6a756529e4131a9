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
from regard.files import put_file

FEWEST = 50  # examples that some can be held out of
VALIDATION = 2000  # examples that are enough to choose the best step by


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
    task: str = typer.Argument(metavar="TASK", help="translation, classification, tagging ..: see `regard tasks`."),
    train: list[Path] = typer.Option(
        ...,
        metavar="FILE [FILE]",
        help="What the task reads (docs: a page a task): two parallel text files, one .tsv, .jsonl ..; also .gz, .xz.",
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
    from regard.fitting import fitter
    from regard.fitting.choices import Choice
    from regard.fitting.profile import can_hold_out, look, with_layout
    from regard.fitting.text import render, shell

    choose = fitter(task)
    _require_free(out, force)
    splits = {"train": train, "val": val or [], "test": test or []}
    profile = look(task, train, "training")
    share = 0.1 if profile.num_examples <= 10 * VALIDATION else round(VALIDATION / profile.num_examples, 4)
    few = f"fewer than {FEWEST} examples" if profile.num_examples < FEWEST else ""
    if not val and not few and not can_hold_out(task, train, share):
        few = f"{share:.1%} of the examples is none or all of them"
    if few and not val:
        say(f"{few}: too few to hold some out, so validation is the training file")
        splits["val"] = train
    others = {name: look(task, splits[name], name) for name in ("val", "test") if splits[name]}
    choices = choose(with_layout(profile, others.values(), 0.0 if splits["val"] else share))
    if not splits["val"]:
        why = f"there is no file to validate with: so much of the training file is, {share:.1%} of its examples"
        choices["part" if "part" in choices else "data"]["val_share"] = Choice(share, why)
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
        put_file(out, lambda place: place.write_bytes(content))
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
