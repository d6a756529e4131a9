"""The file of what was observed in training: each step in it once, whatever happened, and read back as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import RunError
from regard.ops.heads import MEASURES
from regard.recipe import Recipe
from regard.run import train
from regard.train import checkpoint
from regard.train.loop import Trainer
from regard.train.observe import OBSERVATIONS, ObserveConfig, read_observations

Make = Callable[..., Trainer]
Kill = Callable[[Trainer, int], None]


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / OBSERVATIONS).read_text().splitlines()]


def steps(run: Path) -> list[int]:
    return [line["step"] for line in lines(run)]


# --- each step once


@pytest.mark.parametrize("every", [1, 2, 5])
def test_each_step_is_observed_once_also_after_a_resume(
    trainer_of: Make, kill: Kill, tmp_path: Path, every: int
) -> None:
    words = {"observe": {"every": every}, "log_every": 4}
    trainer_of(tmp_path / "whole", **words).fit()
    assert steps(tmp_path / "whole") == list(range(0, 7, every))
    kill(trainer_of(tmp_path / "parts", **words), 5)  # after the checkpoint of step 3
    with (tmp_path / "parts" / OBSERVATIONS).open("a") as file:
        file.write('{"step": 3, "lay')  # what a crash leaves
    trainer_of(tmp_path / "parts", **words).fit()
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_a_recipe_is_trained_and_observed(
    recipe_of: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trained = train(recipe_of(tmp_path / "run", observe={"every": 2, "examples": 3}, max_steps=5))
    assert steps(tmp_path / "run") == [0, 2, 4]
    assert trained.recipe.observe == ObserveConfig(every=2, examples=3)


def test_a_fresh_start_forgets_what_a_lost_one_saw(trainer_of: Make, kill: Kill, tmp_path: Path) -> None:
    kill(trainer_of(tmp_path, observe={"every": 1}), 2)  # before the first checkpoint
    assert steps(tmp_path) == [0, 1]
    trainer_of(tmp_path, observe={"every": 1}, max_steps=2).fit()
    assert steps(tmp_path) == [0, 1, 2]


def test_what_was_seen_before_stays_when_it_is_switched_on_or_off(trainer_of: Make, tmp_path: Path) -> None:
    trainer_of(tmp_path, max_steps=2, observe={"every": 1}).fit()
    trainer_of(tmp_path, max_steps=4).fit()
    trainer_of(tmp_path, max_steps=6, observe={"every": 3}).fit()
    assert steps(tmp_path) == [0, 1, 2, 6]
    assert read_observations(tmp_path / OBSERVATIONS)["steps"].tolist() == [0, 1, 2, 6]


def test_all_of_it_is_there_before_a_checkpoint_is(
    trainer_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, save = [], checkpoint.save_checkpoint
    monkeypatch.setattr(checkpoint, "save_checkpoint", lambda *a: (seen.append(steps(tmp_path)), save(*a)))
    trainer_of(tmp_path, observe={"every": 1}).fit()
    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6]]


# --- reading


def test_what_is_written_is_read(trainer_of: Make, tmp_path: Path) -> None:
    trainer_of(tmp_path, observe={"every": 3}).fit()
    written, found = lines(tmp_path), read_observations(tmp_path / OBSERVATIONS)
    assert list(written[0]) == ["step", "layers", *MEASURES]
    names = ["encoder.blocks.0.attention.body", "decoder.blocks.0.attention.body", "decoder.blocks.0.cross.body"]
    assert written[0]["layers"] == names
    assert list(found) == ["steps", *MEASURES]
    assert found["steps"].tolist() == [0, 3, 6]
    for name in MEASURES:
        assert (found[name].shape, found[name].dtype) == ((3, 3, 2), torch.float32)
        wanted = [[[math.nan if x is None else x for x in layer] for layer in line[name]] for line in written]
        torch.testing.assert_close(found[name], torch.tensor(wanted), rtol=0, atol=0, equal_nan=True)
    assert found["previous"].isnan().tolist() == [[[False] * 2, [False] * 2, [True] * 2]] * 3
    turned = read_observations(tmp_path / OBSERVATIONS, layers=names[::-1])
    torch.testing.assert_close(turned["entropy"], found["entropy"].flip(1), rtol=0, atol=0)


GOOD: dict[str, Any] = {"step": 5, "layers": ["a", "b"], **{name: [[0.5, 1], [None]] for name in MEASURES}}


def test_layers_of_fewer_heads_are_filled_up(tmp_path: Path) -> None:
    path = tmp_path / OBSERVATIONS
    path.write_text(json.dumps(GOOD) + "\n")
    wanted = torch.tensor([[[0.5, 1.0], [math.nan, math.nan]]])
    torch.testing.assert_close(read_observations(path)["first"], wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ('{"step": 6, "la', "Unterminated string starting at: line 1 column 13 (char 12)"),
        ("[]", "[]"),
        ('{"step": 6}', '{"step": 6}'),
        ({**GOOD, "step": True}, json.dumps({**GOOD, "step": True})[:80]),
        ({**GOOD, "step": 6, "layers": "ab"}, json.dumps({**GOOD, "step": 6, "layers": "ab"})[:80]),
        ({**GOOD, "step": 5}, "step 5 after step 5"),
        ({**GOOD, "step": 6, "layers": ["a", "c"]}, "other layers than in the first line"),
        (
            {"step": 6, "layers": ["a", "b"], **{name: [[1], [2]] for name in MEASURES}},
            "other layers than in the first line",
        ),
        ({**GOOD, "step": 6, "first": [[1, 2]]}, '"first" is not of 2 layers'),
        ({**GOOD, "step": 6, "first": [[1, "2"], [3]]}, '"first" holds what is no number'),
        ({**GOOD, "step": 6, "first": [[1, False], [3]]}, '"first" holds what is no number'),
        ({**GOOD, "step": 6, "first": [[1], [3]]}, "measures of different numbers of heads"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, line: str | dict[str, Any], got: str) -> None:
    path = tmp_path / OBSERVATIONS
    text = line if isinstance(line, str) else json.dumps(line)
    path.write_text(f"{json.dumps(GOOD)}\n{text}\n")
    with pytest.raises(RunError) as error:
        read_observations(path)
    said = str(error.value).splitlines()
    assert said[0] == "a line of the observations is damaged"
    assert said[1] == f"  got:    {got}"
    assert said[2:] == [f"  where:  {path}:2", "  try:    take the line out; the rest can be read"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / OBSERVATIONS
    with pytest.raises(RunError) as error:
        read_observations(path)
    assert str(error.value) == (
        f"attention was not observed in this training\n  got:    {path}\n  try:    train with observe.every=50"
    )
    path.write_text("")
    with pytest.raises(RunError) as error:
        read_observations(path)
    assert str(error.value) == f"nothing has been observed yet\n  got:    an empty file\n  where:  {path}"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RunError, match="the observations cannot be read\n"):
        read_observations(path)
    path.write_text(json.dumps(GOOD) + "\n")
    with pytest.raises(RunError) as error:
        read_observations(path, layers=["b", "c"])
    assert str(error.value) == f"a layer was not observed\n  got:    c\n  wanted: a, b\n  where:  {path}"
