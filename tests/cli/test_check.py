"""`regard data check`: what it understands of a file, what it finds wrong, how it ends."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard import tasks
from regard.fitting.check import ROWS, check

Command = Callable[..., Any]
BAD = (
    b"\xef\xbb\xbfsentiment\tcomment\r\ngood\tI liked it\r\nGood\tfine\r\nbad \tI left\r\n"
    b"I really enjoyed it\tgood\r\nno tab  here\r\n\tno label\r\ngood\t\r\ngood\tnul\x00byte\r\nbad\tlat\xe4in\r\n"
    b"good\tI liked it\nbad\tI liked it\n"
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, text: str | bytes) -> Path:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Path(name)


def said(task: str, *files: Path, **options: Any) -> list[str]:
    return list(check(task, files, **options).lines())


def test_a_good_file_is_told_and_usable(regard: Command, here: Path) -> None:
    put("a.tsv", "label\ttext\ngood\tI liked it\nbad\t太长了\ngood\tsuch a cast\n")
    done = regard("data", "check", "a.tsv", "--task", "classification")
    assert done.code == 0, done.err
    assert done.out == (
        "a.tsv, as classification reads it\n"
        "format: columns with a tab between (.tsv), 2 in the first row\n"
        "header: the first row names the columns: label, text\n"
        "examples: 3\n"
        "text: Latin 85%, Han 15%; words: median 3, 95 % within 3, longest 3, "
        "characters: median 10, 95 % within 11, longest 11\n"
        "labels: 2: good 2, bad 1\n"
        "repeated: 0; the same with another answer: 0\n"
        "the first as they were read:\n"
        "  a.tsv:2\n    text: I liked it\n    label: good\n"
        "  a.tsv:3\n    text: 太长了\n    label: bad\n"
        "  a.tsv:4\n    text: such a cast\n    label: good\n"
        "bad lines: none\n"
        'suspicious: 1\n  1 label seen once: "bad"\n'
        "next: regard new classification --train a.tsv --out a.toml\n"
    )


def test_everything_that_is_wrong_is_named(regard: Command, here: Path) -> None:
    put("c.tsv", BAD)
    done = regard("data", "check", "c.tsv", "--task", "classification")
    assert done.code == 1
    tail = done.out[done.out.index("bad lines:") :]
    assert tail == (
        "bad lines: 5, each an error in training (or left out, on_bad_line = skip)\n"
        "  c.tsv:6: no label; wanted label and text\n"
        "  c.tsv:7: the label is empty\n"
        "  c.tsv:8: the text is empty\n"
        "  c.tsv:9: a NUL byte at column 9: not text, or not UTF-8\n"
        "  c.tsv:10: not UTF-8: byte 0xe4 at column 8\n"
        "suspicious: 7\n"
        "  c.tsv:1: the first row (sentiment, comment) looks like names of columns and was read as an example\n"
        '  3 labels seen once: "sentiment", "Good", "I really enjoyed it"\n'
        '  labels that differ in case, spaces or signs alone: "good" (2) and "Good" (1)\n'
        "  c.tsv:1, c.tsv:5: the label is longer than the text: are the columns swapped? (2 times)\n"
        "  c.tsv:1: a mark of UTF-8 (BOM), which is left out\n"
        "  c.tsv:6: no tab, but spaces or commas: what parts the columns is one tab\n"
        "  c.tsv: line ends of Windows (CRLF) in 10 of its lines, which are left out\n"
        "next: regard new classification --train c.tsv --out c.toml\n"
    )
    assert "repeated: 1; the same with another answer: 1\n" in done.out
    table = json.loads(regard("data", "check", "c.tsv", "--task", "classification", "--json").out)
    assert (table["usable"], table["examples"], table["bad_lines"], len(table["suspicious"])) == (False, 7, 5, 7)
    assert table["bad"][0] == {"place": "c.tsv:6", "reason": "no label; wanted label and text"}
    assert table["labels"] == {"good": 2, "bad": 2, "sentiment": 1, "Good": 1, "I really enjoyed it": 1}
    assert table["columns"]["text"]["words"] == {"median": 2, "95%": 3, "longest": 3}


def test_ten_bad_lines_are_named_and_all_counted(here: Path) -> None:
    lines = said("translation", put("a.tsv", "one\tuna\n" + "one column\n" * 30))
    assert "bad lines: 30, each an error in training (or left out, on_bad_line = skip)" in lines
    assert sum("one column; wanted" in line for line in lines) == 10
    assert "  and 20 more" in lines


def test_several_labels_are_seen_or_told(regard: Command, here: Path) -> None:
    file = put("m.tsv", "red,blue\tthe sky at night\nred\ta rose in bloom\n\ta cloud is white\n")
    found = check("classification", [file])
    assert found.labels == {"red": 2, "blue": 1}
    assert (found.several, found.without, found.is_usable) == (1, 1, True)
    alone = check("classification", [file], multi_label=False)
    assert alone.labels == {"red,blue": 1, "red": 1}
    assert alone.report.bad == [("m.tsv:3", "the label is empty")]
    wrong = regard("data", "check", "m.tsv", "--task", "translation", "--multi-label")
    assert wrong.code == 2
    assert "labels are counted for classification alone\n  got:    translation" in wrong.err


def test_tags_that_are_read_all_the_same_do_not_fail(here: Path) -> None:
    found = check("tagging", [put("t.conll", "Ann B-per\nlives O\nin\tO\nParis\tI-loc\n")])
    assert found.is_usable
    lines = list(found.lines())
    assert lines[1] == "format: CoNLL, a token and its tag a line; tags in BIO, read by words"
    assert "    marked: [Ann](per) lives in [Paris](loc)" in lines
    assert "lines that are wrong and read all the same: 1" in lines
    assert "  t.conll:4: I-loc after O in BIO; read as conlleval does" in lines
    assert "  t.conll: tabs part the columns in 2 lines, spaces in 2" in lines
    assert not check("tagging", [put("u.conll", "Ann B-per\nlives\n\nBob B-per\n")]).is_usable


def test_pairs_that_hardly_belong_together(here: Path) -> None:
    lines = said("translation", put("p.tsv", f"a\tb\nx y\tx y\nlong\t{'far too long ' * 9}\n"))
    assert "  p.tsv:2: both sides are the same" in lines
    assert "  p.tsv:3: one side is more than 10 times as long: do they belong together?" in lines


def test_two_splits(regard: Command, here: Path) -> None:
    put("train.tsv", "good\tone\nbad\ttwo\ngood\tthree\nbad\tfour\n")
    put("val.tsv", "good\tone\ngood\ttwo\nnew\tfive\nno label\n")
    done = regard("data", "check", "train.tsv", "--task", "classification", "--against", "val.tsv")
    assert done.code == 0, done.err
    assert "also in val.tsv: 2 of its 3, 1 with the same answer\n" in done.out
    assert "val.tsv: 2 of its examples stand in both: what is judged by was learned before\n" in done.out
    assert "val.tsv: 1 bad lines: check it as well\n" in done.out
    assert "val.tsv: labels that train.tsv has not: new\n" in done.out
    assert done.out.endswith("--train train.tsv --val val.tsv --out train.toml\n")


def test_parallel_files_may_be_given_on_both_sides(regard: Command, here: Path) -> None:
    for name in ("a.en", "a.de", "b.en", "b.de"):
        put(name, f"{name} one\n{name} two\n")
    done = regard("data", "check", "a.en", "a.de", "--task", "translation", "--against", "b.en", "b.de")
    assert done.code == 0, done.err
    assert "a.en + a.de, as translation reads it\nformat: 2 text files, line n of the one" in done.out
    assert done.out.endswith("next: regard new translation --train a.en a.de --val b.en b.de --out a.toml\n")
    put("a.de", "one\n")
    uneven = regard("data", "check", "a.en", "a.de", "--task", "translation")
    assert uneven.code == 1
    assert "error: parallel files differ in their number of lines\n  got:    2 lines in a.en, 1 in a.de\n" in uneven.out
    assert uneven.out.endswith("next: mend this, then check again\n")


@pytest.mark.parametrize(
    ("task", "name", "text", "form", "first"),
    [
        (
            "question-answering",
            "q.tsv",
            "Who?\tI did.\tI\n",
            "columns with a tab between (.tsv), 3",
            "    text: I did.",
        ),
        (
            "question-answering",
            "q.jsonl",
            '{"question": "Who?", "context": "I did.", "answers": []}\n',
            "an object a line (.jsonl) with the keys question, context, answers",
            "    question: Who?",
        ),
        ("summarization", "s.tsv", "It rained. He left.\tHe left.\n", "columns with", "    summary: He left."),
        ("relation", "r.txt", '1\t"<e1>a</e1> <e2>b</e2>"\nCause\n', "SemEval-2010 task 8", "    label: Cause"),
        (
            "span-corruption",
            "t.tsv",
            "a\tb\n\n",
            "columns with a tab between (.tsv), 2 in the first row",
            "    line: b",
        ),
        ("span-corruption", "t.md", "a\tb\n\n", "plain text, a line each", "    line: a\tb"),
        (
            "dialogue",
            "d.txt",
            "hello __eou__ hi\n",
            "a conversation a line, its turns parted by tabs or __eou__",
            "    reply: hi",
        ),
        ("link-prediction", "f.tsv", "Paris\tin\tFrance\n", "columns with a tab between (.tsv), 3", "    tail: France"),
        (
            "story-question-answering",
            "s.txt",
            "1 Mary went to the hall.\n2 Where is Mary?\thall\t1\n",
            "stories as bAbI's: lines with numbers",
            "    answer: hall",
        ),
        ("text-to-text", "t.tsv", "a\tb\n", "columns with a tab between", "    target: b"),
        ("vectors", "t.tsv", "a\tb\n", "columns with a tab between", "    text: a"),
    ],
)
def test_each_task_reads_its_own_files(here: Path, task: str, name: str, text: str, form: str, first: str) -> None:
    found = check(task, [put(name, text)])
    lines = list(found.lines())
    assert found.is_usable, lines
    assert lines[1].startswith(f"format: {form}")
    assert first in lines


@pytest.mark.parametrize("task", tasks.names())
def test_a_file_that_no_task_can_read_is_an_answer(here: Path, task: str) -> None:
    found = check(task, [put("broken.tsv.gz", gzip.compress(b"a\tb\n" * 99)[:-9])])
    assert not found.is_usable
    assert found.error.startswith("the compressed file is truncated")


def test_plain_text_counts_what_is_empty_and_not_its_repetition(here: Path) -> None:
    lines = said("language-modeling", put("t.txt", "one\n\n\none\ntwo\xa0\n"))
    assert "examples: 5" in lines
    assert "empty: 2" in lines
    assert "repeated: 1" in lines
    assert "  t.txt:5: " not in "".join(lines)


def test_a_csv_and_sources_alone_are_explained(here: Path) -> None:
    assert (
        "a .csv is not read as columns: part them by tabs, without quotes"
        in said("classification", put("a.csv", "good,fine\n"))[1]
    )
    lines = said("translation", put("a.txt", "one\tuna\n"))
    assert "error: there are sources alone\n  got:    a.txt" in "\n".join(lines)
    assert "  a.txt:1: a tab in plain text: if it parts columns, name the file .tsv" in lines
    # what has that name already is not told to take it, whatever else is wrong or stands beside it
    for name, text in (("b.tsv", "a\tb\tc\n"), ("c.tsv", "text\tlabel\nfine\tgood\n")):
        assert "a tab in plain text" not in "\n".join(said("classification", put(name, text)))
    beside = said("language-modeling", put("d.tsv", "good\tfine\n"), put("d.txt", "fine\n"))
    assert "a tab in plain text" not in "\n".join(beside)


def test_a_wrong_name_is_answered(regard: Command, here: Path) -> None:
    put("a.tsv", "a\tb\n")
    gone = regard("data", "check", "b.tsv", "--task", "translation")
    assert (gone.code, gone.err) == (2, "error: no such file\n  got:    b.tsv\n  try:    did you mean a.tsv?\n")
    assert 'did you mean "translation"?' in regard("data", "check", "a.tsv", "--task", "translatoin").err


def test_rows_are_of_tasks_that_are_known() -> None:
    assert set(tasks.names()) == set(ROWS)


def test_the_page_shows_what_is_said(regard: Command, here: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text(encoding="utf-8")
    _, text, said = (block.removeprefix("\n") for block in page.split("```")[1::2])
    put("reviews.tsv", text)
    assert regard("data", "check", "reviews.tsv", "--task", "classification").out == said
