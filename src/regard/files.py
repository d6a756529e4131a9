"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from regard.errors import RunError


def put_file(place: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a file beside `place`, which then takes its name: a full disk leaves the old one as it was.

    A link stays one, and a pipe or a device is written as it is.
    """
    if place.exists() and not place.is_file():
        write(place)
        return
    place = place.resolve()
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        write(draft)
        if place.exists():
            shutil.copymode(place, draft)
        os.replace(draft, place)
    finally:
        discard(draft)


def put_text(place: Path, text: str) -> None:
    """Writes a text file, whole or not at all."""
    put_file(place, lambda draft: draft.write_text(text, encoding="utf-8"))


def require_writable(place: Path, what: str, *, make_folders: bool = False) -> None:
    """Raises where no file could be put at `place`: asked before the work that the file is to hold."""
    try:
        if place.is_dir():
            raise RunError(f"{what} cannot be written", got="a folder", wanted="a file", where=place)
        if not place.exists() or place.is_file():  # a pipe or a device is written as it is
            _try_folder(place.resolve().parent, make_folders)
    except OSError as error:
        remedy = "a file in a folder that is there and can be written into"
        raise RunError(f"{what} cannot be written", got=error.strerror, where=place, remedy=remedy) from None


def require_room(folder: Path, what: str) -> None:
    """Raises where no new folder could be made at `folder`."""
    try:
        _try_folder(folder.resolve().parent, True)
    except OSError as error:
        remedy = "a folder in one that can be written into"
        raise RunError(f"{what} cannot be written", got=error.strerror, where=folder, remedy=remedy) from None


def _try_folder(folder: Path, make: bool) -> None:
    """Opens a file without a name in a folder, or where that is still to be made, in the one that it will be in."""
    while make and not folder.exists():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def discard(draft: Path) -> None:
    """Deletes a draft, if there is one. A read-only disk refuses that as well: told is what went wrong before."""
    with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)
