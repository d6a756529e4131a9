"""The command line as a user has it, and one small trained run for all tests of a worker."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.cli.main import main

LETTERS = "abcdef"
# a model that learns to reverse five letters in some seconds on one core
SMALL = (
    "task.label_smoothing=0",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.model_dim=64",
    "model.ffn_dim=128",
    "model.position=rotary",
    "model.dropout=0",
    "train.max_steps=300",
    "train.batch_tokens=1024",
    "train.bucket=2",
    "train.learning_rate=4e-3",
    "train.warmup_steps=30",
    "train.validate_every=150",
    "train.device=cpu",
)


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def regard(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line in this process."""

    def run(*words: object, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return Outcome(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the tests' own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def reversals(number: int, seed: int) -> list[tuple[str, str]]:
    """Short rows of letters, and the same from behind."""
    draw = random.Random(seed)
    rows = [[draw.choice(LETTERS) for _ in range(draw.randint(2, 5))] for _ in range(number)]
    return [(" ".join(row), " ".join(reversed(row))) for row in rows]


def write_pair(folder: Path, name: str, pairs: list[tuple[str, str]]) -> list[Path]:
    """Two parallel files."""
    paths = [folder / f"{name}.{side}" for side in ("src", "tgt")]
    for path, texts in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return paths


@dataclass(frozen=True)
class Trained:
    """A run that was made by the commands `new` and `train`, and what it was made from."""

    recipe: Path
    run: Path
    test: list[tuple[str, str]]
    small: tuple[str, ...] = SMALL


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that reverses letters, made through the command line."""
    folder = tmp_path_factory.mktemp("reverse")
    test = reversals(100, seed=3)
    files = {"train": reversals(4000, seed=1), "val": reversals(100, seed=2), "test": test}
    words: list[object] = ["new", "translation"]
    for split, pairs in files.items():
        words += [f"--{split}", *write_pair(folder, split, pairs)]
    recipe, run = folder / "reverse.toml", folder / "run"
    for command in (
        [*words, "--out", recipe],
        ["train", recipe, f"run={run}", *SMALL],
    ):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in command])
        assert not ended.value.code
    return Trained(recipe, run, test)
