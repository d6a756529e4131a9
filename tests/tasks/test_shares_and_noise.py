"""Fewer examples to learn from, and mistakes in what is read: every task that reads by the example takes both."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from regard import tasks
from regard.data.noise import Noise
from regard.data.parts import NoisyData
from regard.errors import ConfigError
from regard.recipe import Recipe, differences, parse

PAIRS = [(f"number {i} is a fine number", f"{i} xuan") for i in range(200)]
TABLE = {"data": {"train": ["rows.tsv"], "val": ["rows.tsv"], "test": ["rows.tsv"]}, "tokenizer": {"kind": "words"}}


def opened(folder: Path, name: str, rows: list[tuple[str, str]], **sections: Any) -> tuple[Any, Recipe]:
    (folder / "rows.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    family = "transformer" if tasks.task(name).KIND == "seq2seq" else "bert"
    table: dict[str, Any] = {**TABLE, "task": {"name": name}, "model": {"family": family, "preset": "tiny"}}
    table |= {part: {**table[part], **keys} for part, keys in sections.items()}
    recipe = parse(table, where="recipe.toml", folder=folder)

    def paths(split: str, data: Any = None) -> list[Path]:
        return [folder / file for file in (data or recipe.data).files(split)]

    run = folder / f"run{len(list(folder.iterdir()))}"
    run.mkdir()
    task = tasks.task(name).Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=paths, folder=run)
    return task, recipe


def noisy(task: Any, share: float) -> Any:
    other = copy.copy(task)
    other.data = NoisyData.of(task.data, Noise(share))
    return other


@pytest.mark.parametrize("name", ["translation", "summarization"])
def test_mistakes_are_in_the_sources_alone(tmp_path: Path, name: str) -> None:
    task, _ = opened(tmp_path, name, PAIRS)
    clean, wrong = task.examples("test"), noisy(task, 0.5).examples("test")
    assert [e.targets for e in wrong] == [e.targets for e in clean] == [(target,) for _, target in PAIRS]
    assert [e.source for e in wrong] == [Noise(0.5).text(source) for source, _ in PAIRS]
    cache = tmp_path / "cache"
    first, second, third = (each.split("test", cache).store for each in (task, noisy(task, 0.5), task))
    assert first.sources.ids.tolist() == third.sources.ids.tolist() != second.sources.ids.tolist()
    assert first.targets.ids.tolist() == second.targets.ids.tolist()


@pytest.mark.parametrize("name", ["translation", "summarization", "classification"])
def test_a_share_of_the_examples(tmp_path: Path, name: str) -> None:
    rows = [(target, source) for source, target in PAIRS] if name == "classification" else PAIRS
    data = {"train_share": 0.3, "val": [], "val_share": 0.2}
    task, _ = opened(tmp_path, name, rows, data=data)
    train, val = ({e.source for e in task.examples(split)} for split in ("train", "val"))
    assert 20 < len(train) < 80
    assert 20 < len(val) < 60
    assert not train & val
    more, recipe = opened(tmp_path, name, rows, data={**data, "train_share": 0.6})
    assert train < {e.source for e in more.examples("train")}
    assert {e.source for e in more.examples("val")} == val
    cache = tmp_path / "cache"
    sizes = [len(each.split("train", cache).plan(**PLAN)) for each in (task, more)]
    assert sizes == [len(train), len(more.examples("train"))]
    less = opened(tmp_path, name, rows, data=data)[1]
    assert differences(less, recipe) == ["data.train_share"]  # a run that has begun keeps its share


PLAN: dict[str, Any] = {"batch_tokens": 1, "multiple": 1, "seed": 0, "epoch": 0, "shuffle": False}


def test_labels_are_those_of_the_whole_file(tmp_path: Path) -> None:
    rows = [(f"label {i}", source) for i, (source, _) in enumerate(PAIRS)]
    task, _ = opened(tmp_path, "classification", rows, data={"train_share": 0.1})
    assert len(task.classes.labels) == 200
    assert sum(task.classes.counts) == task.classes.examples == len(task.examples("train")) < 40
    assert len(task.split("test", tmp_path / "cache")) == 200


def test_a_prefix_has_no_mistakes(tmp_path: Path) -> None:
    files = {"train": ["rows.tsv"], "val": ["rows.tsv"], "test": ["rows.tsv"]}
    parts = [{"name": "one", "prefix": "please translate: ", **files}, {"name": "two", "prefix": "turn: ", **files}]
    parts[1] |= {"swapped": True}
    task, _ = opened(tmp_path, "text-to-text", PAIRS, task={"parts": parts}, data={split: [] for split in files})
    found = noisy(task, 1.0).examples("test")
    assert [e.source for e in found[:200]] == [f"please translate: {Noise(1.0).text(source)}" for source, _ in PAIRS]
    assert [e.source for e in found[200:]] == [f"turn: {Noise(1.0).text(target)}" for _, target in PAIRS]
    assert [e.targets for e in found[200:]] == [(source,) for source, _ in PAIRS]
    wanted = sum(len(task.source.encode_batch([example.source])[0]) for example in found)
    assert len(noisy(task, 1.0).split("test", tmp_path / "cache").store.sources.ids) == wanted


def test_tasks_that_take_neither_say_so(tmp_path: Path) -> None:
    message = r"data.train_share has no meaning here\n  got:    masked-language-modeling\n  wanted: one of .*relation"
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, "masked-language-modeling", PAIRS, data={"train_share": 0.5})
    with pytest.raises(ConfigError, match="evaluate --noise has no meaning here\n  got:    vectors"):
        tasks.need("vectors", "noise", "evaluate --noise")


RUNNING = {
    "language-modeling": "gpt",
    "masked-language-modeling": "bert",
    "permutation-language-modeling": "xlnet",
    "span-corruption": "t5",
}


@pytest.mark.parametrize("name", RUNNING)
def test_running_text_has_mistakes_line_by_line(tmp_path: Path, name: str) -> None:
    keys = {"model": {"family": RUNNING[name]}, "tokenizer": {"kind": "characters"}}
    task, _ = opened(tmp_path, name, PAIRS, **keys)
    cache, texts = tmp_path / "cache", []
    for each in (task, noisy(task, 0.5), task):
        split = each.split("test", cache)
        ids = (split if name == "language-modeling" else split.windows).text.lines.ids
        texts.append(task.tokenizer.decode(ids.tolist()))
    assert texts[0] == texts[2] == "".join(f"{b}\n" for _, b in PAIRS)  # of labelled texts the texts alone
    wrong = "".join(Noise(0.5).text(f"{b}\n") for _, b in PAIRS)
    assert texts[1] == task.tokenizer.decode(task.tokenizer.encode_batch([wrong])[0])  # without letters it never saw


def test_sentences_stay_as_many_whatever_becomes_of_them(tmp_path: Path) -> None:
    rows = [(f"Number {i} is fine. It is a number! 它是数。他来了。", f"{i} is fine.") for i in range(50)]
    task, _ = opened(tmp_path, "extractive-summarization", rows)
    wrong = noisy(task, 1.0)
    clean, changed = ([e.source for e in each.examples("test")] for each in (task, wrong))
    assert clean == [source for source, _ in rows]
    pieces = ("Number 0 is fine.", "It is a number!", "它是数。", "他来了。")
    assert changed[0] == "\n".join(map(Noise(1.0).text, pieces))
    assert {len(document.sentences) for document in task.documents(changed)} == {4}
    assert [e.targets for e in wrong.examples("test")] == [(target,) for _, target in rows]
    cache = tmp_path / "cache"
    first, second, third = (each.split("test", cache).texts.ids.tolist() for each in (task, wrong, task))
    assert first == third != second


def test_every_task_that_can_be_evaluated_takes_mistakes() -> None:
    without = [name for name in tasks.names() if "noise" not in getattr(tasks.task(name), "TAKES", ())]
    assert without == ["link-prediction", "vectors"]  # names without a text around them; nothing is right or wrong
