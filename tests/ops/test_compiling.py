"""What the GPU's kernels need is asked before they are, so that a machine without it trains all the same."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.cli.doctor import devices
from regard.ops import losses
from regard.ops.compiling import lacks_for_triton


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """One that has everything, whatever this one has."""
    lacks_for_triton.cache_clear()
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    for name in ("CC", "CPATH", "C_INCLUDE_PATH"):
        monkeypatch.delenv(name, raising=False)
    yield
    lacks_for_triton.cache_clear()


def test_a_machine_that_has_everything_lacks_nothing() -> None:
    assert lacks_for_triton() is None


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert lacks_for_triton() == "Triton"


@pytest.mark.parametrize("named", [None, "no-such-compiler"])
def test_without_a_compiler(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if named:
        monkeypatch.setitem(os.environ, "CC", named)
    monkeypatch.setattr(shutil, "which", lambda name: None if named in (None, name) else name)
    assert lacks_for_triton() == "C compiler"


def test_without_the_headers_of_python(tmp_path: Path) -> None:
    (tmp_path / "Python.h").unlink()
    assert lacks_for_triton() == "Python.h"


@pytest.mark.parametrize("name", ["CPATH", "C_INCLUDE_PATH"])
def test_headers_may_lie_where_compilers_look_besides(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Python.h").rename(tmp_path.parent / "Python.h")
    monkeypatch.setenv(name, os.pathsep.join(["/no/such/folder", str(tmp_path.parent)]))
    assert lacks_for_triton() is None


def test_cross_entropies_then_take_the_plain_passes(tmp_path: Path) -> None:
    class OnGpu(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    hidden, labels = torch.zeros(3, 4).as_subclass(OnGpu), torch.zeros(3, 1, dtype=torch.long)
    assert losses._is_fast(hidden, labels)
    (tmp_path / "Python.h").unlink()
    lacks_for_triton.cache_clear()
    assert not losses._is_fast(hidden, labels)


def test_the_doctor_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert list(devices())[-1] == ("gpu kernels", "can be built", "")
    (tmp_path / "Python.h").unlink()
    lacks_for_triton.cache_clear()
    what, found, to_do = list(devices())[-1]
    assert (what, found) == ("gpu kernels", "no Python.h")
    assert "python3-dev" in to_do
