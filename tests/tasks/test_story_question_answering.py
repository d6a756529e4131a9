"""Questions about stories: a few are learned by heart, through the command line and back; what hops read is counted."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli.main import main
from regard.data.babi import StoryQuestion
from regard.data.noise import Noise
from regard.data.readers import ReadReport
from regard.errors import ConfigError, DataError
from regard.layers.story import sentence_numbers
from regard.looking.explain import case
from regard.looking.subject import observed
from regard.recipe import parse
from regard.run import Run, load, train
from regard.tasks.story_question_answering import accuracies, facts_read
from regard.types import Sequences

WHERE = """1 Ada walked to the attic .
2 Boris walked to the garden .
3 Where is Ada ?\tattic\t1
4 Where is Boris ?\tgarden\t2
5 Ada walked to the cellar .
6 Where is Ada ?\tcellar\t5
1 Boris walked to the attic .
2 Ada walked to the garden .
3 Where is Boris ?\tattic\t1
4 Where is Ada ?\tgarden\t2
"""
WHAT = """1 Ada took the drum .
2 Ada took the rope .
3 Boris took the kite .
4 What has Ada ?\tdrum,rope\t1 2
5 What has Boris ?\tkite\t3
6 Ada left the drum .
7 What has Ada ?\trope\t2 6
"""
SOURCES = [
    ("Ada walked to the attic .\tBoris walked to the garden .\tWhere is Ada ?", "attic"),
    ("Ada took the drum .\tAda took the rope .\tBoris took the kite .\tWhat has Ada ?", "drum,rope"),
]


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


def table(folder: Path, **sections: Any) -> dict[str, Any]:
    """A recipe that learns these questions."""
    (folder / "where_train.txt").write_text(WHERE)
    (folder / "what_train.txt").write_text(WHAT)
    files = ["where_train.txt", "what_train.txt"]
    base = {
        "task": {"name": "story-question-answering"},
        "data": dict.fromkeys(("train", "val", "test"), files),
        "tokenizer": {"kind": "words"},
        "model": {"family": "memory", "preset": "tiny", "time_noise": 0.0},
        "train": {"device": "cpu", "max_steps": 80, "learning_rate": 3e-2, "warmup_steps": 5, "schedule": "cosine"},
    }
    base["train"] |= {"validate_every": 80, "best": "mean_accuracy", "weight_decay": 0.0}
    whole = {part: {**keys, **sections.get(part, {})} for part, keys in base.items()}
    return {"run": str(folder / "run"), **whole}


def trained(folder: Path, **sections: Any) -> Run:
    return train(parse(table(folder, **sections), where="recipe.toml", folder=folder))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("stories"))


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_stories_are_learned_and_come_back_through_the_command_line(
    learned: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f"{source}\n" for source, _ in SOURCES)
    assert not regard("predict", learned.folder, "--device", "cpu", stdin=lines)
    assert capsys.readouterr().out.splitlines() == [answer for _, answer in SOURCES]
    file = tmp_path / "mine.txt"
    file.write_text(WHERE.replace("\tattic\t1", ""))  # numbered lines, some without an answer
    assert not regard("predict", learned.folder, file, "--format", "jsonl", "--scores", "--device", "cpu")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["target"] for record in records] == ["attic", "garden", "cellar", "attic", "garden"]
    assert not regard("evaluate", learned.folder, "--device", "cpu")
    told = capsys.readouterr().out
    assert "accuracy: 100.00\n  questions:8\n" in told
    assert "mean_accuracy: 100.00\n  kinds:2\n" in told
    assert "accuracy_what: 100.00\n  questions:3\n" in told
    assert "accuracy_where: 100.00\n  questions:5\n" in told
    assert "\nfacts_2: " in told
    assert "questions:6|hops:2\n" in told  # of one fact
    assert [answer.text for answer in load(learned.folder, "cpu").predict(["", SOURCES[0][0]])] == ["", "attic"]


def test_looking_shows_what_each_hop_reads(learned: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = SOURCES[1][0]
    assert not regard("look", learned.folder, source, "--terminal", "--device", "cpu")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == " hop 1   hop 2  What has Ada ?"
    assert [line[16:] for line in shown[1:4]] == source.split("\t")[:3]
    found = learned.look(source)
    first = found.trace[0].rows(range(1))[0, 0, 0]
    assert [f"{weight:6.2f}" if weight >= 0.005 else "     ·" for weight in first.tolist()] == [
        line[:6] for line in shown[1:4]
    ]
    document = found.document()
    assert document.doc["relevance"] == {"rows": "target", "keys": "sentences", "bin": [1, 1]}
    assert document.tensors["relevance"].shape == (1, 3)
    assert [layer["label"] for layer in document.doc["layers"]] == ["hop 1", "hop 2"]
    assert document.doc["axes"]["sentences"]["tokens"] == source.split("\t")[:3]
    page = found.save(tmp_path / "page.html")
    assert "Boris took the kite" in page.read_text()
    assert not regard("look", learned.folder, learned.folder.parent / "what_train.txt", "--no-open", "--device", "cpu")


def test_the_check_deletes_whole_sentences(learned: Run) -> None:
    subject = learned.subject()
    batch, axes = learned.task.pair(SOURCES[0][0], "attic")
    checked = case(subject, batch, observed(subject, batch, axes), None)
    assert {name: len(values) for name, values in checked.attributions.items()} == {"attention": 2, "gradient": 2}
    kept = torch.tensor([[True, True], [True, False]])
    without = learned.task.pair("Ada walked to the attic .\tWhere is Ada ?", "attic")[0]
    wanted = [float(subject.log_probs(each)[0, 0].detach()) for each in (batch, without)]
    assert checked.score(kept).tolist() == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("family", ["bert", "recurrent"])
def test_other_encoders_read_the_same_rows(tmp_path: Path, family: str) -> None:
    small = {"layers": 1, "model_dim": 32, "num_heads": 2, "ffn_dim": 64} if family == "bert" else {}
    rate = {"max_steps": 120, "learning_rate": 5e-3} if family == "bert" else {"max_steps": 60, "learning_rate": 1e-2}
    recipe = table(tmp_path, train=rate)
    recipe["model"] = {"family": family, "preset": "tiny", "dropout": 0.0, **small}
    run = train(parse(recipe, where="recipe.toml", folder=tmp_path))
    answers = [answer.text for answer in run.predict([source for source, _ in SOURCES])]
    if family == "recurrent":
        assert answers == [answer for _, answer in SOURCES]
    accuracy = next(score.value for score in run.evaluate("test") if score.name == "accuracy")
    assert accuracy >= 50  # which of them a small BERT learns hangs on its first weights; a question alone tells 37.5
    names = [score.name for score in run.evaluate("test")]
    assert names == ["accuracy", "mean_accuracy", "accuracy_what", "accuracy_where"]  # no hops, so nothing of facts


def test_runs_of_tokens_speak_for_answers_as_well(tmp_path: Path) -> None:
    run = trained(tmp_path, task={"ngrams": 2, "ngram_rows": 500})
    assert [answer.text for answer in run.predict([source for source, _ in SOURCES])] == [a for _, a in SOURCES]
    assert run.model.ngrams.weight.any()


def test_a_batch_of_one_answers_as_a_batch_of_many(learned: Run) -> None:
    sources = [source for source, _ in SOURCES]
    for source, answer in zip(sources, learned.predict(sources), strict=True):
        assert learned.predict([source])[0].scores == pytest.approx(answer.scores, abs=1e-6)


def test_facts_are_never_learned_from(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    few = {"max_steps": 5, "validate_every": 5}
    one = trained(tmp_path / "a", train=few)
    other = table(tmp_path / "b", train=few)
    (tmp_path / "b" / "where_train.txt").write_text(WHERE.replace("\t5\n", "\t1\n"))  # a wrong fact
    two = train(parse(other, where="recipe.toml", folder=tmp_path / "b"))
    for name, weight in one.model.state_dict().items():
        assert torch.equal(weight, two.model.state_dict()[name])


def test_a_long_story_keeps_its_newest_sentences(tmp_path: Path) -> None:
    run = trained(
        tmp_path, data={"max_length": 14, "too_long": "truncate"}, train={"max_steps": 2, "validate_every": 2}
    )
    source = "Boris took the kite .\tAda took the drum .\tAda took the rope .\tWhat has Ada ?"
    axes = run.task.pair(source, "rope")[1]
    assert axes["sentences"].tokens == ("Ada took the rope .",)
    assert len(run.look(source, quick=True).trace[0].rows(range(1))[0, 0, 0]) == 1
    assert run.predict([source])[0].cut > 0
    scores = {score.name: score.value for score in run.evaluate("test")}
    assert scores["any_fact_2"] <= 100


# --- counting


def asked(sentences: int, *facts: int) -> StoryQuestion:
    return StoryQuestion(("x",) * sentences, "q", "a", facts, "kind", "place")


def test_what_hops_read_is_counted_by_the_number_of_facts() -> None:
    questions = [asked(4, 1), asked(3, 2), asked(4, 0, 3), asked(2)]
    read = [[-3, -1], [-3, -3], [-1, -1], [-1, -1]]  # from the end: of 4 sentences, -3 is number 1
    found = {score.name: score.value for score in facts_read(read, questions)}
    assert found == {"any_fact_1": 50.0, "facts_1": 50.0, "any_fact_2": 100.0, "facts_2": 50.0}
    assert facts_read([[]] * 4, questions) == []


def test_accuracy_of_each_kind_and_their_mean() -> None:
    found = {s.name: s.value for s in accuracies([True, True, True, False], ["a", "a", "a", "b"])}
    assert found == {"accuracy": 75.0, "mean_accuracy": 50.0, "accuracy_a": 100.0, "accuracy_b": 0.0}
    assert [s.name for s in accuracies([True], ["a"])] == ["accuracy", "mean_accuracy"]


def test_sentences_are_numbered_by_their_ends() -> None:
    ids = torch.tensor([[2, 7, 3, 8, 8, 3, 9, 3], [2, 9, 9, 3, 3, 7, 0, 0], [0] * 8])
    found = sentence_numbers(Sequences(ids, torch.tensor([8, 4, 0])), end=3)
    assert found.tolist() == [[-1, 1, -1, 2, 2, -1, 0, -1], [-1, 0, 0, -1, -1, -1, -1, -1], [-1] * 8]


# --- files and errors


def test_whole_stories_are_held_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    many = "".join(
        f"1 Person{i} walked to the attic .\n2 Where is Person{i} ?\tattic\t1\n"
        f"3 Person{i} walked to the cellar .\n4 Where is Person{i} ?\tcellar\t3\n"
        for i in range(40)
    )
    recipe = table(tmp_path, train={"max_steps": 1, "validate_every": 1})
    (tmp_path / "all.txt").write_text(many)
    recipe["data"] = {"train": ["all.txt"], "val_share": 0.3}
    run = train(parse(recipe, where="recipe.toml", folder=tmp_path))
    people = [{each.source.split()[0] for each in run.task.examples(name)} for name in ("train", "val")]
    assert not people[0] & people[1]
    assert len(people[0] | people[1]) == 40
    assert len(run.task.examples("train")) == 2 * len(people[0])


def test_noise_is_in_the_question_alone(learned: Run) -> None:
    task = learned._noisy_task(Noise(1.0, 1))
    clean, noisy = learned.task.examples("test"), task.examples("test")
    assert [each.source.rsplit("\t", 1)[0] for each in noisy] == [each.source.rsplit("\t", 1)[0] for each in clean]
    assert [each.source for each in noisy] != [each.source for each in clean]


def test_a_bad_line_of_a_numbered_story_is_an_error_and_one_of_whole_stories_is_not(
    learned: Run, tmp_path: Path
) -> None:
    path = tmp_path / "new.txt"
    path.write_bytes(b"1 Ada is in the attic .\n2 \xff\n3 Where is Ada ?\n")
    with pytest.raises(DataError, match=rf"not UTF-8: byte 0xff at column 3\n.*\n  where:  {path}:2"):
        list(learned.sources(path, ReadReport()))
    path.write_bytes(b"\xff\nAda is in the attic .\tWhere is Ada ?\n")
    report = ReadReport()
    assert list(learned.sources(path, report)) == ["Ada is in the attic .\tWhere is Ada ?"]
    assert report.bad == [(f"{path}:1", "not UTF-8: byte 0xff at column 1")]


def test_errors_say_what_is_wanted(learned: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        learned.predict(["Where is Ada ?"])
    bad, good = learned.predict(["Where is Ada ?", SOURCES[0][0]], on_bad_line="skip")
    assert (bad.text, bad.wrong, good.text) == ("", str(caught.value), "attic")
    assert str(caught.value) == (
        "a story and a question are wanted, with a tab between each sentence\n  got:    Where is Ada ?\n"
        "  wanted: sentence<TAB>sentence<TAB>question\n  where:  source 1\n"
        "  try:    a file with numbered lines, as those of the bAbI tasks, is read as well"
    )
    with pytest.raises(ConfigError, match="a question has one answer\n  got:    multi_label = true"):
        parse(table(tmp_path, task={"multi_label": True}), where="recipe.toml", folder=tmp_path)
