"""The curve of what a memory is worth, from a trained run to its last line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from regard.recipe import parse
from regard.run import train


def test_a_trained_model_is_read_with_each_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "a.txt").write_text("the cat sat on the mat and the dog sat on the cat\n" * 8)
    recipe = {
        "run": str(tmp_path / "run"),
        "task": {"name": "language-modeling", "context": 8, "line_ends": "token"},
        "data": {split: ["a.txt"] for split in ("train", "val", "test")},
        "tokenizer": {"kind": "words"},
        "model": {"family": "transformer_xl", "preset": "tiny", "layers": 1, "model_dim": 16, "memory": 8},
        "train": {"device": "cpu", "max_steps": 1, "batch_tokens": 32},
    }
    train(parse(recipe, where="this test", folder=tmp_path))
    capsys.readouterr()
    path = Path(__file__).resolve().parents[2] / "benchmarks/memory_length.py"
    spec = importlib.util.spec_from_file_location("memory_length", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(sys, "argv", ["memory_length.py", str(tmp_path / "run"), "--lengths", "0", "4", "8"])
    script.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["memory     0", "memory     4", "memory     8"]
