"""The one door to a run: how it begins, what it answers, and what is said of a folder that cannot be opened."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.config import to_table
from regard.data.cache import cache_folder
from regard.errors import ConfigError, DataError, RunError
from regard.folder import alone_in
from regard.recipe import MARK, Recipe, parse
from regard.run import Run, _read_report, load, train
from regard.train import checkpoint

ROWS = "".join(f"{a} {b}\t{b} {a}\n" for a in "abcd" for b in "abcd")


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


def recipe_of(folder: Path, run: Path | str = "run", **sections: dict[str, Any]) -> Recipe:
    """A recipe of swapped letters beside its data, quick to train."""
    table: dict[str, dict[str, Any]] = {
        "task": {"metrics": ["exact_match", "bleu"]},
        "data": {"train": ["rows.tsv"], "val": ["rows.tsv"], "test": ["rows.tsv"]},
        "tokenizer": {"kind": "words", "shared": False},
        "model": {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 16, "num_heads": 2, "ffn_dim": 32},
        "train": {"device": "cpu", "max_steps": 4, "validate_every": 2, "checkpoint_every": 2, "warmup_steps": 2},
    }
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section}
    return parse({"run": str(folder / run), **table}, where="recipe.toml", folder=folder)


def make_data(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.tsv").write_text(ROWS)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, to be copied; its data is gone."""
    folder = make_data(tmp_path_factory.mktemp("trained"))
    train(recipe_of(folder))
    (folder / "rows.tsv").rename(folder / "kept.tsv")
    return folder / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def error_of(work: Callable[[], object], kind: type[Exception] = RunError) -> str:
    with pytest.raises(kind) as error:
        work()
    return str(error.value)


# --- beginning


def test_a_run_folder_holds_what_it_should(trained: Path) -> None:
    assert sorted(path.name for path in trained.iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "model.safetensors",
        "recipe.toml",
        "tokenizer.source.json",
        "tokenizer.target.json",
    ]
    suffixes = {path.suffix for path in trained.rglob("*") if path.is_file()}
    assert suffixes == {".toml", ".json", ".jsonl", ".safetensors"}
    recipe = load(trained).recipe
    assert recipe.data.train == (str(trained.parent / "rows.tsv"),)  # found from anywhere


def test_a_failed_start_can_be_corrected(tmp_path: Path) -> None:
    """What it left is no model: another recipe may begin there, with tokenizers of its own."""
    make_data(tmp_path)
    (tmp_path / "bad.tsv").write_text("a b\n")
    (tmp_path / "other.tsv").write_text("x y\ty x\n")
    first = recipe_of(tmp_path, data={"train": ["other.tsv"], "val": ["bad.tsv"]})
    assert "a bad line" in error_of(lambda: train(first), DataError)
    assert "x" in json.loads((tmp_path / "run" / "tokenizer.source.json").read_text())["model"]["vocab"]
    found = train(recipe_of(tmp_path, model={"model_dim": 32}))
    assert found.recipe.model.model_dim == 32
    for path in (tmp_path / "run").glob("tokenizer.*.json"):
        assert list(json.loads(path.read_text())["model"]["vocab"])[4:] == ["a", "b", "c", "d"]


