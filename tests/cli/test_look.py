"""`regard look`, `ablate` and `prune` as a user has them, on a trained run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard as package
from regard.cli.look import as_file, file_page
from regard.look.collect import observe
from regard.look.intervene import all_heads, layers
from regard.ops.attention import reference

Command = Callable[..., Any]
TEXT = "a b c d"
THERE = "LAYER.HEAD from 1.1 to 3.4 (in Python (2, 3))"


def document_of(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="doc">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    doc: dict[str, Any] = json.loads(found[1])
    return doc


@pytest.fixture(scope="module")
def opened() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def browser(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> None:
    """A browser that only notes what it is asked for."""
    opened.clear()
    monkeypatch.setattr(webbrowser, "open", opened.append)


@pytest.fixture(scope="module")
def looked(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one text."""
    from regard.cli.main import main

    out = tmp_path_factory.mktemp("look") / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["look", str(trained.run), TEXT, "--out", str(out)])
    assert not ended.value.code
    return out


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_all_of_it(looked: Path) -> None:
    doc = document_of(looked)
    assert (doc["text"], doc["answer"], doc["title"]) == (TEXT, "d c b a", TEXT)
    assert [layer["label"] for layer in doc["layers"]] == ["encoder 1", "decoder 1", "decoder 1, cross"]
    assert [layer["exact"] for layer in doc["layers"]] == ["qk"] * 3
    assert doc["axes"]["source"]["tokens"] == ["a", "b", "c", "d", "</s>"]
    assert doc["axes"]["source"]["offsets"] == [[0, 1], [2, 3], [4, 5], [6, 7], [7, 7]]
    assert doc["axes"]["prefix"]["tokens"] == ["<s>", "d", "c", "b", "a"]
    assert doc["axes"]["target"]["tokens"] == ["d", "c", "b", "a", "</s>"]
    rows = [(layer["rows"], layer["keys"]) for layer in doc["layers"]]
    assert rows == [("source", "source"), ("target", "prefix"), ("target", "source")]
    # it reverses: as it writes a token, the head that aligns reads the one in its place from behind
    assert doc["alignment"]["layer"] == 2
    assert doc["alignment"]["pairs"][:4] == [[0, 3], [1, 2], [2, 1], [3, 0]]
    for name in ("heads", "rollout", "relevance", "card", "ablation"):
        assert doc[name], name
    assert {"rollout", "relevance", "relevance.target"} <= set(doc["tensors"])
    assert doc["tensors"]["relevance"]["shape"] == [5, 5]
    assert len(doc["ablation"]["heads"]) == sum(layer["heads"] for layer in doc["layers"])
    assert {method["name"] for method in doc["card"]["methods"]} >= {"attention", "rollout", "relevance", "random"}
    assert doc["heads"][2][0]["importance"] is not None


def test_the_page_is_offline(looked: Path) -> None:
    text = looked.read_text(encoding="utf-8")
    assert [url for url in re.findall(r"https?://[^\s\"'<>`]+", text) if "www.w3.org" not in url] == []
    assert not re.search(r'<(?:script|link|img)[^>]*(?:src|href)="(?!data:|#)', text)


