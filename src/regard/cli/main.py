"""`regard`: the commands, and how an error reaches the user."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

import typer

from regard import __version__
from regard.cli import ask, chat, check, convert, doctor, generate, jobs, lists, look, new
from regard.cli.output import fail
from regard.errors import RegardError

app = typer.Typer(
    name="regard",
    help="Trains attention models and answers with them.",
    epilog="Start with `regard recipes`, or with your own files: `regard new translation --help`.",
    # plain help and plain tracebacks: the same text on a terminal, in a pipe and in a bug report
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

app.command(cls=new.FileLists)(new.new)
app.command()(jobs.train)
app.command()(jobs.evaluate)
app.command()(jobs.predict)
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(ask.ask)
app.command()(look.look)
app.command()(look.ablate)
app.command()(look.prune)
app.command()(convert.convert)
app.command()(lists.recipes)
app.command()(lists.models)
app.command()(lists.tasks)
lists.data.command("check", cls=check.Against)(check.check)
app.add_typer(lists.data, name="data")
app.command()(doctor.doctor)


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    if version:
        typer.echo(f"regard {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line and exits: 0 if all went well, 2 for what the user can mend, 130 when interrupted.

    >>> main(["--version"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    _open_streams()
    _share_cores()
    try:
        app(args=None if arguments is None else list(arguments), prog_name="regard")
    except RegardError as error:
        fail(error)
        sys.exit(2)
    except OSError as error:
        where = error.filename or "where this command writes (stdout, temporary files)"
        if error.errno == errno.ENOSPC:
            fail(RegardError("the disk is full", got=error.strerror, where=where, remedy="free some space"))
        elif isinstance(error, PermissionError) and error.filename:
            remedy = "the right to read it and to enter its folder, or another place"
            fail(RegardError("this may not be read or written", got=error.strerror, where=where, remedy=remedy))
        else:
            raise
        sys.exit(2)
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        remedy = "halve train.batch_tokens and double train.accumulate, or batch_tokens= where nothing is trained; "
        remedy += "lower data.max_length, as one long text can be the reason; a smaller model"
        first = (str(error) or "no memory was left").splitlines()[0]
        fail(RegardError("out of memory", got=first, remedy=remedy))
        sys.exit(2)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is PyTorch's error of a GPU or of a CPU, the latter without a type of its own, or Python's."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "DefaultCPUAllocator: " in str(error)


def _open_streams() -> None:
    """Gives a command that was started without some of them (`<&-`, some daemons) its streams: empty, or unread.

    What is printed for people (answers are always UTF-8) may hold letters that the locale has not: they are escaped.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _share_cores() -> None:
    """Lets idle threads of PyTorch sleep where other programs want the cores; there, spinning made training 5 x slower.

    It has to be said before PyTorch is imported, and costs a little where nobody else computes.
    """
    try:
        busy = os.getloadavg()[0] > (os.cpu_count() or 1) / 2
    except OSError:  # not every system tells
        return
    if busy:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
