"""Runs that answer as one: the same door as one run, and what cannot go together is said."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import regard
from regard.cli.main import main
from regard.ensemble import Ensemble
from regard.errors import RegardError
from regard.recipe import parse
from regard.run import train

ROWS = "".join(f"{a}{b}{c}\t{c} {b} {a}\n" for a in "abcd" for b in "abcd" for c in "abcd")


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two seeds, and one of another vocabulary."""
    folder = tmp_path_factory.mktemp("runs")
    for name, rows, seed in (("a", ROWS, 1), ("b", ROWS, 2), ("upper", ROWS.upper(), 1)):
        (folder / f"{name}.tsv").write_text(rows)
        table = {
            "run": str(folder / name),
            "task": {"metrics": ["phoneme_error"]},
            "data": {"train": [f"{name}.tsv"], "val": [f"{name}.tsv"], "test": [f"{name}.tsv"], "max_length": 32},
            "tokenizer": {"kind": "characters", "target_kind": "words", "shared": False},
            "model": {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 32, "num_heads": 2, "ffn_dim": 32},
            "train": {"device": "cpu", "seed": seed, "max_steps": 30, "warmup_steps": 5, "learning_rate": 3e-3},
        }
        train(parse(table, where="recipe.toml", folder=folder))
    return folder


def test_two_runs_answer_by_the_mean_of_their_probabilities(runs: Path) -> None:
    one, two = (regard.load(runs / name, "cpu") for name in "ab")
    both = regard.together(runs / "a", runs / "b", device="cpu")
    ids, target = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 4]])
    wanted = (one.logits(ids, target).softmax(-1) + two.logits(ids, target).softmax(-1)) / 2
    torch.testing.assert_close(both.logits(ids, target).exp(), wanted)
    sources = [row.split("\t")[0] for row in ROWS.splitlines()]
    answers = [[answer.text for answer in run.predict(sources)] for run in (one, two, both)]
    assert answers[2] not in answers[:2]


def test_the_commands_take_other_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return int(ended.value.code or 0), *capsys.readouterr()

    (runs / "some.txt").write_text("abc\nbca\n")
    code, out, _ = run("predict", runs / "a", runs / "some.txt", "--with", runs / "b", "--scores")
    wanted = regard.together(runs / "a", runs / "b", device="cpu").predict(["abc", "bca"])
    assert (code, out) == (0, "".join(f"{answer.scores[0]:.4f}\t{answer.text}\n" for answer in wanted))
    for words in ((), ("--noise", "0.2")):
        assert run("evaluate", runs / "a", "--with", runs / "b", *words)[0] == 0
    report = json.loads((runs / "a" / "report.json").read_text())
    assert list(report) == [f"test, with {runs / 'b'}", f"test, with {runs / 'b'}, noise 0.2"]
    code, out, error = run("evaluate", runs / "a", "--with", runs / "upper")
    assert code == 2
    assert f"got:    other tokenizers in {runs / 'upper'} than in {runs / 'a'}" in error


def test_they_are_looked_into_one_by_one(runs: Path) -> None:
    both = regard.together(runs / "a", runs / "b", device="cpu")
    with pytest.raises(RegardError) as error:
        both.look("abc")
    assert str(error.value) == (
        f"several runs together cannot be looked into\n  got:    {runs / 'a'}, {runs / 'b'}\n  wanted: one of them"
    )


def test_what_cannot_go_together_is_said(runs: Path) -> None:
    one, two = (regard.load(runs / name, "cpu") for name in "ab")
    one.task.config = dataclasses.replace(one.task.config, both_ways=True)
    with pytest.raises(RegardError, match="runs that answer from both ends all learn both ways"):
        Ensemble([one, two])
    two.recipe = dataclasses.replace(two.recipe, task_name="dialogue")
    with pytest.raises(RegardError, match="runs that answer together have one task"):
        Ensemble([one, two])
    one.recipe = dataclasses.replace(one.recipe, task_name="classification")
    with pytest.raises(RegardError, match="these runs cannot answer together"):
        Ensemble([one, two])
