"""The objectives of pretraining: each learns eight lines by heart, answers through the command line, and is exact.

What they hide, and by which rule, is tested in tests/data/test_corruption.py.
"""

from __future__ import annotations

import io
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import tasks
from regard.cli import jobs
from regard.cli.main import main
from regard.data.tokenizers import Tokenizer
from regard.decode.rules import Hypothesis
from regard.errors import ConfigError, DataError, RegardError
from regard.models.xlnet import seen_in_order
from regard.recipe import Recipe, parse
from regard.run import Run, load, train
from regard.train import checkpoint
from regard.types import Batch, Specials

WORDS = ("red", "blue", "old", "plays", "rain", "snow", "far", "bread")
EIGHT = [" ".join([word] * 12) for word in WORDS]  # what is hidden can be told from what is not
TEXT = "".join(f"{line}\n" for line in EIGHT) * 12  # often enough for whole batches
SMALL = {"layers": 1, "model_dim": 32, "num_heads": 2, "ffn_dim": 64, "dropout": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "masked-language-modeling": {
        "family": "bert",
        **SMALL,
        "attention_dropout": 0.0,
        "next_sentence": False,
        "max_length": 32,
    },
    "permutation-language-modeling": {"family": "xlnet", **SMALL, "memory": 0},
    "span-corruption": {
        "family": "t5",
        "encoder_layers": 1,
        "decoder_layers": 1,
        "model_dim": 32,
        "num_heads": 2,
        "head_dim": 16,
        "ffn_dim": 64,
        "dropout": 0.0,
    },
}
TASKS: dict[str, dict[str, Any]] = {
    "masked-language-modeling": {"context": 10, "share": 0.2},
    "permutation-language-modeling": {"context": 10},
    "span-corruption": {"context": 10, "density": 0.2, "mean_span": 1.0},
}
every_task = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread, so that bits are the same."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


def recipe_of(folder: Path, name: str, *, run: str = "run", text: str = TEXT, **sections: dict[str, Any]) -> Recipe:
    """A small recipe whose every split is one text."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    table: dict[str, dict[str, Any]] = {
        "task": {"name": name, **TASKS[name]},
        "data": {split: ["text.txt"] for split in ("train", "val", "test")},
        "tokenizer": {"kind": "words"},
        "model": MODELS[name],
        "train": {
            "device": "cpu",
            "max_steps": 150 if name == "masked-language-modeling" else 100,
            "batch_tokens": 512,
            "learning_rate": 1e-2,
            "schedule": "cosine",
            "warmup_steps": 20,
            "validate_every": 1000,
            "checkpoint_every": 1000,
            "log_every": 1000,
        },
        "decode": {"beam": 2},
    }
    merged = {section: {**values, **sections.get(section, {})} for section, values in table.items()}
    return parse({"run": str(folder / run), **merged}, where="recipe.toml", folder=folder)


def task_of(recipe: Recipe, folder: Path) -> Any:
    """The task alone."""
    folder.mkdir(exist_ok=True)
    file = tasks.task(recipe.task_name)
    paths = [recipe.folder / "text.txt"]
    return file.Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=lambda _: paths, folder=folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of a task that learned the eight lines; each is trained once."""
    runs: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in runs:
            runs[name] = train(recipe_of(tmp_path_factory.mktemp("eight"), name))
        return runs[name]

    return get


