"""Arrays on disk, made once and memory-mapped.

A cache folder is named after everything that decides its content. It appears whole or not at all, carries the sums
of its files, and is made again when they do not hold: a damaged cache costs time, never an error or a wrong row.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.data.folders import put_folder
from regard.data.readers import data_suffix, require_file
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError

FORMAT = 3  # change it when the same input must give other files
ABOUT, SUMS = "about.json", "sums.json"
Arrays = dict[str, npt.NDArray[Any]]
Kept = tuple[Arrays, dict[str, Any]]  # arrays by name, and what JSON can say about them


def cache_folder() -> Path:
    """Where encoded text is kept: $XDG_CACHE_HOME/regard/encoded, or ~/.cache/regard/encoded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard" / "encoded"


def kept(folder: Path, make: Callable[[], Kept]) -> Kept:
    """What lies in the folder, or else what `make` gives, which is then put there."""
    found = opened(folder)
    if found is not None:
        return found
    arrays, about = make()
    remedy = "free space there, or choose another folder with the environment variable XDG_CACHE_HOME"
    put_folder(
        folder,
        lambda draft: _write(draft, arrays, about),
        what="the encoded text",
        is_whole=_is_whole,
        remedy=remedy,
    )
    return opened(folder) or (arrays, about)


def name_of(paths: Sequence[Path], tokenizers: Sequence[Tokenizer], policy: Mapping[str, Any]) -> str:
    """The name of a cache: a sum over all that decides what is in it, and not over where the files lie."""
    for path in paths:
        require_file(path)
    try:
        files = [[data_suffix(path), path.suffix, _sum(path)] for path in paths]
    except OSError as error:
        raise DataError("the file cannot be read", got=error.strerror, where=error.filename) from None
    parts = {
        "format": FORMAT,
        "files": files,
        "tokenizers": [hashlib.sha256(tokenizer.to_json().encode()).hexdigest() for tokenizer in tokenizers],
        "specials": [dataclasses.asdict(tokenizer.specials) for tokenizer in tokenizers],
        "policy": dict(policy),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _write(folder: Path, arrays: Arrays, about: dict[str, Any]) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    (folder / ABOUT).write_text(json.dumps(about, indent=1))
    sums = {name: _sum(folder / name) for name in (*(f"{name}.npy" for name in arrays), ABOUT)}
    (folder / SUMS).write_text(json.dumps(sums, indent=1))


def opened(folder: Path) -> Kept | None:
    """What a cache folder holds, or None where it is not there, not whole or not what was written."""
    try:
        sums = json.loads((folder / SUMS).read_text())
        if sums != {name: _sum(folder / name) for name in sums} or ABOUT not in sums:
            return None
        names = [name for name in sums if name != ABOUT]
        arrays = {
            name.removesuffix(".npy"): np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in names
        }
        return arrays, json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError, TypeError):
        return None


def _is_whole(folder: Path) -> bool:
    return opened(folder) is not None


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
