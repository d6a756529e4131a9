"""Question answering: eight questions are learned by heart and come back through the command line, also "no answer"."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard.cli.main import main
from regard.data.batching import Planned
from regard.data.noise import Noise
from regard.data.readers import ReadReport
from regard.data.squad import Question
from regard.errors import ConfigError, DataError, RunError
from regard.layers.reader import NEVER, SpanReader
from regard.looking.explain import case
from regard.looking.subject import observed
from regard.recipe import parse
from regard.run import Run, load, train
from regard.tasks._answers import answer_scores, best_overlap, is_right, normal, overlap
from regard.tasks._spans import Found, best_spans, fit_threshold, merged
from regard.tasks.question_answering import Known, fold_of, parted, read_split, with_noise
from regard.types import Batch, Sequences

TOWER = "The iron tower was built by Gustave Eiffel in 1889.\nIt stands in Paris."
PETS = "A cat, Tom, likes fish; the dog Rex likes bones."
QUESTIONS: list[tuple[str, str, list[str]]] = [
    ("Who built the tower?", TOWER, ["Gustave Eiffel"]),
    ("When was it built?", TOWER, ["1889"]),
    ("Where does it stand?", TOWER, ["Paris"]),
    ("Who likes fish?", PETS, ["Tom", "A cat, Tom"]),
    ("Who likes bones?", PETS, ["Rex", "the dog Rex"]),
    ("What does Rex like?", PETS, ["bones"]),
    ("Who likes milk?", PETS, []),
    ("Who painted the tower?", TOWER, []),
]
MANGA = "手塚治虫は、1928年に生まれた日本の漫画家である。大阪で育った。"
CITY = "東京タワーは1958年に完成した。高さは333メートルである。"
JAPANESE: list[tuple[str, str, list[str]]] = [
    ("いつ生まれた？", MANGA, ["1928年"]),
    ("どこで育った？", MANGA, ["大阪"]),
    ("漫画家は誰？", MANGA, ["手塚治虫"]),
    ("いつ完成した？", CITY, ["1958年"]),
    ("高さは？", CITY, ["333メートル"]),
]
BERT = {"family": "bert", "preset": "tiny", "model_dim": 32, "ffn_dim": 64, "dropout": 0.0, "attention_dropout": 0.0}
COATTENTION = {"family": "coattention", "preset": "tiny", "dropout": 0.0}


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


def write_jsonl(path: Path, rows: list[tuple[str, str, list[str]]]) -> Path:
    records = ({"question": asked, "context": text, "answers": answers} for asked, text, answers in rows)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return path


def table(**sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "task": {"name": "question-answering", "dropout": 0.0, "stride": 6, "question_length": 8, "max_answer": 8},
        "data": {"train": ["a.jsonl"], "val": ["a.jsonl"], "test": ["a.jsonl"], "max_length": 18},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "model": BERT,
        "train": {"device": "cpu", "max_steps": 120, "learning_rate": 5e-3, "warmup_steps": 5, "validate_every": 60},
    }
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}


Make = Callable[[str], Run]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A run that learned one of the sets; each is trained once. The texts are longer than a row."""
    runs: dict[str, Run] = {}

    def get(name: str = "english") -> Run:
        if name not in runs:
            folder = tmp_path_factory.mktemp(name)
            write_jsonl(folder / "a.jsonl", JAPANESE if name == "japanese" else QUESTIONS)
            characters = {
                "task": {"stride": 8},
                "tokenizer": {"kind": "characters"},
                "data": {"max_length": 26},
                "model": COATTENTION,
            }
            made = {**table(**(characters if name == "japanese" else {})), "run": str(folder / "run")}
            if name == "japanese":
                made["model"] = COATTENTION
            made["train"]["best"] = "f1"
            runs[name] = train(parse(made, where="this test", folder=folder))
        return runs[name]

    return get


def sources(rows: list[tuple[str, str, list[str]]]) -> list[str]:
    return [f"{asked}\t{text}" for asked, text, _ in rows]


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


# --- from files to answers


