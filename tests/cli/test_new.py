"""`regard new`: what it sees in files, what it makes of it, and that its recipe is one."""

from __future__ import annotations

import dataclasses
import gzip
import random
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.fitting.choices import Choices
from regard.fitting.pairs import fit
from regard.fitting.profile import look
from regard.recipe import read_recipe

Command = Callable[..., Any]
ENGLISH = "the a small big red dog cat house sees takes finds near under old water bread she he they walked"
GERMAN = "der ein kleine große rote Hund Katze Haus sieht nimmt findet bei unter alt Wasser Brot sie er liefen"
RUSSIAN = "этот один маленький большой красный собака кошка дом видит берёт находит около под старый вода"


def sentences(words: str, number: int, seed: int) -> list[str]:
    """Sentences of many different words, as a language has them: half are made of two."""
    draw, known = random.Random(seed), words.split()

    def word() -> str:
        return draw.choice(known) + draw.choice(["", draw.choice(known)])[: draw.randrange(1, 7)]

    return [" ".join(word() for _ in range(draw.randint(3, 12))) for _ in range(number)]


def chinese(number: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [
        "".join(chr(0x4E00 + draw.randrange(800)) for _ in range(draw.randint(4, 15))) + "。" for _ in range(number)
    ]


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def fitted(folder: Path, sources: Sequence[str], targets: Sequence[str]) -> Choices:
    return fit(look("translation", [write(folder / "a", sources), write(folder / "b", targets)], "training"))


def values(choices: Choices, section: str) -> dict[str, Any]:
    return {key: choice.value for key, choice in choices[section].items()}


def test_one_alphabet_shares_its_vocabulary(tmp_path: Path) -> None:
    choices = fitted(tmp_path, sentences(ENGLISH, 2000, 1), sentences(GERMAN, 2000, 2))
    assert values(choices, "tokenizer") == {"kind": "bpe", "shared": True, "vocab_size": 2000}
    assert values(choices, "task") == {}


def test_two_alphabets_do_not(tmp_path: Path) -> None:
    choices = fitted(tmp_path, sentences(ENGLISH, 2000, 1), sentences(RUSSIAN, 2000, 2))
    chosen = values(choices, "tokenizer")
    assert (chosen["kind"], chosen["target_kind"], chosen["shared"]) == ("bpe", "bpe", False)
    assert chosen["vocab_size"] == chosen["target_vocab_size"] == 1500


def test_chinese_is_cut_without_spaces(tmp_path: Path) -> None:
    choices = fitted(tmp_path, sentences(ENGLISH, 1000, 1), chinese(1000, 2))
    chosen = values(choices, "tokenizer")
    assert (chosen["kind"], chosen["target_kind"], chosen["shared"]) == ("bpe", "unigram", False)
    assert chosen["target_vocab_size"] >= 1.5 * 790  # each character, and pieces of several
    assert values(choices, "task") == {"tokenize": "zh"}
    assert "100% of the letters are Han" in choices["tokenizer"]["target_kind"].why


def test_japanese_is_scored_by_character(tmp_path: Path) -> None:
    japanese = [text[:3] + "をみました。" for text in chinese(500, 1)]
    assert values(fitted(tmp_path, sentences(ENGLISH, 500, 1), japanese), "task") == {"tokenize": "char"}


def test_letters_to_phonemes(tmp_path: Path) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefgh") for _ in range(draw.randint(3, 12))) for _ in range(2000)]
    choices = fitted(tmp_path, words, [" ".join(word.upper()) for word in words])
    chosen = values(choices, "tokenizer")
    assert (chosen["kind"], chosen["target_kind"], chosen["shared"]) == ("characters", "words", False)
    assert "8 different words" in choices["tokenizer"]["target_kind"].why
    assert values(choices, "task") == {"metrics": ["exact_match", "phoneme_error"]}
    assert values(choices, "model")["dropout"] == 0.1


def test_a_text_of_a_whole_file_does_not_decide_what_is_read(tmp_path: Path) -> None:
    words = sentences(ENGLISH, 60, 1)
    choices = fitted(tmp_path, [*words, "house " * 200_000], [*words, "house"])
    assert values(choices, "data")["max_length"] == 4096
    assert "about 200,000 tokens" in choices["data"]["max_length"].why


def test_long_outputs_get_room(tmp_path: Path) -> None:
    draw = random.Random(1)
    words = sentences(ENGLISH, 500, 1)
    long = [" ".join(str(draw.randrange(5)) for _ in range(300)) for _ in words]
    chosen = values(fitted(tmp_path, words, long), "decode")
    assert chosen["max_length"] >= 1.3 * 300
    assert chosen["max_ratio"] > 20


@pytest.mark.parametrize(
    ("number", "preset", "dropout"), [(29_000, "tiny", 0.3), (200_000, "small", 0.2), (2_000_000, "base", 0.1)]
)
def test_more_data_more_model(tmp_path: Path, number: int, preset: str, dropout: float) -> None:
    paths = [write(tmp_path / name, sentences(ENGLISH, 500, seed)) for name, seed in (("a", 1), ("b", 2))]
    choices = fit(dataclasses.replace(look("translation", paths, "training"), num_examples=number))
    assert values(choices, "model") == {"preset": preset, "dropout": dropout}
    assert 2_000 <= values(choices, "train")["max_steps"] <= 100_000
    assert f"{number:,} examples" in choices["model"]["preset"].why


def splits(folder: Path) -> list[Path]:
    made = [("train", 300, 1), ("val", 30, 3)]
    return [
        write(folder / f"{split}.{side}", sentences(words, number, seed))
        for split, number, seed in made
        for side, words in (("en", ENGLISH), ("de", GERMAN))
    ]


def test_the_recipe_explains_itself_and_reads_back(regard: Command, tmp_path: Path) -> None:
    a, b, c, d = splits(tmp_path)
    out = tmp_path / "mine.toml"
    done = regard("new", "translation", "--train", a, b, "--val", c, d, "--out", out)
    assert done.code == 0, done.err
    assert "train: 300 examples" in done.out
    assert f"regard train {out}" in done.out
    text = out.read_text(encoding="utf-8")
    assert "# 300 examples" in text
    recipe = read_recipe(out)
    assert (recipe.run, recipe.family, recipe.data.train) == ("runs/mine", "transformer", (str(a), str(b)))
    assert recipe.data.test == ()
    assert max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 160

    # every key stands in it, and uncommenting what is commented out changes nothing
    lines = [line.removeprefix("# ") if " = " in line and "  # " in line else line for line in text.splitlines()]
    (tmp_path / "all.toml").write_text("\n".join(lines), encoding="utf-8")
    every = read_recipe(tmp_path / "all.toml", ["run=runs/mine"])
    assert every.to_toml() == recipe.to_toml()


def test_flags_may_be_repeated_and_paths_are_relative_to_the_recipe(
    regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["--train", "train.en", "--train", "train.de", "--val=val.en", "--val=val.de"]
    assert regard("new", "translation", *words, "--out", "recipes/mine.toml").code == 0
    assert read_recipe("recipes/mine.toml").data.train == ("../train.en", "../train.de")


def test_it_keeps_what_is_there(regard: Command, tmp_path: Path) -> None:
    a, b, c, d = splits(tmp_path)
    out = write(tmp_path / "mine.toml", ["precious"])
    words = ["new", "translation", "--train", a, b, "--val", c, d, "--out", out]
    refused = regard(*words)
    assert refused.code == 2
    assert refused.err.startswith("error: the recipe is already there\n")
    assert "--force" in refused.err
    assert out.read_text() == "precious\n"
    assert regard(*words, "--force").code == 0
    assert read_recipe(out)


@pytest.mark.parametrize(
    ("out", "what"),
    [
        ("folder", "a folder where the recipe is to be written"),
        ("train.en/mine.toml", "the recipe cannot be written"),
        ("/proc/mine.toml", "the recipe cannot be written"),
    ],
)
def test_where_no_recipe_can_be_written(regard: Command, tmp_path: Path, out: str, what: str) -> None:
    a, b, c, d = splits(tmp_path)
    (tmp_path / "folder").mkdir()
    words = ["new", "translation", "--train", a, b, "--val", c, d, "--out", tmp_path / out, "--force"]
    refused = regard(*words)
    assert refused.code == 2
    assert refused.err.startswith(f"error: {what}\n  got:    ")
    assert str(tmp_path / out) in refused.err


def test_an_invalid_recipe_is_not_left_behind(regard: Command, tmp_path: Path) -> None:
    a, b, c, d = splits(tmp_path)
    words = ["new", "translation", "--train", a, b, "--val", c, d, "--out", tmp_path / "mi\nne.toml"]
    refused = regard(*words)
    assert refused.code == 2
    assert refused.err.startswith("error: the recipe cannot name these files\n  got:    ")
    assert not list(tmp_path.glob("*.toml"))


def test_without_a_file_to_validate_with_some_is_held_out(regard: Command, tmp_path: Path) -> None:
    a, b, *_ = splits(tmp_path)
    packed = tmp_path / "corpus.en.gz"
    packed.write_bytes(gzip.compress(a.read_bytes()))
    out = tmp_path / "my recipe.toml"
    done = regard("new", "translation", "--train", packed, b, "--out", out)
    assert done.code == 0, done.err
    assert f"next: regard train {shlex.quote(str(out))}, which fills runs/my recipe" in done.out
    assert (read_recipe(out).data.val, read_recipe(out).data.val_share) == ((), 0.1)
    assert "# there is no file to validate with" in out.read_text()


def test_bad_lines_are_counted_named_and_skipped(regard: Command, tmp_path: Path) -> None:
    pairs = [f"{a}\t{b}" for a, b in zip(sentences(ENGLISH, 50, 1), sentences(GERMAN, 50, 2), strict=True)]
    train = write(tmp_path / "train.tsv", [*pairs[:9], "one column", *pairs[9:40]])
    val = write(tmp_path / "val.tsv", pairs[40:])
    done = regard("new", "translation", "--train", train, "--val", val, "--out", tmp_path / "mine.toml")
    assert done.code == 0, done.err
    assert f"{train}:10: one column" in done.out
    assert read_recipe(tmp_path / "mine.toml").data.on_bad_line == "skip"


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        ("translatoin", ["good.tsv"], 'did you mean "translation"?'),
        ("translation", ["nowhere.tsv"], "error: no such file"),
        ("translation", ["empty.tsv"], "error: the training split holds no example"),
        ("translation", ["broken.tsv"], "broken.tsv:1: one column"),
        ("translation", ["text.txt"], "error: the training split has sources only"),
        ("translation", ["text.txt", "short.txt"], "error: parallel files differ in their number of lines"),
        ("translation", ["text.txt", "text.txt", "text.txt"], "error: a split is one file or two"),
    ],
)
def test_what_cannot_be_meant(regard: Command, tmp_path: Path, task: str, files: list[str], message: str) -> None:
    write(tmp_path / "good.tsv", ["a b\tb a"] * 30)
    write(tmp_path / "empty.tsv", [])
    write(tmp_path / "broken.tsv", ["alone"] * 3)
    write(tmp_path / "text.txt", ["a", "b"])
    write(tmp_path / "short.txt", ["a"])
    paths = [tmp_path / name for name in files]
    refused = regard("new", task, "--train", *paths, "--val", tmp_path / "good.tsv", "--out", tmp_path / "mine.toml")
    assert refused.code == 2
    assert refused.err.startswith("error: ")
    assert message in refused.err
    assert not (tmp_path / "mine.toml").exists()


