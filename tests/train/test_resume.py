"""To be stopped costs nothing: a run that was interrupted ends with the same bits as one that was not."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import RunError
from regard.train import checkpoint
from regard.train.loop import Trainer

Make = Callable[..., Trainer]
Kill = Callable[[Trainer, int], None]
Same = Callable[[Path, Path], None]
LOST = "the result is lost, damaged or of a later step: the best from here on takes its place"


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("transformer", {}),
        ("transformer", {"ema": 0.9}),
        ("transformer", {"precision": "bf16", "schedule": "cosine"}),
        ("transformer", {"average": 3, "checkpoint_every": 1, "best": "phoneme_error"}),
        ("recurrent", {"ema": 0.5}),
        ("convolutional", {"clip": 0.0, "log_every": 4}),
    ],
    ids=["plain", "ema", "bf16", "average", "recurrent", "convolutional"],
)
def test_resume_is_exact(
    trainer_of: Make, kill: Kill, same: Same, tmp_path: Path, family: str, words: dict[str, Any]
) -> None:
    trainer_of(tmp_path / "whole", family, **words).fit()
    kill(trainer_of(tmp_path / "parts", family, **words), 4)
    trainer_of(tmp_path / "parts", family, **words).fit()
    same(tmp_path / "whole", tmp_path / "parts")


def test_resume_is_exact_wherever_it_was_stopped(trainer_of: Make, kill: Kill, same: Same, tmp_path: Path) -> None:
    """Also in the middle of an epoch, and at its end where the batches do not fill an update."""
    words = {"accumulate": 4, "max_steps": 5, "checkpoint_every": 1, "keep": 9, "ema": 0.9}
    whole = trainer_of(tmp_path / "whole", **words)
    batches = len(whole._plan(whole.train_split, 0, shuffle=True))
    assert batches % 4  # three updates an epoch, the last of them smaller
    assert batches // 4 == 2
    whole.fit()
    epochs = {}
    for path in checkpoint.checkpoints(tmp_path / "whole" / checkpoint.FOLDER):
        state = checkpoint.load_checkpoint(path)[2]
        epochs[state["step"]] = (state["epoch"], state["batch"])
    assert epochs == {1: (0, 4), 2: (0, 8), 3: (1, 0), 4: (1, 4), 5: (1, 8)}
    for step in range(1, 5):
        kill(trainer_of(tmp_path / f"{step}", **words), step)
        trainer_of(tmp_path / f"{step}", **words).fit()
        same(tmp_path / "whole", tmp_path / f"{step}")


def test_no_step_is_logged_twice(trainer_of: Make, kill: Kill, tmp_path: Path) -> None:
    kill(trainer_of(tmp_path, log_every=1), 5)  # after the checkpoint of step 3
    assert [line["step"] for line in metrics(tmp_path)] == [1, 2, 2, 3, 4, 4, 5]
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')  # what a crash leaves
    trainer_of(tmp_path, log_every=1).fit()
    found = [(line["step"], "val_loss" in line) for line in metrics(tmp_path)]
    trained, validated = ((step, False) for step in range(1, 7)), ((step, True) for step in (2, 4, 6))
    assert found == sorted([*trained, *validated])


def test_a_fresh_start_forgets_the_metrics_of_a_lost_one(trainer_of: Make, kill: Kill, tmp_path: Path) -> None:
    kill(trainer_of(tmp_path), 2)  # before the first checkpoint
    assert (tmp_path / "metrics.jsonl").read_text()
    trainer_of(tmp_path, max_steps=1).fit()
    assert [line["step"] for line in metrics(tmp_path)] == [1, 1]


def test_what_is_said(trainer_of: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer_of(tmp_path, max_steps=3).fit()
    first = capsys.readouterr().err
    assert "going on" not in first
    assert re.search(r"train: 50 rows, .*\nval:   12 rows, .*\nmodel: [\d,]+ parameters on cpu, fp32\n", first)
    assert re.search(r"batches: 9 an epoch, \d+ shapes, [\d.]+% padding\n", first)
    assert re.search(r"step 3: validation loss [\d.]+  perplexity [\d.]+  \(best\)\n", first)
    assert re.search(r"trained in [\d.]+ s; .*model.safetensors is of step 3, validation loss [\d.]+\n$", first)
    trainer_of(tmp_path, max_steps=3).fit()
    assert capsys.readouterr().err == f"{tmp_path}: already trained, 3 steps\n"
    trainer_of(tmp_path, max_steps=5).fit()
    longer = capsys.readouterr().err
    assert longer.startswith("going on from step 3\ntrain: ")
    assert "step 5/5" in longer


@pytest.mark.parametrize("schedule", ["inverse-sqrt", "cosine", "constant"])
def test_a_finished_run_can_be_made_longer(trainer_of: Make, tmp_path: Path, schedule: str) -> None:
    """It goes on with the learning rates that the longer run would have had."""
    trainer_of(tmp_path / "a", schedule=schedule, max_steps=3).fit()
    trainer_of(tmp_path / "a", schedule=schedule, max_steps=6).fit()
    trainer_of(tmp_path / "b", schedule=schedule, max_steps=6).fit()
    a, b = ({line["step"]: line["learning_rate"] for line in metrics(tmp_path / x) if "loss" in line} for x in "ab")
    assert list(a) == list(b) == [1, 2, 3, 4, 5, 6]
    assert [a[step] for step in (4, 5, 6)] == [b[step] for step in (4, 5, 6)]
    if schedule == "inverse-sqrt":  # nothing in it looks at the end, so the weights are the same too
        found = [checkpoint.load_weights(tmp_path / x / "checkpoints/step-00000006/model.safetensors") for x in "ab"]
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[1])


def test_a_run_shortened_below_its_step_ends_at_once(
    trainer_of: Make, kill: Kill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(trainer_of(tmp_path, validate_every=100), 4)
    trainer_of(tmp_path, max_steps=2, validate_every=100).fit()
    said = capsys.readouterr().err
    assert "going on from step 3\n" in said
    assert "step 3: validation" in said  # no step more, but a result
    assert (tmp_path / "model.safetensors").exists()


def test_a_result_of_steps_that_are_lost_is_not_taken_for_that_of_the_checkpoint(
    trainer_of: Make, kill: Kill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill(trainer_of(tmp_path, validate_every=1), 5)  # after the checkpoint of step 3
    assert checkpoint.step_of(tmp_path / "model.safetensors") == 5
    trainer_of(tmp_path, validate_every=1, max_steps=4, learning_rate=1e-30).fit()
    assert LOST in capsys.readouterr().err
    found, wanted = (
        checkpoint.load_weights(path / "model.safetensors")
        for path in (tmp_path, tmp_path / "checkpoints/step-00000004")
    )
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_results_whose_checkpoints_were_deleted_are_kept(
    trainer_of: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_of(tmp_path).fit()
    for i in (1, 2):
        result = (tmp_path / "model.safetensors").read_bytes()
        shutil.rmtree(tmp_path / "checkpoints")
        trainer_of(tmp_path, seed=i + 1).fit()
        assert (tmp_path / f"before-{i}-model.safetensors").read_bytes() == result
        assert f"is now before-{i}-model.safetensors\n" in capsys.readouterr().err


# --- ends of a process

SCRIPT = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from regard.recipe import read_recipe
from regard.run import train
from regard.train import checkpoint
{patch}
train(read_recipe(sys.argv[1], sys.argv[2:]))
"""