def test_questions_are_learned_and_come_back_through_the_command_line(
    trained: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained("english")
    assert max(len(run.task.reader.windows(asked, text)) for asked, text, _ in QUESTIONS) > 1
    capsys.readouterr()
    path = write_jsonl(tmp_path / "some.jsonl", QUESTIONS)
    assert not regard("predict", run.folder, path, "--format", "jsonl", "--scores", "--n-best", 2, "--device", "cpu")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for record, (asked, text, answers) in zip(records, QUESTIONS, strict=True):
        assert record["source"] == f"{asked}\t{text}"
        assert record["target"][0] in (answers or [""])
        assert record["score"] == sorted(record["score"], reverse=True)
        if answers:
            (span,) = record["spans"]
            assert record["source"][span["start"] : span["end"]] == span["text"] == record["target"][0]
            assert span["start"] > len(asked)
        else:
            assert "spans" not in record

    lines = "".join(f"{source}\n" for source in sources(QUESTIONS[3:7]))
    assert not regard("predict", run.folder, "--device", "cpu", stdin=f"{lines}\n")
    assert capsys.readouterr().out.splitlines() == ["Tom", "Rex", "bones", "", ""]

    assert not regard("evaluate", run.folder, "--device", "cpu")
    assert "exact_match: 100.00\n  questions:8|units:words|normalised:case,punctuation,articles (SQuAD)" in (
        capsys.readouterr().out
    )
    metrics = json.loads((run.folder / "report.json").read_text())["test"]["metrics"]
    names = ["answerable_exact_match", "answerable_f1", "exact_match", "f1", "unanswerable_exact_match"]
    assert metrics == dict.fromkeys(names, 100.0)


def test_text_without_spaces_by_co_attention(trained: Make) -> None:
    run = trained("japanese")
    assert (run.task.known.units, run.task.known.unanswerable) == ("characters", 0)
    answers = run.predict(sources(JAPANESE), n_best=3)
    for answer, (asked, text, (right,)) in zip(answers, JAPANESE, strict=True):
        assert answer.text == right
        assert len(set(answer.texts)) == 3
        assert sum(answer.scores) < 1 + 1e-6
        (span,) = answer.spans
        assert text[span.start - len(asked) - 1 : span.end - len(asked) - 1] == right
    scores = {score.name: score for score in run.evaluate()}
    assert {name: score.value for name, score in scores.items()} == {"exact_match": 100.0, "f1": 100.0}
    assert scores["f1"].signature.startswith("questions:5|units:characters")


def test_a_batch_of_one_answers_as_a_batch_of_many(trained: Make) -> None:
    run = trained("english")
    together = run.predict(sources(QUESTIONS))
    for source, answer in zip(sources(QUESTIONS), together, strict=True):
        (alone,) = run.predict([source])
        assert (alone.texts, alone.spans[:0]) == (answer.texts, ())
        assert alone.scores == pytest.approx(answer.scores, abs=1e-5)
    assert run.predict([]) == []
    assert [answer.text for answer in run.predict(["", "  "])] == ["", ""]


def test_an_answer_may_stand_anywhere_in_a_long_text(trained: Make) -> None:
    """Every window is asked, and what they say is put together."""
    run = trained("english")
    task = run.task
    text = f"{PETS} {PETS} {TOWER} {PETS}"
    windows = task.reader.windows("When was it built?", text)
    assert len(windows) > 8
    (answer,) = run.predict([f"When was it built?\t{text}"])
    parts = task._spans(run.model, windows, run.recipe.decode, run.device, None)
    best = max((span for spans, _ in parts for span in spans), key=lambda span: span.odds)
    assert answer.text == text[best.start : best.end].strip()
    total = math.log(1 + sum(math.exp(total) for _, total in parts))
    assert answer.scores[0] == pytest.approx(math.exp(best.odds - total), rel=1e-4)


def test_a_loaded_run_answers_the_same(trained: Make) -> None:
    run = trained("english")
    again = load(run.folder, "cpu")
    assert again.task.known == run.task.known
    assert again.predict(sources(QUESTIONS)) == run.predict(sources(QUESTIONS))


# --- loss


def test_the_loss_is_a_sum_over_rows_and_padding_counts_nothing(trained: Make) -> None:
    run = trained("english")
    rows = run.task.split("train", run.folder / "cache")
    (planned,) = rows.plan(batch_tokens=8192, multiple=4, seed=0, epoch=0, shuffle=False)
    batch = rows.collate(planned)
    scores = run.model.scores(batch)
    first, last = ((batch.target.ids == n) | (batch.target.ids == 3) for n in (1, 2))
    wanted = sum(
        F.cross_entropy(scores[:, side], where.int().argmax(1), reduction="sum")
        for side, where in enumerate((first, last))
    )
    total, count = run.task.loss(run.model, batch)
    assert int(count) == len(rows) > len(QUESTIONS)
    torch.testing.assert_close(total, wanted / 2)

    width = planned.shape[1] + 3
    parts = [rows.collate(Planned(planned.rows[i : i + 5], (6, width, 0))) for i in range(0, len(rows), 5)]
    losses = [run.task.loss(run.model, part) for part in parts]  # wider, rows missing
    assert sum(int(count) for _, count in losses) == len(rows)
    torch.testing.assert_close(sum(loss for loss, _ in losses), total, rtol=1e-4, atol=1e-6)


def test_only_places_of_the_text_can_answer(trained: Make) -> None:
    run = trained("english")
    window = run.task.reader.windows("Who likes fish?", PETS)[0]
    ids = torch.tensor([[*window.ids, 0, 0]])
    scores = run.model.scores(Batch(Sequences(ids, torch.tensor([len(window.ids)]))))[0]
    places = [0, *range(window.first, len(window.ids) - 1)]
    assert ((scores > NEVER / 2).all(0).nonzero()[:, 0]).tolist() == places
    assert run.model.segments(ids)[0].tolist() == [0] * window.first + [1] * (ids.shape[1] - window.first)


# --- spans


def test_the_best_spans_are_those_of_all_pairs() -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 2, 9)
    scores[:, :, 1:3] = NEVER  # the question
    first, last, odds, total = best_spans(scores, 4, 6)
    for row in range(3):
        pairs = {
            (i, j): float(scores[row, 0, i] + scores[row, 1, j] - scores[row, :, 0].sum())
            for i in range(3, 9)
            for j in range(i, min(i + 4, 9))
        }
        wanted = sorted(pairs.items(), key=lambda pair: -pair[1])[:6]
        assert list(zip(first[row].tolist(), last[row].tolist(), strict=True)) == [places for places, _ in wanted]
        torch.testing.assert_close(odds[row], torch.tensor([value for _, value in wanted]))
        assert float(total[row]) == pytest.approx(math.log(sum(map(math.exp, pairs.values()))), rel=1e-5)


