"""`regard generate`: text as it is written, token by token."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from regard.cli.jobs import DEVICE, DRAFT, Output, taken, typed
from regard.cli.output import clean, say
from regard.cli.words import is_override, section
from regard.errors import ConfigError

INTERRUPTED = 130  # what a shell expects of a command that Ctrl-C ended


def generate(
    run: Path = typer.Argument(metavar="RUN", help="The folder of a trained run."),
    words: list[str] = typer.Argument(
        None, metavar="PROMPT|KEY=VALUE", help="A text (each line of stdin without it), and keys of [decode]."
    ),
    draft: Path | None = DRAFT,
    device: str = DEVICE,
) -> None:
    """Write from a prompt, and show each token as it is made.

    A language model goes on with the prompt; a translation is written below it. Without a prompt, each line of stdin
    is one. Ctrl-C ends a text. How many tokens a second there were is said on stderr.
    """
    from regard.run import load
    from regard.tasks import task

    prompt, changes = _prompt_and_keys(words or [])
    loaded = load(run, device)
    guessing = None if draft is None else loaded.draft(load(draft, device))
    goes_on = task(loaded.recipe.task_name).KIND == "causal"
    asks = prompt is None and sys.stdin.isatty()
    pace, whole = Pace(), True
    with Output(None) as output:
        for index, text in enumerate(asked() if asks else typed() if prompt is None else [prompt]):
            pieces = loaded.generate(text, index=index, draft=guessing, **changes)
            whole = write(output, text if goes_on else "", pieces, pace)
            if asks:
                say(pace.read(), stderr=True)
            elif not whole:
                break
    if not asks:
        say(pace.read(), stderr=True)
    if guessing is not None:
        say(taken(guessing), stderr=True)
    if not asks and not whole:
        raise typer.Exit(INTERRUPTED)


@dataclass
class Pace:
    """How many tokens there were, and how long they took."""

    tokens: int = 0
    seconds: float = 0.0

    def read(self) -> str:
        """Says it, and begins anew."""
        said = f"{self.tokens:,} tokens, {self.tokens / max(self.seconds, 1e-9):,.0f} a second"
        self.tokens, self.seconds = 0, 0.0
        return said


def write(output: Output, prompt: str, pieces: Iterable[str], pace: Pace) -> bool:
    """Writes a text as it comes, and a line's end; whether it came to its end before Ctrl-C."""
    show = clean if sys.stdout.isatty() else str  # a file gets what was said, to the letter
    begun, whole = time.monotonic(), True
    try:
        coming = iter(pieces)
        first = next(coming, None)  # what cannot be done is said before anything is written
        output.write(show(prompt))
        for piece in () if first is None else itertools.chain([first], coming):
            output.write(show(piece))
            pace.tokens += 1
    except KeyboardInterrupt:
        whole = False
    pace.seconds += time.monotonic() - begun
    output.write("\n")
    return whole


def asked() -> Iterator[str]:
    """The lines that a person types, until Ctrl-D or Ctrl-C."""
    lines = typed()
    try:
        while True:
            sys.stderr.write("> ")
            sys.stderr.flush()
            yield next(lines)
    except (StopIteration, KeyboardInterrupt):
        sys.stderr.write("\n")


def _prompt_and_keys(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    texts = [word for word in words if not is_override(word)]
    if len(texts) > 1:
        raise ConfigError("a prompt is one word of the command", got=" ".join(texts), wanted=f'"{" ".join(texts)}"')
    keys = section("decode", [word for word in words if is_override(word)])
    return texts[0] if texts else None, keys