def regard(capsys: pytest.CaptureFixture[str], *words: object, stdin: str = "") -> str:
    """What a command prints."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    assert not ended.value.code
    return capsys.readouterr().out


# --- all of them


@every_task
def test_eight_lines_are_learned_and_come_back_through_the_command_line(
    trained: Callable[[str], Run], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(name)
    gap = "<extra_0>" if name == "span-corruption" else "<mask>"
    gapped = "".join(f"{' '.join([word] * 3)} {gap} {' '.join([word] * 3)}\n" for word in WORDS)
    out = regard(capsys, "predict", run.folder, "--device", "cpu", stdin=gapped + "\n")
    assert out.splitlines() == [*(" ".join([word] * 7) for word in WORDS), ""]  # an empty line has an empty answer
    out = regard(capsys, "evaluate", run.folder, "--device", "cpu", "--split", "val")
    values = dict(line.split(": ") for line in out.splitlines() if not line.startswith(" "))
    assert list(values) == ["loss", "perplexity", "accuracy"]
    assert float(values["accuracy"]) > 80
    report = json.loads((run.folder / "report.json").read_text())["val"]
    assert report["metrics"]["perplexity"] == pytest.approx(math.exp(report["metrics"]["loss"]))
    # what is hidden in an evaluation does not depend on how it is cut into batches
    again = [score.value for score in run.evaluate("val", batch_tokens=30)]
    assert again == pytest.approx(list(report["metrics"].values()), rel=1e-5)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert report["metrics"]["loss"] == pytest.approx(lines[-1]["val_loss"], rel=1e-5)


@every_task
def test_several_answers_come_best_first_with_their_log_probability(trained: Callable[[str], Run], name: str) -> None:
    run = trained(name)
    gap = "<extra_0>" if name == "span-corruption" else "[MASK]"
    text = f"snow snow snow {gap} snow snow"
    (answer,) = run.predict([text], n_best=2)
    assert len(set(answer.texts)) == len(answer.texts) == len(answer.scores)
    assert len(answer.texts) == 2 or name == "span-corruption"  # two answers may say the same
    assert answer.texts[0] == "snow snow snow snow snow snow"
    assert [0.0, *answer.scores] == sorted([0.0, *answer.scores], reverse=True)
    batch, axes = run.task.pair(text, answer.ids[0])
    with torch.inference_mode():
        found = run.task.log_probs(run.model, batch)
    written = len(answer.ids[0]) + (name == "span-corruption")  # there its end is written too
    assert float(found.sum()) / written == pytest.approx(answer.scores[0], abs=1e-4)
    assert {axis.name: len(axis.tokens) == len(axis.offsets) for axis in axes.values()} == dict.fromkeys(axes, True)
    assert axes["source"].text == text
    same, _ = run.task.pair(text, answer.texts[0])
    if name == "span-corruption":  # of which the model wrote more than was asked for
        batch, _ = run.task.pair(text, answer.ids[0][:2])
    assert [tensor.tolist() for tensor in same.tensors()] == [tensor.tolist() for tensor in batch.tensors()]


@every_task
def test_examples_are_texts_that_pair(trained: Callable[[str], Run], name: str) -> None:
    task = trained(name).task
    examples = task.examples("val")
    assert len(examples) > 50
    for example in examples[:20]:
        batch, _ = task.pair(example.source, example.targets[0])
        with torch.inference_mode():
            assert float(task.log_probs(trained(name).model, batch).sum()) < 0


@pytest.mark.parametrize(
    ("name", "task", "model"),
    [
        ("masked-language-modeling", {"whole_word": True}, {"dropout": 0.1}),
        ("masked-language-modeling", {"next_sentence": True, "context": 20}, {"next_sentence": True}),
        ("permutation-language-modeling", {"carry": True}, {"memory": 8}),
        ("span-corruption", {}, {"dropout": 0.1}),
    ],
    ids=["masked", "next-sentence", "permutation", "spans"],
)
def test_resume_is_exact(tmp_path: Path, name: str, task: dict[str, Any], model: dict[str, Any]) -> None:
    """Stopped within the second epoch, and taken up again by another process's worth of objects."""
    text = TEXT.replace("\nold", "\n\nold").replace("\nrain", "\n\nrain")

    def run(folder: str, *stops: int) -> dict[str, torch.Tensor]:
        for stop in stops:
            # the rate must not know where it will be stopped
            words = {"max_steps": stop, "schedule": "inverse-sqrt", "batch_tokens": 200}
            train(recipe_of(tmp_path, name, run=folder, text=text, task=task, model=model, train=words))
        path = checkpoint.checkpoints(tmp_path / folder / checkpoint.FOLDER)[-1]
        weights, tensors, state = checkpoint.load_checkpoint(path)
        assert state["epoch"] >= 1
        return weights | tensors

    whole, parts = run("whole", 22), run("parts", 1, 15, 22)
    assert whole.keys() == parts.keys()
    assert [key for key, value in whole.items() if not torch.equal(value, parts[key])] == []
    assert ("task.0" in whole) == ("carry" in task)