def test_numbers_are_those_of_the_float64_matrix(regard: Command, trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = regard("look", trained.run, TEXT, "--json", out, "--terminal")
    assert done.code == 0, done.err
    read = json.loads(out.read_text(encoding="utf-8"))
    run = package.load(trained.run, "cpu")
    batch, _ = run.task.pair(TEXT, "d c b a")
    model = run.model.double()
    with torch.no_grad(), observe(model) as trace:
        model.hidden(batch)  # type: ignore[operator]
    for layer, view in zip(read["layers"], trace, strict=True):
        weights = reference(view.call)[1][0]  # type: ignore[attr-defined]
        np.testing.assert_allclose(layer["weights"], weights, atol=1e-5)
        np.testing.assert_allclose(layer["received"], weights.sum(1), atol=1e-5)


def test_it_goes_into_the_run_and_is_named(regard: Command, trained: Any, opened: list[str]) -> None:
    done = regard("look", trained.run, "a b, c!", "--quick")
    path = trained.run / "look" / "a-b-c-5cb2a384.html"
    assert done.out == f"wrote {path}\n"
    doc = document_of(path)
    assert doc["card"] is doc["relevance"] is doc["ablation"] is None
    assert doc["rollout"]
    assert opened == []  # nobody sits before a terminal


def test_pages_of_other_texts_and_targets_do_not_replace_it(regard: Command, trained: Any) -> None:
    def wrote(*words: str) -> tuple[str, str, str]:
        done = regard("look", trained.run, *words, "--quick")
        page = Path(done.out.removeprefix("wrote ").strip())
        assert page.parent == trained.run / "look"
        return page.name, document_of(page)["text"], document_of(page)["answer"]

    plain, loud, marked = wrote("f a"), wrote("F A"), wrote("f-a")
    given, other = wrote("f a", "--target", "c"), wrote("f a", "--target", "d d")
    assert plain[:2] == ("f-a.html", "f a")
    assert [page[0].rpartition("-")[0] for page in (loud, marked, given, other)] == ["f-a"] * 4
    assert len({page[0] for page in (plain, loud, marked, given, other)}) == 5
    assert (given[1:], other[1:]) == (("f a", "c"), ("f a", "d d"))
    assert (wrote("f a"), wrote("f a", "--target", "c")) == (plain, given)  # its own page it replaces


def test_pages_of_files_of_one_name_do_not_replace_each_other(regard: Command, trained: Any, tmp_path: Path) -> None:
    names = []
    for folder in ("one", "two", "one"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "in.txt").write_text("a b\n")
        done = regard("look", trained.run, tmp_path / folder / "in.txt", "--quick")
        names.append(Path(done.out.rpartition("wrote ")[2].strip()).name)
    assert names[0] == names[2] != names[1]
    assert all(re.fullmatch(r"in-txt-[0-9a-f]{8}\.html", name) for name in names)


def test_it_opens_where_somebody_looks(
    regard: Command, trained: Any, opened: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = tmp_path / "a.html"
    assert regard("look", trained.run, "a", "--quick", "--out", out, "--no-open").code == 0
    assert opened == []
    assert regard("look", trained.run, "a", "--quick", "--out", out).code == 0
    assert opened == [out.resolve().as_uri()]


def test_an_answer_of_ones_own(regard: Command, trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    assert regard("look", trained.run, "a b", "--target", "c c c", "--quick", "--out", out).code == 0
    doc = document_of(out)
    assert doc["answer"] == "c c c"
    assert doc["axes"]["target"]["tokens"] == ["c", "c", "c", "</s>"]


def test_heads_off_are_compared_with_the_models_own_answer(regard: Command, trained: Any, tmp_path: Path) -> None:
    own, other = tmp_path / "own.html", tmp_path / "other.html"
    assert regard("look", trained.run, TEXT, "--out", own).code == 0
    assert regard("look", trained.run, TEXT, "--target", "c c c", "--out", other).code == 0
    whole, given = (document_of(path)["ablation"] for path in (own, other))
    assert (whole["answer"], whole["given"]) == ("d c b a", False)
    assert (given["answer"], given["given"]) == ("d c b a", True)
    assert given["loss"] > whole["loss"] + 1  # that of the target, which the model would not have said
    said = ("layer", "head", "answer", "changed")
    assert [[row[name] for name in said] for row in given["heads"]] == [
        [row[name] for name in said] for row in whole["heads"]
    ]


def test_a_text_that_is_html_stays_text(regard: Command, trained: Any, tmp_path: Path) -> None:
    text, out = "</script><script>alert(1)</script> &amp; a", tmp_path / "a.html"
    assert regard("look", trained.run, text, "--quick", "--out", out).code == 0
    written = out.read_text(encoding="utf-8")
    assert "<script>alert" not in written
    assert document_of(out)["text"] == text


@pytest.mark.parametrize("keys", [["method=greedy"], ["beam=3"], ["method=sample", "seed=4", "temperature=2"]])
def test_the_answer_is_what_predict_says(regard: Command, trained: Any, tmp_path: Path, keys: list[str]) -> None:
    out = tmp_path / "a.json"
    answer = regard("predict", trained.run, *keys, stdin=b"f e a b\n").out.strip()
    assert (
        regard("look", trained.run, "f e a b", *keys, "--json", out, "--out", tmp_path / "a.html", "--quick").code == 0
    )
    read = json.loads(out.read_text(encoding="utf-8"))
    assert read["answer"] == answer
    assert [token for token in read["axes"]["target"]["tokens"] if token != "</s>"] == answer.split()


def test_stdin_is_one_text(regard: Command, trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    assert regard("look", trained.run, "-", "--quick", "--out", out, stdin=b"a b\n").code == 0
    assert document_of(out)["text"] == "a b"


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_heat_map_in_the_terminal(regard: Command, trained: Any) -> None:
    done = regard("look", trained.run, TEXT, "--terminal")
    lines = done.out.splitlines()
    assert lines[0].startswith("decoder 1, cross, head ")
    assert lines[0].endswith(": value-weighted")
    cells = {line.split()[0]: line.split()[1:] for line in lines[5:9]}
    assert list(cells) == ["d", "c", "b", "a"]
    # the aligned head reads from behind: its largest cells are those of the other diagonal
    assert [max(range(5), key=lambda i: cells[row][i].replace("·", "0")) for row in "dcba"] == [3, 2, 1, 0]
    assert "\x1b" not in done.out
    assert not (trained.run / "look" / "a-b-c-d.html").exists()  # only a picture was wanted
    raw = regard("look", trained.run, TEXT, "--terminal", "--layer", 1, "--head", 2, "--raw").out
    assert raw.startswith("encoder 1, head 2: weights\n")


def test_numbers_in_a_file_are_announced(regard: Command, trained: Any, tmp_path: Path) -> None:
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    done = regard("look", trained.run, TEXT, "--quick", "--json", out, "--out", page)
    assert done.out == f"wrote {out}\nwrote {page}\n"


@pytest.mark.parametrize(("option", "name", "ending"), [("--png", "a.jpg", ".png"), ("--svg", "a.png", ".svg")])
def test_a_picture_is_what_its_name_says(
    regard: Command, trained: Any, tmp_path: Path, option: str, name: str, ending: str
) -> None:
    refused = regard("look", trained.run, TEXT, option, tmp_path / name)
    assert refused.code == 2
    assert refused.err == (
        "error: the picture is of another kind than its name\n"
        f"  got:    {tmp_path / name}\n  wanted: a name in {ending}\n"
    )
    assert not list(tmp_path.iterdir())


def test_pictures_in_files(regard: Command, trained: Any, tmp_path: Path) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    done = regard("look", trained.run, TEXT, "--png", png, "--svg", svg, "--layer", 3)
    assert done.out == f"wrote {png}\nwrote {svg}\n", done.err
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "decoder 1, cross, head 1" in svg.read_text(encoding="utf-8")


# --- a file of texts --------------------------------------------------------------------------------------------------


def test_a_file_with_gold_alignments(regard: Command, trained: Any, tmp_path: Path) -> None:
    file, out, page = tmp_path / "in.jsonl", tmp_path / "out.json", tmp_path / "out.html"
    lines = []
    for source, target in trained.test[:6]:
        last = len(source.split()) - 1
        gold = " ".join(f"{last - i}-{i}" for i in range(last + 1))
        lines.append(json.dumps({"source": source, "target": [target, "f f"], "alignment": gold}))
    file.write_text("\n".join(lines) + "\n")
    done = regard("look", trained.run, file, "--json", out, "--out", page)
    assert done.code == 0, done.err
    header, first, *_ = done.out.splitlines()
    assert header.split() == [
        *["head", "layer", "entropy", "confidence", "distance", "first", "importance", "error"],
        "error,",
        "read",
        "kinds",
    ]
    assert first.startswith("1.1   encoder 1 ")
    assert "means over 6 texts" in done.out
    assert "Over 6 texts, " in done.out
    read = json.loads(out.read_text(encoding="utf-8"))
    assert read["texts"] == 6
    errors = [head["alignment_error"] for head in read["heads"]]
    assert errors[:8] == [None] * 8  # heads of one text align nothing
    assert min(errors[8:]) < 0.1  # one of the four has learned to read from behind
    assert all(head["importance"] is not None for head in read["heads"])
    assert read["card"]["examples"] == 6
    assert "<td>decoder 1, cross</td>" in page.read_text(encoding="utf-8")


def test_an_alignment_without_links_is_one(regard: Command, trained: Any, tmp_path: Path) -> None:
    """What a head aligns there is wrong; a file of nothing else still has its error rates."""
    file, out = tmp_path / "in.jsonl", tmp_path / "out.json"

    def errors(*alignments: str) -> list[float]:
        lines = [json.dumps({"source": "a b c", "target": "c b a", "alignment": links}) for links in alignments]
        file.write_text("\n".join(lines) + "\n")
        done = regard("look", trained.run, file, "--quick", "--json", out, "--out", tmp_path / "out.html")
        assert done.code == 0, done.err
        heads = json.loads(out.read_text(encoding="utf-8"))["heads"]
        return [head["alignment_error"] for head in heads[8:]]

    best = min(errors("2-0 1-1 0-2"))
    assert best == 0
    # of six links found three are right, of three that there are all: 1 - (3 + 3) / (6 + 3)
    assert min(errors("2-0 1-1 0-2", "")) == pytest.approx(1 / 3)
    assert errors("", " ") == [1, 1, 1, 1]


def test_files_of_sources_alone(regard: Command, trained: Any, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a b\n\nc d e\nf a\n")
    (tmp_path / "in.tsv").write_text("a b\tb a\nc d e\te d c\nf a\ta f\n")
    texts = [regard("look", trained.run, tmp_path / name, "--quick").out for name in ("in.txt", "in.tsv")]
    plain, _, wrote = texts[0].partition("wrote ")
    assert Path(wrote.strip()) == file_page(trained.run, tmp_path / "in.txt")
    assert texts[1].startswith(plain)  # the model's own answers are the right ones
    assert "means over 3 texts" in plain
    assert "means over 2 texts" in regard("look", trained.run, tmp_path / "in.txt", "--quick", "--limit", 2).out
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    done = regard("look", trained.run, tmp_path / "in.txt", "--limit", 1, "--json", out, "--out", page)
    assert "means over 1 text; where a head reads" in done.out
    assert done.out.endswith(f"\nwrote {out}\nwrote {page}\n")
    assert "<p>Means over 1 text. Where" in page.read_text(encoding="utf-8")
    assert "passes 2/2" in done.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            '{"source": "a b", "alignment": "0-0"}',
            "an alignment needs its target\n  got:    no key target\n  where:  {}:1",
        ),
        (
            '{"source": "a", "target": "a", "alignment": "0-1"}',
            "an alignment names a word that is not there\n  got:    0-1",
        ),
        (
            '{"source": "a", "target": 3}',
            "a bad target\n  got:    3\n  wanted: a string that is not empty\n  where:  {}:1",
        ),
        (
            '{"source": "a", "target": "a", "alignment": []}',
            "a bad alignment\n  got:    []\n  wanted: links source-target, as in 0-0 1-2, and 1?2 for one that is "
            "possible, not sure\n  where:  {}:1",
        ),
        (
            '{"source": "a", "target": "a", "alignment": "0-0?"}',
            "a bad alignment\n  got:    0-0?\n  wanted: links source-target, as in 0-0 1-2, and 1?2 for one that is "
            "possible, not sure\n  where:  {}:1",
        ),
        ("nonsense", "a bad line\n  got:    not valid JSON"),
        ("", "there is no text to look at\n  got:    no lines"),
    ],
)
def test_bad_lines(regard: Command, trained: Any, tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(f"{line}\n" if line else "")
    done = regard("look", trained.run, file)
    assert done.code == 2
    assert done.err.startswith("error: " + message.format(file)), done.err


# --- slips of the hand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.jsonl"], "error: no such file\n  got:    nothing.jsonl"),
        ([" "], "error: there is no text to look at\n  got:    ' '\n  wanted: some words"),
        (["a \udcff"], "error: the text is not UTF-8\n  got:    'a \\udcff'"),
        (["a", "--target", ""], "error: there is no target to look at"),
        (["a", "--exact", "1"], "error: heads are not understood\n  got:    1\n  wanted: LAYER.HEAD"),
        (["a", "--exact", "0.1"], "error: heads are not understood"),
        (
            ["a", "--exact", "4.1"],
            f"error: no such head\n  got:    4.1 (in Python (3, 0))\n  wanted: {THERE}\n",
        ),
        (["a", "--terminal", "--head", "1"], "error: a head is one of a layer\n  got:    --head 1"),
        (["a", "--terminal", "--layer", "9"], "error: no such head\n  got:    9.1"),
        ([__file__, "--terminal"], "error: --terminal is about one text\n  got:    --terminal\n"),
        ([__file__, "--port", "8000"], "error: --port is about one text\n"),
        ([__file__, "--raw"], "error: --raw is about one text\n"),
        (["a", "--port", "8000"], "error: --port is that of --live\n  got:    --port\n  wanted: --live --port PORT\n"),
        (["a", "--raw"], "error: --raw is about pictures\n  got:    --raw\n  wanted: --png, --svg or --terminal"),
        (["a", "--layer", "1"], "error: --layer is about pictures\n"),
        (["a", "--layer", "1", "--head", "1", "--out", "/x.html"], "error: --layer is about pictures\n"),
        (["a", "--limit", "2"], "error: --limit is about a file of texts\n"),
        (["a", "--quick", "--thorough"], "error: --quick leaves out what --thorough waits for\n  got:    --quick\n"),
        (["a", "--png", "/no/such/a.png"], "error: the picture cannot be written\n  got:    No such file or directory"),
        (["a", "--out", "/dev/null/a.html", "--quick"], "error: the page cannot be written\n  got:    Not a directory"),
        (["a", "beem=1"], 'unknown key "decode.beem"'),
        (["a", "b"], "error: an override is not understood\n  got:    b"),
        (["a", "--live", "--out", "a.html"], "error: --out is the page of a look that is not served\n"),
        (["a", "--live", "--port", "70000"], "Invalid value for '--port'"),
    ],
)
def test_what_cannot_be_meant(regard: Command, trained: Any, words: list[str], message: str) -> None:
    refused = regard("look", trained.run, *words)
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["look", "a", "--out", "{}/a.html/b.html"], "the page cannot be written\n  got:    Not a directory"),
        (["look", "a", "--out", "{}"], "the page cannot be written\n  got:    a folder\n  wanted: a file"),
        (["look", "a", "--json", "{}"], "the JSON cannot be written\n  got:    a folder\n  wanted: a file"),
        (["look", "a", "--png", "{}/no/a.png"], "the picture cannot be written\n  got:    No such file or directory"),
        (["look", "a", "--svg", "{}/no/a.svg"], "the picture cannot be written\n  got:    No such file or directory"),
        (["look", __file__, "--json", "{}/no/a"], "the JSON cannot be written\n  got:    No such file or directory"),
        (["look", __file__, "--out", "{}"], "the page cannot be written\n  got:    a folder\n  wanted: a file"),
        (["ablate", "--json", "{}/no/a"], "the JSON cannot be written\n  got:    No such file or directory"),
        (
            ["prune", "--keep", "0.5", "--out", "{}/a.html/x"],
            "the new run cannot be written\n  got:    Not a directory",
        ),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(
    regard: Command, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    def works(*_: Any, **__: Any) -> None:
        raise AssertionError("this takes long")

    for name in ("look", "look_at_file", "ablate", "_examples"):
        monkeypatch.setattr(package.run.Run, name, works)
    (tmp_path / "a.html").write_text("mine")
    command, *rest = (word.format(tmp_path) for word in words)
    refused = regard(command, trained.run, *rest)
    assert refused.code == 2
    assert refused.err.startswith(f"error: {message}\n"), refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html"]


def test_bytes_that_are_no_text(regard: Command, trained: Any) -> None:
    assert (
        "not UTF-8: byte 0xff at column 3\n  where:  stdin:1" in regard("look", trained.run, "-", stdin=b"a \xff").err
    )


def test_no_run(regard: Command) -> None:
    assert "error: no such run\n" in regard("look", "no/such/run", "a").err


# --- live -------------------------------------------------------------------------------------------------------------


def test_live_serves_until_it_is_interrupted(trained: Any) -> None:
    # a shell that starts it in the background lets it ignore Ctrl-C: here it must not
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from regard.cli.main import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "look", str(trained.run), TEXT, "--live", "--quick", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        line = server.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", line)
        assert found is not None, line
        with urllib.request.urlopen(f"{found[0]}rows?layer=2&head=0&from=0&to=2", timeout=30) as answer:
            rows = np.frombuffer(answer.read(), "<f4").reshape(2, 5)
        np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-5)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(found[0].rsplit("/", 2)[0], timeout=30)
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert "Traceback" not in server.stderr.read()


