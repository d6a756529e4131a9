"""Asking a folder: readers that learned a few texts by heart answer from them, say where, and say when they cannot."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as package
from regard.asking import Asker
from regard.asking.reading import Extracts
from regard.cli.main import main
from regard.errors import ConfigError, RunError
from regard.recipe import parse
from regard.run import Run, load, train
from regard.tasks.question_answering import EMPTY

TOWER = "The iron tower was built by Gustave Eiffel in 1889.\nIt stands in Paris."
PETS = "A cat, Tom, likes fish; the dog Rex likes bones."
QUESTIONS: list[tuple[str, str, list[str]]] = [
    ("Who built the tower?", TOWER, ["Gustave Eiffel"]),
    ("When was it built?", TOWER, ["1889"]),
    ("Who likes fish?", PETS, ["Tom"]),
    ("What does Rex like?", PETS, ["bones"]),
    ("Who painted the tower?", TOWER, []),
    ("Who painted the tower?", PETS, []),
    ("Who built the tower?", PETS, []),
    ("When was it built?", PETS, []),
    ("Who likes fish?", TOWER, []),
    ("What does Rex like?", TOWER, []),
]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": text,
                    "qas": [
                        {"question": asked, "answers": [{"text": right, "answer_start": text.find(right)}]}
                        for asked, where, answers in QUESTIONS
                        for right in answers
                        if where == text
                    ],
                }
                for text in (TOWER, PETS)
            ]
        }
    ]
}
TRAIN = {"device": "cpu", "learning_rate": 5e-3, "warmup_steps": 5}


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Points at the answer, or says that there is none."""
    folder = tmp_path_factory.mktemp("reader")
    records = ({"question": asked, "context": text, "answers": answers} for asked, text, answers in QUESTIONS)
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    model = {"family": "bert", "preset": "tiny", "model_dim": 32, "ffn_dim": 64}
    table: dict[str, Any] = {
        "run": str(folder / "run"),
        "task": {"name": "question-answering", "dropout": 0.0},
        "data": {"train": ["a.jsonl"], "val": ["a.jsonl"], "max_length": 100},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "model": {**model, "dropout": 0.0, "attention_dropout": 0.0},
        "train": {**TRAIN, "max_steps": 120, "validate_every": 60},
    }
    return train(parse(table, where="this test", folder=folder))


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Writes the answer."""
    folder = tmp_path_factory.mktemp("writer")
    (folder / "a.json").write_text(json.dumps(SQUAD), encoding="utf-8")
    (folder / "b.tsv").write_text("x\ty\n", encoding="utf-8")
    part = {"metrics": ["exact_match"], "weight": 0.0}
    answers = {"name": "answers", "prefix": "answer: ", "train": ["a.json"], "val": ["a.json"], **part}
    other = {"name": "other", "prefix": "other: ", "train": ["b.tsv"], "val": ["b.tsv"], **part}
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 48, "num_heads": 4, "ffn_dim": 96, "dropout": 0.0}
    table: dict[str, Any] = {
        "run": str(folder / "run"),
        "task": {"name": "text-to-text", "parts": [other, answers], "label_smoothing": 0.0},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "model": {"family": "transformer", **sizes},
        "train": {**TRAIN, "max_steps": 100, "validate_every": 100},
        "decode": {"method": "greedy"},
    }
    return train(parse(table, where="this test", folder=folder))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "pets").mkdir(parents=True)
    (folder / "tower.txt").write_text(f"\n\n{TOWER}\n", encoding="utf-8")
    (folder / "pets" / "pets.md").write_text(f"{PETS}\n", encoding="utf-8")
    return folder


def command(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


# --- from a folder to answers


def test_the_answer_and_where_it_stands(reader: Run, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert command("ask", reader.folder, notes, "When was it built?", "--device", "cpu") == 0
    out, err = capsys.readouterr()
    first, place, why, *quoted = out.splitlines()
    assert first == "1889"
    assert place.startswith(f"  {notes / 'tower.txt'}:3, characters 48 to 52; probability ")
    assert why == "  found: rank 1 by BM25 (built, it, was)"
    assert quoted == [
        "  | The iron tower was built by Gustave Eiffel in [[1889]].",
        "  | It stands in Paris.",
    ]
    assert (notes / "tower.txt").read_text(encoding="utf-8")[48:52] == "1889"
    assert err.splitlines()[-1] == f"2 passages of 2 files in {notes}"


def test_questions_of_stdin_as_jsonl(reader: Run, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["Who likes fish?", "", "What does Rex like?", "Zebra?"]
    (notes / "bad.txt").write_bytes(b"\xff")
    capsys.readouterr()
    words = ["--format", "jsonl", "--n-best", 2, "--retrieve", "both", "--device", "cpu"]
    assert command("ask", reader.folder, notes, *words, stdin="".join(f"{each}\n" for each in asked)) == 0
    out, err = capsys.readouterr()
    assert f"left out: {notes / 'bad.txt'}: not UTF-8: byte 0xff at 0\n2 passages of 2 files" in err
    assert "vectors of passages 2/2" in err
    fish, empty, bones, _ = map(json.loads, out.splitlines())
    assert [each["question"] for each in (fish, empty, bones)] == asked[:3]
    assert (fish["answer"], bones["answer"]) == ("Tom", "bones")
    assert empty == {"question": "", "answer": "", "reason": "the line is empty", "answers": [], "passages": []}
    best, second = fish["answers"]
    assert best["score"] > second["score"]
    passage = fish["passages"][best["passage"]]
    assert (passage["file"], passage["line"], passage["bm25"]) == (str(notes / "pets" / "pets.md"), 1, 1)
    assert passage["text"][slice(*best["span"])] == "Tom"
    assert passage["terms"] == ["fish", "likes"]
    assert sorted(each["vectors"] for each in fish["passages"]) == [1, 2]


def test_no_answer_is_said_and_the_nearest_passages_are_shown(
    reader: Run, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert command("ask", reader.folder, notes, "Who painted the tower?", "--device", "cpu") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["no answer: the passages that were read have none", "nearest:"]
    assert lines[2] == f"  {notes / 'tower.txt'}:3, characters 2 to {2 + len(TOWER)}"
    assert command("ask", reader.folder, notes, "zebra?", "--device", "cpu") == 0
    assert capsys.readouterr().out == "no answer: none of 2 passages has a word of the question\n"
    assert command("ask", reader.folder, notes, "--device", "cpu", stdin="zebra?\n") == 0
    assert capsys.readouterr().out.startswith("? zebra?\nno answer: none of 2 passages")


def test_the_page_of_who_reads_what(reader: Run, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("ask", reader.folder, notes, "Who built the tower?", "--look", "--device", "cpu") == 0
    page = reader.folder / "look" / "who-built-the-tower.html"
    out, err = capsys.readouterr()
    assert f"wrote {page}" in err
    assert out.startswith("Gustave Eiffel\n")
    assert "Gustave Eiffel" in page.read_text(encoding="utf-8")
    asker = Asker(reader, notes)
    look = asker.look(asker.ask("When was it built?"), quick=True)
    assert look.trace.info["answer"] == "1889"
    assert look.trace.info["text"] == f"When was it built?\t{TOWER}"
    with pytest.raises(ConfigError, match="there is no passage to look at"):
        asker.look(asker.ask("zebra?"))


def test_of_words_that_stand_twice_those_are_looked_at_that_answer(reader: Run, notes: Path) -> None:
    asker = Asker(reader, notes)
    reply = asker.ask("When was it built?")
    (answer,) = reply.answers
    doubled = replace(answer.hit.passage, text=f"1889 {answer.hit.passage.text}")
    moved = replace(answer, hit=replace(answer.hit, passage=doubled), place=tuple(x + 5 for x in answer.place or ()))
    shown = asker.look(replace(reply, answers=(moved,)), quick=True)
    wanted = reader.look(f"When was it built?\t{doubled.text}", quick=True)
    assert shown.trace.info == wanted.trace.info


def test_an_answer_is_written_from_a_passage(writer: Run, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert command("ask", writer.folder, notes, "Who likes fish?", "beam=2", "method=beam", "--device", "cpu") == 0
    first, place, *_ = capsys.readouterr().out.splitlines()
    assert first == "Tom"
    assert place.startswith(f"  written from {notes / 'pets' / 'pets.md'}:1, characters 7 to 10; mean log-probability ")
    asker = Asker(writer, notes)
    (answer,) = asker.ask("When was it built?").answers
    (said,) = writer.predict([f"answer: question: When was it built? context: {TOWER}"])
    assert (answer.text, answer.score) == ("1889", pytest.approx(said.scores[0], abs=1e-5))
    assert asker.look(asker.ask("When was it built?"), quick=True).trace.info["answer"] == "1889"


def test_what_is_written_need_not_stand_in_the_passage(
    writer: Run, notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"Thomas": -0.1, "": -0.0}
    predictions = iter([[replace(EMPTY, texts=(text,), scores=(score,)) for text, score in said.items()]])
    monkeypatch.setattr(Run, "predict", lambda *_, **__: next(predictions))
    assert command("ask", writer.folder, notes, "Who likes the fish?", "--device", "cpu") == 0
    assert "pets.md:1, in words that do not stand there; mean log-probability -0.10" in capsys.readouterr().out
    predictions = iter([[EMPTY, EMPTY]])
    assert command("ask", writer.folder, notes, "Who likes the fish?", "--device", "cpu") == 0
    assert capsys.readouterr().out.startswith("no answer: the passages that were read have none\n")


# --- how passages are weighed


@pytest.mark.parametrize("asked", ["Who likes fish, the tower?", "Who painted the tower?"])
def test_probabilities_are_odds_over_ranks(
    reader: Run, notes: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(reader.task, "known", replace(reader.task.known, threshold=-1e9))
    reply = Asker(reader, notes).ask(asked, n_best=40)
    assert len(reply.passages) == 2
    subject = reader.subject({"n_best": 40})
    pairs = [(asked, hit.passage.text) for hit in reply.passages]
    read = subject.task.answers(reader.model, pairs, subject.decode, device=reader.device)
    total = 1 + sum(math.exp(each.total) / rank for rank, each in enumerate(read, 1))
    for answer in reply.answers:
        rank = reply.passages.index(answer.hit)
        (span,) = [found for found in read[rank].found if (found.start, found.end) == answer.place]
        assert answer.score == pytest.approx(math.exp(span.odds) / (rank + 1) / total, rel=1e-4)
    assert sum(answer.score for answer in reply.answers) < 1


def test_a_reader_that_knows_no_none_always_answers(reader: Run, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asker = Asker(reader, notes)
    monkeypatch.setattr(reader.task, "known", replace(reader.task.known, unanswerable=0, empty=0.0))
    reply = asker.ask("Who painted the tower?", n_best=3)
    assert len(reply.passages) == 2
    subject = reader.subject({"n_best": 3})
    asked = [(reply.question, hit.passage.text) for hit in reply.passages]
    read = subject.task.answers(reader.model, asked, subject.decode, device=reader.device)
    best = [math.exp(each.found[0].odds - each.total) / rank / 1.5 for rank, each in enumerate(read, 1)]
    assert reply.answers[0].score == pytest.approx(max(best), rel=1e-4)
    for known in ({"empty": 0.05}, {"unanswerable": 1}):
        monkeypatch.setattr(reader.task, "known", replace(reader.task.known, **known))
        assert asker.ask("Who painted the tower?").text == ""
        monkeypatch.setattr(reader.task, "known", replace(reader.task.known, unanswerable=0, empty=0.0))


def test_the_same_words_are_one_answer(reader: Run, notes: Path) -> None:
    (notes / "copy.txt").write_text(TOWER, encoding="utf-8")
    reply = Asker(reader, notes).ask("When was it built?", n_best=3)
    texts = [answer.text for answer in reply.answers]
    assert texts[0] == "1889"
    assert len(set(texts)) == 3


def test_one_passage_is_read_where_one_is_asked_for(reader: Run, notes: Path) -> None:
    reply = package.ask(reader.folder, notes, "Who built the tower?", passages=1)
    assert (reply.text, len(reply.passages)) == ("Gustave Eiffel", 1)
    assert reply.answers[0].line == 3


# --- vectors


def test_passages_are_ranked_by_the_cosine_of_their_vectors(reader: Run, notes: Path) -> None:
    asker = Asker(reader, notes, retrieve="vectors")
    texts = [passage.text for passage in asker.library.passages]
    for asked in ("Who built the tower?", "Where is Tom?"):
        cosines = torch.cosine_similarity(reader.vectors(texts), reader.vectors([asked]))
        wanted = [texts[i] for i in cosines.argsort(descending=True).tolist()]
        hits = asker.ask(asked).passages
        assert [hit.passage.text for hit in hits] == wanted
        assert [hit.vectors for hit in hits] == [1, 2]


def test_vectors_are_kept_by_the_texts_and_the_weights(
    reader: Run, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    encoded = list[int]()
    plain = Run.vectors

    def counted(run: Run, texts: Any, **options: Any) -> Any:
        encoded.append(len(texts))
        return plain(run, texts, **options)

    monkeypatch.setattr(Run, "vectors", counted)
    first = Asker(reader, notes, retrieve="vectors").finder.vectors
    again = Asker(load(reader.folder, "cpu"), notes, retrieve="vectors").finder.vectors
    assert first is not None
    assert again is not None
    assert encoded == [2]
    assert torch.equal(first.matrix, again.matrix)
    (of_run,) = (tmp_path / "cache" / "regard" / "vectors").iterdir()
    (kept,) = of_run.iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["about.json", "sums.json", "vectors.npy"]
    (notes / "more.txt").write_text("A third text.", encoding="utf-8")
    Asker(reader, notes, retrieve="vectors")
    (notes / "more.txt").write_text("Other words.", encoding="utf-8")
    Asker(reader, notes, retrieve="vectors")
    third = Asker(reader, notes, retrieve="vectors")
    assert encoded == [2, 1, 1]  # only what is new
    assert third.finder.vectors is not None
    right = reader.vectors([passage.text for passage in third.library.passages])
    torch.testing.assert_close(third.finder.vectors.matrix, right)
    encoded.clear()
    (kept / "vectors.npy").write_bytes(b"damaged")
    (notes / "more.txt").unlink()
    fourth = Asker(reader, notes, retrieve="vectors").finder.vectors
    assert encoded == [2]
    assert fourth is not None
    assert torch.equal(fourth.matrix, first.matrix)


def test_vectors_of_another_run_help_one_that_has_none(reader: Run, writer: Run, notes: Path) -> None:
    reply = Asker(writer, notes, vectors=reader).ask("Who likes fish?")
    assert reply.text == "Tom"
    assert sorted(hit.vectors or 0 for hit in reply.passages) == [1, 2]
    assert Asker(writer, notes).finder.retrieve == "bm25"


# --- errors


def test_what_cannot_be_asked(
    reader: Run, writer: Run, notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: object) -> str:
        capsys.readouterr()
        assert command("ask", *words, "--device", "cpu") == 2
        return capsys.readouterr().err

    run = reader.folder
    assert "error: there is no question\n  got:    ' '" in refused(run, notes, " ")
    said = 'error: a question is one word of the command\n  got:    who is it\n  wanted: "who is it"'
    assert said in refused(run, notes, "who", "is", "it")
    assert "error: n_best has an option here\n  got:    n_best=2\n  wanted: --n-best N" in refused(
        run, notes, "who?", "n_best=2"
    )
    assert "error: no such run" in refused(tmp_path / "nowhere", notes, "who?")
    assert "error: no folder of texts" in refused(run, tmp_path / "nowhere", "who?")
    (tmp_path / "empty").mkdir()
    assert "error: the folder holds no text" in refused(run, tmp_path / "empty", "who?")
    said = refused(writer.folder, notes, "who?", "--retrieve", "vectors")
    assert "error: this run has no vectors to retrieve by\n  got:    transformer for text-to-text" in said
    said = refused(run, notes, "who?", "--vectors", run, "--retrieve", "bm25")
    assert "error: vectors have no use here\n  got:    retrieve = bm25" in said
    assert 'unknown key "decode.beem"' in refused(run, notes, "who?", "beem=1")
    assert "the question is too long\n  got:    " in refused(run, notes, "the " * 80 + "?")


def test_only_runs_that_learned_questions_answer(writer: Run, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (other, answers) = writer.task.parts
    monkeypatch.setattr(writer.task, "parts", (other, replace(answers, train=("a.tsv",))))
    with pytest.raises(RunError) as caught:
        Asker(writer, notes)
    assert str(caught.value).splitlines()[:3] == [
        "this run cannot answer questions",
        "  got:    text-to-text",
        "  wanted: a run of question-answering, or one of text-to-text with a part that trained on SQuAD's .json",
    ]


def test_arguments_that_cannot_be_meant(reader: Run, notes: Path) -> None:
    with pytest.raises(ConfigError, match="unknown way to retrieve"):
        Asker(reader, notes, retrieve="bm52")
    asker = Asker(reader, notes)
    assert isinstance(asker.reading, Extracts)
    for options, what in (({"passages": 0}, "passages is too small"), ({"n_best": 0}, "n_best is too small")):
        with pytest.raises(ConfigError, match=what):
            asker.ask("who?", **options)
    with pytest.raises(ConfigError, match="the question is not UTF-8"):
        asker.ask("who \udcff?")
    with pytest.raises(ConfigError, match="there is no question"):
        asker.ask(None)  # type: ignore[arg-type]


# --- the benchmark


def test_the_benchmark_finds_and_answers(reader: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "ask.py"
    spec = importlib.util.spec_from_file_location("ask_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "a.json").write_text(json.dumps(SQUAD), encoding="utf-8")
    capsys.readouterr()
    module.main([str(tmp_path / "a.json"), "--vectors", str(reader.folder), "--run", str(reader.folder)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 questions, 2 paragraphs, 2 passages"
    assert [line.split("\t")[0] for line in lines[2:5]] == ["bm25", "vectors", "both"]
    assert lines[2].split("\t")[1:4] == ["100.0", "100.0", "100.0"]
    assert lines[-2:] == ["whole way, 5 passages\t100.0\t100.0", "right paragraph given\t100.0\t100.0"]