@every_task
def test_rows_have_one_shape_and_change_with_the_epoch(tmp_path: Path, name: str) -> None:
    split = task_of(recipe_of(tmp_path, name), tmp_path / "run").split("train", tmp_path / "cache")

    def batches(epoch: int, seed: int = 1, shuffle: bool = True) -> list[Batch]:
        plan = split.plan(batch_tokens=200, multiple=4, seed=seed, epoch=epoch, shuffle=shuffle)
        return [split.collate(planned) for planned in plan]

    def same(one: list[Batch], other: list[Batch]) -> bool:
        return all(
            a.shape == b.shape and torch.equal(a, b)
            for x, y in zip(one, other, strict=True)
            for a, b in zip(x.tensors(), y.tensors(), strict=True)
        )

    first = batches(0)
    assert len({tuple(tensor.shape for tensor in batch.tensors()) for batch in first + batches(1)}) == 1
    assert same(first, batches(0))
    assert not same(first[:1], batches(1)[:1])
    assert not same(first[:1], batches(0, seed=2)[:1])
    assert same(batches(0, seed=1, shuffle=False), batches(3, seed=2, shuffle=False))  # validation is fixed
    assert split.first(3).source.ids.shape[0] == 3
    assert 0 <= split.padding(split.plan(batch_tokens=200, multiple=4, seed=1, epoch=0, shuffle=True)) < 0.5


@pytest.mark.parametrize("name", ["masked-language-modeling", "permutation-language-modeling"])
def test_ends_of_lines_are_never_hidden(tmp_path: Path, name: str) -> None:
    text = "snow\nrain\n" * 100
    task = task_of(recipe_of(tmp_path, name, text=text, task={"line_ends": "token", "context": 30}), tmp_path / "run")
    batch = task.split("train", tmp_path / "cache").first(10)
    end = task.tokenizer.specials.end
    assert (batch.source.ids == end).sum() > 100
    assert (batch.target.ids >= 0).sum() > 10
    assert not (batch.target.ids == end).any()


def test_the_recipes_of_the_page_are_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pretraining.md").read_text(encoding="utf-8")
    found = [
        parse(tomllib.loads(text), where="page", folder=Path()) for text in re.findall(r"```toml\n(.*?)```", page, re.S)
    ]
    assert [recipe.task_name for recipe in found] == list(MODELS)


# --- masked


def test_other_families_say_what_is_hidden(tmp_path: Path) -> None:
    name = "masked-language-modeling"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MODELS, name, MODELS["permutation-language-modeling"])
        run = train(recipe_of(tmp_path, name, train={"max_steps": 60}))
    assert type(run.model).__name__ == "XLNet"
    assert run.predict(["snow snow <mask> snow snow snow"])[0].text == "snow snow snow snow snow snow"


def test_a_row_hides_what_its_labels_say(tmp_path: Path) -> None:
    name = "masked-language-modeling"
    task = task_of(recipe_of(tmp_path, name, task={"context": 34}), tmp_path / "run")
    batch = task.split("train", tmp_path / "cache").first(20)
    special, ids, labels = task.tokenizer.specials, batch.source.ids, batch.target.ids
    assert (ids[:, 0] == special.start).all()
    assert (ids[:, -1] == special.end).all()
    assert (labels[:, [0, -1]] == -100).all()
    share = (labels >= 0).sum().item() / (20 * 32)
    assert share == pytest.approx(0.2, abs=0.01)
    assert ((labels >= 0) | (ids != special.mask)).all()
    restored = torch.where(labels >= 0, labels, ids)[:, 1:-1].flatten()
    stream = torch.from_numpy(task.split("train", tmp_path / "cache").windows.text.lines.ids.astype(int))
    assert torch.equal(restored, stream[: len(restored)])


