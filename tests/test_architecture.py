"""The rules of the house, as tests. The rooms themselves are held by the import linter (pyproject.toml)."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src" / "regard").rglob("*.py"))
Rule = Callable[[ast.AST], str | None]


def broken(rule: Rule, source: str) -> list[str]:
    """What a rule finds in a file's syntax; comments and docstrings may name anything."""
    nodes = ast.walk(ast.parse(source))
    return [f"line {getattr(node, 'lineno', '?')}: {found}" for node in nodes if (found := rule(node))]


def names_in(node: ast.AST) -> Iterator[str]:
    """The names that a node uses or imports, dotted ones in their parts."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.alias(name=name):
            yield from name.split(".")
        case ast.ImportFrom(module=str(name)):
            yield from name.split(".")


def code_loader(node: ast.AST) -> str | None:
    """Finds what could run code out of a loaded file."""
    match node:
        case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
            return f"{name}()"
        case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
            return "torch.load"
        case ast.ImportFrom(module="torch", names=names) if any(alias.name == "load" for alias in names):
            return "torch.load"
        case ast.keyword(arg="allow_pickle", value=value) if not (isinstance(value, ast.Constant) and not value.value):
            return "allow_pickle"
    unsafe = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"} & set(names_in(node))
    return unsafe.pop() if unsafe else None


def untyped_lookup(node: ast.AST) -> str | None:
    """Finds getattr(config, ...) and the like: a key that no schema knows."""
    match node:
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" as name), args=[holder, *_]):
            held = set(names_in(holder)) & {"config", "cfg", "args", "recipe", "options"}
            return f"{name}({held.pop()}, ...)" if held else None
    return None


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (code_loader, "import pickle"),
        (code_loader, "from pickle import loads"),
        (code_loader, "torch.load(path)"),
        (code_loader, "from torch import load"),
        (code_loader, "eval(text)"),
        (code_loader, "exec(text)"),
        (code_loader, "np.load(path, allow_pickle=True)"),
        (untyped_lookup, "getattr(config, 'layers', 2)"),
        (untyped_lookup, "hasattr(self.args, 'layers')"),
    ],
)
def test_a_rule_finds_what_it_forbids(rule: Rule, source: str) -> None:
    assert broken(rule, source)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (code_loader, "'''No pickle, no eval().'''  # never torch.load"),
        (code_loader, "model.eval()"),
        (code_loader, "np.load(path, allow_pickle=False)"),
        (untyped_lookup, "getattr(torch, name)"),
    ],
)
def test_a_rule_leaves_the_rest_alone(rule: Rule, source: str) -> None:
    assert not broken(rule, source)


@pytest.mark.parametrize("rule", [code_loader, untyped_lookup])
def test_sources_keep_the_rule(rule: Rule) -> None:
    found = {str(path.relative_to(ROOT)): broken(rule, path.read_text(encoding="utf-8")) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("name", "home"),
    [("scaled_dot_product_attention", "ops/fused.py"), ("flex_attention", "ops/flex.py")],
)
def test_a_fused_kernel_is_used_in_one_file(name: str, home: str) -> None:
    def uses(path: Path) -> bool:
        return any(name in names_in(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))

    users = [path.relative_to(ROOT / "src" / "regard").as_posix() for path in SOURCES if uses(path)]
    assert users == [home]


def test_no_source_file_is_over_500_lines() -> None:
    files = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".js", ".css", ".html"}]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > 500} == {}


def shipped_files() -> list[Path]:
    """What git tracks; in a downloaded archive, which has no git, what lies in the project's folders."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    folders = [ROOT / name for name in ("src", "tests", "recipes", "benchmarks", "docs", ".ci")]
    return [path for place in folders for path in place.rglob("*") if path.is_file()]


def test_no_text_names_a_folder_of_somebodys_machine() -> None:
    private = re.compile(r"(?<![\w.~-])/(?:work|home|root|Users)/")
    found = []
    for path in shipped_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # a picture, an archive
            continue
        found += [f"{path.relative_to(ROOT)}:{n}: {line}" for n, line in enumerate(lines, 1) if private.search(line)]
    assert found == []


def test_every_recipe_loads() -> None:
    from regard.recipe import read_recipe

    recipes = sorted((ROOT / "recipes").rglob("*.toml"))
    assert recipes
    for path in recipes:
        read_recipe(path)


def readme_commands(name: str) -> set[str]:
    """The X of every `regard X` in a README's code, inline or in blocks."""
    text = (ROOT / name).read_text(encoding="utf-8")
    code = re.findall(r"^```.*?^```|`[^`\n]+`", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r"(?<![\w-])(?<!import )regard ([a-z][a-z-]*)", "\n".join(code)))


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_commands_of_the_readme_exist(name: str) -> None:
    import typer

    from regard.cli.main import app

    command = typer.main.get_command(app)
    known = set(command.list_commands(typer.Context(command)))  # type: ignore[attr-defined]
    named = readme_commands(name)
    assert named
    assert named - known == set()


def test_both_readmes_name_the_same_commands() -> None:
    assert readme_commands("README.md") == readme_commands("README.zh-CN.md")


def configs() -> Iterator[type]:
    """Every dataclass that a recipe can fill: named so, or with an explained field."""
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.name:
                explained = any("doc" in field.metadata for field in dataclasses.fields(value))
                if explained or value.__name__.endswith("Config"):
                    yield value


def test_every_key_of_a_config_is_explained() -> None:
    found = list(configs())
    assert found
    unexplained = [
        f"{config.__module__}.{config.__name__}.{field.name}"
        for config in found
        for field in dataclasses.fields(config)
        if not field.metadata.get("doc")
    ]
    assert unexplained == []


def test_a_skip_is_a_failure_in_ci(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (tmp_path / "test_single.py").write_text(
        "import pytest\n"
        "def test_runs(): pass\n"
        "def test_skips(): pytest.skip('no browser')\n"
        "@pytest.mark.xfail(reason='not yet')\n"
        "def test_expects_failure(): assert False\n"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI"))}

    def outcome(**environment: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        return subprocess.run(
            command, cwd=tmp_path, env=plain | environment, capture_output=True, text=True, check=False
        ).stdout

    assert "1 passed, 2 skipped, 1 xfailed" in outcome()
    in_ci = outcome(CI="true")
    assert "2 failed, 1 passed, 1 error" in in_ci
    for reason in ("no browser", "not yet", "no_such_module"):
        assert re.search(rf"did not run, and CI=true allows no skips: .*{reason}", in_ci), in_ci
