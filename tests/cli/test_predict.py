"""`regard predict`: what goes in, what comes out, in which form, and that much of it fits."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.cli import jobs
from regard.types import Prediction

Command = Callable[..., Any]
SOURCES = ["a b c", "", "f e", "d d a b"]
TEXT = "".join(f"{source}\n" for source in SOURCES)


@pytest.fixture
def answers(regard: Command, trained: Any) -> list[str]:
    done = regard("predict", trained.run, stdin=TEXT.encode())
    assert done.code == 0, done.err
    return done.out.removesuffix("\n").split("\n")


def test_a_line_in_a_line_out_in_order(regard: Command, trained: Any, answers: list[str]) -> None:
    assert len(answers) == 4
    assert answers[1] == ""
    alone = [regard("predict", trained.run, stdin=f"{source}\n".encode()).out for source in SOURCES]
    assert alone == [f"{answer}\n" for answer in answers]


def test_text_without_a_last_newline(regard: Command, trained: Any, answers: list[str]) -> None:
    assert regard("predict", trained.run, stdin=b"a b c\r\n\nf e").out == "".join(f"{a}\n" for a in answers[:3])


@pytest.mark.parametrize("name", ["in.txt", "in.txt.gz"])
def test_files_and_out(regard: Command, trained: Any, answers: list[str], tmp_path: Path, name: str) -> None:
    path, out = tmp_path / name, tmp_path / "out.txt"
    path.write_bytes(gzip.compress(TEXT.encode()) if name.endswith(".gz") else TEXT.encode())
    done = regard("predict", trained.run, path, "--out", out)
    assert (done.code, done.out) == (0, ""), done.err
    assert out.read_text() == "".join(f"{answer}\n" for answer in answers)


def test_sources_of_a_data_file(regard: Command, trained: Any, answers: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text("a b c\tx\n\nf e\n")
    assert regard("predict", trained.run, tmp_path / "in.tsv").out == "".join(f"{answer}\n" for answer in answers[:3])
    (tmp_path / "in.jsonl").write_text('{"source": "f e"}\n')
    assert regard("predict", trained.run, tmp_path / "in.jsonl").out == f"{answers[2]}\n"


def test_nothing_in_nothing_out(regard: Command, trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert regard("predict", trained.run, "--out", out).code == 0
    assert out.read_text() == ""


def test_n_best_and_scores(regard: Command, trained: Any, answers: list[str]) -> None:
    done = regard("predict", trained.run, "--n-best", 3, "--scores", stdin=b"a b c\n\nf e\n")
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert len(rows) == 9
    assert [rows[0][1], rows[3][1], rows[6][1]] == answers[:3]
    assert rows[4:6] == [["-inf", ""]] * 2  # the empty line has but one answer
    scores = [float(score) for score, _ in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)


def test_n_best_is_n_lines_a_source_where_fewer_are_found(regard: Command, trained: Any) -> None:
    for words, row in (([], ""), (["--format", "tsv"], "\t")):
        done = regard("predict", trained.run, "--n-best", 4, *words, "max_length=1", stdin=b"\na\n\n")
        assert done.out.count("\n") == 12
        assert done.out.split("\n")[:4] == [row] * 4
    assert jobs.padded(Prediction(("a",), (-1.0,)), 2) == Prediction(("a", ""), (-1.0, float("-inf")))


def test_a_failure_leaves_the_old_output_and_nothing_else(regard: Command, trained: Any, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    out, link = tmp_path / "folder" / "out", tmp_path / "link"
    out.write_text("precious")
    out.chmod(0o600)
    link.symlink_to(out)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a b\n")[:-4])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "CHUNK", 1)
        refused = regard("predict", trained.run, tmp_path / "cut.gz", "--out", out)
        assert refused.err.startswith("error: the compressed file is truncated\n")
        assert out.read_text() == "precious"
        assert regard("predict", trained.run, "--out", link, stdin=b"a b\na c\n").code == 0
    assert out.read_text() == "b a\nc a\n"
    assert out.stat().st_mode & 0o777 == 0o600
    assert link.is_symlink()
    assert list(out.parent.iterdir()) == [out]
    assert regard("predict", trained.run, "--out", "/dev/null", stdin=b"a b\n").code == 0


def test_tsv_and_jsonl(regard: Command, trained: Any, answers: list[str]) -> None:
    tsv = regard("predict", trained.run, "--format", "tsv", stdin=b"a b c\n").out
    assert tsv == f"a b c\t{answers[0]}\n"
    plain = json.loads(regard("predict", trained.run, "--format", "jsonl", stdin=b"a b c\n").out)
    assert plain == {"source": "a b c", "target": answers[0]}
    words = ["--format", "jsonl", "--n-best", "2", "--scores"]
    best = json.loads(regard("predict", trained.run, *words, stdin=b"a b c\n").out)
    assert best["target"][0] == answers[0]
    assert len(best["target"]) == len(best["score"]) == 2
    tsv = regard("predict", trained.run, "--format", "tsv", "--scores", stdin=b"a b c\n").out
    assert [tsv.split("\t")[0], tsv.split("\t")[1]] == ["a b c", answers[0]]


def test_the_forms_of_jsonl(regard: Command, trained: Any, answers: list[str], tmp_path: Path) -> None:
    """One output alone, several always in a list, whatever was found; no score where nothing could be read."""
    long, run = " ".join("a" * 400), Path(shutil.copytree(trained.run, tmp_path / "run"))
    strict = re.sub("too_long = .*", 'too_long = "error"', (run / "recipe.toml").read_text())
    (run / "recipe.toml").write_text(strict)

    def records(*words: object) -> list[dict[str, Any]]:
        done = regard("predict", run, "--format", "jsonl", *words, stdin=f"a b c\n\n{long}\n".encode())
        assert done.code == 2, done.err
        return [json.loads(line) for line in done.out.splitlines()]

    assert records() == [
        {"source": "a b c", "target": answers[0]},
        {"source": "", "target": ""},
        {"source": long, "target": ""},
    ]
    (found, empty, unread), asked = records("--scores"), {"source": "", "target": "", "score": 0.0}
    assert (type(found["score"]), empty, unread) == (float, asked, {"source": long, "target": "", "score": None})
    (found, empty, unread), asked = records("--scores", "--n-best", 3), {"source": "", "target": [""], "score": [0.0]}
    assert (len(found["target"]), len(found["score"])) == (3, 3)
    assert (empty, unread) == (asked, {"source": long, "target": [""], "score": [None]})
    tsv = regard("predict", run, "--scores", "--n-best", 2, stdin=f"{long}\n".encode())
    assert tsv.out == "-inf\t\n-inf\t\n"


def test_keys_of_decode(regard: Command, trained: Any, answers: list[str]) -> None:
    assert regard("predict", trained.run, "method=greedy", stdin=TEXT.encode()).code == 0
    assert regard("predict", trained.run, "decode.beam=1", "max_length=1", stdin=b"a b c d\n").out == "d\n"
    wrong = regard("predict", trained.run, "beem=1", stdin=b"a\n")
    assert wrong.code == 2
    assert 'did you mean "decode.beam"?' in wrong.err
    wrong = regard("predict", trained.run, "train.seed=1", stdin=b"a\n")
    assert wrong.err.startswith("error: only keys of [decode] can be set here\n")
    wrong = regard("predict", trained.run, "--n-best", "9", stdin=b"a\n")
    assert "n_best (9) must not be larger than beam (5)" in wrong.err


def test_parts_give_the_same_as_the_whole(regard: Command, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"{source}\n" for source, _ in trained.test[:20]).encode()
    for words in ([], ["method=sample", "seed=3"]):
        whole = regard("predict", trained.run, *words, stdin=text).out
        with monkeypatch.context() as patch:
            patch.setattr(jobs, "CHUNK", 7)
            assert regard("predict", trained.run, *words, stdin=text).out == whole


def test_a_wrong_key_leaves_the_output_file_alone(regard: Command, trained: Any, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a b\n")
    out = tmp_path / "out"
    out.write_text("precious")
    assert regard("predict", trained.run, tmp_path / "in", "beem=1", "--out", out).code == 2
    assert out.read_text() == "precious"
    refused = regard("predict", trained.run, out, "--out", out)
    assert refused.err.startswith("error: the output would replace the input\n")
    assert out.read_text() == "precious"


def test_a_disk_that_takes_only_a_part_leaves_the_old_answers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("precious")
    code = (
        "import resource, sys, pathlib\n"
        "from regard.cli.jobs import Output\n"
        "from regard.errors import DataError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with Output(pathlib.Path(sys.argv[1])) as output: output.write('a' * 100_000)\n"
        "except DataError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, check=False)
    assert done.stdout == f"the output cannot be written\n  got:    File too large\n  where:  {out}\n", done.stderr
    assert out.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.txt"], "error: no such file\n  got:    nowhere.txt"),
        (["a", "b"], "error: predict reads one file\n  got:    a, b"),
        (["--out", "no/such/folder/out"], "error: the output cannot be written\n  got:    No such file or directory"),
        (["max_ratio=inf"], "error: max_ratio is out of range\n  got:    inf"),
        (["--device", "cuda:99"], "error: "),
        (["--device", "abacus"], "error: no such device\n  got:    abacus"),
        (["--format", "xml"], "Invalid value for '--format'"),
    ],
)
def test_what_cannot_be_meant(regard: Command, trained: Any, words: list[str], message: str) -> None:
    refused = regard("predict", trained.run, *words, stdin=b"a b\n")
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err


def test_a_line_that_is_no_text_is_named_and_the_others_are_answered(
    regard: Command, trained: Any, answers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 3)
    text, out = b"a b c\n\xff\n\xfe\n\nf e\na\0b\n", f"{answers[0]}\n\n\n\n{answers[2]}\n\n"

    def errors(name: object) -> str:
        named = ((2, "not UTF-8: byte 0xff at column 1"), (3, "not UTF-8: byte 0xfe at column 1"))
        named = (*named, (6, "a NUL byte at column 2: not text, or not UTF-8"))
        told = "".join(
            f"error: a bad line\n  got:    {why}\n  where:  {name}:{line}\n  try:    mend the line\n"
            for line, why in named
        )
        return f"{told}3 lines could not be read: the answer is empty there\n"

    done = regard("predict", trained.run, stdin=text)
    assert (done.code, done.out, done.err) == (2, out, errors("stdin"))
    path = tmp_path / "in.txt"
    path.write_bytes(text)
    done = regard("predict", trained.run, path)
    assert (done.code, done.out, done.err) == (2, out, errors(path))
    done = regard("predict", trained.run, path, "--format", "jsonl", "--scores", "--prefix", "a")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row for row in rows if row["score"] is None] == [{"source": "", "target": "", "score": None}] * 3
    assert [row["source"] for row in rows] == ["a b c", "", "", "", "f e", ""]


def test_many_lines_that_are_no_text_keep_their_places(regard: Command, trained: Any, answers: list[str]) -> None:
    done = regard("predict", trained.run, stdin=b"\xff\n" * 50 + b"a b c\n")
    assert done.out == "\n" * 50 + f"{answers[0]}\n"
    assert (done.err.count("error: "), done.err.splitlines()[-1][:8]) == (20, "50 lines")


def test_a_record_that_cannot_be_read_is_named_as_a_line_is(regard: Command, trained: Any, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a b"}\n{"source": "a b"}\n')
    done = regard("predict", trained.run, path)
    assert (done.code, done.out) == (2, "\nb a\n")
    assert done.err.startswith(f'error: a bad line\n  got:    no key "source"; there are: text\n  where:  {path}:1\n')


def test_what_is_no_utf8_altogether_is_refused(regard: Command, trained: Any) -> None:
    refused = regard("predict", trained.run, stdin="a b\n".encode("utf-16"))
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith("error: the file is UTF-16\n  got:    stdin\n")
    plain = regard("predict", trained.run, stdin=b"a b\n").out
    assert regard("predict", trained.run, stdin=b"\xef\xbb\xbfa b\n").out == plain


def test_a_reader_that_has_seen_enough_is_no_error(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a b c\n" * 3000)
    code = (
        "import sys; from regard.cli import jobs; jobs.CHUNK = 8; from regard.cli.main import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "predict", trained.run, tmp_path / "in.txt", "method=greedy"]
    script = f"{shlex.join(map(str, command))} | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=os.environ)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
