"""Translation: eight examples are learned by heart by every family, and come back through the command line."""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.cli.main import main
from regard.config import read_section
from regard.data.config import DataConfig, resolve
from regard.data.tokenizers import BOS, EOS, TokenizerConfig
from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, DataError
from regard.recipe import read_recipe
from regard.run import Run, train
from regard.tasks.translation import Config, Task, consistent_loss, sum_loss
from regard.types import Batch, Sequences

EIGHT = [
    ("a dog runs", "ein Hund rennt"),
    ("a dog sleeps", "ein Hund schläft"),
    ("two dogs run", "zwei Hunde rennen"),
    ("the cat sees the dog", "die Katze sieht den Hund"),
    ("the dog sees the cat", "der Hund sieht die Katze"),
    ("where is the cat?", "wo ist die Katze?"),
    ("here", "hier"),
    ("what a long day it was for all of us", "was für ein langer Tag das für uns alle war"),
]
SIZES = {
    "transformer": "encoder_layers = 1\ndecoder_layers = 1\nmodel_dim = 32\nnum_heads = 2\nffn_dim = 64",
    "recurrent": "embedding_dim = 32\nhidden_dim = 32",
    "convolutional": "encoder_layers = 1\ndecoder_layers = 2\nembedding_dim = 32\nhidden_dim = 32",
}
RECIPE = """
[task]
label_smoothing = 0.0
metrics = ["bleu", "exact_match"]

[data]
train = ["eight.tsv"]
val = ["eight.tsv"]
test = ["eight.tsv"]

[tokenizer]
vocab_size = 120

[model]
family = "{family}"
dropout = 0.0
{sizes}

[train]
device = "cpu"
max_steps = 120
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 10
validate_every = 60
best = "exact_match"
"""