def start(recipe: Path, *words: str, patch: str = "", cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", SCRIPT.replace("{patch}", patch), str(recipe), *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def recipe_file(recipe_of: Callable[..., Any], data: Path, tmp_path: Path) -> Path:
    path = data / "recipe.toml"
    path.write_text(recipe_of(tmp_path / "parts", max_steps=1000).to_toml())
    return path


def test_termination_saves_and_the_next_start_goes_on(
    trainer_of: Make, same: Same, recipe_file: Path, tmp_path: Path
) -> None:
    said = ""
    with start(recipe_file, "train.checkpoint_every=1000000", cache=tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            said += line
            if line.startswith("step 2:"):
                process.send_signal(signal.SIGTERM)
    assert "\nstopping after this step; once more stops at once and loses what came after the last checkpoint\n" in said
    stopped = re.search(r"stopped at step (\d+), all of it saved; the same command goes on from here\n", said)
    assert stopped, said
    words = {"max_steps": int(stopped[1]) + 3, "checkpoint_every": 1000000}
    trainer_of(tmp_path / "parts", **words).fit()
    trainer_of(tmp_path / "whole", **words).fit()
    same(tmp_path / "whole", tmp_path / "parts")


def test_ctrl_c_saves_where_it_also_ends_who_reads_what_is_said(recipe_file: Path, tmp_path: Path) -> None:
    """As in `regard train RECIPE 2>&1 | tee log`."""
    with start(recipe_file, "train.checkpoint_every=1000000", cache=tmp_path) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 2:"):
                break
        process.stderr.close()
        process.send_signal(signal.SIGINT)
    assert len(checkpoint.checkpoints(tmp_path / "parts/checkpoints")) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no hang-ups")
def test_a_closed_terminal_is_a_wish_to_stop_however_often_it_is_told(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    for before in (signal.SIG_DFL, signal.SIG_IGN):  # nohup ignores it
        outer = signal.signal(signal.SIGHUP, before)
        try:
            with trainer._stopping():
                for _ in range(2):
                    signal.raise_signal(signal.SIGHUP)
                assert trainer.stop_requested is (before is signal.SIG_DFL)
            assert signal.getsignal(signal.SIGHUP) is before
        finally:
            signal.signal(signal.SIGHUP, outer)
        trainer.stop_requested = False


def test_ctrl_c_saves_and_the_next_start_goes_on(trainer_of: Make, same: Same, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "parts", checkpoint_every=100, accumulate=2)
    add = trainer.step.add

    def interrupted(batch: Any) -> None:
        if trainer.clock.step == 3 and not trainer.stop_requested:  # in the first half of an update
            signal.raise_signal(signal.SIGINT)
        add(batch)

    trainer.step.add = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert [path.name for path in checkpoint.checkpoints(tmp_path / "parts/checkpoints")] == ["step-00000004"]
    trainer_of(tmp_path / "parts", checkpoint_every=100, accumulate=2).fit()
    trainer_of(tmp_path / "whole", checkpoint_every=100, accumulate=2).fit()
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_second_signal_ends_at_once(trainer_of: Make, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    # what started in the background of a script ignores Ctrl-C from the beginning
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with trainer._stopping():
            assert signal.getsignal(signal.SIGTERM) is not before
            signal.raise_signal(signal.SIGINT)
            assert trainer.stop_requested
            assert signal.getsignal(signal.SIGTERM) is before
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is before
    finally:
        signal.signal(signal.SIGINT, outer)


def test_a_signal_after_the_last_step_still_gives_a_result(trainer_of: Make, same: Same, tmp_path: Path) -> None:
    words = {"average": 3, "checkpoint_every": 1}
    trainer_of(tmp_path / "whole", **words).fit()
    trainer = trainer_of(tmp_path / "parts", **words)
    save = trainer._save

    def save_and_stop() -> None:
        save()
        trainer.stop_requested = trainer.clock.step == 6

    trainer._save = save_and_stop  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    trainer_of(tmp_path / "parts", **words).fit()
    same(tmp_path / "whole", tmp_path / "parts")


# dies by kill -9 inside the second checkpoint, with its first file half on the disk
DIES = """
whole = checkpoint.save_weights
def save_weights(path, tensors, metadata=None):
    whole(path, tensors, metadata)
    if "step-00000006" in str(path):
        os.truncate(path, os.path.getsize(path) // 2)
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save_weights = save_weights
"""


def test_kill_9_in_a_checkpoint_leaves_the_earlier_one_whole(
    trainer_of: Make, same: Same, recipe_file: Path, tmp_path: Path
) -> None:
    with start(recipe_file, patch=DIES, cache=tmp_path) as process:
        _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    folder = tmp_path / "parts" / "checkpoints"
    assert [path.name for path in checkpoint.checkpoints(folder)] == ["step-00000003"]
    assert len(list(folder.iterdir())) == 2  # it, and what was being written
    (tmp_path / "parts" / ".model.safetensors.123").write_text("half")  # the same, of the result
    trainer_of(tmp_path / "parts", max_steps=8).fit()
    trainer_of(tmp_path / "whole", max_steps=8).fit()
    same(tmp_path / "whole", tmp_path / "parts")
    assert {path.name for path in folder.iterdir()} == {"step-00000006", "step-00000008"}  # nothing is left lying
    assert [path.name for path in (tmp_path / "parts").glob(".*")] == []


# --- disks that fail


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def change_state(path: Path, **values: object) -> None:
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | values))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "weights cut": lambda path: cut(path / "model.safetensors"),
    "tensors missing": lambda path: (path / "state.safetensors").unlink(),
    "state cut": lambda path: cut(path / "state.json"),
    "state of something else": lambda path: (path / "state.json").write_text('{"steps": 6}'),
    "a word for a number": lambda path: change_state(path, step="four"),
    "moments missing": lambda path: checkpoint.save_weights(path / "state.safetensors", {"rng.cpu": torch.zeros(1)}),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_it(
    trainer_of: Make, kill: Kill, same: Same, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    words = {"checkpoint_every": 2, "max_steps": 8, "keep": 2}
    trainer_of(tmp_path / "whole", **words).fit()
    kill(trainer_of(tmp_path / "parts", **words), 5)
    folder = tmp_path / "parts" / "checkpoints"
    DAMAGE[how](folder / "step-00000004")
    capsys.readouterr()
    trainer_of(tmp_path / "parts", **words).fit()
    said = capsys.readouterr().err
    aside = folder / "damaged-step-00000004"
    assert f"  -> set aside as {aside}; taking the one before it\n{LOST}\ngoing on from step 2\n" in said
    assert str(folder / "step-00000004") in said.partition("->")[0]
    assert aside.is_dir()
    same(tmp_path / "whole", tmp_path / "parts")


def test_a_damaged_checkpoint_does_not_push_out_a_whole_one(trainer_of: Make, kill: Kill, tmp_path: Path) -> None:
    kill(trainer_of(tmp_path, checkpoint_every=1, keep=2), 3)
    cut(tmp_path / "checkpoints" / "step-00000003" / "state.json")
    kill(trainer_of(tmp_path, checkpoint_every=1, keep=1), 3)  # now with room for a single one
    assert [path.name for path in checkpoint.checkpoints(tmp_path / "checkpoints")] == ["step-00000003"]
    checkpoint.load_checkpoint(tmp_path / "checkpoints" / "step-00000003")


def test_when_no_checkpoint_can_be_read_nothing_is_overwritten(trainer_of: Make, tmp_path: Path) -> None:
    trainer_of(tmp_path).fit()
    for path in (tmp_path / "checkpoints").iterdir():
        cut(path / "state.json")
    before = (tmp_path / "model.safetensors").read_bytes(), (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError) as error:
        trainer_of(tmp_path).fit()
    assert str(error.value) == (
        "no checkpoint of this run can be read\n"
        "  got:    step-00000003, step-00000006\n"
        f"  where:  {tmp_path / 'checkpoints'}\n"
        "  try:    another run=DIR; or run the same command again, which begins at the first step"
    )
    assert ((tmp_path / "model.safetensors").read_bytes(), (tmp_path / "metrics.jsonl").read_bytes()) == before


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_result_that_was_lost_is_made_again(
    trainer_of: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """As the errors of `regard.load` promise: the same command, on a run that was finished."""
    trainer_of(tmp_path).fit()
    path = tmp_path / "model.safetensors"
    {"missing": Path.unlink, "cut": cut}[how](path)
    trainer_of(tmp_path).fit()
    said = capsys.readouterr().err
    assert f"{LOST}\ngoing on from step 6\n" in said
    wanted = checkpoint.load_weights(tmp_path / "checkpoints/step-00000006/model.safetensors")
    found = checkpoint.load_weights(path)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    trainer_of(tmp_path).fit()
    assert capsys.readouterr().err == f"{tmp_path}: already trained, 6 steps\n"


def test_a_full_disk_loses_nothing(
    trainer_of: Make, same: Same, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {"validate_every": 100}
    import safetensors.torch

    save_file = safetensors.torch.save_file

    def full(tensors: Any, path: Path, metadata: Any = None) -> None:
        if "step-00000006" in str(path):
            Path(path).write_bytes(b"the first part")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, path, metadata)

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(RunError) as error:
            trainer_of(tmp_path / "parts", max_steps=7, **words).fit()
    lines = str(error.value).splitlines()
    assert lines[0] == "the disk is full"
    assert lines[1] == "  got:    [Errno 28] No space left on device"
    assert (
        lines[3]
        == "  try:    free some space and run the same command again; a training goes on from its last whole checkpoint"
    )
    folder = tmp_path / "parts" / "checkpoints"
    assert [path.name for path in folder.iterdir()] == ["step-00000003"]
    trainer_of(tmp_path / "parts", max_steps=7, **words).fit()
    trainer_of(tmp_path / "whole", max_steps=7, **words).fit()
    same(tmp_path / "whole", tmp_path / "parts")


def test_changes_between_two_parts(trainer_of: Make, kill: Kill, tmp_path: Path) -> None:
    """Keys of [train] may change: an average that begins late begins at the weights, and a best of another kind
    is forgotten."""
    kill(trainer_of(tmp_path), 4)
    weights = checkpoint.load_weights(tmp_path / "checkpoints" / "step-00000003" / "model.safetensors")
    trainer = trainer_of(tmp_path, ema=0.999, best="bleu")
    trainer._resume()
    assert trainer.clock.best is None
    assert trainer.step.averaged_updates == 0
    for parameter, average in zip(trainer.step.parameters, trainer.step.shadow, strict=True):
        assert torch.equal(parameter, average)
    assert torch.equal(trainer.step.shadow[0], weights[next(name for name, _ in trainer.model.named_parameters())])


def test_other_batches_begin_a_new_epoch(
    trainer_of: Make, kill: Kill, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How many were read of an epoch says nothing of one that is cut otherwise."""
    kill(trainer_of(tmp_path), 4)
    before = trainer_of(tmp_path)
    before._resume()
    assert before.clock.batch > 0
    trainer = trainer_of(tmp_path, batch_tokens=4 * before.config.batch_tokens)
    trainer._resume()
    assert (trainer.clock.epoch, trainer.clock.batch) == (before.clock.epoch + 1, 0)
    assert "the batches are other ones now: a new epoch begins\n" in capsys.readouterr().err
