"""Files that are there whole or not at all, and what is said of those that are not."""

from __future__ import annotations

import itertools
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.errors import RunError
from regard.train import checkpoint


class Shared(nn.Module):
    """A weight with two names, a lasting buffer and a passing one."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)
        self.b.weight = self.a.weight
        self.register_buffer("lasting", torch.arange(2))
        self.register_buffer("passing", torch.ones(2), persistent=False)


def test_weights_are_named_once() -> None:
    assert sorted(checkpoint.weights(Shared())) == ["a.bias", "a.weight", "b.bias", "lasting"]


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    one, other = Shared(), Shared()
    checkpoint.save_weights(path, checkpoint.weights(one))
    checkpoint.put_weights(other, checkpoint.load_weights(path), where=path)
    for name, tensor in checkpoint.weights(one).items():
        assert torch.equal(tensor, checkpoint.weights(other)[name])
    assert other.b.weight is other.a.weight
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_tensors_of_any_layout_are_saved(tmp_path: Path) -> None:
    turned = torch.arange(6.0).view(2, 3).T
    checkpoint.save_weights(tmp_path / "x", {"turned": turned, "one": torch.tensor(2.0)})
    found = checkpoint.load_weights(tmp_path / "x")
    assert torch.equal(found["turned"], turned)
    assert found["one"] == 2


@pytest.mark.parametrize(
    ("change", "what", "got", "wanted"),
    [
        ({"a.weight": torch.zeros(2, 4)}, "a.weight", "(2, 4)", "(2, 3)"),
        ({"a.weight": None}, "a.weight", "nothing", "(2, 3)"),
        ({"c": torch.zeros(5)}, "c", "(5,)", "nothing"),
    ],
)
def test_weights_that_do_not_fit(change: dict[str, torch.Tensor | None], what: str, got: str, wanted: str) -> None:
    tensors = {**checkpoint.weights(Shared()), **change}
    with pytest.raises(RunError) as error:
        checkpoint.put_weights(
            Shared(), {name: tensor for name, tensor in tensors.items() if tensor is not None}, where="run/model"
        )
    assert str(error.value) == (
        f'the weights do not fit the model at "{what}"\n'
        f"  got:    {got}\n"
        f"  wanted: {wanted}\n"
        "  where:  run/model\n"
        "  try:    the recipe.toml of a run folder must be the one that it was trained with"
    )


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(RunError) as error:
        checkpoint.load_weights(path)
    assert str(error.value) == f"there are no weights\n  got:    {path}\n  try:    `regard train` writes them"
    checkpoint.save_weights(path, {"a": torch.zeros(100)})
    whole = path.read_bytes()
    for content in (b"", whole[:5], whole[:50], whole[:-1], b"\xff" * 100, pickle.dumps([1, 2])):
        path.write_bytes(content)
        with pytest.raises(RunError) as error:
            checkpoint.load_weights(path)
        lines = str(error.value).splitlines()
        assert (lines[0], lines[2]) == ("the weights cannot be read", f"  where:  {path}")
        assert lines[3] == "  try:    train again on the same run folder: it goes on from the last whole checkpoint"


def save(folder: Path, step: int) -> None:
    checkpoint.save_checkpoint(folder, step, {"w": torch.full((3,), float(step))}, {"m": torch.ones(2)}, {"step": step})


@pytest.mark.parametrize(
    ("name", "nth"), [("rename", 0), *((name, n) for name in ("replace", "fsync") for n in range(3))]
)
def test_a_checkpoint_has_its_name_only_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    """Whichever of its writes fails, the one before it stays, and nothing else."""
    save(tmp_path, 1)
    real, calls = getattr(os, name), itertools.count()

    def fail(*words: object) -> object:
        if next(calls) == nth:
            raise PermissionError(13, "Permission denied")
        return real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(RunError) as error:
            save(tmp_path, 2)
    lines = str(error.value).splitlines()
    assert lines[:2] == ["a file cannot be written", "  got:    [Errno 13] Permission denied"]
    assert lines[3] == "  try:    check the folder and its permissions, then run the same command again"
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    save(tmp_path, 2)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000001", "step-00000002"]


def test_all_of_it_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    monkeypatch.setattr(checkpoint, "sync", lambda path: done.append(path.name))
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda a, b: (done.append("renamed"), rename(a, b)))
    save(tmp_path, 1)
    draft = f".step-00000001.{os.getpid()}"
    files = [f".{name}.{os.getpid()}" for name in ("model.safetensors", "state.safetensors", "state.json")]
    assert done == [*files, draft, "renamed", tmp_path.name]


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    save(tmp_path, 7)
    model, tensors, state = checkpoint.load_checkpoint(tmp_path / "step-00000007")
    assert model["w"].tolist() == [7.0] * 3
    assert tensors["m"].tolist() == [1.0] * 2
    assert state == {"step": 7}
    assert {path.suffix for path in (tmp_path / "step-00000007").iterdir()} == {".safetensors", ".json"}


def test_prune_keeps_the_newest_and_clears_what_was_left(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000):
        save(tmp_path, step)
    (tmp_path / ".step-00001100.123").mkdir()
    (tmp_path / "step-00000005").mkdir()  # a prune that was killed: its state is gone, the rest is not
    (tmp_path / "step-00000005" / "model.safetensors").write_text("left")
    (tmp_path / "notes").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step-00000100", "step-00001000"]


def test_what_a_killed_prune_left_does_not_stop_a_save(tmp_path: Path) -> None:
    (tmp_path / "step-00000001" / "more").mkdir(parents=True)
    save(tmp_path, 1)
    assert checkpoint.load_checkpoint(tmp_path / "step-00000001")[2] == {"step": 1}


def test_the_mean_is_the_arithmetic_one(tmp_path: Path) -> None:
    tensors = [{"w": torch.randn(4, 3), "n": torch.tensor(i)} for i in (1, 2, 6)]
    for step, each in enumerate(tensors):
        checkpoint.save_checkpoint(tmp_path, step, each, {}, {})
    mean = checkpoint.mean_weights(checkpoint.checkpoints(tmp_path))
    wanted = torch.stack([each["w"].double() for each in tensors]).mean(0).float()
    torch.testing.assert_close(mean["w"], wanted, rtol=0, atol=0)
    assert mean["n"] == 3
    assert mean["n"].dtype == torch.int64


def test_begun_or_not(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "checkpoints" / ".step-00000001.5").mkdir(parents=True)
    assert not checkpoint.has_begun(tmp_path)
    save(tmp_path / "checkpoints", 1)
    assert checkpoint.has_begun(tmp_path)
    assert not checkpoint.has_begun(tmp_path / "nowhere")


def test_text_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    checkpoint.write_text(path, json.dumps({"a": "ü"}))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(RunError, match="the disk is full"):
            checkpoint.write_text(path, "other")
    assert path.read_text(encoding="utf-8") == '{"a": "\\u00fc"}'
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
