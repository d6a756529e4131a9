"""Whatever a user can get wrong with recipes and runs is said in words, with the remedy, and no traceback."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.fixture
def recipe(trained: Any, tmp_path: Path) -> Path:
    """A recipe of one's own beside copies of the files."""
    for path in trained.recipe.parent.glob("*.*"):
        shutil.copy(path, tmp_path)
    path = tmp_path / "reverse.toml"
    text = path.read_text(encoding="utf-8").replace(f"{trained.recipe.parent}/", "")
    path.write_text(text, encoding="utf-8")
    return path


def refusal(regard: Command, *words: object) -> str:
    done = regard(*words)
    assert done.code == 2
    assert "Traceback" not in done.err
    said, error, message = done.err.partition("error: ")  # training says first which run it is about
    assert said in ("", f"run:   {said[7:-1]}\n")
    return str(error + message)


@pytest.mark.parametrize(
    ("word", "messages"),
    [
        ("model.layerz=4", ['unknown key "model.layerz"', 'did you mean "model.encoder_layers"?']),
        ("modl.num_heads=4", ['unknown key "modl"', 'did you mean "model"?']),
        ("model.num_heads=three", ['"model.num_heads" has a wrong value', "'three'"]),
        ("model.num_heads=5", ["model_dim (128) must be divisible by num_heads (5)"]),
        ("model.preset=huge", ['transformer has no preset "huge"', "tiny"]),
        ("model.family=transfomer", ["no such model family", 'did you mean "transformer"?']),
        ("task.name=translate", ["no such task", 'did you mean "translation"?']),
        ("train.best=blue", ['"train.best" names nothing to judge by', "got:    blue"]),
        ("train.device=tpu", ["no such device", "got:    tpu"]),
        ("data.train=[]", ["data.train does not name its files"]),
        ("data.on_bad_line=ignore", ['"data.on_bad_line" has a wrong value', "'ignore'"]),
        ("nonsense", ["an override is not understood", "key=value"]),
    ],
)
def test_a_wrong_key_or_value(regard: Command, recipe: Path, word: str, messages: list[str]) -> None:
    said = refusal(regard, "train", recipe, f"run={recipe.parent / 'run'}", word)
    for message in messages:
        assert message in said


def test_a_recipe_that_is_not_there(regard: Command) -> None:
    said = refusal(regard, "train", "multi30k-en-ed")
    assert "error: no such recipe\n  got:    multi30k-en-ed\n" in said
    assert 'did you mean "multi30k-en-de"?' in said


def test_a_recipe_that_is_no_toml(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[model\nfamily = 1\n")
    said = refusal(regard, "train", tmp_path / "bad.toml")
    assert "the recipe is not valid TOML" in said
    assert "line 1" in said


def test_a_missing_data_file_names_the_nearest(regard: Command, recipe: Path) -> None:
    (recipe.parent / "train.src").rename(recipe.parent / "trains.src")
    said = refusal(regard, "train", recipe, f"run={recipe.parent / 'run'}")
    assert "error: no such file\n" in said
    assert "where:  data.train" in said
    assert f"did you mean {recipe.parent / 'trains.src'}?" in said


def test_two_files_of_different_length(regard: Command, recipe: Path) -> None:
    with (recipe.parent / "train.src").open("a") as file:
        file.write("a b\n")
    said = refusal(regard, "train", recipe, f"run={recipe.parent / 'run'}")
    assert "error: parallel files differ in their number of lines\n" in said
    assert "4,001 lines in" in said
    assert "4,000 in" in said


def test_a_line_with_too_few_columns(regard: Command, recipe: Path) -> None:
    (recipe.parent / "train.tsv").write_text("a b\tb a\nalone\n")
    said = refusal(regard, "train", recipe, f"run={recipe.parent / 'run'}", 'data.train=["train.tsv"]')
    assert "error: a bad line\n  got:    one column; wanted source, tab, target\n" in said
    assert f"where:  {recipe.parent / 'train.tsv'}:2" in said
    assert "data.on_bad_line" in said


def test_a_split_without_a_line(regard: Command, recipe: Path, run: Path) -> None:
    """Which one it is and what to do, whoever reads it."""
    empty = recipe.parent / "empty.tsv"
    empty.write_text("")
    end = f"  got:    0 examples\n  where:  {empty}\n  try:    put lines into it, or name another file under"
    for split, name in (("train", "training"), ("val", "validation")):
        said = refusal(regard, "train", recipe, f"run={recipe.parent / 'new'}", f'data.{split}=["{empty}"]')
        assert f"error: the {name} split holds no example\n{end} {split}" in said
    path = run / "recipe.toml"
    path.write_text(re.sub("(?m)^test = .*", f'test = ["{empty}"]', path.read_text()))
    assert refusal(regard, "evaluate", run) == f"error: the test split holds no example\n{end} test\n"


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_run_that_is_not_there(regard: Command, tmp_path: Path, command: str) -> None:
    said = refusal(regard, command, tmp_path / "nowhere")
    assert f"error: no such run\n  got:    {tmp_path / 'nowhere'}\n" in said
    assert "`regard train RECIPE run=DIR` makes one" in said


@pytest.fixture
def run(trained: Any, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(trained.run, tmp_path / "run"))


def test_an_unknown_split(regard: Command, run: Path) -> None:
    said = refusal(regard, "evaluate", run, "--split", "tset")
    assert "got:    tset" in said
    assert "train, val, test" in said


def test_a_truncated_model_file(regard: Command, run: Path) -> None:
    whole = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    said = refusal(regard, "predict", run)
    assert "error: the weights cannot be read\n" in said
    assert f"where:  {run / 'model.safetensors'}" in said


def test_a_missing_model_file(regard: Command, run: Path) -> None:
    (run / "model.safetensors").unlink()
    assert "error: there are no weights\n" in refusal(regard, "predict", run)


def test_a_truncated_tokenizer(regard: Command, run: Path) -> None:
    whole = (run / "tokenizer.source.json").read_text()
    (run / "tokenizer.source.json").write_text(whole[: len(whole) // 2])
    assert "error: the tokenizer is truncated or not JSON\n" in refusal(regard, "predict", run)


def test_a_model_that_does_not_fit_its_recipe(regard: Command, run: Path) -> None:
    recipe = (run / "recipe.toml").read_text().replace("model_dim = 64", "model_dim = 32")
    (run / "recipe.toml").write_text(recipe)
    assert "error: the weights do not fit the model at" in refusal(regard, "predict", run)


def test_a_run_answers_without_its_data(regard: Command, run: Path, trained: Any) -> None:
    recipe = (run / "recipe.toml").read_text().replace(str(trained.recipe.parent), "/no/such/folder")
    (run / "recipe.toml").write_text(recipe)
    assert regard("predict", run, stdin=b"a b\n").out == "b a\n"
    said = refusal(regard, "evaluate", run)
    assert "error: no such file\n" in said
    assert "/no/such/folder/test.src" in said


def test_a_place_that_may_not_be_read_is_said(regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refuse)
    found = regard("predict", tmp_path / "closed" / "run")
    assert found.code == 2
    assert found.err == (
        "error: this may not be read or written\n"
        "  got:    Permission denied\n"
        f"  where:  {tmp_path / 'closed' / 'run' / 'recipe.toml'}\n"
        "  try:    the right to read it and to enter its folder, or another place\n"
    )
