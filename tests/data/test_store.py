"""Encoded text: right, found again, rebuilt when damaged, and never half there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data import cache
from regard.data import store as store_module
from regard.data.readers import read_examples
from regard.data.store import Column, Counts, Store, as_asked, build_store, count_unknown, no_example
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError
from regard.types import Specials

LINES = "read\tR EH D\tR IY D\nred\tR EH D\nreader\tR IY D ER\n"


@pytest.fixture(scope="module")
def source() -> Tokenizer:
    return Tokenizer.train(["reader"], kind="characters")


@pytest.fixture(scope="module")
def target() -> Tokenizer:
    return Tokenizer.train(["R IY D ER EH"], kind="words")


@pytest.fixture
def build(tmp_path: Path, source: Tokenizer, target: Tokenizer) -> Callable[..., Store]:
    (tmp_path / "train.tsv").write_text(LINES)

    def call(path: str = "train.tsv", **changes: Any) -> Store:
        arguments = {"max_length": 9, "too_long": "error", "on_bad_line": "error", "split": "train"} | changes
        return build_store([tmp_path / path], source, target, cache_dir=tmp_path / "cache", **arguments)

    return call


def rows(store: Store) -> list[tuple[list[int], list[int]]]:
    return [(store.source(i).tolist(), store.target(i).tolist()) for i in range(len(store))]


def caches(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").iterdir())


def test_caches_of_other_special_ids_have_other_names(tmp_path: Path) -> None:
    """They stand in what is kept, and not in the tokenizer's own file where it is somebody else's."""
    (tmp_path / "a.txt").write_text("5 6 7\n")
    names = {
        cache.name_of([tmp_path / "a.txt"], [Tokenizer.of_ids(50, special)], {})
        for special in (Specials(1, 2, 0), Specials(41, 42, 40), Specials(1, 2, 0))
    }
    assert len(names) == 2


def test_rows_are_the_tokenizers_ids_one_row_a_variant(
    build: Callable[..., Store], source: Tokenizer, target: Tokenizer
) -> None:
    pairs = [("read", "R EH D"), ("read", "R IY D"), ("red", "R EH D"), ("reader", "R IY D ER")]
    store = build()
    assert rows(store) == [(source.encode_batch([s])[0], target.encode_batch([t])[0]) for s, t in pairs]
    assert store.source_lengths.tolist() == [4, 4, 3, 6]
    assert store.target_lengths.tolist() == [3, 3, 3, 4]
    expected = "4 rows, 17 source and 13 target tokens; 0 truncated, 0 dropped, 0 bad lines"
    assert store.describe() == expected


def test_what_the_vocabulary_has_not_is_counted_and_kept(build: Callable[..., Store], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("redo\tR EH D UW\nreader\tR UW UW\n")
    for _ in range(2):  # made, and found again
        assert build().describe() == (
            "2 rows, 10 source and 7 target tokens; 0 truncated, 0 dropped, 0 bad lines"
            "; 10.0% unknown source tokens; 42.9% unknown target tokens"
        )


def test_an_end_that_is_also_what_is_unknown_is_not_counted(target: Tokenizer) -> None:
    ids = np.array([target.specials.unk, target.specials.end, 5, target.specials.unk])
    assert count_unknown(ids, target) == 2
    gpt2 = Tokenizer.foreign(target.inner, replace(target.specials, unk=target.specials.end))
    none = Tokenizer.foreign(target.inner, replace(target.specials, unk=None))
    assert count_unknown(ids, gpt2) == count_unknown(ids, none) == 0


def test_ids_are_memory_mapped_and_small(build: Callable[..., Store]) -> None:
    store = build()
    assert isinstance(store.sources.ids, np.memmap)
    assert store.sources.ids.dtype == np.uint16
    assert not store.sources.ids.flags.writeable


def test_a_large_vocabulary_takes_wider_ids(tmp_path: Path) -> None:
    words = Tokenizer.train([" ".join(f"w{n}" for n in range(70_000))], kind="words", vocab_size=100_000)
    (tmp_path / "a.tsv").write_text("w69999 w1\tw1\n")
    store = build_store([tmp_path / "a.tsv"], words, words, cache_dir=tmp_path, max_length=9, split="train")
    assert store.sources.ids.dtype == np.uint32
    assert words.decode(store.source(0).tolist()) == "w69999 w1"


def test_text_longer_than_a_chunk_is_all_there(build: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows(build())
    monkeypatch.setattr(store_module, "CHUNK", 2)
    assert rows(build(max_length=8)) == whole


def test_what_was_encoded_is_not_encoded_again(build: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows(build())
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda *_: pytest.fail("encoded again"))
    assert rows(build()) == first


def test_the_cache_goes_by_content(build: Callable[..., Store], tmp_path: Path) -> None:
    build()
    shutil.copy(tmp_path / "train.tsv", tmp_path / "moved.tsv")
    build("moved.tsv")
    assert len(caches(tmp_path)) == 1
    (tmp_path / "train.tsv").write_text("red\tR EH D\n")
    assert len(build()) == 1
    build("moved.tsv", max_length=8)
    build("moved.tsv", too_long="drop")
    build("moved.tsv", on_bad_line="skip")
    assert len(caches(tmp_path)) == 5


def test_another_tokenizer_is_another_cache(build: Callable[..., Store], tmp_path: Path, target: Tokenizer) -> None:
    build()
    other = Tokenizer.train(["redaxyz"], kind="characters")
    store = build_store(
        [tmp_path / "train.tsv"], other, target, cache_dir=tmp_path / "cache", max_length=9, split="train"
    )
    assert other.decode(store.source(3).tolist()) == "reader"


def damage_bytes(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 0xFF
    path.write_bytes(raw)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("damage", [damage_bytes, cut_short, Path.unlink])
@pytest.mark.parametrize("name", [*(f"{name}.npy" for name in store_module.ARRAYS), cache.ABOUT, cache.SUMS])
def test_a_damaged_cache_is_made_again(
    build: Callable[..., Store], tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    first = rows(build())
    damage(caches(tmp_path)[0] / name)
    assert rows(build()) == first
    assert len(caches(tmp_path)) == 1
    assert cache._is_whole(caches(tmp_path)[0])


def test_a_file_where_the_cache_should_be_is_replaced(build: Callable[..., Store], tmp_path: Path) -> None:
    first = rows(build())
    folder = caches(tmp_path)[0]
    shutil.rmtree(folder)
    folder.mkdir()  # empty, as a crash of another program might leave it
    assert rows(build()) == first


def test_of_two_writers_the_first_wins(
    build: Callable[..., Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = cache._write

    def slow(folder: Path, arrays: cache.Arrays, about: dict[str, Any]) -> None:
        write(folder, arrays, about)
        monkeypatch.setattr(cache, "_write", write)
        build()  # another process, meanwhile

    monkeypatch.setattr(cache, "_write", slow)
    assert len(build()) == 4
    assert len(caches(tmp_path)) == 1


def test_too_long_is_an_error_that_names_the_line(build: Callable[..., Store]) -> None:
    with pytest.raises(DataError) as caught:
        build(max_length=5)
    text = str(caught.value)
    for part in ("the source is too long", "6 tokens", "at most 5", "train.tsv:3", 'data.too_long = "truncate"'):
        assert part in text


@pytest.mark.parametrize(
    ("text", "swapped", "message"),
    [
        ("red\tR IY D ER", False, "the target is too long\n  got:    4 tokens{}\n  where:  {}/train.fi:2{}"),
        ("read\tR", False, "the source is too long\n  got:    4 tokens{}\n  where:  {}/train.en:2{}"),
        ("R IY D ER\tred", True, "the target is too long\n  got:    4 tokens{}\n  where:  {}/train.en:2{}"),
        ("R\tread", True, "the source is too long\n  got:    4 tokens{}\n  where:  {}/train.fi:2{}"),
    ],
)
def test_of_parallel_files_the_one_that_holds_the_text_is_named(
    tmp_path: Path, source: Tokenizer, target: Tokenizer, text: str, swapped: bool, message: str
) -> None:
    paths = [tmp_path / "train.en", tmp_path / "train.fi"]
    for path, line in zip(paths, text.split("\t"), strict=True):
        path.write_text(f"d\n{line}\n")
    examples = [as_asked(example, "", swapped=swapped) for example in read_examples(paths)]
    with pytest.raises(DataError) as caught:
        build_store(
            paths, source, target, cache_dir=tmp_path, max_length=3, split="train", read=lambda report: examples
        )
    wanted, remedy = (
        "\n  wanted: at most 3 (data.max_length)",
        '\n  try:    raise data.max_length, or set data.too_long = "truncate" or "drop"',
    )
    assert str(caught.value) == message.format(wanted, tmp_path, remedy)


def test_too_long_is_cut_or_left_out_and_counted(build: Callable[..., Store]) -> None:
    whole = rows(build())
    cut = build(max_length=3, too_long="truncate")
    assert rows(cut) == [(s[:3], t[:3]) for s, t in whole]
    assert (cut.counts.truncated, cut.counts.dropped) == (3, 0)
    for _ in range(2):  # made, and found again
        dropped = build(max_length=4, too_long="drop")
        assert rows(dropped) == whole[:3]
        assert dropped.describe().endswith("0 truncated, 1 dropped, 0 bad lines")


def test_bad_lines_are_remembered_with_the_cache(build: Callable[..., Store], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(LINES + "red\n")
    with pytest.raises(DataError, match=r"train\.tsv:4"):
        build()
    for _ in range(2):
        counts = build(on_bad_line="skip").counts
        assert counts.bad == 1
        assert counts.bad_lines == [(f"{tmp_path / 'train.tsv'}:4", "one column; wanted source, tab, target")]


def test_bad_lines_are_those_of_the_files_that_were_asked_for(build: Callable[..., Store], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(LINES + "red\n")
    build(on_bad_line="skip")
    (tmp_path / "copy").mkdir()
    (tmp_path / "train.tsv").rename(tmp_path / "copy/other.tsv")
    store = build("copy/other.tsv", on_bad_line="skip")
    assert len(caches(tmp_path)) == 1
    assert store.counts.bad_lines == [(f"{tmp_path / 'copy/other.tsv'}:4", "one column; wanted source, tab, target")]


def test_a_bad_line_is_in_the_file_whose_whole_name_it_has() -> None:
    files = [Path("a"), Path("a:1"), Path("b")]
    counts = Counts(bad=3, bad_lines=[("a:1", "x"), ("a:1:2", "y"), ("b: data[0]", "z")])
    about = counts.to_json(files)
    assert about["bad_lines"] == [(0, ":1", "x"), (1, ":2", "y"), (2, ": data[0]", "z")]
    moved = Counts.of_json(json.loads(json.dumps(about)), [Path("c"), Path("d"), Path("e")])
    assert moved == Counts(bad=3, bad_lines=[("c:1", "x"), ("d:2", "y"), ("e: data[0]", "z")])


def test_nothing_to_learn_from_is_an_error_and_leaves_no_cache(build: Callable[..., Store], tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("")
    with pytest.raises(DataError) as caught:
        build()
    assert str(caught.value) == (
        f"the training split holds no example\n  got:    0 examples\n  where:  {tmp_path / 'train.tsv'}\n"
        "  try:    put lines into it, or name another file under train"
    )
    (tmp_path / "train.txt").write_text("read\n")
    with pytest.raises(DataError, match=r"sources, but no targets[\s\S]*two parallel text files"):
        build("train.txt")
    with pytest.raises(DataError, match="no such file"):
        build("train.tvs")
    assert not (tmp_path / "cache").exists()


def test_what_can_be_done_about_a_split_without_examples() -> None:
    assert str(no_example("val", "a.tsv")) == (
        "the validation split holds no example\n  got:    0 examples\n  where:  a.tsv\n"
        "  try:    put lines into it, or name another file under val; or none, and a val_share of the training files"
        " that holds some"
    )
    bad = Counts(bad=2, bad_lines=[("a.tsv:1", "one column"), ("a.tsv:2", "one column")])
    assert str(no_example("test", "a.tsv", bad)) == (
        "the test split holds no example\n  got:    2 bad\n  where:  a.tsv\n"
        "  try:    mend its lines; the first: a.tsv:1: one column"
    )
    assert str(no_example("test", "a.tsv", replace(bad, dropped=3))) == (
        "the test split holds no example\n  got:    3 too long, 2 bad\n  where:  a.tsv\n"
        '  try:    raise data.max_length, or set data.too_long = "truncate"'
    )


def test_a_disk_that_is_full_is_said_to_be_and_left_clean(tmp_path: Path) -> None:
    # A limit on the size of files fails writes for real, in the middle of an array.
    program = """
import resource, signal, sys
from pathlib import Path
from regard.data.store import build_store
from regard.data.tokenizers import Tokenizer
folder = Path(sys.argv[1])
(folder / "a.tsv").write_text("".join(f"{n}\\t{n}\\n" for n in range(9999)))
digits = Tokenizer.train(["0123456789"], kind="characters")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
build_store([folder / "a.tsv"], digits, digits, cache_dir=folder / "cache", max_length=9, split="train")
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "DataError: the encoded text cannot be written" in done.stderr
    assert "the disk took only a part of it, it is probably full" in done.stderr
    assert "try:    free space there, or choose another folder" in done.stderr
    assert str(tmp_path / "cache") in done.stderr
    assert caches(tmp_path) == []


def test_a_column_of_rows() -> None:
    column = Column.of([[5, 6], [], [7]], np.uint16)
    assert [column.row(i).tolist() for i in range(3)] == [[5, 6], [], [7]]
    assert column.lengths.tolist() == [2, 0, 1]
    assert Column.of([], np.uint16).lengths.tolist() == []