def test_windows_are_put_together() -> None:
    text = "a  b c"
    windows = [([Found(0, 1, 1.0), Found(1, 4, 0.5)], 2.0), ([Found(3, 4, 3.0), Found(1, 2, 9.0)], 4.0)]
    answers = merged(windows, text, 5)
    assert answers.found == (Found(3, 4, 3.0), Found(0, 1, 1.0))  # words once, without spaces
    assert answers.total == pytest.approx(math.log(math.exp(2) + math.exp(4)))


def test_the_threshold_is_the_best_of_all() -> None:
    torch.manual_seed(0)
    for _ in range(20):
        odds, worth = torch.randn(12).round(decimals=1).tolist(), (torch.rand(12) * 2 - 1).tolist()
        chosen = fit_threshold(odds, worth)

        def gain(threshold: float, odds: list[float] = odds, worth: list[float] = worth) -> float:
            return sum(each for odd, each in zip(odds, worth, strict=True) if odd >= threshold)

        tried = [gain(odd) for odd in odds] + [gain(99.0)]
        assert gain(chosen) == pytest.approx(max(tried))


def test_where_some_have_no_answer_validation_says_when_to_say_so(trained: Make) -> None:
    run = trained("english")
    kept = json.loads((run.folder / "answers.json").read_text())
    known = run.task.known
    assert kept == {"units": "words", "unanswerable": 2, "threshold": known.threshold, "empty": known.empty}
    rows = [labels for q in run.task._questions("train") for _, labels in run.task.reader.rows(q)]
    assert known.empty == sum(labels[0] == 3 for labels in rows) / len(rows) > 0.25
    answers = run.task.answers(
        run.model, [(asked, text) for asked, text, _ in QUESTIONS], run.recipe.decode, device=run.device
    )
    given = [answer.found[0].odds >= kept["threshold"] for answer in answers]
    assert given == [bool(right) for *_, right in QUESTIONS]
    pair = QUESTIONS[0][:2]
    run.task.known = replace(run.task.known, threshold=1e6)
    try:
        shy = run.task.prediction(*pair, answers[0], 2)
        assert (shy.texts[0], shy.spans) == ("", ())
        run.task.known = replace(run.task.known, threshold=-1e6)
        bold = run.task.prediction(*QUESTIONS[6][:2], answers[6], 2)
        assert bold.texts[0] != ""
        assert bold.texts[1] == ""
    finally:
        run.task.known = Known.load(run.folder / "answers.json")


