"""From two files to answers through the real command line: new, train, evaluate, predict, and training on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import regard as library

Command = Callable[..., Any]


def shell(*words: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """`regard` in a process of its own, as a user starts it."""
    start = [sys.executable, "-c", "from regard.cli.main import main; main()"]
    return subprocess.run(
        [*start, *map(str, words)], input=stdin, capture_output=True, text=True, check=False, env=os.environ
    )


def test_a_run_folder_holds_what_it_should(trained: Any) -> None:
    names = {path.name for path in trained.run.iterdir()}
    assert {"recipe.toml", "model.safetensors", "metrics.jsonl", "tokenizer.source.json"} <= names


def test_evaluate_prints_and_reports(regard: Command, trained: Any) -> None:
    done = regard("evaluate", trained.run)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line.partition(":")[0] for line in lines[::2]] == ["exact_match", "phoneme_error"]
    assert all(line.startswith("  nrefs:1|") for line in lines[1::2])
    exact = float(lines[0].partition(": ")[2])
    assert exact >= 90
    report = json.loads((trained.run / "report.json").read_text())
    assert report["test"]["examples"] == 100
    assert round(report["test"]["metrics"]["exact_match"], 2) == exact

    done = regard("evaluate", trained.run, "--split", "val", "method=greedy")
    assert done.code == 0, done.err
    report = json.loads((trained.run / "report.json").read_text())
    assert report["val"]["decode"]["method"] == "greedy"
    assert report["test"]["examples"] == 100  # the other split's figures stay


def test_predict_in_a_shell(trained: Any) -> None:
    sources, targets = zip(*trained.test, strict=True)
    done = shell("predict", trained.run, "--device", "cpu", stdin="".join(f"{source}\n" for source in sources))
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split("\n")
    assert answers.pop() == ""
    assert len(answers) == 100
    assert sum(map(str.__eq__, answers, targets)) >= 90
    # Python enters through the same door
    assert [answer.text for answer in library.load(trained.run).predict(list(sources))] == answers


def test_predict_with_a_forced_beginning(regard: Command, trained: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{source}\n" for source, _ in trained.test[:3]))
    first = trained.test[1][1].split()[0]
    done = regard("predict", trained.run, tmp_path / "in.txt", "--prefix", first)
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()] == [first] * 3
    assert done.out.splitlines()[1] == trained.test[1][1]


def test_a_bad_line_of_what_is_to_be_answered_names_no_key_of_training(
    regard: Command, trained: Any, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_bytes(b"a b\n\xff\n")
    done = regard("predict", trained.run, tmp_path / "in.txt")
    assert done.code != 0
    assert "try:    mend the line\n" in done.err


def test_the_same_command_again_goes_on(regard: Command, trained: Any, tmp_path: Path) -> None:
    words = ["train", trained.recipe, f"run={tmp_path / 'run'}", *trained.small, "train.checkpoint_every=10"]
    first = regard(*words, "train.max_steps=20")
    assert first.code == 0, first.err
    assert f"regard evaluate {tmp_path / 'run'}; regard predict {tmp_path / 'run'} FILE" in first.err
    again = regard(*words, "train.max_steps=20")
    assert again.code == 0, again.err
    assert "already trained, 20 steps" in again.err
    assert "without effect" not in again.err
    kept = (tmp_path / "run" / "recipe.toml").read_text()
    other = regard(
        *words, "train.max_steps=10", "train.ema=0.5", "observe.every=5", "decode.beam=2", "task.consistency=1"
    )
    assert other.code == 0, other.err
    names = "task.consistency, train.max_steps, train.ema, observe.every"
    assert f"without effect, as nothing was left to train: {names}\n" in other.err
    # it still says what the run was trained with, and what it answers with now
    changed = (tmp_path / "run" / "recipe.toml").read_text()
    assert changed == kept.replace("beam = 5\n", "beam = 2\n")
    longer = regard(*words, "train.max_steps=30")
    assert longer.code == 0, longer.err
    assert "step 30/30" in longer.err
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    assert {20, 30} <= set(steps)  # what came before is still there: it went on, and did not start again


def test_ctrl_c_saves_and_says_how_to_go_on(regard: Command, trained: Any, tmp_path: Path) -> None:
    words = ["train", trained.recipe, f"run={tmp_path / 'run'}", *trained.small, "train.validate_every=10"]
    start = [sys.executable, "-c", "from regard.cli.main import main; main()"]
    command = [*map(str, [*start, *words]), "train.max_steps=100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("step 10:"):
                process.send_signal(signal.SIGINT)
        assert process.wait() == 130, said
    assert "Traceback" not in said
    found = re.search(r"stopped at step (\d+), all of it saved; the same command goes on from here", said)
    assert found, said
    again = regard(*words, f"train.max_steps={int(found[1]) + 1}")
    assert again.code == 0, again.err
    assert f"going on from step {found[1]}" in again.err


def test_another_model_is_not_trained_over_it(regard: Command, trained: Any) -> None:
    before = (trained.run / "model.safetensors").read_bytes()
    refused = regard("train", trained.recipe, f"run={trained.run}", *trained.small, "model.model_dim=32")
    assert refused.code == 2
    assert refused.err.startswith("error: the run folder holds another model\n  got:    changed: model.model_dim\n")
    assert (trained.run / "model.safetensors").read_bytes() == before