def test_next_sentences_are_learned_beside(tmp_path: Path) -> None:
    name, words = "masked-language-modeling", {"max_steps": 250}
    text = "".join(f"{word} {word} {word}\n{word} {word}\n" * 3 + "\n" for word in WORDS) * 12
    task, model = {"next_sentence": True, "context": 13}, {"next_sentence": True}
    recipe = recipe_of(tmp_path, name, text=text, task=task, model=model, train=words)
    run = train(recipe)
    scores = {score.name: score.value for score in run.evaluate("val")}
    assert list(scores) == ["loss", "perplexity", "accuracy", "next_sentence_accuracy"]
    assert scores["next_sentence_accuracy"] > 75  # of the others one in eight is of the same words
    assert scores["accuracy"] > 90
    split = run.task.split("val", tmp_path / "cache")
    assert "sentences in 96 documents" in split.describe()
    batch = split.collate(split.plan(batch_tokens=400, multiple=1, seed=0, epoch=0, shuffle=False)[0])
    total, count = run.task.loss(run.model, batch)
    run.task.config = recipe_of(tmp_path, name, text=text, task={"context": 13}).task
    alone, same = run.task.loss(run.model, batch)
    assert count == same
    logits = run.model.next_sentence(run.model.pooled(run.model.hidden(batch), batch.source.lengths))
    follows = torch.nn.functional.cross_entropy(logits, batch.target.ids[:, 0], reduction="sum")
    torch.testing.assert_close(total, alone + 0.2 * 10 * follows)


