"""metrics.jsonl and TensorBoard: what a training measured, each step once, also after a resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.train import checkpoint


class MetricsLog:
    """metrics.jsonl, one JSON object a line, and TensorBoard where asked for."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        self.path, self.board_folder = folder / "metrics.jsonl", folder / "tensorboard"
        self.board_kind = _summary_writer() if tensorboard else None
        self.board: Any = None

    def go_on(self, step: int) -> None:
        """Drops what was written after this step, which will be made again, and a last line cut short by a crash."""
        if self.board_kind is not None:
            self.board = self.board_kind(str(self.board_folder), purge_step=step + 1 if step else None)
        cut_back(self.path, step)

    def write(self, step: int, **values: float) -> None:
        """One line, and one point a value."""
        append(self.path, {"step": step, **values})
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes out what TensorBoard's own thread still holds."""
        if self.board is not None:
            self.board.close()


def append(path: Path, record: Mapping[str, object]) -> None:
    """One more line of JSON."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise checkpoint.not_written(path, error) from error


def cut_back(path: Path, step: int) -> None:
    """Drops the lines of later steps, and one cut short by a crash."""
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    checkpoint.write_text(path, "".join(f"{line}\n" for line in lines if _is_until(step, line)))


def _is_until(step: int, line: str) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):
        return False


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        remedy = 'pip install "regard[tensorboard]"'
        raise ConfigError("TensorBoard is not installed", got="train.tensorboard = true", remedy=remedy) from None
    return SummaryWriter
