"""Several trainings side by side: what one gives is kept when it is there, under a name that a file may have."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def run_recipes() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks/run_recipes.py"
    spec = importlib.util.spec_from_file_location("run_recipes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_name_fits_a_file_system(run_recipes: ModuleType) -> None:
    assert run_recipes.name_of("cmudict:2,model.dropout=0.2") == "cmudict-2-model.dropout=0.2"
    long = ["cmudict:1" + 40 * ",train.warmup_steps=1" + end for end in (",a=1", ",a=2")]
    names = [run_recipes.name_of(job) for job in long]
    assert all(len(f"{name}.metrics.jsonl") < 255 for name in names)
    assert len({*names}) == 2


def test_what_is_done_first_is_kept_first(
    run_recipes: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[list[str]] = []

    def run_job(job: str, out: Path, runs: Path, splits: list[str]) -> dict[str, object]:
        while job == "slow:1" and not (out / "results.json").exists():
            time.sleep(0.01)
        if job == "slow:1":
            kept.append([result["job"] for result in json.loads((out / "results.json").read_text())])
        report = {"test": {"metrics": {"bleu": 1.0 if job == "slow:1" else 2.0}}}
        return {"job": job, "group": job[:-2], "report": report}

    monkeypatch.setattr(run_recipes, "run_job", run_job)
    monkeypatch.setattr(sys, "argv", ["run_recipes.py", "--out", str(tmp_path), "--parallel", "2", "slow:1", "quick:1"])
    run_recipes.main()
    assert kept == [["quick:1"]]
    assert "| slow | test | bleu | 1.00 | 1.00 |" in capsys.readouterr().out