def test_a_foreign_tokenizer_has_its_own_special_ids(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers

    pieces = ["[PAD]", "[UNK]", "play", "##s", "##ed", "the", "piano", ".", "[CLS]", "[SEP]", "[MASK]", "she"]
    inner = Inner(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    inner.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    specials = Specials(start=8, end=9, pad=0, unk=1, mask=10)
    run = tmp_path / "run"
    run.mkdir()
    Tokenizer.foreign(inner, specials).save(run / "tokenizer.json")
    words = {"whole_word": True, "share": 0.5, "context": 12}
    text = "she plays the piano. she played the piano.\n" * 20
    task = task_of(recipe_of(tmp_path, "masked-language-modeling", text=text, task=words), run)
    batch = task.split("train", tmp_path / "cache").first(12)
    ids, labels = batch.source.ids, batch.target.ids
    assert (ids[:, 0] == 8).all()
    assert (ids[:, -1] == 9).all()
    assert not torch.isin(labels, torch.tensor([0, 1, 8, 9, 10])).any()
    hidden, whole = labels >= 0, torch.where(labels >= 0, labels, ids)
    tails = torch.isin(whole, torch.tensor([3, 4]))  # ##s, ##ed
    assert tails[:, 2:].sum() > 10
    assert torch.equal(hidden[:, 2:][tails[:, 2:]], hidden[:, 1:-1][tails[:, 2:]])
    plan = task.split("train", tmp_path / "cache").plan(batch_tokens=240, multiple=1, seed=1, epoch=0, shuffle=False)
    every = [task.split("train", tmp_path / "cache").collate(planned) for planned in plan]
    cut = [batch.target.ids[:, 1] for batch in every]  # labels of what begins a row
    assert torch.isin(torch.cat(cut), torch.tensor([3, 4])).any()  # also of a word that the row cuts
    batch, axes = task.pair("she [MASK] the piano.", "she plays the piano.")
    assert axes["source"].tokens == ("[CLS]", "she", "[MASK]", "[MASK]", "the", "piano", ".", "[SEP]")
    assert batch.target.ids[0].tolist() == [-100, -100, 2, 3, -100, -100, -100, -100]


def test_whole_words_of_a_text_that_fills_no_row(tmp_path: Path) -> None:
    """The last row of a text reaches beyond its end, in validation always."""
    name, words = "masked-language-modeling", {"whole_word": True, "context": 32}
    recipe = recipe_of(tmp_path, name, text="one two three four five six\n" * 8, task=words)
    task = task_of(recipe, tmp_path / "run")
    split = task.split("val", tmp_path / "cache")
    (planned,) = split.plan(batch_tokens=100, multiple=1, seed=0, epoch=0, shuffle=False)
    batch = split.collate(planned)
    ends = [row.count(task.tokenizer.specials.end) for row in batch.source.ids.tolist()]
    assert (batch.source.lengths.tolist(), ends) == ([32, 19], [1, 1])
    assert (batch.target.ids[1, 19:] < 0).all()
    short = recipe_of(tmp_path, name, run="short", text="one two\n", task=words, train={"max_steps": 1})
    assert train(short).evaluate("val")


# --- permutation


def test_what_is_predicted_never_sees_itself(tmp_path: Path) -> None:
    """Nor what comes after it in the order: to change it changes nothing that is said of it and of those before."""
    name = "permutation-language-modeling"
    recipe = recipe_of(tmp_path, name, task={"context": 31}, train={"max_steps": 1})
    run = train(recipe)
    batch = run.task.split("train", tmp_path / "cache").first(4)
    labels, ranks = batch.target.ids, batch.target.segments
    assert ((labels >= 0) == (ranks >= 0)).all()
    assert [(row >= 0).sum().item() for row in labels] == [5] * 4
    assert [sorted(row[row >= 0].tolist()) for row in ranks] == [list(range(5))] * 4
    assert (batch.source.ids[labels >= 0] == labels[labels >= 0]).all()
    before = run.task.log_probs(run.model, batch)
    ids = batch.source.ids.clone()
    ids[ranks >= 3] = run.task.tokenizer.encode_batch(["snow"])[0][0]
    changed = Batch(type(batch.source)(ids, batch.source.lengths), batch.target)
    after = run.task.log_probs(run.model, changed)
    torch.testing.assert_close(after[ranks < 4], before[ranks < 4])
    assert not torch.equal(after[ranks == 4], before[ranks == 4])


def test_a_row_goes_on_with_the_memory_of_the_batch_before(tmp_path: Path) -> None:
    name = "permutation-language-modeling"
    recipe = recipe_of(tmp_path, name, task={"carry": True}, model={"memory": 14}, train={"max_steps": 1})
    task, model = (run := train(recipe)).task, run.model
    split = task.split("train", tmp_path / "cache")
    first, second, *_ = [
        split.collate(each) for each in split.plan(batch_tokens=40, multiple=1, seed=1, epoch=0, shuffle=True)
    ]
    assert (first.carry.tolist(), second.carry.tolist()) == ([0] * 4, [1] * 4)
    with torch.inference_mode():
        for _ in range(2):  # a row that begins forgets
            found = [task.loss(model, batch)[0] for batch in (first, second)]
            places = [batch.target.ids.topk(1)[1] for batch in (first, second)]
            seen = [seen_in_order(batch.target.segments) for batch in (first, second)]
            states, memory = model.predict(first, seen[0], places[0], model.empty_memory(4))
            later, memory = model.predict(second, seen[1], places[1], memory)
            alone, _ = model.predict(second, seen[1], places[1])
            for loss, each, at, batch in zip(found, (states, later), places, (first, second), strict=True):
                labels = batch.target.ids.gather(1, at).flatten()
                torch.testing.assert_close(model.head.loss(each.flatten(0, 1), labels), loss)
            assert not torch.allclose(alone, later)


# --- spans


def test_answers_that_say_the_same_are_one_and_the_best(trained: Callable[[str], Run]) -> None:
    task = trained("span-corruption").task
    snow, rain = task.tokenizer.encode_batch(["snow rain"])[0]
    zero, one = task.sentinels
    found = [(zero, snow), (zero, rain), (zero, snow, one, rain)]
    answers = [Hypothesis(ids, -1.0 - i, -1.0 - i, True) for i, ids in enumerate(found)]
    prediction = task._prediction("rain <extra_0> rain", answers)
    assert prediction.texts == ("rain snow rain", "rain rain rain")
    assert prediction.scores == (-1.0, -2.0)
    assert prediction.ids == ((zero, snow), (zero, rain))


def test_spans_and_sentinels_make_the_text_again(tmp_path: Path) -> None:
    words = {"context": 40, "density": 0.15, "mean_span": 3.0}
    text = "".join(f"{a} {b} {c}\n" for a in WORDS for b in WORDS for c in WORDS)
    task = task_of(recipe_of(tmp_path, "span-corruption", text=text, task=words), tmp_path / "run")
    split = task.split("train", tmp_path / "cache")
    batch = split.first(20)
    assert task.tokenizer.tokens(task.sentinels) == ["<extra_0>", "<extra_1>"]
    assert batch.source.lengths.tolist() == [40 - 6 + 2 + 1] * 20  # nothing is padding
    assert batch.target.lengths.tolist() == [6 + 2 + 2] * 20
    stream = split.windows.text.lines.ids
    for i, (source, target) in enumerate(zip(batch.source.ids.tolist(), batch.target.ids.tolist(), strict=True)):
        assert source[-1] == target[-1] == task.tokenizer.specials.end
        assert target[:2] == [task.tokenizer.specials.start, task.sentinels[0]]
        assert [each for each in source if each in task.sentinels] == task.sentinels
        assert task.filled(source[:-1], target[1:-1]) == stream[40 * i : 40 * (i + 1)].tolist()


# --- what is refused


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("masked-language-modeling", {"context": 4}, "context is too short\n  got:    4\n  wanted: 5 or more"),
        ("masked-language-modeling", {"share": 1.0}, "share is a share\n  got:    1.0"),
        ("permutation-language-modeling", {"part": 1}, "part is too small\n  got:    1\n  wanted: 2 or more"),
        ("permutation-language-modeling", {"longest_span": 0}, "longest_span is too small\n  got:    0"),
        ("permutation-language-modeling", {"context": 6}, "context is too short\n  got:    6\n  wanted: 7 or more"),
        ("span-corruption", {"density": 0.0}, "density is a share\n  got:    0.0\n  wanted: 0 < x < 1, as 0.15"),
        ("span-corruption", {"mean_span": 0.5}, "mean_span is too small\n  got:    0.5"),
        ("span-corruption", {"context": 1}, "context is too short\n  got:    1"),
    ],
)
def test_wrong_keys(tmp_path: Path, name: str, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        recipe_of(tmp_path, name, task=words)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "task", "model", "message"),
    [
        (
            "permutation-language-modeling",
            {},
            MODELS["masked-language-modeling"],
            "the model cannot predict the tokens of a text in any order\n  got:    Bert\n"
            '  wanted: family = "xlnet", which has two streams\n'
            '  try:    task.name = "masked-language-modeling" takes any family that reads a text',
        ),
        (
            "permutation-language-modeling",
            {"carry": True},
            {},
            "a row that goes on needs a memory\n  got:    model.mem",
        ),
        ("masked-language-modeling", {}, {"masked_head": False}, "the model has no head that says what is hidden\n"),
        (
            "masked-language-modeling",
            {"next_sentence": True},
            {},
            "the model has no head that says whether a text follows another\n  got:    task.next_sentence = true\n"
            '  wanted: family = "bert" with next_sentence = true\n  try:    or task.next_sentence = false',
        ),
    ],
)
def test_models_that_do_not_fit(
    tmp_path: Path, name: str, task: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if "family" in model:
            patch.setitem(MODELS, name, model)
            model = {}
        recipe = recipe_of(tmp_path, name, text=TEXT.replace("\nold", "\n\nold"), task=task, model=model)
    with pytest.raises(ConfigError) as error:
        train(recipe)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "masked-language-modeling",
            "snow and rain",
            "text 2 has no gap to fill in\n  got:    snow and rain\n  wanted: <mask>\n"
            "  try:    as in: the <mask> sat on the mat",
        ),
        (
            "permutation-language-modeling",
            "snow <mask> " * 9,
            "text 2 is too long\n  got:    18 tokens\n  wanted: at most 9 (task.context)\n"
            "  try:    cut what is far from the gap",
        ),
        (
            "span-corruption",
            "snow <mask> snow",
            "text 2 has no gap to fill in\n  got:    snow <mask> snow\n  wanted: <extra_0>\n"
            "  try:    as in: thank <extra_0> much",
        ),
        (
            "span-corruption",
            "snow <extra_1> snow <extra_0>",
            "text 2 does not count its gaps\n  got:    <extra_1>, <extra_0>\n"
            "  wanted: <extra_0>, then <extra_1> and so on",
        ),
        (
            "span-corruption",
            "<extra_0> a <extra_1> b <extra_2>",
            "text 2 has more gaps than there are sentinels\n  got:    3 gaps\n  wanted: at most 2",
        ),
        ("span-corruption", "<extra_0> " + "snow " * 10, "text 2 is too long\n  got:    11 tokens"),
    ],
)
def test_texts_that_cannot_be_filled(trained: Callable[[str], Run], name: str, text: str, message: str) -> None:
    good = "snow <extra_0> snow" if name == "span-corruption" else "snow <mask> snow"
    with pytest.raises(DataError) as error:
        trained(name).predict([good, text])
    assert str(error.value).startswith(message)
    answered, left_out = trained(name).predict([good, text], on_bad_line="skip")
    assert (answered.text, answered.wrong) == (trained(name).predict([good])[0].text, "")
    assert left_out.text == ""
    assert left_out.wrong.startswith(message)


