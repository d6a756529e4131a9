"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from regard.errors import DataError


def put_folder(
    place: Path,
    write: Callable[[Path], None],
    *,
    what: str,
    is_whole: Callable[[Path], bool] = Path.is_dir,
    remedy: str = "free space there, or choose another folder",
) -> None:
    """Lets `write` fill a folder beside `place`, then renames it; what was there and is not whole is replaced.

    A full disk, or anything else that stops the writing, leaves nothing behind. Of several processes that do this
    at once the first one wins.
    """
    draft = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=place.parent))
        (draft / place.name).mkdir()  # inside, since a temporary folder is closed to other users
        write(draft / place.name)
        if place.exists() and not is_whole(place):
            shutil.rmtree(place)
        try:
            os.rename(draft / place.name, place)
        except OSError:
            if not is_whole(place):
                raise
    except OSError as error:
        raise DataError(
            f"{what} cannot be written",
            # numpy reports a write that the disk cut short without the system's reason
            got=error.strerror or f"the disk took only a part of it, it is probably full ({error})",
            where=place.parent,
            remedy=remedy,
        ) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)
