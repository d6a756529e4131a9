"""Commands start fast, help is there, and a slip of the hand is answered kindly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regard.cli.lists
from regard.cli.output import fail, say
from regard.errors import RegardError

Command = Callable[..., Any]


def in_new_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )


def test_what_needs_no_torch_imports_none() -> None:
    done = in_new_process(
        "import sys\n"
        "from regard.cli.main import main\n"
        "helps = [[name, '--help'] for name in ('predict', 'generate', 'chat', 'ask', 'look', 'new', 'convert')]\n"
        "for words in (['--help'], ['--version'], ['recipes'], ['data'], ['data', 'check', '--help'], *helps):\n"
        "    try: main(words)\n"
        "    except SystemExit as ended: assert not ended.code\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'numpy' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(regard: Command) -> None:
    shown = regard("--help")
    assert shown.code == 0
    listed = [line.split()[0] for line in shown.out.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    jobs = ["new", "train", "evaluate", "predict", "generate", "chat", "ask", "look", "ablate", "prune", "convert"]
    assert listed[:16] == [*jobs, "recipes", "models", "tasks", "doctor", "data"]
    assert "..." not in shown.out.partition("Commands:")[2]  # no explanation is cut off


def test_without_a_command_there_is_help(regard: Command) -> None:
    assert "Usage: regard" in regard().out


def test_a_wrong_command_names_the_nearest(regard: Command) -> None:
    wrong = regard("trian")
    assert wrong.code == 2
    assert "No such command 'trian'. Did you mean 'train'?" in wrong.err


@pytest.mark.parametrize("words", [["train"], ["predict"], ["new", "translation", "--out", "a.toml"]])
def test_a_missing_word_is_named(regard: Command, words: list[str]) -> None:
    wrong = regard(*words)
    assert wrong.code == 2
    assert "Missing" in wrong.err
    assert "Traceback" not in wrong.err


def test_text_of_the_user_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say("[bold]runs/[/bold] :smile: \x1b[31mred")
    fail(RegardError("no such [key]", got="[red]a[/red]", wanted="\x1b]0;title\x07"))
    out, err = capsys.readouterr()
    assert out == "[bold]runs/[/bold] :smile: \\x1b[31mred\n"
    assert err == "error: no such [key]\n  got:    [red]a[/red]\n  wanted: \\x1b]0;title\\x07\n"


def test_in_a_pipe_long_lines_stay_whole_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    say("word " * 100)
    regard.cli.lists.recipes()
    out = capsys.readouterr().out
    assert out.startswith("word " * 99)
    assert "\x1b" not in out
    assert not [line for line in out.splitlines()[1:] if line != line.rstrip()]


def test_no_color_is_respected_on_a_terminal() -> None:
    code = "from regard.cli.output import fail; from regard.errors import RegardError; fail(RegardError('oh'))"
    forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b" in in_new_process(code, **forced).stderr
    # the standard speaks of colour alone: bold may stay
    assert "\x1b[31m" not in in_new_process(code, NO_COLOR="1", **forced).stderr


def test_an_error_that_nobody_expected_shows_where(tmp_path: Path) -> None:
    done = in_new_process(
        "import regard.cli.lists as lists\n"
        "def broken(): raise ZeroDivisionError('oh')\n"
        "import regard.recipe; regard.recipe.shipped = broken\n"
        "from regard.cli.main import main; main(['recipes'])\n"
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError: oh" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    script = f"{sys.executable} -c 'from regard.cli.main import main; main([\"data\"])' | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize("code", ["torch.empty(2**59)", "raise torch.OutOfMemoryError('CUDA out of memory.\\nMore')"])
def test_too_little_memory_is_said_with_the_remedy(code: str) -> None:
    done = in_new_process(
        "import torch, regard.recipe\n"
        f"def full(): {code}\n"
        "regard.recipe.shipped = full\n"
        "from regard.cli.main import main; main(['recipes'])\n"
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: out of memory\n  got:    ")
    assert "\n  try:    halve train.batch_tokens" in done.stderr
    assert done.stderr.count("\n") == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_full_disk_under_stdout_is_said() -> None:
    script = f"{sys.executable} -c 'from regard.cli.main import main; main([\"tasks\"])' > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the disk is full\n  got:    No space left on device\n  where:  ")


def test_letters_that_the_locale_has_not_are_escaped() -> None:
    code = "import regard.recipe\nfrom regard.cli.output import say\n"
    code += "regard.recipe.shipped = lambda: say('kissa \\u732b') or []\n"
    code += "from regard.cli.main import main; main(['recipes'])"
    done = in_new_process(code, PYTHONIOENCODING="ascii")
    assert done.stdout.startswith("kissa \\u732b\n"), done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_empty(closed: str) -> None:
    code = (
        "import sys\nfrom regard.cli.main import main\n"
        "try: main(['tasks'])\nfinally: assert not sys.stdin.isatty() and sys.stdin.buffer.read() == b''"
    )
    script = f'{sys.executable} -c "{code}" {closed}'
    done = subprocess.run(["bash", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_interrupted_is_130(regard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> list[Path]:
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.recipe.shipped", interrupted)
    assert regard("recipes").code == 130
