"""Weights and training state on disk: safetensors and JSON, written whole or not at all."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.errors import RunError
from regard.files import discard
from regard.train.progress import say

MODEL, STATE, TENSORS = "model.safetensors", "state.json", "state.safetensors"
FOLDER = "checkpoints"  # in the run folder


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and lasting buffer once; a weight that two modules share has the name of the first."""
    lasting = set(model.state_dict(keep_vars=True))
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if name in lasting}


def save_weights(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Writes a safetensors file whole or not at all."""
    from safetensors.torch import save_file

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.touch()  # with the permissions that any new file gets; safetensors would shut others out
        mode = temporary.stat().st_mode
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary, metadata)
        temporary.chmod(mode)
        sync(temporary)
        os.replace(temporary, path)
    except Exception as error:
        discard(temporary)
        raise not_written(path, error) from error


AGAIN = "train again on the same run folder: it goes on from the last whole checkpoint"


def load_weights(path: Path, *, remedy: str = AGAIN) -> dict[str, Tensor]:
    """Reads a safetensors file; a damaged one is named, with what can be done."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        if not path.exists():
            raise RunError("there are no weights", got=path, remedy="`regard train` writes them") from None
        if not os.access(path, os.R_OK):
            raise RunError("you may not read the weights", got=path, remedy="ask for the permission to read") from None
        raise RunError("the weights cannot be read", got=error, where=path, remedy=remedy) from None


def step_of(path: Path) -> int | None:
    """Of which step a result is, where it says so."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        step = (file.metadata() or {}).get("step", "")
    return int(step) if step.isdigit() else None


def set_result_aside(run: Path) -> None:
    """Keeps the result that a training which begins anew, as it has no checkpoint, would replace by a worse one."""
    path = run / MODEL
    if not path.exists():
        return
    names = (run / f"before-{i}-{MODEL}" for i in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    try:
        os.rename(path, aside)
    except OSError as error:
        raise not_written(aside, error) from error
    say(f"there is no checkpoint to go on from, so it begins anew; the result that was here is now {aside.name}")


def put_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, where: object) -> None:
    """Copies weights into a model; every name and shape must fit."""
    own = weights(model)
    for name in [*own, *tensors]:
        mine, given = own.get(name), tensors.get(name)
        if mine is None or given is None or mine.shape != given.shape:
            raise RunError(
                f'the weights do not fit the model at "{name}"',
                got="nothing" if given is None else tuple(given.shape),
                wanted="nothing" if mine is None else tuple(mine.shape),
                where=where,
                remedy="the recipe.toml of a run folder must be the one that it was trained with",
            )
        mine.copy_(given)


def save_checkpoint(
    folder: Path, step: int, model: Mapping[str, Tensor], tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Writes folder/step-N; it has that name only once all of it is on the disk."""
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.{os.getpid()}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_weights(temporary / MODEL, model)
        save_weights(temporary / TENSORS, tensors)
        write_state(temporary, state)
        sync(temporary)
        if final.exists():  # what a prune that was killed left of it
            shutil.rmtree(final)
        os.rename(temporary, final)
        sync(folder)
    except (OSError, RunError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise not_written(final, error) from error


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / STATE).exists())


def has_begun(run: Path) -> bool:
    """Whether a run folder holds anything that was trained."""
    return (run / MODEL).exists() or bool(checkpoints(run / FOLDER))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
    """Model, tensors of the training state, and its plain values."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError("the checkpoint cannot be read", got=error, where=path / STATE) from None
    return load_weights(path / MODEL), load_weights(path / TENSORS), state


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Writes the plain values of a checkpoint."""
    write_text(path / STATE, json.dumps(state))


def set_aside(path: Path) -> Path:
    """Renames a checkpoint that cannot be read, so that it is neither counted nor lost."""
    aside = path.with_name(f"damaged-{path.name}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
    except OSError as error:
        raise not_written(aside, error) from error
    return aside


def prune(folder: Path, keep: int) -> None:
    """Deletes all but the newest checkpoints, and what a killed process left half written or half deleted."""
    kept = checkpoints(folder)[-keep:]
    for path in [*folder.glob("step-*"), *folder.glob(".step-*")]:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def drop_drafts(folder: Path) -> None:
    """Deletes the weights that a killed process left half written beside the whole ones."""
    for path in folder.glob(f".{MODEL}.*"):
        discard(path)


def mean_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of several checkpoints' weights, summed in double precision."""
    total: dict[str, Tensor] = {}
    for path in paths:
        loaded = load_weights(path / MODEL)  # one at a time: all of them may not fit into memory
        total = {name: total.get(name, 0) + tensor.double() for name, tensor in loaded.items()}
    return {name: (tensor / len(paths)).to(loaded[name].dtype) for name, tensor in total.items()}


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        discard(temporary)
        raise not_written(path, error) from error


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def not_written(path: Path, error: Exception) -> RunError:
    """The error of a write that failed, with the space that was left if that was the reason."""
    if isinstance(error, RunError):
        return error
    full = getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error)
    remedy = "free some space and run the same command again; a training goes on from its last whole checkpoint"
    return RunError(
        "the disk is full" if full else "a file cannot be written",
        got=error,
        where=path,
        remedy=remedy if full else "check the folder and its permissions, then run the same command again",
    )