# --- heads off --------------------------------------------------------------------------------------------------------


def test_ablate(regard: Command, trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = regard("ablate", trained.run, "--limit", 8, "--json", out)
    assert done.code == 0, done.err
    header, *rows = done.out.splitlines()
    assert header.split()[:4] == ["head", "layer", "loss", "exact_match"]
    assert len(rows) == 14  # twelve heads, what there is with all of them, and where the JSON is
    assert rows.pop() == f"wrote {out}"
    assert rows[-1].startswith("with all heads: loss ")
    read = json.loads(out.read_text(encoding="utf-8"))
    changes = [row["change"] for row in read["heads"]]
    assert [row.split()[0] for row in rows[:-1]] == [
        f"{read['heads'][i]['layer'] + 1}.{read['heads'][i]['head'] + 1}"
        for i in sorted(range(12), key=lambda i: -changes[i])
    ]
    assert max(changes) > 0.1  # the head that aligns is missed
    assert any(row["changed"] for row in read["heads"])
    mean = regard("ablate", trained.run, "--limit", 8, "--mode", "mean", "--heads", "3.1, 1.2", "--loss-only")
    assert sorted(line.split()[0] for line in mean.out.splitlines()[1:3]) == ["1.2", "3.1"]
    assert mean.out.splitlines()[0].split() == ["head", "layer", "loss"]
    every = regard("ablate", trained.run, "--limit", 2, "--heads", "all", "--loss-only")
    assert len(every.out.splitlines()) == 14
    assert {line.split("  ")[1].strip() for line in rows[:-1]} == {"encoder 1", "decoder 1", "decoder 1, cross"}


def heads_of_a_file(run: Any, folder: Path) -> list[dict[str, Any]]:
    (folder / "in.txt").write_text("a b\nc d e\n")
    rows: list[dict[str, Any]] = run.look_at_file(folder / "in.txt", quick=True).rows()
    return rows


def test_prune_makes_a_run(regard: Command, trained: Any, tmp_path: Path) -> None:
    new = tmp_path / "half"
    done = regard("prune", trained.run, "--keep", "0.5", "--out", new, "--limit", 8)
    assert done.code == 0, done.err
    header, *rows = done.out.splitlines()
    assert header.split()[:2] == ["heads", "loss"]
    assert [row.split()[0] for row in rows[:-2]] == ["12", "11", "10", "9", "8", "7", "6"]
    assert rows[-2:] == [
        "which heads go: by train; what the rest is worth: by val",
        f"wrote {new}: 6 of 12 heads",
    ]
    points = json.loads((new / "prune.json").read_text(encoding="utf-8"))
    assert [point["kept"] for point in points] == list(range(12, 5, -1))
    assert (new / "prune.png").exists()
    # it is a run as any other, and worth just what the curve says
    assert regard("predict", new, stdin=b"a b\n").code == 0
    assert regard("evaluate", new, "--split", "val").code == 0
    run = package.load(new, "cpu")
    out = layers(run.model)
    gone = [
        (name, head) for name, head in all_heads(run.model) if not out[name].heads(out[name].out.weight)[:, head].any()
    ]
    assert sorted(gone) == sorted(map(tuple, points[-1]["pruned"]))
    # what they read is still shown, and said to be given to nobody
    doc = run.look(TEXT).document().doc
    names = [layer["name"] for layer in doc["layers"]]
    silent = [
        (names[i], head)
        for i, heads in enumerate(doc["heads"])
        for head, found in enumerate(heads)
        if found["kinds"] == ["nothing"]
    ]
    assert sorted(silent) == sorted(gone)
    assert [row["kinds"] == ["nothing"] for row in heads_of_a_file(run, tmp_path)] == [
        (names[i], head) in gone for i in range(3) for head in range(4)
    ]
    loss = run.ablate([], limit=8, answers=False)["loss"]
    assert loss == pytest.approx(points[-1]["loss"], rel=1e-5)
    assert package.load(trained.run, "cpu").ablate([], limit=8, answers=False)["loss"] == pytest.approx(
        points[0]["loss"]
    )
    assert "look" not in os.listdir(new)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ablate", "--heads", "9.1"], f"error: no such head\n  got:    9.1 (in Python (8, 0))\n  wanted: {THERE}\n"),
        (["ablate", "--heads", "1.9"], f"error: no such head\n  got:    1.9 (in Python (0, 8))\n  wanted: {THERE}\n"),
        (["ablate", "--split", "dev"], "error: no such split\n  got:    dev"),
        (["prune", "--keep", "0", "--out", "{}/new"], "error: keep is a share of the heads\n  got:    0.0"),
        (["prune", "--keep", "1.5", "--out", "{}/new"], "error: keep is a share of the heads\n  got:    1.5"),
        (["prune", "--keep", "0.5", "--out", "{}"], "error: the folder of the new run is not empty"),
    ],
)
def test_what_cannot_be_switched_off(
    regard: Command, trained: Any, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "a file").write_text("mine")
    command, *rest = (word.format(tmp_path) for word in words)
    refused = regard(command, trained.run, *rest)
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err


def test_a_paragraph_is_no_file_name() -> None:
    assert as_file("A man is in the park. " * 16 + "Is he happy?") is None
