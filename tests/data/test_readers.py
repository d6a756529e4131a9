"""Every format in, every kind of bad line named."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data.readers import ReadReport, read_examples
from regard.errors import DataError
from regard.types import Example


def sides(paths: list[Path]) -> list[tuple[str, tuple[str, ...]]]:
    return [(example.source, example.targets) for example in read_examples(paths, on_bad_line="error")]


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_parallel_files_give_a_pair_a_line_with_its_place(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.en", "one\ntwo\n"), write(tmp_path / "a.zh", "一\n二")]  # the last line may end so
    assert list(read_examples(paths)) == [
        Example("one", ("一",), f"{paths[0]}:1", target_place=f"{paths[1]}:1"),
        Example("two", ("二",), f"{paths[0]}:2", target_place=f"{paths[1]}:2"),
    ]


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_compressed_files_are_read_as_they_are(tmp_path: Path, suffix: str, opener: Callable[..., object]) -> None:
    path = tmp_path / f"train.tsv{suffix}"
    with opener(path, "wb") as file:  # type: ignore[attr-defined]
        file.write(b"a\tb\n")
    assert sides([path]) == [("a", ("b",))]


@pytest.mark.parametrize("header", ["source\ttarget\n", "SRC\ttgt\n", "\ufeffsource\ttarget\n", ""])
def test_a_header_row_is_detected(tmp_path: Path, header: str) -> None:
    report = ReadReport()
    path = write(tmp_path / "a.tsv", header + "x\ty\n")
    assert [example.source for example in read_examples([path], report=report)] == ["x"]
    assert report.read == 1


def test_only_the_first_row_can_be_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "x\ty\nsource\ttarget\n")
    assert sides([path]) == [("x", ("y",)), ("source", ("target",))]


def test_language_codes_are_no_header(tmp_path: Path) -> None:
    assert sides([write(tmp_path / "a.tsv", "en\tzh\n")]) == [("en", ("zh",))]


def test_further_columns_are_variants(tmp_path: Path) -> None:
    assert sides([write(tmp_path / "a.tsv", "read\tR EH D\tR IY D\n")]) == [("read", ("R EH D", "R IY D"))]


def test_summaries_have_names_of_their_own(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "document\tsummary\na b c\ta\n")
    assert sides([path]) == [("a b c", ("a",))]
    lines = [
        {"fname": "1", "dialogue": "a\nb", "summary1": "c", "topic1": "t", "summary2": "d"},
        {"document": ["a", "b"], "summary": ["c", "d"]},
    ]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert sides([path]) == [("a\nb", ("c", "d"))] * 2
    path = write(tmp_path / "b.jsonl", json.dumps({"document": ["a", 1], "summary": "c"}))
    with pytest.raises(DataError, match="the source is not a string: 1"):
        sides([path])


def test_jsonl_targets_are_a_string_or_variants(tmp_path: Path) -> None:
    lines = [{"source": "a", "target": "b"}, {"source": "c", "target": ["d", "e"], "id": 7}]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert sides([path]) == [("a", ("b",)), ("c", ("d", "e"))]


def test_one_text_file_is_sources_and_keeps_empty_lines(tmp_path: Path) -> None:
    assert sides([write(tmp_path / "a.txt", "a\n\nb\n")]) == [("a", ()), ("", ()), ("b", ())]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.tsv", "a\nb\t\n"), ("b.tsv", "source\na\nb\n"), ("a.jsonl", '{"source": "a"}\n{"source": "b", "target": ""}')],
)
def test_sources_are_enough_to_predict_from(tmp_path: Path, name: str, content: str) -> None:
    found = list(read_examples([write(tmp_path / name, content)], need_targets=False))
    assert [(example.source, example.targets) for example in found] == [("a", ()), ("b", ())]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    odd = "a\u2028b\x0bc\x0cd\x85e\x1cf\rg"
    assert sides([write(tmp_path / "a.tsv", f"{odd}\tx\r\ny\tz\r\n")]) == [(odd, ("x",)), ("y", ("z",))]


@pytest.mark.parametrize("suffix", [".en", ".tsv", ".jsonl"])
def test_an_empty_file_has_no_examples(tmp_path: Path, suffix: str) -> None:
    assert sides([write(tmp_path / f"a{suffix}", "")]) == []


BAD = {
    "undecodable": ("a.tsv", b"ok\tok\nab\xe9\tb\n", "not UTF-8: byte 0xe9 at column 3"),
    "one column": ("a.tsv", b"ok\tok\nab\n", "one column; wanted source, tab, target"),
    "blank line": ("a.tsv", b"ok\tok\n\n", "one column; wanted source, tab, target"),
    "no source": ("a.tsv", b"ok\tok\n \tb\n", "the source is empty"),
    "no target": ("a.tsv", b"ok\tok\na\t\n", "the target is empty"),
    "no variant": ("a.tsv", b"ok\tok\na\tb\t\n", "the target in column 3 is empty"),
    "no JSON": ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": \n', "not valid JSON: Expecting value"),
    "no object": ("a.jsonl", b'{"source": "a", "target": "b"}\n[1]\n', "not a JSON object"),
    "no key": ("a.jsonl", b'{"source": "a", "target": "b"}\n{"src": "a", "target": "b"}\n', 'no key "source"; there'),
    "no string": ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": 3, "target": "b"}\n', "not a string: 3"),
    "no variants": ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "a", "target": []}\n', "target is empty"),
    "surrogate": ("a.jsonl", b'{"source": "a", "target": "b"}\n{"source": "\\ud800", "target": "b"}\n', "surrogate"),
    "deep JSON": ("a.jsonl", b'{"source": "a", "target": "b"}\n' + b"[" * 200_000, "not valid JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_an_error_that_names_it(tmp_path: Path, case: str) -> None:
    name, content, reason = BAD[case]
    with pytest.raises(DataError) as caught:
        list(read_examples([write(tmp_path / name, content)], report=ReadReport()))
    assert f"{name}:2" in str(caught.value)
    assert reason in str(caught.value)
    assert 'data.on_bad_line = "skip"' in str(caught.value)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_line_is_counted_and_named_when_skipped(tmp_path: Path, case: str) -> None:
    name, content, reason = BAD[case]
    report = ReadReport()
    found = list(read_examples([write(tmp_path / name, content)], on_bad_line="skip", report=report))
    assert len(found) == report.read == report.num_bad == 1
    assert report.bad[0][0].endswith(f"{name}:2")
    assert reason in report.bad[0][1]


def test_a_bad_line_of_parallel_files_names_its_own_file_and_skips_both_sides(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.en", b"1\n\xff\n3\n4\n"), write(tmp_path / "a.de", b"1\n2\n \n4\n")]
    report = ReadReport()
    found = [example.source for example in read_examples(paths, on_bad_line="skip", report=report)]
    assert found == ["1", "4"]
    assert [Path(place).name for place, _ in report.bad] == ["a.en:2", "a.de:3"]
    with pytest.raises(DataError, match=r"a\.en:2"):
        list(read_examples(paths, on_bad_line="error"))


def test_the_report_names_twenty_and_counts_all(tmp_path: Path) -> None:
    report = ReadReport()
    list(read_examples([write(tmp_path / "a.tsv", "x\n" * 50)], on_bad_line="skip", report=report))
    assert (len(report.bad), report.num_bad) == (20, 50)
    assert report.describe().startswith(f"{tmp_path / 'a.tsv'}: 0 examples, 50 bad lines skipped\n")
    assert report.describe().endswith("and 30 more")


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_parallel_files_of_different_length_are_refused_with_both_counts(tmp_path: Path, policy: str) -> None:
    paths = [write(tmp_path / "a.en", "1\n2\n"), write(tmp_path / "a.de", "1\n2\n3\n4\n5\n")]
    with pytest.raises(DataError, match=r"2 lines in .*a\.en, 5 in .*a\.de"):
        list(read_examples(paths, on_bad_line=policy))  # type: ignore[arg-type]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_truncated_or_damaged_archive_is_said_to_be(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    whole = compress("".join(f"{n}\t{n * n}\n" for n in range(9999)).encode())
    with pytest.raises(DataError, match="truncated"):
        sides([write(tmp_path / f"a.tsv{suffix}", whole[: len(whole) // 2])])
    middle = len(whole) // 2
    with pytest.raises(DataError, match="damaged"):
        sides([write(tmp_path / f"b.tsv{suffix}", whole[:middle] + b"\0\xff\0\xff" * 9 + whole[middle + 36 :])])
    with pytest.raises(DataError, match="damaged"):
        sides([write(tmp_path / f"c.tsv{suffix}", "a\tb\n" * 99)])


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "a\tb\n")
    with pytest.raises(DataError, match=r"did you mean .*train\.tsv\?"):
        sides([tmp_path / "trian.tsv"])
    with pytest.raises(DataError, match=r"folder .*nowhere is not there"):
        sides([tmp_path / "nowhere" / "train.tsv"])
    with pytest.raises(DataError, match="a folder where a file is wanted"):
        sides([tmp_path])


def test_files_that_make_no_split_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n")
    with pytest.raises(DataError, match="stands alone"):
        sides([path, path])
    with pytest.raises(DataError, match="3 files"):
        sides([path, path, path])
    with pytest.raises(DataError, match="iconv"):
        sides([write(tmp_path / "b.tsv", "a\tb\n".encode("utf-16"))])


@pytest.mark.parametrize("row", ["id\tsource\ttarget", "target\tsource", "Source\tid\tTarget", "tgt\tsrc"])
@pytest.mark.parametrize("need_targets", [True, False])
def test_named_columns_in_another_order_are_refused(tmp_path: Path, row: str, need_targets: bool) -> None:
    path = write(tmp_path / "a.tsv", f"{row}\n1\ta\tb\n")
    with pytest.raises(DataError, match=r"wanted: source, target, and further targets[\s\S]*a\.tsv:1"):
        list(read_examples([path], on_bad_line="skip", need_targets=need_targets))
    assert sides([write(path, "src\ttarget\na\tb\n")]) == [("a", ("b",))]


def test_a_nul_byte_makes_a_bad_line(tmp_path: Path) -> None:
    report = ReadReport()
    paths = [write(tmp_path / "a.en", b"1\n2\0\n3\n"), write(tmp_path / "a.de", b"1\n2\n3\n")]
    assert [example.source for example in read_examples(paths, on_bad_line="skip", report=report)] == ["1", "3"]
    assert report.bad == [(f"{paths[0]}:2", "a NUL byte at column 2: not text, or not UTF-8")]
