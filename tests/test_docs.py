"""What the docs say is so: their examples run, their links lead somewhere, both languages say the same."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from regard import models, tasks
from regard.config import read_section
from regard.types import Batch, Example, Prediction, Sequences

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
TWINS = [(name.replace(".zh-CN", ""), name) for name in NAMES if ".zh-CN" in name]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# files that a reader is told to write
TO_BE_WRITTEN = {
    "src/regard/models/bag.py",
    "tests/models/test_bag.py",
    "tests/tasks/test_pronunciation.py",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[str]:
    """What stands between fences."""
    return [found[2] for found in BLOCK.finditer(text)]


def prose(text: str) -> str:
    return BLOCK.sub("", text)


def tables(text: str) -> list[list[list[str]]]:
    """Tables as rows of cells, without the line below the header."""
    found = re.findall(r"(?:^\|.*\|\n)+", prose(text), re.MULTILINE)
    rows = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()] for table in found]
    return [table[:1] + table[2:] for table in rows]


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- examples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in PAGES if ">>> " in path.read_text(encoding="utf-8")], ids=name_of)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert found.attempted > 0
    assert found.failed == 0


@pytest.fixture
def new_file(tmp_path: Path) -> Iterator[Callable[[ModuleType, str, str], ModuleType]]:
    """Puts the code of a page beside the files of a room, as the page tells a reader to do."""
    added: list[tuple[ModuleType, str]] = []

    def add(room: ModuleType, name: str, page: str) -> ModuleType:
        (code,) = (block for block in blocks((ROOT / page).read_text(encoding="utf-8")) if "\nclass Config" in block)
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        room.__path__.append(str(tmp_path))
        added.append((room, name))
        return importlib.import_module(f"{room.__name__}.{name}")

    yield add
    for room, name in added:
        room.__path__.remove(str(tmp_path))
        delattr(room, name)
        del sys.modules[f"{room.__name__}.{name}"]


def test_the_model_of_the_page_keeps_the_contract(new_file: Callable[..., ModuleType]) -> None:
    family = new_file(models, "bag", "docs/add-a-model.md")
    assert "bag" in models.names()
    config = read_section(family.Config, models.with_preset("bag", {"preset": "tiny"}), where="the page")
    model = family.build(config, models.Sizes(11, 13, shared=False)).eval()
    source = Sequences(torch.randint(11, (2, 5)), torch.tensor([5, 3]))
    target = torch.randint(13, (2, 7))
    wanted = model.head(model.hidden(Batch(source, Sequences(target, torch.tensor([7, 7])))))
    state, steps = model.start(source, 7), []
    for tokens in target[:, :-1].split([1, 3, 2], dim=1):
        logits, state = model.step(tokens, state)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), wanted)


def test_the_task_of_the_page_scores_without_stress(new_file: Callable[..., ModuleType]) -> None:
    task = new_file(tasks, "pronunciation", "docs/add-a-task.md")
    assert "pronunciation" in tasks.names()

    class Tokens:
        size = 9

    def error(**keys: Any) -> float:
        config = read_section(task.Config, keys, where="the page")
        made = task.Task(config, None, paths=None, source=Tokens, target=Tokens, shared=True)
        score, _ = made.score([Prediction(("K AE0 T",), (0.0,))], [Example("cat", ("K AE1 T",))])
        return round(float(score.value), 1)

    assert error() == 0.0
    assert error(drop_stress=False) == 33.3


def test_the_toy_pair_gives_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from regard.cli.main import main

    monkeypatch.chdir(tmp_path)
    for number, pair in enumerate(load_script("toy_pair").pairs(6000), 1):
        split = {0: "val", 1: "test"}.get(number % 12, "train")
        for side, text in zip(("fi", "pt"), pair, strict=True):
            with Path(f"{split}.{side}").open("a", encoding="utf-8") as file:
                file.write(text + "\n")
    page = (ROOT / "docs/getting-started.md").read_text(encoding="utf-8")
    command = re.search(r"^regard (new .*)$", page, re.MULTILINE)
    assert command is not None
    with pytest.raises(SystemExit, match="0"):
        main(command[1].split())
    assert capsys.readouterr().out in blocks(page)
    recipe = Path("fi-pt.toml").read_text(encoding="utf-8").splitlines()
    shown = next(block for block in blocks(page) if block.startswith("[tokenizer]"))
    assert [line for line in shown.splitlines() if line not in recipe] == []


def test_the_page_of_keys_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert page == load_script("make_keys").page(), "run: python docs/make_keys.py > docs/recipes.md"


# --- links, files, commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text(encoding="utf-8")))
    local = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    assert [link for link in local if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/.-])(?:src|tests|docs|benchmarks|recipes)/[\w./-]*\w", text)) - TO_BE_WRITTEN
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_that_are_named_exist(path: Path) -> None:
    import typer

    from regard.cli.main import app

    command = typer.main.get_command(app)
    known = set(command.list_commands(typer.Context(command)))  # type: ignore[attr-defined]
    text = path.read_text(encoding="utf-8")
    code = "\n".join([*blocks(text), *re.findall(r"`[^`\n]+`", prose(text))])
    named = set(re.findall(r"(?:^|[\s`|])regard ([a-z][a-z-]*)", code.replace("import regard", "")))
    assert named - known == set()


def test_pictures_of_the_page_are_those_that_the_script_takes() -> None:
    taken = {f"{name}.png" for name in load_script("make_pictures").PICTURES}
    shown = {
        name for path in PAGES for name in re.findall(r"images/(look-[\w-]+\.png)", path.read_text(encoding="utf-8"))
    }
    there = {path.name for path in (ROOT / "docs" / "images").glob("look-*")}
    assert shown == there
    assert there <= taken


def test_pictures_speak_the_language_of_their_page() -> None:
    chinese = {path: path.name.endswith(".zh-CN.md") for path in PAGES}
    pictures = {path: re.findall(r"images/look-[\w-]+\.png", path.read_text(encoding="utf-8")) for path in PAGES}
    assert [name for path, names in pictures.items() for name in names if ("-zh." in name) != chinese[path]] == []


def test_the_readme_names_every_recipe() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.stem for path in (ROOT / "recipes").glob("*.toml") if f"`{path.stem}`" not in text] == []


# --- two languages ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=TWINS, ids=lambda twins: twins[0])
def twins(request: pytest.FixtureRequest) -> tuple[str, str]:
    first, second = ((ROOT / name).read_text(encoding="utf-8") for name in request.param)
    return first, second


def test_twins_have_the_same_headings(twins: tuple[str, str]) -> None:
    first, second = (re.findall(r"^#+ ", prose(text), re.MULTILINE) for text in twins)
    assert first == second


def test_twins_have_the_same_code(twins: tuple[str, str]) -> None:
    first, second = map(blocks, twins)
    assert first == second


def test_twins_have_the_same_tables(twins: tuple[str, str]) -> None:
    """As many rows and cells, and in each cell the same figures, code and places of figures to come."""
    first, second = map(tables, twins)
    assert [[len(row) for row in table] for table in first] == [[len(row) for row in table] for table in second]
    fixed = re.compile(r"`[^`]+`|TBD-[a-z-]+|\d+(?:[.,]\d+)*")
    for one, other in zip(first, second, strict=True):
        for row, twin in zip(one, other, strict=True):
            assert [fixed.findall(cell) for cell in row] == [fixed.findall(cell) for cell in twin]


def test_twins_name_the_same_code_and_figures_in_their_text(twins: tuple[str, str]) -> None:
    first, second = (sorted(re.findall(r"`[^`\n]+`|TBD-[a-z-]+", prose(text))) for text in twins)
    assert first == second
