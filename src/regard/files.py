"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path


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


def discard(draft: Path) -> None:
    """Deletes a draft, if there is one. A read-only disk refuses that as well: told is what went wrong before."""
    with contextlib.suppress(OSError):
        draft.unlink(missing_ok=True)
