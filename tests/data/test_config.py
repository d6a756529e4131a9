"""The `[data]` section, and where its files are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.config import read_section, to_table
from regard.data import catalogue
from regard.data.config import DataConfig, resolve
from regard.errors import ConfigError, DataError


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The recipe's folder and the current one."""
    recipe, here = tmp_path / "recipe", tmp_path / "here"
    for folder, names in ((recipe, ["train.tsv", "both.tsv"]), (here, ["val.tsv", "both.tsv"])):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("a\tb\n")
    monkeypatch.chdir(here)
    return recipe, here


def test_the_section_reads_back() -> None:
    config = DataConfig(train=("a.en", "a.de"), val=("b.tsv",), too_long="drop", max_length=100)
    assert read_section(DataConfig, to_table(config), where="recipe.toml", name="data") == config


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train": ["a", "b", "c"]}, "data.train does not name its files"),
        ({"val": ["a", "b", "c"]}, "data.val does not name its files"),
        ({"test": [""]}, "data.test does not name its files"),
        ({"max_length": 0}, "data.max_length must be positive"),
        ({"too_long": "cut"}, '"data.too_long" has a wrong value'),
        ({"on_bad_line": "ignore"}, "'ignore'"),
        ({"trian": ["a"]}, 'did you mean "data.train"'),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(changes: dict[str, object], reason: str) -> None:
    table = {"train": ["a.tsv"], "val": ["b.tsv"]} | changes
    with pytest.raises(ConfigError, match=reason):
        read_section(DataConfig, table, where="recipe.toml", name="data")


def test_files_lie_beside_the_recipe_or_else_here(folders: tuple[Path, Path]) -> None:
    recipe, here = folders
    config = DataConfig(train=("train.tsv",), val=("val.tsv",), test=("both.tsv",))
    assert resolve(config, recipe) == {
        "train": (recipe / "train.tsv",),
        "val": (here / "val.tsv",),
        "test": (recipe / "both.tsv",),
    }


def test_a_whole_path_stays_and_a_split_may_be_left_out(folders: tuple[Path, Path]) -> None:
    recipe, here = folders
    config = DataConfig(train=(str(here / "both.tsv"),), val=("val.tsv",))
    assert resolve(config, recipe) == {"train": (here / "both.tsv",), "val": (here / "val.tsv",)}


def test_only_the_splits_that_are_asked_for_must_be_there(folders: tuple[Path, Path]) -> None:
    recipe, here = folders
    config = DataConfig(train=("gone.tsv",), val=("val.tsv",))
    assert resolve(config, recipe, ["val"]) == {"val": (here / "val.tsv",)}


def test_a_missing_file_says_which_key_and_both_places(folders: tuple[Path, Path]) -> None:
    recipe, here = folders
    with pytest.raises(DataError) as caught:
        resolve(DataConfig(train=("trian.tsv",), val=("val.tsv",)), recipe)
    text = str(caught.value)
    assert f"wanted: the file there, or {here / 'trian.tsv'}\n" in text
    for part in ("data.train", str(recipe / "trian.tsv"), str(here / "trian.tsv"), f"did you mean {recipe}/train.tsv?"):
        assert part in text


def test_files_of_a_set_lie_in_its_folder(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, here = folders
    (here / "multi30k").mkdir()
    (here / "multi30k" / "train.tsv").write_text("a\tb\n")
    monkeypatch.setenv("REGARD_DATA", str(here))
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    config = DataConfig(set="multi30k", train=("train.tsv",), val=("train.tsv",))
    assert resolve(config, recipe)["train"] == (catalogue.get("multi30k") / "train.tsv",)
    with pytest.raises(DataError, match=r"data\.val"):
        resolve(DataConfig(set="multi30k", train=("train.tsv",), val=("both.tsv",)), recipe)
    with pytest.raises(DataError, match='did you mean "multi30k"'):
        resolve(DataConfig(set="multi30", train=("train.tsv",), val=("train.tsv",)), recipe)