# --- metrics


def test_answers_are_compared_as_squad_does() -> None:
    assert normal("The Eiffel Tower (1889).", "words") == ["eiffel", "tower", "1889"]
    assert is_right("a Tower!", ["tower"], "words")
    assert not is_right("towers", ["tower"], "words")
    assert overlap("the old iron tower", "iron tower in Paris", "words") == pytest.approx(4 / 7)  # 2 * 2 / (3 + 4)
    assert best_overlap("iron tower", ["Paris", "tower"], "words") == pytest.approx(2 / 3)
    assert best_overlap("", [], "words") == 1
    assert best_overlap("x", [], "words") == 0


def test_answers_without_spaces_are_compared_by_characters() -> None:
    assert normal("（東京）Tower 1958年、", "characters") == ["東", "京", "tower", "1958", "年"]
    assert is_right("「手塚治虫」", ["手塚治虫"], "characters")
    assert overlap("手塚治虫氏", "手塚治虫", "characters") == pytest.approx(8 / 9)
    assert overlap("1928年", "1929年", "characters") == pytest.approx(0.5)


def test_scores_of_each_kind() -> None:
    scores = answer_scores(["Tom", "", "Rex", ""], [("Tom",), ("",), ("the dog Rex",), ("x",)], "words")
    found = {score.name: score.value for score in scores}
    assert found["exact_match"] == 50.0
    assert found["f1"] == pytest.approx(100 * (1 + 1 + 2 / 3) / 4)
    assert found["answerable_f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert found["unanswerable_exact_match"] == 100.0
    assert scores[0].signature.startswith("questions:4|units:words|normalised:case,punctuation,articles (SQuAD)")
    assert [score.name for score in answer_scores(["Tom"], [("Tom",)], "words")] == ["exact_match", "f1"]


# --- splits


def squad(path: Path, articles: int) -> Path:
    def paragraph(i: int, j: int) -> dict[str, Any]:
        asked = {"question": f"what {j}?", "answers": [{"text": f"{i}", "answer_start": 5}]}
        return {"context": f"text {i} part {j}", "qas": [asked]}

    data = [{"title": f"t{i}", "paragraphs": [paragraph(i, j) for j in range(3)]} for i in range(articles)]
    path.write_text(json.dumps({"data": data}), encoding="utf-8")
    return path


def split(folder: Path, name: str, **sections: Any) -> list[str]:
    recipe = parse(table(**sections), where="this test", folder=folder)
    paths = lambda split: [folder / "a.json"]  # noqa: E731
    return [question.article for question in read_split(recipe.task, recipe.data, paths, name, ReadReport())]


def test_a_share_of_the_articles_is_held_out_whole(tmp_path: Path) -> None:
    squad(tmp_path / "a.json", 100)
    data = {"train": ["a.json"], "val": [], "val_share": 0.2, "test": []}
    parts = {name: split(tmp_path, name, data=data) for name in ("train", "val")}
    assert not set(parts["train"]) & set(parts["val"])
    assert len(parts["train"]) + len(parts["val"]) == 300
    assert 10 < len(set(parts["val"])) < 30


def test_folds_part_the_articles(tmp_path: Path) -> None:
    squad(tmp_path / "a.json", 23)
    data = {name: ["a.json"] for name in ("train", "val", "test")}
    tests = []
    for fold in range(5):
        parts = {name: split(tmp_path, name, data=data, task={"folds": 5, "fold": fold}) for name in data}
        assert sorted(name for part in parts.values() for name in part) == sorted(
            f"t{i}" for i in range(23) for _ in range(3)
        )
        assert not set(parts["test"]) & (set(parts["train"]) | set(parts["val"]))
        assert not set(parts["val"]) & set(parts["train"])
        tests.append(set(parts["test"]))
    assert sorted(name for part in tests for name in part) == sorted(f"t{i}" for i in range(23))
    assert {len(part) for part in tests} == {4, 5}
    assert fold_of(["b", "a", "c"], 3) == fold_of(["a", "b", "c"], 3)


def test_a_share_of_the_training_questions(tmp_path: Path) -> None:
    squad(tmp_path / "a.json", 100)
    data = {name: ["a.json"] for name in ("train", "val", "test")}
    sizes = [len(split(tmp_path, "train", data={**data, "train_share": share})) for share in (0.2, 0.5, 1.0)]
    assert 30 < sizes[0] < 90 < sizes[1] < 210 < sizes[2] == 300
    assert len(split(tmp_path, "val", data={**data, "train_share": 0.2})) == 300


def test_mistakes_leave_the_answers_right(trained: Make) -> None:
    answers = (("Gustave Eiffel", 28), ("Eiffel", 36), ("1889", 46), ("The", 0))
    question = Question("a", "Who built the tower?", TOWER, answers)
    found = with_noise(question, Noise(0.9))
    assert found.question != question.question
    assert found.context != question.context
    assert [text for text, _ in found.answers] == [text for text, _ in answers]
    assert all(found.context[start : start + len(text)] == text for text, start in found.answers)
    assert with_noise(Question("a", "Who?", TOWER, ()), Noise(0.9)).context != TOWER
    run = trained("english")
    noisy = {score.name: score for score in run.evaluate(noise=0.5)}
    assert noisy["f1"].value < 100
    assert noisy["f1"].signature.endswith("noise 0.5")


# --- looking


@pytest.mark.parametrize("name", ["english", "japanese"])
def test_an_answer_is_looked_into(trained: Make, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(name)
    rows = QUESTIONS if name == "english" else JAPANESE
    asked, text, answers = rows[0]
    source = f"{asked}\t{text}"
    look = run.look(source, thorough=True)
    axis = look.trace.axes["source"]
    assert look.trace.info["answer"] == answers[0]
    assert {view.shape[2:] for view in look.trace} == {(len(axis.tokens), len(axis.tokens))}
    assert look.found.card is not None
    assert look.found.relevance is not None
    if name == "japanese":
        assert [view.name for view in look.trace] == ["body.coattention.other", "body.coattention.own"]
        assert all(source[a:b] == token for token, (a, b) in zip(axis.tokens, axis.offsets, strict=True) if b > a)
    elsewhere = run.look(source, "iron" if name == "english" else "日本", quick=True)
    assert elsewhere.trace.info["answer"] in ("iron", "日本")
    assert look.save(tmp_path / "page.html").stat().st_size > 10_000
    path = write_jsonl(tmp_path / "some.jsonl", rows[:3])
    assert not regard("look", run.folder, path, "--no-open", "--out", tmp_path / "all.html", "--device", "cpu")
    assert "means over 3 texts" in capsys.readouterr().out
    found = run.ablate(limit=2) if name == "english" else None
    assert found is None or found["metrics"]["exact_match"] == 100.0


def test_the_check_leaves_the_places_that_answer(trained: Make) -> None:
    run = trained("english")
    subject = run.subject()
    source = sources(QUESTIONS)[0]
    batch, axes = run.task.pair(source, "Gustave Eiffel")
    checked = case(subject, batch, observed(subject, batch, axes), None)
    number = len(checked.attributions["attention"])
    special = sum(int(i) in run.task.tokenizer.special_ids for i in batch.source.ids[0])
    assert number == batch.source.ids.shape[1] - special - int((batch.target.ids >= 0).sum())
    whole = checked.score(torch.ones(1, number, dtype=torch.bool))
    torch.testing.assert_close(whole, run.task.log_probs(run.model, batch).sum(1) / (batch.target.ids >= 0).sum())
    assert checked.score(torch.zeros(1, number, dtype=torch.bool)).isfinite().all()


def test_a_pair_is_the_window_that_holds_the_answer(trained: Make) -> None:
    run = trained("english")
    source = f"When was it built?\t{PETS} {TOWER} {PETS}"
    start = source.index("1889")
    batch, axes = run.task.pair(source, (start, start + 4))
    (places,) = [(batch.target.ids[0] >= 0).nonzero()[:, 0].tolist()]
    offsets = axes["source"].offsets
    assert offsets[places[0]][0] <= start < start + 4 <= offsets[places[-1]][1]
    batch, axes = run.task.pair(source, "")
    assert (batch.target.ids[0] >= 0).nonzero()[:, 0].tolist() == [0]
    assert axes["target"].text == ""


# --- errors


def test_errors(trained: Make, tmp_path: Path) -> None:
    run = trained("english")
    with pytest.raises(DataError) as error:
        run.predict(["", "Who built the tower?"])
    empty, bad = run.predict(["", "Who built the tower?"], on_bad_line="skip")
    assert (empty.wrong, bad.text, bad.wrong) == ("", "", str(error.value))
    (tmp_path / "a.tsv").write_text(f"Who likes fish?\n\nWho likes fish?\t{PETS}\n")
    *others, last = run.predict(list(run.sources(tmp_path / "a.tsv")), on_bad_line="skip")
    assert [bool(answer.wrong) for answer in others] == [True, False]
    assert last.text  # of a text that it was trained with
    assert str(error.value) == (
        "a question and a text are wanted, with a tab between\n  got:    Who built the tower?\n"
        "  wanted: question<TAB>text\n  where:  source 2\n"
        "  try:    a .jsonl with question and context may hold line ends in its texts"
    )
    assert parted("a\tb\tc", "") == ("a", "b\tc")
    with pytest.raises(ConfigError, match="the answer does not stand in the text\n  got:    Bob\n"):
        run.look(sources(QUESTIONS)[0], "Bob")
    with pytest.raises(DataError, match="the question is too long"):
        run.predict([f"{'Who ' * 30}\t{PETS}"])
    for task, message in (
        ({"folds": 2}, "folds are too few\n  got:    2"),
        ({"folds": 3, "fold": 3}, "there is no such fold\n  got:    3\n  wanted: 0 to 2"),
        ({"stride": 0}, "stride is too small"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse(table(task=task), where="this test", folder=tmp_path)
    write_jsonl(tmp_path / "a.jsonl", QUESTIONS)
    made = {**table(data={"max_length": 12}), "run": str(tmp_path / "run")}
    with pytest.raises(ConfigError, match="there is no room for the text beside its question"):
        train(parse(made, where="this test", folder=tmp_path))
    (tmp_path / "answers.json").write_text("{}")
    with pytest.raises(RunError, match="what is known of answers cannot be read"):
        Known.load(tmp_path / "answers.json")


def test_every_encoder_can_be_dressed() -> None:
    class Body(torch.nn.Module):
        def hidden(self, batch: Batch) -> torch.Tensor:
            assert batch.source.segments is not None or batch.source.ids.shape == (1, 2)
            return torch.ones(*batch.source.ids.shape, 5)

    reader = SpanReader(Body(), end=3, dropout=0.0)
    assert reader.score.in_features == 5
    assert reader.scores(Batch(Sequences(torch.tensor([[2, 5, 3, 6, 3]]), torch.tensor([5])))).shape == (1, 2, 5)
