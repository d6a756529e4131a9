"""Progress of long work: a live bar in a terminal, plain lines in a log, always with rates and time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType


class Progress:
    """Counts up to a total and shows how fast, and how long it will still take.

    In a terminal one line is kept up to date; elsewhere `update` prints a plain line at most every `every` seconds.
    """

    def __init__(self, title: str, total: int, *, done: int = 0, every: float = 10.0) -> None:
        self.title, self.total, self.done, self.every = title, total, done, every
        self.start_done, self.start = done, time.monotonic()
        self.last_shown = self.start
        self.live = sys.stderr.isatty()
        self.width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live and self.width:
            tell("\n")

    def update(self, done: int, note: str = "") -> None:
        """Says that `done` of the total are done; `note` is shown behind the time left."""
        self.done = done
        now = time.monotonic()
        due = 0.2 if self.live else self.every
        if now - self.last_shown < due and done < self.total:
            return
        self.last_shown = now
        line = f"{self.title} {done:,}/{self.total:,}"
        line += f"  {self._left(now)}" + (f"  {note}" if note else "")
        if self.live:
            tell("\r" + line.ljust(self.width)[: _columns()])
            self.width = len(line)
        else:
            tell(line + "\n")

    def say(self, line: str) -> None:
        """A line of its own, above the bar."""
        if self.live and self.width:
            tell("\r" + " " * min(self.width, _columns()) + "\r")
        tell(line + "\n")

    def _left(self, now: float) -> str:
        made = self.done - self.start_done
        if not made:
            return "starting"
        left = (self.total - self.done) * (now - self.start) / made
        return f"{duration(left)} left" if self.done < self.total else f"in {duration(now - self.start)}"


class Rate:
    """How many a second, pauses left out.

    >>> rate = Rate()
    >>> rate.add(100)
    >>> rate.read() > 0, rate.read()
    (True, 0.0)
    """

    def __init__(self) -> None:
        self.number, self.since = 0, time.monotonic()

    def add(self, number: int) -> None:
        self.number += number

    def read(self) -> float:
        """The rate since the last call."""
        now = time.monotonic()
        rate = self.number / max(now - self.since, 1e-9)
        self.number, self.since = 0, now
        return rate

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The time inside does not count."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.since += time.monotonic() - begun


def duration(seconds: float) -> str:
    """A time as a person says it.

    >>> duration(3725), duration(65.2), duration(4.25)
    ('1 h 02 min', '1 min 05 s', '4.2 s')
    """
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s" if seconds >= 60 else f"{seconds:.1f} s"


def say(line: str) -> None:
    """One line to the log."""
    tell(line + "\n")


def tell(text: str) -> None:
    """Text to stderr, if anybody reads it: work outlives the terminal or the `| tee log` that it talks to."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns - 1
