"""Every benchmark finds what it imports, and says at its top how it is run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_imports_and_says_how_it_is_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"benchmark_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # a dataclass looks its module up
    monkeypatch.syspath_prepend(path.parent)  # as for a script
    spec.loader.exec_module(module)
    runs = not hasattr(module, "main") or f"python benchmarks/{path.name}" in (module.__doc__ or "")
    assert runs, f"{path.name} does not say how it is run"