@every_task
def test_words_that_nobody_knows_come_back(trained: Callable[[str], Run], name: str) -> None:
    gap = "<extra_0>" if name == "span-corruption" else "<mask>"
    said = trained(name).predict([f"Zebras,  snow {gap} snow Ö"])[0].text
    assert (said[:14], said[-7:]) == ("Zebras,  snow ", " snow Ö")


@every_task
def test_one_text_that_cannot_be_filled_stops_no_other(
    trained: Callable[[str], Run], name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, gap = trained(name).folder, "<extra_0>" if name == "span-corruption" else "<mask>"
    lines = [f"snow snow {gap} snow", "snow and rain", "", f"rain rain {gap} rain", "snow again"]
    monkeypatch.setattr(jobs, "CHUNK", 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["predict", str(folder), "--device", "cpu"])
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out.splitlines() == ["snow snow snow snow", "", "", "rain rain rain rain", ""]
    told = [line for line in err.splitlines() if line.startswith(("error:", "  got:"))]
    assert told == [
        "error: text 2 has no gap to fill in",
        "  got:    snow and rain",
        "error: text 5 has no gap to fill in",
        "  got:    snow again",
    ]
    assert err.splitlines()[-1] == "2 lines could not be read: the answer is empty there"
    if name == "permutation-language-modeling":
        return  # which cannot be looked at
    (folder / "lines.txt").write_text("\n".join(["", *lines]))
    with pytest.raises(DataError, match=r"has no gap to fill in\n  got:    snow and rain\n(.*\n)*.*lines.txt:3"):
        trained(name).look_at_file(folder / "lines.txt")


@every_task
def test_prefixes_and_answers_that_do_not_fit(trained: Callable[[str], Run], name: str) -> None:
    task = trained(name).task
    gap = "<extra_0>" if name == "span-corruption" else "<mask>"
    with pytest.raises(ConfigError, match="prefixes has no use here"):
        trained(name).predict([f"snow {gap}"], prefixes=["snow"])
    with pytest.raises(DataError) as error:
        task.pair(f"snow {gap} rain", "rain and snow")
    message = "the answer is not the text with its gaps filled in\n  got:    rain and snow\n"
    assert str(error.value) == f"{message}  wanted: snow {gap} rain"


def test_one_document_has_no_other(tmp_path: Path) -> None:
    words = {"next_sentence": True}
    recipe = recipe_of(tmp_path, "masked-language-modeling", task=words, model={"next_sentence": True})
    with pytest.raises(DataError) as error:
        train(recipe)
    assert str(error.value) == (
        "there are no two documents of which one has two sentences\n"
        "  got:    96 sentences in 1 documents\n"
        "  wanted: a sentence a line, and an empty line between two documents\n"
        "  try:    task.next_sentence = false needs neither"
    )


def test_a_tokenizer_without_what_is_needed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    Tokenizer.train([TEXT], kind="words").save(run / "tokenizer.json")
    with pytest.raises(RegardError) as error:
        task_of(recipe_of(tmp_path, "masked-language-modeling"), run)
    assert str(error.value).startswith("the tokenizer has no piece that stands for what is hidden\n  wanted: <mask> or")
    with pytest.raises(RegardError) as error:
        task_of(recipe_of(tmp_path, "span-corruption"), run)
    assert str(error.value) == (
        "the tokenizer has too few sentinels\n  got:    0\n  wanted: 2, one for each span of 10 tokens\n"
        "  try:    a smaller task.context, or a larger task.mean_span"
    )


def test_a_run_is_loaded_without_its_data(trained: Callable[[str], Run], tmp_path: Path) -> None:
    run = trained("masked-language-modeling")
    (run.folder.parent / "text.txt").rename(tmp_path / "away.txt")
    try:
        assert load(run.folder, "cpu").predict(["snow <mask> snow snow"])[0].text == "snow snow snow snow"
    finally:
        (tmp_path / "away.txt").rename(run.folder.parent / "text.txt")
