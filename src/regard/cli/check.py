"""`regard data check`: what was understood of a user's files, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from regard.cli.new import spread
from regard.cli.output import say


class Against(TyperCommand):
    """A command whose `--against` takes one file or two."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, ["--against"]))


def check(
    files: list[Path] = typer.Argument(metavar="FILE [FILE]", help="One file, or two parallel ones; also .gz, .xz."),
    task: str = typer.Option(..., metavar="TASK", help="What is to be learned from it: see `regard tasks`."),
    against: list[Path] = typer.Option(
        None, metavar="FILE [FILE]", help="Another split: examples that stand in both are counted."
    ),
    multi_label: bool | None = typer.Option(
        None, "--multi-label/--single-label", help="Whether a text may have several labels; else the file decides."
    ),
    as_json: bool = typer.Option(False, "--json", help="All of it as JSON."),
) -> None:
    """Say what is in your file and what is wrong with it.

    The format that was recognised, how much there is, labels, lengths, the first examples, every bad line with its
    place, and what looks odd. Ends with 0 if all of it can be trained on, with 1 if not.

    regard data check reviews.tsv --task classification
    """
    from regard.fitting.check import check as find

    found = find(task, files, against=against or [], multi_label=multi_label)
    if as_json:
        typer.echo(json.dumps(found.to_table(), ensure_ascii=False, indent=2))
    else:
        say("\n".join(found.lines()))
    raise typer.Exit(0 if found.is_usable else 1)
