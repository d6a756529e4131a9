"""Progress: a line kept up to date in a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from regard.train import progress
from regard.train.progress import Progress, Rate, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines_now_and_then_and_at_the_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("step", 2000, every=10) as bar:
        for second in range(1, 21):
            clock[0] = second
            bar.update(100 * second, "loss 1.0")
    assert capsys.readouterr().err.splitlines() == [
        "step 1,000/2,000  10.0 s left  loss 1.0",
        "step 2,000/2,000  in 20.0 s  loss 1.0",
    ]


def test_time_left_counts_from_where_it_went_on(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    bar = Progress("step", 200, done=100, every=0)
    bar.update(100)
    clock[0] = 10.0
    bar.update(150)
    assert capsys.readouterr().err == "step 100/200  starting\nstep 150/200  10.0 s left\n"


def test_a_terminal_keeps_one_line(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "30")
    with Progress("step", 10) as bar:
        for second in range(1, 4):
            clock[0] = second
            bar.update(second, "a note that is far too long for so narrow a terminal")
        bar.say("validation")
    parts = terminal.getvalue().split("\r")
    assert all(len(part.rstrip("\n")) < 30 for part in parts)
    assert parts[1].startswith("step 1/10  9.0 s left  a note")
    assert terminal.getvalue().endswith(" \rvalidation\n\n")


def test_a_rate_leaves_pauses_out(clock: list[float]) -> None:
    rate = Rate()
    rate.add(60)
    clock[0] = 2.0
    with rate.paused():
        clock[0] = 50.0
    rate.add(60)
    clock[0] = 52.0
    assert rate.read() == 30.0
    clock[0] = 53.0
    rate.add(5)
    assert rate.read() == 5.0
    assert rate.read() == 0.0  # no time at all has passed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (7260, "2 h 01 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
