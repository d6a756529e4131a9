"""`regard chat`: a conversation with a run that was trained on conversations."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.generate import INTERRUPTED, Pace, asked, write
from regard.cli.jobs import DEVICE, OVERRIDES, Output, typed
from regard.cli.output import one_line, say
from regard.cli.words import section
from regard.errors import RunError

if TYPE_CHECKING:
    from regard.run import Run

HELP = "/new begins anew, /back takes back what you said last, /quit or Ctrl-D ends"


def chat(
    run: Path = typer.Argument(metavar="RUN", help="The folder of a trained run of the task dialogue."),
    overrides: list[str] = OVERRIDES,
    device: str = DEVICE,
) -> None:
    """Talk with a run that was trained on conversations.

    Each line is a turn; its reply is shown as it is made, and both are part of what the next reply answers. /new begins
    anew, /back takes back what you said last, /quit ends. From a pipe, each line of stdin has one reply, a line.

    regard chat runs/dailydialog method=sample top_p=0.9 temperature=0.7
    """
    from regard.run import load

    changes, loaded = section("decode", overrides or []), load(run, device)
    if loaded.recipe.task_name != "dialogue":
        raise RunError(
            "this run holds no conversations",
            got=f"a run of {loaded.recipe.task_name}",
            wanted="a run of dialogue",
            where=run,
            remedy=f"regard generate {run}" if hasattr(loaded.task, "generate") else f"regard predict {run}",
        )
    asks = sys.stdin.isatty()
    if asks:
        say(HELP, stderr=True)
    with Output(None) as output:
        whole = _talk(loaded, asked() if asks else typed(), output, changes, goes_on=asks)
    if not whole:
        raise typer.Exit(INTERRUPTED)


def _talk(run: Run, lines: Iterable[str], output: Output, changes: dict[str, Any], *, goes_on: bool) -> bool:
    """Answers turn by turn; whether it came to its end before Ctrl-C, which ends a reply where one `goes_on`."""
    from regard.data.turns import END, joined

    turns: list[str] = []  # of both, one after the other
    for index, line in enumerate(lines):
        said = " ".join(line.replace(END, " ").split())
        if said == "/quit":
            break
        if said in ("/new", "/back"):
            turns = turns[:-2] if said == "/back" else []
            continue
        reply: list[str] = []
        pieces = run.generate(joined([*turns, said]), index=index, **changes) if said else iter(())
        if not write(output, "", _kept(pieces, reply), Pace()) and not goes_on:
            return False
        answer = "".join(reply).strip()
        if answer:  # else nothing was said that one could go on from
            turns += [said, answer]
    return True


def _kept(pieces: Iterable[str], reply: list[str]) -> Iterator[str]:
    """The pieces of a reply, without what would break its line; they are remembered."""
    for piece in pieces:
        reply.append(one_line(piece))
        yield reply[-1]
