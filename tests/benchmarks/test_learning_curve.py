"""The table of a learning curve, and a curve of two shares from beginning to end."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

RECIPE = """
[task]
name = "classification"

[data]
train = ["rows.tsv"]
val = ["rows.tsv"]
test = ["rows.tsv"]

[model]
family = "bert"
preset = "tiny"
layers = 1
model_dim = 8
ffn_dim = 8

[train]
device = "cpu"
max_steps = 2
validate_every = 2
"""


@pytest.fixture(scope="module")
def curve() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "learning_curve.py"
    spec = importlib.util.spec_from_file_location("learning_curve", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table(curve: ModuleType) -> None:
    found = {1.0: (1000, [{"bleu": 30.0}]), 0.1: (100, [{"bleu": 10.0}, {"bleu": 12.0}])}
    rows = curve.table(found).splitlines()
    assert rows[0] == "| share | examples | bleu |"
    assert rows[2:] == ["| 0.1 | 100 | 11.00 ± 1.41 |", "| 1 | 1,000 | 30.00 |"]


def test_a_curve(curve: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "rows.tsv").write_text("".join(f"{i % 2}\tnumber {i} of them\n" for i in range(60)))
    (tmp_path / "mine.toml").write_text(RECIPE)
    out = tmp_path / "curve.md"
    words = ["curve", tmp_path / "mine.toml", "train.max_steps=1", "--shares", 0.5, 1, "--seeds", 2]
    monkeypatch.setattr(sys, "argv", [str(word) for word in [*words, "--out", out, "--runs", tmp_path / "runs"]])
    curve.main()
    _, _, head, _, *rows = out.read_text().splitlines()
    assert head == "| share | examples | accuracy | macro_f1 | ece |"
    assert [row.split(" | ")[0] for row in rows] == ["| 0.5", "| 1"]
    assert rows[1].startswith("| 1 | 60 | ")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "mine-0.5-1",
        "mine-0.5-2",
        "mine-1-1",
        "mine-1-2",
    ]