def test_a_recipe_that_was_cut_short_by_a_failed_start_is_no_obstacle(tmp_path: Path) -> None:
    make_data(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(f"{MARK}\n[model\n")
    train(recipe_of(tmp_path, train={"max_steps": 1}))
    assert load(tmp_path / "run").recipe.train.max_steps == 1


@pytest.mark.parametrize("what", ["model.safetensors", "checkpoints"])
def test_what_was_trained_is_not_trained_over(run: Path, what: str) -> None:
    """The result or a checkpoint alone says that the run began."""
    for name in {"model.safetensors", "checkpoints"} - {what}:
        (shutil.rmtree if (run / name).is_dir() else os.unlink)(run / name)
    make_data(run.parent)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    other = recipe_of(run.parent, model={"model_dim": 32}, tokenizer={"shared": True})
    assert error_of(lambda: train(other)) == (
        "the run folder holds another model\n"
        # the copy reads the same files in another place
        "  got:    changed: data.train, data.val, tokenizer.shared, model.model_dim\n"
        f"  where:  {run}\n"
        "  try:    another run=DIR"
    )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_goes_on_with_its_tokenizers(tmp_path: Path) -> None:
    make_data(tmp_path)
    train(recipe_of(tmp_path, train={"max_steps": 2}))
    before = (tmp_path / "run" / "tokenizer.source.json").stat().st_mtime_ns
    longer = train(recipe_of(tmp_path, train={"max_steps": 4}, data={"test": []}))
    assert (tmp_path / "run" / "tokenizer.source.json").stat().st_mtime_ns == before
    assert longer.recipe.train.max_steps == 4
    assert error_of(lambda: longer.evaluate("test"), DataError).startswith("the recipe names no test split")


def test_the_same_recipe_gives_the_same_model(trained: Path, tmp_path: Path) -> None:
    """First weights, batches and dropout follow from the seed; another seed is another model."""
    make_data(tmp_path)
    for name, seed in (("same", 1), ("other", 2)):
        train(recipe_of(tmp_path, name, train={"seed": seed}))
    wanted = checkpoint.load_weights(trained / "model.safetensors")
    same, other = (checkpoint.load_weights(tmp_path / name / "model.safetensors") for name in ("same", "other"))
    assert all(torch.equal(wanted[name], same[name]) for name in wanted)
    assert not any(torch.equal(wanted[name], other[name]) for name in wanted)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    make_data(tmp_path)
    (tmp_path / "file").write_text("")
    said = error_of(lambda: train(recipe_of(tmp_path, "file/run")))
    assert said == (
        "a file cannot be written\n"
        f"  got:    [Errno 20] Not a directory: '{tmp_path / 'file/run'}'\n"
        f"  where:  {tmp_path / 'file/run'}\n"
        "  try:    check the folder and its permissions, then run the same command again"
    )


def test_wrong_recipes_leave_no_folder(tmp_path: Path) -> None:
    assert "no such file" in error_of(lambda: train(recipe_of(tmp_path)), DataError)  # there is no data
    make_data(tmp_path)
    assert "no such device" in error_of(lambda: train(recipe_of(tmp_path, train={"device": "tpu"})), ConfigError)
    assert not (tmp_path / "run").exists()


def test_figures_that_no_report_can_keep_are_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_data(tmp_path)
    run = train(recipe_of(tmp_path))

    def refuse(path: Path, text: str) -> None:
        raise checkpoint.not_written(path, PermissionError(13, "Permission denied"))

    monkeypatch.setattr(checkpoint, "write_text", refuse)
    assert run.evaluate("val")
    assert "these figures are in no report: a file cannot be written\n" in capsys.readouterr().err


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "regard" / "encoded"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "regard" / "encoded"


# --- answering


def test_a_run_answers_without_its_data(trained: Path) -> None:
    assert not (trained.parent / "rows.tsv").exists()
    loaded = regard.load(trained)
    assert [len(answer.texts) for answer in loaded.predict(["a b", "c d"], n_best=2)] == [2, 2]
    assert not loaded.model.training
    said = error_of(loaded.evaluate, DataError)
    assert said.startswith(f"no such file\n  got:    {trained.parent / 'rows.tsv'}\n")


def test_a_run_may_be_moved(run: Path, trained: Path) -> None:
    moved = run.rename(run.parent / "moved")
    sources = ["a b", "c", "d d a"]
    assert load(moved).predict(sources) == load(trained).predict(sources)


def test_decode_keys_replace_those_of_the_recipe(run: Path) -> None:
    loaded = load(run, "cpu")
    assert loaded.predict(["a b"], method="greedy")[0] == loaded.predict(["a b"], beam=1)[0]
    with pytest.raises(ConfigError) as error:
        loaded.predict(["a b"], beams=3)
    assert str(error.value).startswith('unknown key "decode.beams"\n  got:    beams\n')
    assert str(error.value).endswith('  where:  the arguments\n  try:    did you mean "decode.beam"?')
    with pytest.raises(ConfigError, match=r"n_best \(9\) must not be larger than beam \(5\)"):
        loaded.predict(["a b"], n_best=9)


def with_data(run: Path) -> Run:
    """The run with its data back, under another name than the recipe has."""
    shutil.copy(make_data(run.parent) / "rows.tsv", run.parent / "moved.tsv")
    text = (run / "recipe.toml").read_text()
    old = next(line for line in text.splitlines() if line.startswith("test = "))
    (run / "recipe.toml").write_text(text.replace(old, f'test = ["{run.parent / "moved.tsv"}"]'))
    return load(run)


def test_evaluate_writes_a_report(run: Path) -> None:
    loaded = with_data(run)
    told: list[tuple[int, int]] = []
    scores = loaded.evaluate(beam=2, on_batch=lambda done, total: told.append((done, total)))
    assert told[-1] == (16, 16)
    assert [score.name for score in scores] == ["exact_match", "bleu"]
    report = json.loads((run / "report.json").read_text())
    assert list(report) == ["test"]
    assert report["test"]["examples"] == 16
    assert report["test"]["metrics"] == {score.name: score.value for score in scores}
    signatures = report["test"]["signatures"]
    assert signatures["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert signatures["exact_match"] == "nrefs:1|case:mixed|units:spaces|variant:any"
    decode = report["test"]["decode"]
    assert (decode["beam"], decode["method"], decode["max_length"]) == (2, "beam", 256)
    assert decode == to_table(loaded.recipe.decode) | {"beam": 2}


@pytest.mark.parametrize("before", ["{", "[]", '{"val": {"examples": 3}}'])
def test_a_report_that_is_there(run: Path, before: str) -> None:
    """Another split's figures stay; what is no report gives way."""
    (run / "report.json").write_text(before)
    with_data(run).evaluate(method="greedy")
    report = json.loads((run / "report.json").read_text())
    assert report["test"]["examples"] == 16
    assert ("val" in report) == ("val" in before)


# --- folders that cannot be opened


def test_no_such_run(tmp_path: Path) -> None:
    assert error_of(lambda: load(tmp_path)) == (
        f"no such run\n  got:    {tmp_path}\n"
        "  wanted: a folder with recipe.toml and model.safetensors\n"
        "  try:    `regard train RECIPE run=DIR` makes one"
    )


def test_no_weights(run: Path) -> None:
    (run / "model.safetensors").unlink()
    path = run / "model.safetensors"
    assert (
        error_of(lambda: load(run)) == f"there are no weights\n  got:    {path}\n  try:    `regard train` writes them"
    )


def test_weights_cut_short(run: Path) -> None:
    whole = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(whole[:-100])
    said = error_of(lambda: load(run)).splitlines()
    assert said[0] == "the weights cannot be read"
    assert said[2] == f"  where:  {run / 'model.safetensors'}"


def test_weights_of_another_model(run: Path) -> None:
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("ffn_dim = 32", "ffn_dim = 48"))
    said = error_of(lambda: load(run)).splitlines()
    assert said[0].startswith('the weights do not fit the model at "encoder.blocks.0.')
    assert said[1:3] in (["  got:    (32, 16)", "  wanted: (48, 16)"], ["  got:    (32,)", "  wanted: (48,)"])
    assert said[3] == f"  where:  {run / 'model.safetensors'}"


def test_no_tokenizer(run: Path) -> None:
    (run / "tokenizer.target.json").unlink()
    path = run / "tokenizer.target.json"
    assert error_of(lambda: load(run)).startswith(f"the tokenizer is missing\n  got:    {path}\n")
    (run / "tokenizer.source.json").unlink()
    assert error_of(lambda: load(run)) == (
        f"the run has no tokenizer\n  got:    {run}\n  wanted: tokenizer.source.json\n"
        "  try:    train the recipe in another run=DIR"
    )


class Malice:
    """What a stranger could put into a pickle."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("model.safetensors", RunError, "the weights cannot be read"),
        ("tokenizer.source.json", RunError, "the tokenizer is truncated or not JSON"),
        ("tokenizer.target.json", RunError, "the tokenizer is truncated or not JSON"),
        ("recipe.toml", ConfigError, "the recipe is not valid TOML"),
    ],
)
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_nothing_in_a_run_is_executed(run: Path, name: str, kind: type[Exception], what: str, form: str) -> None:
    marker = run.parent / "executed"
    if form == "pickle":
        (run / name).write_bytes(pickle.dumps(Malice(marker)))
    else:
        torch.save(Malice(marker), run / name)
    assert error_of(lambda: load(run), kind).startswith(what + "\n")
    assert not marker.exists()
    pickle.loads(pickle.dumps(Malice(marker)))
    assert marker.exists()  # it would have been


def test_nothing_in_a_checkpoint_is_executed(run: Path) -> None:
    marker = run.parent / "executed"
    for path in checkpoint.checkpoints(run / "checkpoints"):
        (path / "state.safetensors").write_bytes(pickle.dumps(Malice(marker)))
        assert error_of(lambda path=path: checkpoint.load_checkpoint(path)).startswith("the weights cannot be read\n")  # type: ignore[misc]
    assert not marker.exists()


# --- a folder is one training's, and only that


def test_files_of_the_user_are_left_alone(tmp_path: Path) -> None:
    make_data(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("# mine\n")
    assert error_of(lambda: train(recipe_of(tmp_path, train={"max_steps": 1}))) == (
        "the run folder holds files that no training put there\n"
        f"  got:    recipe.toml\n  where:  {tmp_path / 'run'}\n  try:    another run=DIR"
    )
    assert (tmp_path / "run" / "recipe.toml").read_text() == "# mine\n"


def test_what_the_weights_need_must_be_there_to_go_on(run: Path) -> None:
    make_data(run.parent)
    (run / "tokenizer.source.json").unlink()
    text = error_of(lambda: train(recipe_of(run.parent)))
    assert text.startswith("the run folder has lost what its weights were trained with\n  got:    no tokenizer.source")


def test_a_second_training_is_kept_out(tmp_path: Path) -> None:
    with alone_in(tmp_path):
        text = error_of(lambda: alone_in(tmp_path).__enter__())
    assert text.startswith("another training is at work in this run folder\n")
    with alone_in(tmp_path):
        pass


def test_a_second_start_touches_nothing(tmp_path: Path) -> None:
    """Not even before the first one has trained anything."""
    make_data(tmp_path)
    (tmp_path / "run").mkdir()
    for name in ("recipe.toml", "tokenizer.source.json", "tokenizer.target.json"):
        (tmp_path / "run" / name).write_text(MARK)
    with alone_in(tmp_path / "run"):
        said = error_of(lambda: train(recipe_of(tmp_path)))
    assert said == (
        f"another training is at work in this run folder\n  got:    {tmp_path / 'run'}\n"
        "  try:    wait for it, or another run=DIR"
    )
    assert {path.name: path.read_text() for path in (tmp_path / "run").iterdir()} == dict.fromkeys(
        ("recipe.toml", "tokenizer.source.json", "tokenizer.target.json"), MARK
    )


def test_a_file_system_without_locks_trains_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(9, "Bad file descriptor")  # what NFS says of a lock on a folder

    monkeypatch.setattr(fcntl, "flock", refuse)
    train(recipe_of(make_data(tmp_path), train={"max_steps": 1}))
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_a_run_folder_that_is_a_file(tmp_path: Path) -> None:
    make_data(tmp_path)
    (tmp_path / "run").write_text("")
    said = error_of(lambda: train(recipe_of(tmp_path)))
    assert said == f"the run folder is a file\n  got:    {tmp_path / 'run'}\n  try:    another run=DIR"


def test_sources_that_were_cut_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_data(tmp_path)
    with (tmp_path / "rows.tsv").open("a") as file:
        file.write("a b c d\td c b a\n")
    cutting = {"max_length": 3, "too_long": "truncate"}
    run = train(recipe_of(tmp_path, data=cutting, train={"max_steps": 1}))
    capsys.readouterr()
    assert [answer.cut for answer in run.predict(["a b", "a b c d", "a b c d a"])] == [0, 1, 2]
    assert capsys.readouterr().err == "2 of 3 sources were cut to 3 tokens (data.max_length)\n"
    run.evaluate("val")
    assert json.loads((tmp_path / "run" / "report.json").read_text())["val"]["cut_sources"] == 1


@pytest.mark.parametrize("texts", ["hello", b"abc", None, [None], ["a", 1]])
def test_predict_takes_a_list_of_texts(trained: Path, texts: Any) -> None:
    with pytest.raises(ConfigError, match="sources must be a list of texts"):
        load(trained).predict(texts)


def test_a_damaged_report_is_set_aside(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "report.json").write_text("{")
    assert _read_report(run / "report.json") == {}
    assert (run / "report.damaged.json").read_text() == "{"
    assert "cannot be read" in capsys.readouterr().err


def test_others_may_read_the_weights(trained: Path) -> None:
    modes = {(trained / name).stat().st_mode & 0o777 for name in ("model.safetensors", "recipe.toml")}
    assert len(modes) == 1
