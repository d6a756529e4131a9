"""Several tasks by prefix in one model: the mixture, each part's metrics, and the way through the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from regard.cli.main import app
from regard.config import read_section
from regard.errors import ConfigError, DataError
from regard.recipe import parse, read_recipe
from regard.run import load, train
from regard.tasks.text_to_text import Config, mixed_rows

RECIPE = """
run = "RUN"

[task]
name = "text-to-text"
label_smoothing = 0.0

[[task.parts]]
name = "double"
prefix = "double: "
train = ["double.tsv"]
val = ["double.tsv"]
test = ["double.tsv"]
metrics = ["exact_match"]

[[task.parts]]
name = "back"
prefix = "back: "
train = ["back.jsonl"]
val = ["back.jsonl"]
metrics = ["exact_match", "rouge1"]
weight = 2.0

[tokenizer]
kind = "characters"

[model]
family = "transformer"
encoder_layers = 1
decoder_layers = 1
model_dim = 48
num_heads = 4
ffn_dim = 96
dropout = 0.0

[train]
device = "cpu"
max_steps = 250
batch_tokens = 256
learning_rate = 5e-3
schedule = "cosine"
warmup_steps = 20
best = "back.exact_match"
validate_every = 125
checkpoint_every = 125

[decode]
method = "greedy"
"""
WORDS = ["ab", "cd", "ca"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "double.tsv").write_text("".join(f"{word}\t{word}{word}\n" for word in WORDS), encoding="utf-8")
    lines = [json.dumps({"document": word, "summary": word[::-1]}) + "\n" for word in WORDS]
    (tmp_path / "back.jsonl").write_text("".join(lines), encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.replace("RUN", str(tmp_path / "run")), encoding="utf-8")
    return path


def test_one_model_learns_two_tasks_and_is_told_by_the_prefix(recipe: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = train(read_recipe(recipe))
    assert [answer.text for answer in run.predict(["double: cd", "back: cd"])] == ["cdcd", "dc"]
    scores = {score.name: score.value for score in run.evaluate("val")}
    assert scores == {"double.exact_match": 100.0, "back.exact_match": 100.0, "back.rouge1": 100.0}
    assert [score.name for score in run.evaluate("test")] == ["double.exact_match"]  # only that part names a test
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--split", "val"])
    assert "double.exact_match: 100.00" in result.stdout
    # the run knows its files wherever it is loaded from
    assert str(tmp_path / "double.tsv") in (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    assert len(load(tmp_path / "run").task.examples("val")) == 6


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.1, 5), min_size=4, max_size=4),
)
def test_every_row_comes_and_every_part_has_its_share(sizes: list[int], weights: list[float]) -> None:
    rows, parts = mixed_rows(sizes, weights[: len(sizes)]), np.repeat(np.arange(len(sizes)), sizes)
    assert sorted(set(rows.tolist())) == list(range(sum(sizes)))
    counts = np.bincount(parts[rows], minlength=len(sizes))
    wanted = np.array(weights[: len(sizes)])
    assert np.abs(counts - wanted * max(np.array(sizes) / wanted)).max() <= 0.5 + 1e-6
    for part in range(len(sizes)):  # evenly: no row more than once oftener than another
        each = np.bincount(rows, minlength=sum(sizes))[parts == part]
        assert each.max() - each.min() <= 1


def test_without_weights_every_row_comes_once() -> None:
    assert mixed_rows([3, 2], [0.0, 0.0]).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({}, "there is nothing to learn"),
        ({"parts": [{"name": "", "train": ["a"], "val": ["a"]}]}, "a part needs a name"),
        ({"parts": [{"name": "a", "train": ["a"]}]}, "a does not name its files"),
        (
            {"parts": [{"name": "a", "train": ["a"], "val": ["b"], "val_share": 0.1}]},
            "validation has files and a share",
        ),
        ({"parts": [{"name": "a", "train": ["a"], "val_share": 1.0}]}, "is not a share that can be held out"),
        ({"parts": [{"name": "a", "train": ["a"], "val": ["a"], "metrics": ["blue"]}]}, "unknown metric"),
        ({"parts": [{"name": "a", "train": ["a"], "val": ["a"]}] * 2}, "two parts have one name"),
        ({"parts": [{"name": n, "train": ["a"], "val": ["a"]} for n in "ab"]}, "two parts have one prefix"),
    ],
)
def test_a_section_that_cannot_be_meant(table: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_section(Config, table, where="mine.toml", name="task")
    assert what in str(caught.value)


def test_a_part_may_hold_out_a_share_of_its_training_files(recipe: Path, tmp_path: Path) -> None:
    lines = [f"{i}\t{i}{i}\n" for i in range(100)]
    (tmp_path / "double.tsv").write_text("".join(lines), encoding="utf-8")
    text = recipe.read_text(encoding="utf-8").replace('val = ["double.tsv"]\n', "val_share = 0.2\n")
    recipe.write_text(text, encoding="utf-8")
    run = train(read_recipe(recipe, ["train.max_steps=1", "train.best=loss"]))
    parts = {
        name: {each.source for each in run.task.examples(name) if each.source.startswith("double")}
        for name in ("train", "val")
    }
    assert not parts["train"] & parts["val"]
    assert len(parts["train"]) + len(parts["val"]) == 100
    assert 10 < len(parts["val"]) < 30
    sizes = [run.task.split(name, tmp_path / "cache").sizes for name in ("train", "val", "train")]
    assert [size[0] for size in sizes] == [len(parts["train"]), len(parts["val"]), len(parts["train"])]
    assert [score.name for score in run.evaluate("val")] == ["double.exact_match", "back.exact_match", "back.rouge1"]
    assert len(load(tmp_path / "run").task.examples("val")) == len(parts["val"]) + len(WORDS)


@pytest.mark.parametrize("key", ['train = ["a.tsv"]\nval = ["a.tsv"]', 'set = "multi30k"', "val_share = 0.1"])
def test_files_that_no_part_would_read_are_refused(recipe: Path, key: str) -> None:
    recipe.write_text(f"{recipe.read_text(encoding='utf-8')}\n[data]\n{key}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="the parts of text-to-text name the files") as caught:
        read_recipe(recipe)
    assert f"move {key.split(' ')[0]}" in str(caught.value)
    assert str(recipe) in str(caught.value)


def test_no_part_has_such_a_split(recipe: Path) -> None:
    recipe.write_text(recipe.read_text(encoding="utf-8").replace('test = ["double.tsv"]\n', ""), encoding="utf-8")
    run = train(read_recipe(recipe, ["train.max_steps=1", "train.best=loss"]))
    with pytest.raises(DataError, match="no part names a test split"):
        run.evaluate("test")


def test_a_label_before_its_text_is_the_target(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "double.tsv").write_text("".join(f"{word}{word}\t{word}\n" for word in WORDS), encoding="utf-8")
    text = recipe.read_text(encoding="utf-8").replace('prefix = "double: "', 'prefix = "double: "\nswapped = true')
    recipe.write_text(text, encoding="utf-8")
    run = train(read_recipe(recipe, ["train.max_steps=1", "train.best=loss"]))
    first = run.task.examples("val")[0]
    assert (first.source, first.targets) == ("double: ab", ("abab",))
    store = run.task.split("val", tmp_path / "cache").store
    assert run.task.source.decode(store.source(0).tolist()) == "double: ab"
    assert run.task.target.decode(store.target(0).tolist()) == "abab"


@pytest.mark.parametrize("taken", [True, False])
def test_a_model_of_corrupted_spans_goes_on_with_tasks(recipe: Path, tmp_path: Path, taken: bool) -> None:
    """Pretrained as T5 is, then several tasks by prefix; without its weights it is the same model, fresh."""
    (tmp_path / "text.txt").write_text("ab cd ca abab dc\n" * 40, encoding="utf-8")
    model = {"family": "t5", "encoder_layers": 1, "decoder_layers": 1, "model_dim": 16, "num_heads": 2, "ffn_dim": 24}
    table = {
        "run": str(tmp_path / "base"),
        "task": {"name": "span-corruption", "context": 16},
        "data": {"train": ["text.txt"], "val": ["text.txt"]},
        "tokenizer": {"kind": "characters"},
        "model": model,
        "train": {"max_steps": 2, "batch_tokens": 64, "device": "cpu"},
    }
    base = train(parse(table, where="this test", folder=tmp_path))
    text = recipe.read_text(encoding="utf-8")
    head, tail = text.index("[tokenizer]"), text.index("[train]")
    section = f'[finetune]\nbase = "{base.folder}"\nweights = {str(taken).lower()}\n\n'
    recipe.write_text(text[:head] + section + text[tail:], encoding="utf-8")
    keys = ["train.max_steps=1", "train.best=loss", "train.learning_rate=1e-12", "train.weight_decay=0.0"]
    run = train(read_recipe(recipe, keys))
    assert run.recipe.family == "t5"
    assert run.task.source.to_json() == base.task.tokenizer.to_json()
    assert [name for name, _ in run.model.named_parameters()] == [name for name, _ in base.model.named_parameters()]
    pairs = zip(run.model.parameters(), base.model.parameters(), strict=True)
    # the norms of a fresh model are those of one that hardly learned
    alike = [torch.allclose(now, before, rtol=0, atol=1e-6) for now, before in pairs if before.dim() > 1]
    assert all(alike) if taken else not any(alike)
