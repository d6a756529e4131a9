"""What commands print: plain text in a pipe, colours and the terminal's width on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.errors import RegardError

WIDE = 10_000  # in a pipe nothing is wrapped or cut
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(*, stderr: bool = False) -> Console:
    """Where to print; made anew each time, so that it follows a redirected sys.stdout."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=WIDE)


def say(text: str, *, stderr: bool = False) -> None:
    """Prints text as it is: no markup, and no terminal codes that a file name or a line of data may hold."""
    console(stderr=stderr).print(Text(clean(text)), soft_wrap=True)


def fail(error: RegardError) -> None:
    """An error of the user's, to stderr: what, got, wanted, where, what to try."""
    message = Text.assemble(("error:", "bold red"), f" {clean(str(error))}")
    console(stderr=True).print(message, soft_wrap=True)


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str]) -> None:
    """Aligned columns; the last one wraps on a terminal that is too narrow."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, name in enumerate(header):
        grid.add_column(name, no_wrap=i + 1 < len(header), overflow="fold")
    for row in rows:
        grid.add_row(*(Text(clean(str(cell))) for cell in row))
    out = console()
    with out.capture() as captured:
        out.print(grid)
    out.out("\n".join(line.rstrip() for line in captured.get().splitlines()), highlight=False)


def one_line(text: str) -> str:
    """Text without what would break a line or a column."""
    return re.sub(r"[\t\n\r]", " ", text)


def clean(text: str) -> str:
    """Text whose control codes can be read and do nothing to a terminal."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
