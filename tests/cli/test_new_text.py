"""`regard new` for running text of which a part is hidden, for stories and for one of several tasks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.recipe import read_recipe

Command = Callable[..., Any]
ENGLISH = "the a small big red dog cat house sees takes finds near under old water bread she he they walked"
QUICK = ("train.max_steps=2", "train.validate_every=2", "train.device=cpu", "train.warmup_steps=1")


def sentences(number: int, seed: int = 1) -> list[str]:
    draw, words = random.Random(seed), ENGLISH.split()
    return [" ".join(draw.choice(words) for _ in range(draw.randint(3, 9))) + "." for _ in range(number)]


def documents(number: int, seed: int = 1) -> str:
    """A sentence a line, an empty line between two documents."""
    lines = sentences(3 * number, seed)
    return "\n".join("".join(f"{line}\n" for line in lines[i : i + 3]) for i in range(0, len(lines), 3))


def every_key(path: Path) -> str:
    """The recipe with all that is commented out taken in."""
    text = path.read_text(encoding="utf-8")
    lines = [line.removeprefix("# ") if " = " in line and "  # " in line else line for line in text.splitlines()]
    other = path.with_name("all.toml")
    other.write_text("\n".join(lines), encoding="utf-8")
    return read_recipe(other, [f"run={read_recipe(path).run}"]).to_toml()


def goes(regard: Command, recipe: Path, run: Path, *keys: str) -> str:
    """Trains a fitted recipe for two updates and evaluates it: what that said."""
    assert every_key(recipe) == read_recipe(recipe).to_toml()
    trained = regard("train", recipe, f"run={run}", *QUICK, *keys)
    assert trained.code == 0, trained.err
    evaluated = regard("evaluate", run, "--split", "val")
    assert evaluated.code == 0, evaluated.err
    return str(evaluated.out)


@pytest.mark.parametrize(
    ("task", "family", "context"),
    [
        ("masked-language-modeling", "bert", 128),
        ("permutation-language-modeling", "xlnet", 128),
        ("span-corruption", "t5", 256),
    ],
)
def test_a_recipe_for_text_of_which_a_part_is_hidden(
    regard: Command, tmp_path: Path, task: str, family: str, context: int
) -> None:
    (tmp_path / "text.txt").write_text(" ".join(sentences(400)).replace(" the ", "\nthe "), encoding="utf-8")
    out = tmp_path / "mine.toml"
    done = regard("new", task, "--train", tmp_path / "text.txt", "--out", out)
    assert done.code == 0, done.err
    assert "text: Latin 100%" in done.out
    assert "target:" not in done.out
    recipe = read_recipe(out)
    assert (recipe.task_name, recipe.family, recipe.task.context) == (task, family, context)
    assert (recipe.data.val_share, recipe.tokenizer.kind, recipe.tokenizer.vocab_size) == (0.1, "bpe", 2000)
    assert (recipe.model.model_dim, recipe.model.num_heads) == (128, 4)
    assert "loss: " in goes(regard, out, tmp_path / "run")


def test_more_text_more_model(tmp_path: Path) -> None:
    import dataclasses

    from regard.fitting import FITTED
    from regard.fitting.profile import look

    (tmp_path / "text.txt").write_text("\n".join(sentences(300)), encoding="utf-8")
    for task in ("masked-language-modeling", "permutation-language-modeling", "span-corruption"):
        profile = look(task, [tmp_path / "text.txt"], "training")
        few, many = (FITTED[task](dataclasses.replace(profile, num_examples=number)) for number in (30_000, 30_000_000))
        assert few["model"]["model_dim"].value < many["model"]["model_dim"].value
        assert few["tokenizer"]["vocab_size"].value < many["tokenizer"]["vocab_size"].value


def test_whole_words_where_there_are_words(regard: Command, tmp_path: Path) -> None:
    (tmp_path / "en.txt").write_text("\n".join(sentences(100)), encoding="utf-8")
    (tmp_path / "zh.txt").write_text("".join(f"他买了{i}条鱼。\n" for i in range(100)), encoding="utf-8")
    for name, kind, whole in (("en", "bpe", True), ("zh", "unigram", False)):
        out = tmp_path / f"{name}.toml"
        assert regard("new", "masked-language-modeling", "--train", tmp_path / f"{name}.txt", "--out", out).code == 0
        assert (read_recipe(out).tokenizer.kind, read_recipe(out).task.whole_word) == (kind, whole)


def test_sentences_of_documents_are_told_to_follow(regard: Command, tmp_path: Path) -> None:
    train, val, out = tmp_path / "train.txt", tmp_path / "val.txt", tmp_path / "mine.toml"
    train.write_text(documents(200), encoding="utf-8")
    val.write_text(documents(5, seed=2), encoding="utf-8")
    words = ["new", "masked-language-modeling", "--out", out, "--force", "--train", train]
    for more in ([], ["--val", val]):
        assert regard(*words, *more).code == 0
        recipe = read_recipe(out)
        assert (recipe.task.next_sentence, recipe.model.next_sentence) == (True, True)
        assert "next_sentence_accuracy: " in goes(regard, out, tmp_path / f"run{len(more)}")


@pytest.mark.parametrize("what", ["few", "wrapped", "alone", "val"])
def test_other_text_is_not(regard: Command, tmp_path: Path, what: str) -> None:
    train, val, out = tmp_path / "train.txt", tmp_path / "val.txt", tmp_path / "mine.toml"
    text = documents(20 if what == "few" else 200)
    text = text.replace(".\n", "\n") if what == "wrapped" else text.replace("\n", "\n\n") if what == "alone" else text
    train.write_text(text, encoding="utf-8")
    val.write_text("\n".join(sentences(60)), encoding="utf-8")
    more = ["--val", val] if what == "val" else []
    assert regard("new", "masked-language-modeling", "--train", train, *more, "--out", out).code == 0
    recipe = read_recipe(out)
    assert (recipe.task.next_sentence, recipe.model.next_sentence) == (False, False)


def test_a_recipe_for_stories(regard: Command, tmp_path: Path) -> None:
    draw, files = random.Random(1), []
    for kind in ("where", "who"):
        lines = []
        for _ in range(60):
            who, place = draw.choice(["Ada", "Bo", "Cy"]), draw.choice(["garden", "attic", "hall"])
            asked = f"Where is {who}?\t{place}" if kind == "where" else f"Who is in the {place}?\t{who}"
            lines += [f"1 {who} went to the {place}.", f"2 {asked}\t1"]
        files.append(tmp_path / f"{kind}_train.txt")
        files[-1].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    out = tmp_path / "mine.toml"
    done = regard("new", "story-question-answering", "--train", *files, "--out", out)
    assert done.code == 0, done.err
    assert "train: 120 examples" in done.out
    recipe = read_recipe(out)
    assert (recipe.family, recipe.model.hops, recipe.train.best) == ("memory", 6, "accuracy")
    assert (recipe.data.train, recipe.data.too_long) == (tuple(map(str, files)), "truncate")
    said = goes(regard, out, tmp_path / "run")
    assert "accuracy_where: " in said
    assert "accuracy_who: " in said


def test_a_recipe_for_one_of_several_tasks(regard: Command, tmp_path: Path) -> None:
    for split, number in (("train", 100), ("val", 10)):
        for i, side in enumerate(("en", "de")):
            text = "".join(f"{line}\n" for line in sentences(number, seed=i))
            (tmp_path / f"{split}.{side}").write_text(text, encoding="utf-8")
    out = tmp_path / "mine.toml"
    train, val = ([tmp_path / f"{split}.{side}" for side in ("en", "de")] for split in ("train", "val"))
    for more in (["--val", *val], []):
        assert regard("new", "text-to-text", "--train", *train, *more, "--out", out, "--force").code == 0
        (part,) = read_recipe(out).task.parts
        assert (part.name, part.prefix, part.metrics) == ("de", "de: ", ("bleu", "chrf"))
        assert (part.train, part.val) == (tuple(map(str, train)), tuple(map(str, val)) if more else ())
        assert part.val_share == (0 if more else 0.1)
        assert "de.bleu: " in goes(regard, out, tmp_path / f"run{len(more)}", "decode.max_length=5")
    section = out.read_text(encoding="utf-8").partition("[data]")[2].partition("[tokenizer]")[0]
    assert "train = " not in section


@pytest.mark.parametrize(
    ("name", "line", "part", "prefix", "metrics"),
    [
        ("labels.tsv", "{i} I liked it very much\tgood", "labels", "labels: ", ("exact_match", "chrf")),
        (
            "news.tsv",
            "{i} " + "it rained in the town " * 8 + "\tthere was much rain",
            "news",
            "news: ",
            ("rouge1", "rouge2", "rougeL"),
        ),
        ("zh.tsv", "{i} the dog sleeps in the house\t那只狗现在睡在房子里面。", "zh", "zh: ", ("bleu", "chrf")),
        ("questions.json", "", "answer", "", ("exact_match", "chrf")),
    ],
)
def test_what_a_part_is_called_and_judged_by(
    regard: Command, tmp_path: Path, name: str, line: str, part: str, prefix: str, metrics: tuple[str, ...]
) -> None:
    answers = '[{"text": "Ada", "answer_start": 0}]'
    asked = f'{{"id": "1", "question": "Who?", "answers": {answers}}}'
    squad = f'{{"data": [{{"paragraphs": [{{"context": "Ada built it.", "qas": [{asked}]}}]}}]}}'
    text = "".join(f"{line.format(i=i)}\n" for i in range(60)) if line else squad
    (tmp_path / name).write_text(text, encoding="utf-8")
    out = tmp_path / "mine.toml"
    done = regard("new", "text-to-text", "--train", tmp_path / name, "--out", out)
    assert done.code == 0, done.err
    (found,) = read_recipe(out).task.parts
    assert (found.name, found.prefix, found.metrics) == (part, prefix, metrics)
    assert found.tokenize == ("zh" if part == "zh" else "13a")


def test_nothing_is_trained_for_vectors(regard: Command, tmp_path: Path) -> None:
    refused = regard("new", "vectors", "--train", tmp_path / "a.txt", "--out", tmp_path / "mine.toml")
    assert refused.code == 2
    assert refused.err.startswith("error: nothing is trained in this task\n  got:    vectors\n")
    assert "regard convert FOLDER RUN" in refused.err
