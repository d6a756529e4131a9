"""The folder of a run that is trained: what may be in it, who may train there, and the recipe that it keeps."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from regard import tasks
from regard.config import read_toml
from regard.errors import RunError
from regard.recipe import MARK, RECIPE, Recipe, differences, parse
from regard.train import checkpoint
from regard.train.progress import say

# keys of [task] that may change and are of training alone
LEARNED = ("label_smoothing", "dropout", "word_dropout", "consistency", "class_weights", "negatives")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise RunError("the run folder is a file", got=folder, remedy="another run=DIR") from None
    except OSError as error:
        raise checkpoint.not_written(folder, error) from None


def open_folder(folder: Path, recipe: Recipe) -> Recipe | None:
    """Sees that what is in the run folder was trained with a recipe that fits, and puts the recipe there.

    What it was trained with so far comes back.
    """
    path, tokenizers = folder / RECIPE, [folder / name for name in tasks.task(recipe.task_name).FILES]
    begun, before = checkpoint.has_begun(folder), None
    there = [file for file in (path, *tokenizers) if file.exists()]
    if begun:
        before = _check_begun(folder, recipe, missing=[file.name for file in (path, *tokenizers) if file not in there])
    elif there and not _is_ours(path):
        raise RunError(
            "the run folder holds files that no training put there",
            got=", ".join(file.name for file in there),
            where=folder,
            remedy="another run=DIR",
        )
    try:
        for stale in () if begun else tokenizers:  # of a start that failed, perhaps on other data
            stale.unlink(missing_ok=True)
    except OSError as error:
        raise checkpoint.not_written(folder, error) from None
    checkpoint.write_text(path, f"{MARK}\n{recipe.to_toml()}")
    return before


def keep_trained(folder: Path, before: Recipe, recipe: Recipe) -> None:
    """Of a run that had nothing left to train: the recipe goes on saying what it was trained with."""
    learned = [name for name in LEARNED if hasattr(recipe.task, name)]
    task = dataclasses.replace(recipe.task, **{name: getattr(before.task, name) for name in learned})
    kept = dataclasses.replace(recipe, task=task, train=before.train, observe=before.observe)
    checkpoint.write_text(folder / RECIPE, f"{MARK}\n{kept.to_toml()}")
    sections = ("task", task, recipe.task), ("train", before.train, recipe.train)
    changed = [
        f"{name}.{field.name}"
        for name, old, new in (*sections, ("observe", before.observe, recipe.observe))
        for field in dataclasses.fields(old)
        if getattr(old, field.name) != getattr(new, field.name)
    ]
    if changed:
        say(f"without effect, as nothing was left to train: {', '.join(changed)}")


def _check_begun(folder: Path, recipe: Recipe, *, missing: list[str]) -> Recipe:
    path = folder / RECIPE
    if missing:
        raise RunError(
            "the run folder has lost what its weights were trained with",
            got=f"no {', '.join(missing)}",
            where=folder,
            remedy="put it back, or another run=DIR",
        )
    before = parse(read_toml(path), where=str(path), folder=folder, trains=False)
    changed = differences(before, recipe)
    if changed:
        raise RunError(
            "the run folder holds another model",
            got=f"changed: {', '.join(changed)}",
            where=folder,
            remedy="another run=DIR",
        )
    return before


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(MARK)
    except (OSError, UnicodeDecodeError):
        return False


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keeps a second training out of the folder; the lock goes with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "wait for it, or another run=DIR"
            raise RunError("another training is at work in this run folder", got=folder, remedy=remedy) from None
        except OSError:
            pass  # a file system without such locks, as NFS is for folders
        yield
    finally:
        os.close(handle)