def write_tsv(path: Path, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of a family that learned the eight examples; each is trained once."""
    folder = tmp_path_factory.mktemp("eight")
    write_tsv(folder / "eight.tsv", EIGHT)
    runs: dict[str, Run] = {}

    def get(name: str) -> Run:
        if name not in runs:
            path = folder / f"{name}.toml"
            path.write_text(RECIPE.format(family=name, sizes=SIZES[name]))
            runs[name] = train(read_recipe(path, [f"run={folder / name}"]))
        return runs[name]

    return get


def regard(*words: object, stdin: str = "") -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    assert not ended.value.code


@pytest.mark.parametrize("name", SIZES)
def test_eight_examples_are_learned_and_come_back_through_the_command_line(
    trained: Callable[[str], Run], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(name).folder
    assert {type(trained(name).model).__name__.lower()} == {name}
    capsys.readouterr()
    regard("predict", folder, "--device", "cpu", stdin="".join(f"{source}\n" for source, _ in EIGHT))
    assert capsys.readouterr().out.splitlines() == [target for _, target in EIGHT]

    write_tsv(tmp_path / "sources.tsv", [(source,) for source, _ in reversed(EIGHT)])
    regard("predict", folder, tmp_path / "sources.tsv", "--format", "jsonl", "--scores", "--out", tmp_path / "out")
    records = [json.loads(line) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    assert [(record["source"], record["target"]) for record in records] == list(reversed(EIGHT))
    assert all(-0.5 < record["score"] < 0 for record in records)

    regard("evaluate", folder, "--device", "cpu", "method=greedy")
    assert "bleu: 100.00\n" in capsys.readouterr().out


# --- loss and logits


@pytest.mark.parametrize("name", SIZES)
def test_logits_are_those_of_the_head_and_of_decoding(trained: Callable[[str], Run], name: str) -> None:
    run = trained(name)
    source = torch.tensor([[*run.task.source.encode_batch([EIGHT[0][0]])[0], EOS]])
    target = torch.tensor([[BOS, *run.task.target.encode_batch([EIGHT[0][1]])[0]]])
    logits = run.logits(source, target)
    assert logits.shape == (1, target.shape[1], run.task.target.size)
    assert logits.argmax(-1).tolist() == [[*target[0, 1:].tolist(), EOS]]  # learned by heart

    whole = torch.cat([target, torch.full((1, 1), EOS)], dim=1)
    batch = Batch(Sequences(source, torch.tensor([source.shape[1]])), Sequences(whole, torch.tensor([whole.shape[1]])))
    with torch.inference_mode():
        torch.testing.assert_close(logits, run.model.head(run.model.hidden(batch)))  # type: ignore[operator]
        state = run.model.start(batch.source, 32)  # type: ignore[operator]
        stepped, _ = run.model.step(target, state)  # type: ignore[operator]
        torch.testing.assert_close(logits, stepped, rtol=1e-4, atol=1e-4)

        loss, count = run.task.loss(run.model, batch)
    chosen = logits.log_softmax(-1)[0, torch.arange(count), whole[0, 1:]]
    assert count == whole.shape[1] - 1
    torch.testing.assert_close(loss, -chosen.sum())

    # a prediction's score is the mean of the same log-probabilities
    prediction = run.predict([EIGHT[0][0]], method="greedy")[0]
    assert prediction.scores[0] == pytest.approx(chosen.mean().item(), abs=1e-4)


# --- predictions


def test_predictions_carry_tokens_scores_and_n_best(trained: Callable[[str], Run]) -> None:
    run = trained("transformer")
    prediction = run.predict(["two dogs run"], n_best=3, beam=4)[0]
    assert len(prediction.texts) == len(prediction.scores) == len(prediction.tokens) == 3
    assert prediction.text == prediction.texts[0] == "zwei Hunde rennen"
    assert list(prediction.scores) == sorted(prediction.scores, reverse=True)
    assert "".join(prediction.tokens[0]).replace("▁", " ").strip() == "zwei Hunde rennen"


def test_the_order_of_the_sources_is_kept_and_empty_ones_have_empty_answers(trained: Callable[[str], Run]) -> None:
    run = trained("transformer")
    sources = [EIGHT[7][0], "", EIGHT[6][0], EIGHT[3][0]]
    told: list[tuple[int, int]] = []
    answers = run.predict(sources, batch_tokens=16, on_batch=lambda done, total: told.append((done, total)))
    assert [answer.text for answer in answers] == [EIGHT[7][1], "", EIGHT[6][1], EIGHT[3][1]]
    assert told[-1] == (4, 4)
    assert len(told) > 1
    assert run.predict([]) == []


def test_a_prefix_begins_the_answer(trained: Callable[[str], Run]) -> None:
    run = trained("transformer")
    free, forced = (run.predict(["a dog runs"], prefixes=prefixes)[0] for prefixes in (None, ["zwei Hunde"]))
    assert free.text == "ein Hund rennt"
    assert forced.text.startswith("zwei Hunde")
    assert run.predict(["a dog runs", "here"], prefixes=["", "hier"])[0].text == "ein Hund rennt"


@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_where_there_is_no_source_there_is_no_answer_whatever_the_prefix(tmp_path: Path, kind: str) -> None:
    write_tsv(tmp_path / "eight.tsv", EIGHT)
    (tmp_path / "a.toml").write_text(RECIPE.format(family="transformer", sizes=SIZES["transformer"]))
    words = [f"run={tmp_path / 'run'}", f"tokenizer.kind={kind}", "train.max_steps=2", "train.validate_every=2"]
    run = train(read_recipe(tmp_path / "a.toml", words))
    sources, prefixes = ["", "  ", "here", "\u3000"], ["ein"] * 4
    for config in ({}, {"beam": 2, "n_best": 2}, {"method": "greedy"}):
        empty, blank, answer, wide = run.predict(sources, prefixes=prefixes, max_length=2, **config)
        assert [each.texts for each in (empty, blank, wide)] == [("",)] * 3
        assert answer.text.startswith("ein")
        assert [each.text for each in run.predict(sources, max_length=2, **config)][:2] == ["", ""]


def test_a_source_that_is_too_long_has_no_answer_whatever_its_prefix(trained: Callable[[str], Run]) -> None:
    sources, prefixes = ["a dog " * 200, "a dog runs"], ["zwei", "zwei"]
    long, good = trained("transformer").predict(sources, prefixes=prefixes, on_bad_line="skip")
    assert (long.text, long.wrong.splitlines()[0]) == ("", "source 1 is too long")
    assert long.scores == (float("-inf"),)
    assert good.text.startswith("zwei")


def test_a_prefix_that_no_answer_can_begin_with_is_refused(trained: Callable[[str], Run]) -> None:
    with pytest.raises(ConfigError) as error:
        trained("transformer").predict(["a dog runs", "here"], prefixes=["", "zwei 猫 Hunde"])
    assert str(error.value) == (
        "a prefix holds what no answer of this run can hold\n  got:    猫\n"
        "  wanted: words or letters that its training targets had"
    )


def with_config(task: Task, config: Config | None = None, data: DataConfig | None = None) -> Task:
    """The same tokenizers under other sections."""
    return Task(
        config or task.config,
        data or task.data,
        paths=task.paths,
        source=task.source,
        target=task.target,
        shared=task.sizes.shared,
    )


LONG = EIGHT[7][0]
GREEDY, CPU = DecodeConfig(method="greedy"), torch.device("cpu")


@pytest.mark.parametrize("first", [0, 4096])
def test_a_source_that_is_too_long_is_an_error(trained: Callable[[str], Run], first: int) -> None:
    run = trained("transformer")
    task = with_config(run.task, data=DataConfig(train=("x",), val=("x",), max_length=3))
    number = len(task.source.encode_batch([LONG])[0])
    with pytest.raises(DataError) as error:
        task.predict(run.model, ["here", LONG], GREEDY, device=CPU, first_index=first)  # type: ignore[arg-type]
    assert str(error.value) == (
        f"source {first + 2:,} is too long\n"
        f"  got:    {number} tokens\n"
        "  wanted: at most 3 (data.max_length)\n"
        "  try:    a shorter text; a model trained with data.too_long = truncate cuts it"
    )
    with pytest.raises(DataError, match=f"source {first + 2:,} is too long"):
        task.need(LONG, first + 2)
    task.need("here", 1)


@pytest.mark.parametrize("policy", ["truncate", "drop"])
def test_or_it_is_cut(trained: Callable[[str], Run], policy: Any) -> None:
    """Its first tokens are all that is read; a question cannot be dropped."""
    run = trained("transformer")
    task = with_config(run.task, data=DataConfig(train=("x",), val=("x",), max_length=3, too_long=policy))
    ids = task.source.encode_batch([LONG])[0][:3]
    begin = task.source.decode(ids)
    assert task.source.encode_batch([begin])[0] == ids
    cut, wanted = task.predict(run.model, [LONG, begin], GREEDY, device=CPU)  # type: ignore[arg-type]
    assert (cut.texts, cut.scores, cut.tokens) == (wanted.texts, wanted.scores, wanted.tokens)
    assert (cut.cut, wanted.cut) == (len(task.source.encode_batch([LONG])[0]) - 3, 0)


# --- splits


def open_task(folder: Path, *, tokenizer: dict[str, Any] | None = None, **data: Any) -> Task:
    config = DataConfig(**{"train": ("train.tsv",), "val": ("val.tsv",), **data})
    return Task.open(
        Config(metrics=("phoneme_error", "word_error")),
        config,
        TokenizerConfig(**{"kind": "words", **(tokenizer or {})}),
        paths=lambda split: resolve(config, folder, [split]).get(split, ()),
        folder=folder,
    )


def test_several_targets_of_a_source_are_trained_on_and_all_count_as_right(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("r e a d", "R IY D", "R EH D"), ("c a t", "K AE T")])
    write_tsv(tmp_path / "val.tsv", [("r e a d", "R IY D", "R EH D"), ("c a t", "K AE T")])
    task = open_task(tmp_path, tokenizer={"shared": False})
    pairs = task.split("train", tmp_path / "cache")
    plan = pairs.plan(batch_tokens=100, multiple=4, seed=1, epoch=0, shuffle=False)
    batch = pairs.collate(plan[0])
    assert len(batch.rows) == 3  # one row a variant
    assert batch.target is not None
    rows = {task.target.decode(row.tolist()) for row in batch.target.ids}
    assert rows - {""} == {"R IY D", "R EH D", "K AE T"}
    examples = task.examples("val")
    assert [example.targets for example in examples] == [("R IY D", "R EH D"), ("K AE T",)]

    def scores(*answers: str) -> dict[str, float]:
        given = [SimpleNamespace(text=answer) for answer in answers]
        return {score.name: score.value for score in task.score(given, examples)}  # type: ignore[arg-type]

    assert scores("R EH D", "K AE T") == {"phoneme_error": 0.0, "word_error": 0.0}
    assert scores("R IY D", "K AE") == pytest.approx({"phoneme_error": 100 / 6, "word_error": 50.0})


def test_tokenizers_are_trained_once_and_on_the_training_split(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("a b", "x y")])
    write_tsv(tmp_path / "val.tsv", [("a c", "x z")])
    task = open_task(tmp_path, tokenizer={"shared": False})
    assert (task.source.size, task.target.size) == (6, 6)
    assert task.source.decode(task.source.encode_batch(["a c"])[0]) == "a"  # c is not known
    (tmp_path / "train.tsv").unlink()
    again = open_task(tmp_path, tokenizer={"shared": False})
    assert again.source.to_json() == task.source.to_json()
    assert again.target.to_json() == task.target.to_json()
    assert again.sizes == task.sizes


def test_a_shared_vocabulary_is_one(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("a b", "x y")])
    task = open_task(tmp_path)
    assert task.source is task.target
    assert (task.sizes.source, task.sizes.target, task.sizes.shared) == (8, 8, True)


def test_what_is_said_of_a_split(tmp_path: Path) -> None:
    rows = ["a b\tx y", "alone", "a\t", "a a a a a\tx"]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    task = open_task(tmp_path, on_bad_line="skip", max_length=3, too_long="drop")
    assert task.split("train", tmp_path / "cache").describe() == (
        "1 rows, 2 source and 2 target tokens; 0 truncated, 1 dropped, 2 bad lines\n"
        f"  {tmp_path / 'train.tsv'}:2: one column; wanted source, tab, target\n"
        f"  {tmp_path / 'train.tsv'}:3: the target is empty"
    )


def error_of(work: Callable[[], object]) -> str:
    with pytest.raises(DataError) as error:
        work()
    return str(error.value)


def test_splits_that_are_not_there(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("a b", "x y")])
    task = open_task(tmp_path)
    missing = "the recipe names no test split\n  got:    data.test is empty\n"
    missing += "  try:    set data.test, or evaluate another: --split val"
    for ask in (lambda: task.split("test", tmp_path), lambda: task.examples("test")):
        assert error_of(ask) == missing
    unknown = "no such split\n  got:    tset\n  wanted: train, val, test"
    for ask in (lambda: task.split("tset", tmp_path), lambda: task.examples("tset")):
        assert error_of(ask) == unknown
    assert error_of(lambda: task.split("val", tmp_path)).startswith(f"no such file\n  got:    {tmp_path / 'val.tsv'}\n")


def test_splits_without_anything_to_learn_from(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("")
    assert error_of(lambda: open_task(tmp_path)) == (
        f"the training split holds no example\n  got:    0 examples\n  where:  {tmp_path / 'train.tsv'}\n"
        "  try:    put lines into it, or name another file under train"
    )
    (tmp_path / "train.txt").write_text("a b\n")
    assert error_of(lambda: open_task(tmp_path, train=("train.txt",))) == (
        "there is nothing to translate into\n"
        f"  got:    one text file: {tmp_path / 'train.txt'}\n"
        "  wanted: two parallel files, a .tsv with source and target, or a .jsonl with both"
    )
    write_tsv(tmp_path / "train.tsv", [("a b", "x y")])
    (tmp_path / "val.txt").write_text("a b\n")
    task = open_task(tmp_path, val=("val.txt",))
    assert error_of(lambda: task.examples("val")).startswith("there is nothing to translate into\n")
    assert not list(tmp_path.glob("*.part"))


def test_a_tokenizer_that_cannot_be_written(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", [("a b", "x y")])
    (tmp_path / f".tokenizer.target.json.{os.getpid()}").mkdir()  # where it is written first
    assert error_of(lambda: open_task(tmp_path)) == (
        f"the tokenizer cannot be written\n  got:    Is a directory\n  where:  {tmp_path / 'tokenizer.target.json'}"
    )


# --- the section


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing is a share\n  got:    1.0\n  wanted: 0 <= x < 1"),
        ({"label_smoothing": math.nan}, "label_smoothing is a share\n  got:    nan\n  wanted: 0 <= x < 1"),
        (
            {"metrics": []},
            "no metric is named\n  got:    ()\n  wanted: bleu, chrf, ter, phoneme_error, word_error, exact_match, "
            "rouge1, rouge2, rougeL, distinct1, distinct2",
        ),
        (
            {"metrics": ["bleu", "blue"]},
            "unknown metric\n  got:    blue\n  wanted: bleu, chrf, ter, phoneme_error, word_error, exact_match, "
            "rouge1, rouge2, rougeL, distinct1, distinct2",
        ),
        (
            {"tokenize": "13"},
            "sacreBLEU has no such tokeniser\n  got:    13\n  wanted: 13a, intl, zh, char, none, ja-mecab, ko-mecab",
        ),
    ],
)
def test_a_section_that_cannot_be_meant(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_section(Config, table, where="recipe.toml", name="task")
    assert str(error.value).startswith(f"{text}\n  where:  [task] in recipe.toml")


def test_the_options_of_the_section_reach_the_metrics(trained: Callable[[str], Run]) -> None:
    task: Task = trained("transformer").task
    shouting = with_config(task, Config(metrics=("bleu", "exact_match"), lowercase=True, tokenize="char"))
    given = [SimpleNamespace(text=target.upper()) for _, target in EIGHT]
    examples = task.examples("test")
    assert [score.value for score in shouting.score(given, examples)] == pytest.approx([100.0, 100.0])  # type: ignore[arg-type]
    assert "tok:char" in shouting.score(given, examples)[0].signature  # type: ignore[arg-type]
    assert task.score(given, examples)[1].value == 0.0  # type: ignore[arg-type]


def _doubled(dropout: float) -> tuple[Any, Batch]:
    """A small Transformer in training, and a batch with padding."""
    from regard.models import Sizes, transformer

    config = transformer.Config(
        encoder_layers=1, decoder_layers=1, model_dim=16, num_heads=2, ffn_dim=32, dropout=dropout
    )
    torch.manual_seed(3)
    model = transformer.build(config, Sizes(11, 11, True)).train()
    source = Sequences(torch.randint(4, 11, (3, 5)), torch.tensor([5, 2, 4]))
    target = Sequences(torch.randint(4, 11, (3, 6)), torch.tensor([3, 6, 5]))
    return model, Batch(source, target)


def test_consistency_without_dropout_is_the_plain_loss() -> None:
    model, batch = _doubled(dropout=0.0)
    plain, count = sum_loss(model, batch, 0.1)
    twice, same = consistent_loss(model, batch, 0.1, weight=5.0)
    assert count == same == 2 + 5 + 4
    torch.testing.assert_close(twice, plain)


def test_consistency_is_the_papers_formula() -> None:
    model, batch = _doubled(dropout=0.5)
    torch.manual_seed(7)
    total, _ = consistent_loss(model, batch, 0.0, weight=5.0)
    torch.manual_seed(7)
    logits = model.head(model.hidden(batch.twice())).double()
    assert batch.target is not None
    wanted = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate(batch.target.lengths.tolist()):
        for place in range(length - 1):
            label = batch.target.ids[row, place + 1]
            p, q = (logits[half + row, place].softmax(-1) for half in (0, 3))
            apart = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
            wanted += (-p[label].log() - q[label].log() + 5.0 * apart / 2) / 2
    torch.testing.assert_close(total.double(), wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits[:3], logits[3:])


def test_consistency_is_for_training_alone(tmp_path: Path) -> None:
    model, batch = _doubled(dropout=0.5)
    task = SimpleNamespace(config=Config(consistency=5.0, label_smoothing=0.0), both_ways=False)
    torch.manual_seed(7)
    trained = Task.loss(task, model, batch)[0]  # type: ignore[arg-type]
    torch.manual_seed(7)
    assert trained == consistent_loss(model, batch, 0.0, 5.0)[0]
    model.eval()
    assert Task.loss(task, model, batch)[0] == sum_loss(model, batch, 0.0)[0]  # type: ignore[arg-type]


def test_a_negative_consistency_is_refused() -> None:
    with pytest.raises(ConfigError, match="consistency is a weight"):
        Config(consistency=-1.0)
