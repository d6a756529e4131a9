"""What is there: recipes, model families, tasks, data sets."""

from __future__ import annotations

from pathlib import Path

import typer

from regard.cli.output import say, table
from regard.errors import ConfigError

data = typer.Typer(invoke_without_command=True)


def recipes() -> None:
    """List the recipes that came with regard."""
    from regard.recipe import shipped

    rows = []
    for path in shipped():
        summary, notes = header(path.read_text(encoding="utf-8"))
        rows.append((path.stem, notes.get("time", ""), notes.get("score", ""), summary))
    table(rows, header=("recipe", "time", "score", "what it trains"))


def header(text: str) -> tuple[str, dict[str, str]]:
    """The summary in a recipe's first comment line, and the `# name: value` lines below it.

    >>> header("# Letters to sounds.\\n# time: 5 minutes\\n\\nrun = 'runs/a'")
    ('Letters to sounds.', {'time': '5 minutes'})
    """
    comments = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comments.append(line.lstrip("# ").strip())
    notes = (line.partition(":") for line in comments[1:])
    return comments[0] if comments else "", {name: value.strip() for name, colon, value in notes if colon}


def tasks() -> None:
    """List the tasks."""
    from regard.tasks import names, task

    table(((name, task(name).SUMMARY) for name in names()), header=("task", "what it does"))


def models(
    name: str = typer.Argument("", metavar="NAME", help="A family: its architecture as a tree."),
    overrides: list[str] = typer.Argument(None, metavar="KEY=VALUE", help="Its keys, as in preset=tiny."),
    vocab_size: int = typer.Option(8000, min=1, help="Tokens of the shared vocabulary."),
    length: int = typer.Option(32, min=1, help="Tokens of the texts whose cost is counted."),
    kind: str = typer.Option("", help="Of a family of several kinds, the one that is shown; without it the first."),
) -> None:
    """List the model families, or show one as a tree.

    With NAME: its parts with the shapes of their weights, their parameters and their cost a token.
    """
    if name:
        tree(name, overrides or [], vocab_size, length, kind)
        return
    from regard.models import family, names

    rows = []
    for known in names():
        module = family(known)
        rows.append(
            (known, ", ".join(module.KINDS), ", ".join(module.PRESETS), (module.__doc__ or "").partition("\n")[0])
        )
    table(rows, header=("model", "kind", "presets", "what it is"))


def tree(name: str, overrides: list[str], vocab_size: int, length: int, kind: str) -> None:
    """Prints the architecture of a family."""
    from regard.cli.architecture import describe
    from regard.cli.words import section
    from regard.config import read_section
    from regard.fitting.choices import short
    from regard.models import KINDS, family, with_preset

    if kind and kind not in KINDS:
        raise ConfigError("no such kind of model", got=kind, wanted=", ".join(KINDS))
    kind = kind or family(name).KINDS[0]
    config = read_section(
        family(name).Config, with_preset(name, section("model", overrides)), where="the command line", name="model"
    )
    rows = []
    for depth, part in describe(name, config, vocab_size=vocab_size, length=length, kind=kind).walk():
        times = f"{part.times} x " if part.times > 1 else ""
        rows.append(
            (
                f"{'  ' * depth}{part.name}: {times}{part.kind}",
                times + short(part.parameters),
                times + short(part.cost) if part.cost else "",
                part.shapes,
            )
        )
    table(rows, header=("part", "parameters", "multiply-adds", "weights"))
    also = " and writing another as long" if kind == "seq2seq" else ""
    say(f"\nmultiply-adds are a token's, in reading a text of {length} tokens{also}")


@data.callback()
def data_list(context: typer.Context) -> None:
    """List the data sets; show or get one."""
    if context.invoked_subcommand is None:
        from regard.data.catalogue import entries

        table(((entry.name, entry.task, entry.summary) for entry in entries()), header=("set", "task", "what it is"))


@data.command("show")
def data_show(name: str = typer.Argument(metavar="NAME", help="A set's name.")) -> None:
    """All that the catalogue knows about a set."""
    from regard.data.catalogue import entry

    found = entry(name)
    for title, value in {
        "name": found.name,
        "what": found.summary,
        "task": found.task,
        "files": found.files,
        "origin": found.origin,
        "licence": found.licence,
        "archive": found.archive or "none: made from what is installed",
        "sha256": found.sha256,
    }.items():
        if value:
            say(f"{title + ':':<9}{value}")


@data.command("get")
def data_get(
    name: str = typer.Argument(metavar="NAME", help="A set's name."),
    mirror: Path | None = typer.Option(
        None, metavar="DIR", help="Where its archive, or its folder, lies; without it the folder REGARD_DATA names."
    ),
    to: Path | None = typer.Option(None, metavar="DIR", help="Where to unpack it; without it regard's cache folder."),
) -> None:
    """Check and unpack a set; prints the folder that it lies in."""
    from regard.data.catalogue import get

    say(str(get(name, folder=to, mirror=mirror)))
