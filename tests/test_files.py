"""A file is written whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from regard.errors import RunError
from regard.files import put_file
from regard.train import checkpoint


def half_written(place: Path) -> None:
    place.write_text("half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    place.write_text("old")
    with pytest.raises(OSError, match="No space left"):
        put_file(place, half_written)
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_a_draft_that_cannot_be_deleted_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(OSError, match="No space left"):
        put_file(tmp_path / "page.html", half_written)
    monkeypatch.setattr(Path, "write_text", read_only)
    with pytest.raises(RunError, match="Read-only file system"):  # as everywhere where a run is written
        checkpoint.write_text(tmp_path / "report.json", "{}")


def test_a_link_stays_one_and_permissions_what_they_were(tmp_path: Path) -> None:
    place, link = tmp_path / "page.html", tmp_path / "link.html"
    place.write_text("old")
    place.chmod(0o640)
    link.symlink_to(place)
    put_file(link, lambda path: path.write_text("new"))
    assert link.is_symlink()
    assert (place.read_text(), place.stat().st_mode & 0o777) == ("new", 0o640)


def test_a_device_is_written_as_it_is() -> None:
    put_file(Path(os.devnull), lambda path: path.write_text("nothing"))
    assert not Path(os.devnull).is_file()