# --- texts with labels


def labelled(number: int, seed: int = 1) -> list[str]:
    """Lines of label, tab, text."""
    texts = sentences(ENGLISH, number, seed)
    return [f"{'long' if len(text.split()) > 7 else 'short'}\t{text}" for text in texts]


def test_a_recipe_for_texts_with_labels(regard: Command, tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.tsv", labelled(200, i)) for i, name in enumerate(("train", "test"))]
    done = regard("new", "classification", "--train", files[0], "--test", files[1], "--out", tmp_path / "mine.toml")
    assert done.code == 0
    assert "train: 200 examples\ntest: 200 examples\ntext: Latin 100%" in done.out
    assert "\nlabels: 2: " in done.out
    recipe = read_recipe(tmp_path / "mine.toml")
    assert (recipe.task_name, recipe.family, recipe.task.multi_label) == ("classification", "bert", False)
    assert (recipe.data.val, recipe.data.val_share, recipe.data.too_long) == ((), 0.1, "truncate")
    assert recipe.model.max_length == recipe.data.max_length + 2
    assert (recipe.train.best, recipe.tokenizer.lowercase) == ("accuracy", True)
    text = (tmp_path / "mine.toml").read_text()
    assert "# there is no file to validate with" in text
    assert "[finetune]\n# base = " in text
    done = regard("new", "classification", "--train", files[0], "--val", files[1], "--out", tmp_path / "other.toml")
    assert read_recipe(tmp_path / "other.toml").data.val == (str(files[1]),)


def test_a_recipe_for_texts_with_several_labels(regard: Command, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", ['{"label": ["a", "b"], "text": "one"}', '{"label": [], "text": "two"}'] * 40)
    assert regard("new", "classification", "--train", file, "--out", tmp_path / "mine.toml").code == 0
    recipe = read_recipe(tmp_path / "mine.toml")
    assert (recipe.task.multi_label, recipe.train.best) == (True, "micro_f1")


def test_a_handful_of_examples_is_enough(regard: Command, tmp_path: Path) -> None:
    file = write(tmp_path / "five.tsv", labelled(5))
    done = regard("new", "classification", "--train", file, "--out", tmp_path / "five.toml")
    assert "fewer than 50 examples: too few to hold some out, so validation is the training file" in done.out
    few = ("train.max_steps=2", "train.device=cpu", f"run={tmp_path / 'run'}", "model.layers=1", "model.model_dim=32")
    assert regard("train", tmp_path / "five.toml", *few).code == 0
    assert regard("predict", tmp_path / "run", stdin=b"the dog\n").out.strip() in ("long", "short")


# --- conversations


def conversations(number: int, seed: int = 1) -> list[str]:
    """Lines of two to five turns."""
    draw, turns = random.Random(seed), iter(sentences(ENGLISH, 5 * number, seed))
    return ["".join(f"{next(turns)} __eou__ " for _ in range(draw.randint(2, 5))) for _ in range(number)]


def test_a_recipe_for_conversations(regard: Command, tmp_path: Path) -> None:
    train = write(tmp_path / "train.txt", [*conversations(200), "a turn alone"])
    done = regard("new", "dialogue", "--train", train, "--out", tmp_path / "mine.toml")
    assert done.code == 0, done.err
    replies = sum(line.count("__eou__") - 1 for line in conversations(200))
    assert f"train: {replies} examples\n" in done.out
    assert "train.txt:201: one turn; wanted two or more" in done.out
    recipe = read_recipe(tmp_path / "mine.toml")
    assert (recipe.task_name, recipe.family, recipe.task.turns) == ("dialogue", "transformer", 5)
    assert (recipe.data.val_share, recipe.data.too_long, recipe.data.on_bad_line) == (0.1, "truncate", "skip")
    assert (recipe.tokenizer.kind, recipe.tokenizer.shared, recipe.tokenizer.vocab_size) == ("bpe", True, 2000)
    assert (recipe.decode.no_repeat_ngram, recipe.decode.max_ratio) == (3, 20.0)
    few = ("train.max_steps=2", "train.device=cpu", f"run={tmp_path / 'run'}", "model.model_dim=32", "model.ffn_dim=32")
    assert regard("train", tmp_path / "mine.toml", *few).code == 0
    assert regard("chat", tmp_path / "run", "max_length=3", stdin=b"the dog\nthe cat\n").out.count("\n") == 2


def test_a_recipe_for_chinese_conversations(regard: Command, tmp_path: Path) -> None:
    turns = chinese(120, 1)
    file = write(tmp_path / "zh.txt", ["\t".join(turns[i : i + 3]) for i in range(0, 120, 3)])
    assert regard("new", "dialogue", "--train", file, "--out", tmp_path / "zh.toml").code == 0
    recipe = read_recipe(tmp_path / "zh.toml")
    assert (recipe.tokenizer.kind, recipe.task.tokenize) == ("unigram", "zh")


def test_nothing_is_held_out_where_a_side_would_be_empty(regard: Command, tmp_path: Path) -> None:
    lines = [f"Who slept {i}?\tThe cat slept on the mat.\tThe cat" for i in range(60)]  # questions go by their text
    file, out = write(tmp_path / "one.tsv", lines), tmp_path / "one.toml"
    done = regard("new", "question-answering", "--train", file, "--out", out)
    assert done.code == 0, done.err
    said = "10.0% of the examples is none or all of them: too few to hold some out, so validation is the training file"
    assert done.out.startswith(f"{said}\n")
    assert (read_recipe(out).data.val, read_recipe(out).data.val_share) == ((str(file),), 0.0)


def test_a_line_without_its_label_is_bad_where_texts_have_one(regard: Command, tmp_path: Path) -> None:
    file, out = write(tmp_path / "a.tsv", ["good\tyes", "\tno label", "bad\tno"]), tmp_path / "a.toml"
    assert f"  {file}:2: the label is empty\n" in regard("new", "classification", "--train", file, "--out", out).out
    assert read_recipe(out).data.on_bad_line == "skip"
    several = write(tmp_path / "b.tsv", ["good,kind\tyes", "\tno label", "bad\tno"])
    assert "train: 3 examples" in regard("new", "classification", "--train", several, "--out", out, "--force").out
    assert read_recipe(out).task.multi_label


def test_marks_and_missing_targets_are_no_text(regard: Command, tmp_path: Path) -> None:
    marked = write(tmp_path / "a.tsv", ["因果\t<e1>火</e1>产生<e2>烟</e2>", "其他\t<e1>人</e1>和<e2>狗</e2>"])
    done = regard("new", "relation", "--train", marked, "--out", tmp_path / "a.toml")
    assert "text: Han 100%; characters: median 4, 99 % within 4, longest 4; 7 different characters\n" in done.out
    plain = write(tmp_path / "a.txt", ["one line", "two lines"])
    done = regard("new", "language-modeling", "--train", plain, "--out", tmp_path / "b.toml")
    assert "text: Latin 100%; characters: median 9" in done.out
    assert "target:" not in done.out
