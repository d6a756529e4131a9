"""Classification: eight examples are learned by heart and come back through the command line; one label or several."""

from __future__ import annotations

import gzip
import io
import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard.cli.main import main
from regard.convert import convert
from regard.data.batching import plan_batches
from regard.data.readers import ReadReport, read_labelled
from regard.data.rows import is_held_out
from regard.errors import ConfigError, DataError, RunError
from regard.layers.classifier import pool
from regard.looking.explain import case
from regard.looking.subject import observed
from regard.recipe import parse, read_recipe
from regard.run import Run, load, train
from regard.tasks._calibration import fit_temperature, likelihood_loss
from regard.tasks._classes import Classes
from regard.tasks.classification import Config, Task
from regard.tasks.metrics import calibration_error, f1_scores
from regard.tasks.texts import with_unknown
from regard.train.observe import read_observations
from regard.types import Batch, Example, Prediction, Sequences

EIGHT = [
    ("place", "where is the tower ?"),
    ("person", "who wrote the play ?"),
    ("number", "how many legs has a spider ?"),
    ("place", "what city is in the north ?"),
    ("person", "what man was the first on the moon ?"),
    ("number", "how far is the sun from the earth , and how long does its light take ?"),
    ("person", "who"),
    ("number", "how old is the king ?"),
]
SEVERAL = [
    ("red,green", "a leaf and a rose"),
    ("red", "a rose"),
    ("green", "a leaf"),
    ("", "the night"),
    ("red,blue", "a rose in the sky"),
    ("blue", "the sky"),
    ("green,blue", "a leaf in the sky"),
    ("red,green,blue", "a leaf and a rose in the sky"),
]
RECIPE = """
[task]
name = "classification"
dropout = 0.0
{task}

[data]
train = ["{file}"]
val = ["{file}"]
test = ["{file}"]

[tokenizer]
kind = "words"

[model]
preset = "{preset}"
family = "{family}"
layers = 1
model_dim = 32
num_heads = 2
ffn_dim = 64
dropout = 0.0

[train]
device = "cpu"
max_steps = 40
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 5
validate_every = 40
best = "{best}"
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


Make = Callable[..., Run]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A run that learned one of the sets; each is trained once."""
    folder = tmp_path_factory.mktemp("eight")
    write_tsv(folder / "eight.tsv", EIGHT)
    records = [{"label": labels.split(",") if labels else [], "text": text} for labels, text in SEVERAL]
    (folder / "several.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    runs: dict[str, Run] = {}

    def get(family: str = "bert", task: str = "", several: bool = False) -> Run:
        name = f"{family}-{several}-{task}"
        if name not in runs:
            task = f"{task}\nmulti_label = true" if several else task
            path, file = folder / f"{len(runs)}.toml", "several.jsonl" if several else "eight.tsv"
            best = "micro_f1" if several else "accuracy"
            path.write_text(RECIPE.format(family=family, preset="tiny", task=task, file=file, best=best))
            runs[name] = train(read_recipe(path, [f"run={folder / str(len(runs))}"]))
        return runs[name]

    return get


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


# --- one label


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_eight_examples_are_learned_and_come_back_through_the_command_line(
    trained: Make, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(family)
    folder = run.folder
    capsys.readouterr()
    assert not regard("predict", folder, "--device", "cpu", stdin="".join(f"{text}\n" for _, text in EIGHT))
    assert capsys.readouterr().out.splitlines() == [label for label, _ in EIGHT]

    # a file with its labels is read for its texts
    write_tsv(tmp_path / "some.tsv", [("label", "text"), *EIGHT])
    assert not regard("predict", folder, tmp_path / "some.tsv", "--format", "jsonl", "--scores", "--n-best", 3)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["source"] for record in records] == [text for _, text in EIGHT]
    assert [record["target"][0] for record in records] == [label for label, _ in EIGHT]
    for record in records:
        assert sorted(record["target"]) == ["number", "person", "place"]
        assert record["score"] == sorted(record["score"], reverse=True)
        assert sum(record["score"]) == pytest.approx(1, abs=1e-4)

    assert not regard("evaluate", folder, "--device", "cpu")
    assert "accuracy: 100.00\n  examples:8|classes:3\nmacro_f1: 100.00\n" in capsys.readouterr().out
    report = json.loads((folder / "report.json").read_text())["test"]
    assert sorted(report["metrics"]) == ["accuracy", "ece", "macro_f1"]
    assert report["examples"] == 8


def test_a_batch_of_one_answers_as_a_batch_of_many(trained: Make) -> None:
    run = trained()
    texts = [text for _, text in EIGHT]
    together = run.predict(texts)
    for text, answer in zip(texts, together, strict=True):
        alone = run.predict([text])[0]
        assert alone.texts == answer.texts
        assert alone.scores == pytest.approx(answer.scores, abs=1e-6)
    assert run.predict([]) == []


def test_an_empty_text_has_an_empty_answer(trained: Make) -> None:
    assert [answer.text for answer in trained().predict(["who", "", "  "])] == ["person", "", ""]


@pytest.mark.parametrize("how", ["max", "mean-max", "first", "pooled"])
def test_other_poolings_learn_as_well(trained: Make, how: str) -> None:
    run = trained("bert", task=f'pooling = "{how}"')
    assert [answer.text for answer in run.predict([text for _, text in EIGHT])] == [label for label, _ in EIGHT]


def test_a_run_whose_tokens_know_their_letters_and_neighbours_is_loaded_as_it_was(tmp_path: Path) -> None:
    write_tsv(tmp_path / "eight.tsv", EIGHT)
    path, texts = tmp_path / "recipe.toml", [text for _, text in EIGHT]
    recipe = RECIPE.format(
        family="convolutional", preset="tiny", task='pooling = "mean-max"', file="eight.tsv", best="accuracy"
    )
    bert = "layers = 1\nmodel_dim = 32\nnum_heads = 2\nffn_dim = 64\n"
    path.write_text(recipe.replace(bert, "letters = 3\nngrams = 2\nngram_rows = 100\nkernels = [1, 3]\n"))
    run = train(read_recipe(path, [f"run={tmp_path / 'run'}"]))
    found = load(run.folder, "cpu")
    assert [answer.text for answer in found.predict(texts)] == [label for label, _ in EIGHT]
    assert [answer.scores for answer in found.predict(texts)] == [answer.scores for answer in run.predict(texts)]
    tokens = found.model.source.tokens
    assert len(tokens.runs) == run.task.tokenizer.size
    assert tokens.runs[4:].any()  # shared letters were found
    assert not tokens.runs[:4].any()  # and none in the special tokens
    assert tokens.letters[1:].any(1).all()  # all were learned
    assert found.model.source.ngrams.weight.any()


def test_runs_of_tokens_speak_for_labels_beside_the_encoder(trained: Make) -> None:
    run = trained("bert", task="ngrams = 2\nngram_rows = 500")
    found = load(run.folder, "cpu")
    texts = [text for _, text in EIGHT]
    assert [answer.text for answer in found.predict(texts)] == [label for label, _ in EIGHT]
    assert [answer.scores for answer in found.predict(texts)] == [answer.scores for answer in run.predict(texts)]
    model, (batch, _) = found.model, found.task.pair("who wrote the play ?", "person")
    wide, model.ngrams = model.ngrams, None
    said = wide(batch.source)
    assert said.argmax().item() == found.task.classes.labels.index("person")  # learned, and not the encoder alone
    deep = model.logits(batch)
    model.ngrams = wide
    torch.testing.assert_close(model.logits(batch), deep + said)


def test_runs_of_tokens_are_a_length_and_read_no_knowledge() -> None:
    with pytest.raises(ConfigError, match=r"ngrams is a length\n  got:    -1\n  wanted: 0 \(none\) or more"):
        Config(ngrams=-1)
    with pytest.raises(ConfigError, match=r"ngram_rows is too small\n  got:    0\n  wanted: 1 or more"):
        Config(ngrams=1, ngram_rows=0)
    with pytest.raises(ConfigError, match="knowledge would stand in the runs of a text"):
        Config(ngrams=1, knowledge="hownet")


def test_pooling_sees_no_padding() -> None:
    torch.manual_seed(0)
    hidden, source = torch.randn(3, 4, 2), Sequences(torch.ones(3, 4, dtype=torch.long), torch.tensor([4, 2, 0]))
    body: Any = None
    torch.testing.assert_close(
        pool(body, hidden, source, "mean")[:2], torch.stack([hidden[0].mean(0), hidden[1, :2].mean(0)])
    )
    torch.testing.assert_close(
        pool(body, hidden, source, "max")[:2], torch.stack([hidden[0].amax(0), hidden[1, :2].amax(0)])
    )
    both = torch.cat([pool(body, hidden, source, how) for how in ("mean", "max")], dim=1)  # type: ignore[arg-type]
    torch.testing.assert_close(pool(body, hidden, source, "mean-max"), both)
    assert not pool(body, hidden, source, "mean")[2].any()
    assert not pool(body, hidden, source, "max")[2].any()


def test_the_loss_is_a_sum_over_rows_and_padding_counts_nothing(trained: Make) -> None:
    run = trained()
    rows = run.task.split("train", run.folder / "cache")
    (planned,) = rows.plan(batch_tokens=8192, multiple=4, seed=0, epoch=0, shuffle=False)
    batch = rows.collate(planned)
    assert planned.shape[1:] == (19, 0)  # as the longest
    assert batch.target.ids.shape == (8, 1)
    assert batch.num_tokens == int(batch.source.lengths.sum())
    logits = run.model.logits(batch)
    total, count = run.task.loss(run.model, batch)
    assert int(count) == 8
    torch.testing.assert_close(total, F.cross_entropy(logits, batch.target.ids[:, 0], reduction="sum"))

    parts = [rows.collate(type(planned)(planned.rows[i : i + 3], (5, 24, 0))) for i in (0, 3, 6)]  # wider, rows missing
    losses = [run.task.loss(run.model, part) for part in parts]
    assert sum(int(count) for _, count in losses) == 8
    torch.testing.assert_close(sum(loss for loss, _ in losses), total, rtol=1e-4, atol=1e-6)


def test_rare_classes_count_for_more_in_training_alone(trained: Make) -> None:
    run = trained(task='class_weights = "balanced"')
    counts = torch.tensor([3.0, 3.0, 2.0])  # number, person, place
    torch.testing.assert_close(run.model.weights, 8 / (3 * counts))
    batch = run.task.split("train", run.folder / "cache").first(8)
    logits, labels = run.model.logits(batch), batch.target.ids[:, 0]
    each = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(run.task.loss(run.model, batch)[0], (each * (8 / (3 * counts))[labels]).sum())
    torch.testing.assert_close(run.task.loss(run.model, batch, smoothing=0.0)[0], each.sum())
    assert "weights" not in run.model.state_dict()


def test_two_passes_that_differ_cost_more(trained: Make) -> None:
    """R-Drop: the mean of two cross-entropies, and half the weight of how far apart they are, over two."""
    for several in (False, True):
        run = trained(task="consistency = 3.0", several=several)
        batch = run.task.split("train", run.folder / "cache").first(8)
        plain = run.task.loss(run.model, batch, smoothing=0.0)[0]
        torch.testing.assert_close(run.task.loss(run.model, batch)[0], plain)  # without dropout they are the same
        first, second = torch.randn(8, 3), torch.randn(8, 3)

        class Twice:
            weights, training = torch.ones(3), True

            def logits(self, batch: Batch) -> torch.Tensor:
                return torch.cat([first, second])  # noqa: B023

        if several:
            p, q = (torch.stack([x.sigmoid(), 1 - x.sigmoid()], -1).flatten(1) for x in (first, second))
            entropies = [
                F.binary_cross_entropy_with_logits(x, batch.target.ids.float(), reduction="sum")
                for x in (first, second)
            ]
        else:
            p, q = (x.softmax(-1) for x in (first, second))
            entropies = [F.cross_entropy(x, batch.target.ids[:, 0], reduction="sum") for x in (first, second)]
        apart = (p * (p / q).log() + q * (q / p).log()).sum()
        found, count = run.task.loss(Twice(), batch)
        torch.testing.assert_close(found, (sum(entropies) + 3 / 2 * apart) / 2)
        assert int(count) == 8


def test_words_are_hidden_in_training_alone(trained: Make) -> None:
    task = trained(task="word_dropout = 0.5").task
    ids = torch.tensor([[2, *[9] * 1000, 3, 0]])
    batch = Batch(Sequences(ids, torch.tensor([1002])))
    hidden = with_unknown(batch, task.config.word_dropout, task.tokenizer).source.ids
    assert hidden[0, [0, -2]].tolist() == [2, 3]
    assert set(hidden[0, 1:-2].tolist()) == {1, 9}
    assert 400 < int((hidden[0, 1:-2] == 1).sum()) < 600


# --- several labels


def test_several_labels(trained: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(several=True)
    texts = [text for _, text in SEVERAL]
    assert run.task.classes.labels == ("blue", "green", "red")
    answers = run.predict(texts)
    assert [set(answer.text.split(",")) for answer in answers] == [set(labels.split(",")) for labels, _ in SEVERAL]
    single = run.predict(["a rose in the sky"], n_best=3)[0]
    assert set(single.texts[:2]) == {"red", "blue"}
    assert single.texts[2] == "green"
    assert single.scores[1] > 0.5 > single.scores[2]
    decided = [score if score >= 0.5 else 1 - score for score in single.scores]
    assert run.predict(["a rose in the sky"])[0].scores[0] == pytest.approx(math.prod(decided), rel=1e-4)
    scores = {score.name: score.value for score in run.evaluate()}
    assert (scores["accuracy"], scores["micro_f1"], scores["macro_f1"]) == (100, 100, 100)

    batch = run.task.split("train", run.folder / "cache").first(8)
    assert batch.target.ids.tolist()[0] == [0, 1, 1]
    logits, goal = run.model.logits(batch), batch.target.ids.float()
    wanted = F.binary_cross_entropy_with_logits(logits, goal, reduction="sum")
    torch.testing.assert_close(run.task.loss(run.model, batch)[0], wanted)
    torch.testing.assert_close(
        run.task.log_probs(run.model, batch).sum(),
        -F.binary_cross_entropy_with_logits(logits / run.task.classes.temperature, goal, reduction="sum"),
    )


def test_several_labels_balanced() -> None:
    classes = Classes.of([Example("a", ("x",)), Example("b", ("x", "y")), Example("c", ("x",)), Example("d")])
    assert (classes.labels, classes.counts, classes.examples) == (("x", "y"), (3, 1), 4)


# --- calibration


def test_the_temperature_is_that_of_the_smallest_loss() -> None:
    torch.manual_seed(1)
    clean = torch.randn(400, 5, dtype=torch.float64)
    right = torch.distributions.Categorical(logits=clean).sample()
    for factor in (0.5, 1.0, 3.0):  # logits that are too small, just right, too large
        temperature = fit_temperature(clean * factor, right)
        tried = torch.linspace(0.5, 1.5, 41) * temperature
        losses = [float(likelihood_loss(clean * factor / t, right)) for t in tried]
        assert min(losses) == losses[20]
        assert losses[20] <= float(likelihood_loss(clean * factor, right))
        assert temperature == pytest.approx(factor * fit_temperature(clean, right), rel=1e-6)
    several = torch.rand(400, 5) < clean.sigmoid()
    assert fit_temperature(clean * 2, several) == pytest.approx(2 * fit_temperature(clean, several), rel=1e-6)
    assert fit_temperature(clean * 2, several) == pytest.approx(2, rel=0.2)


def test_answers_that_are_all_right_say_nothing_of_how_sure_one_may_be(trained: Make) -> None:
    assert fit_temperature(torch.eye(3), torch.arange(3)) == 1
    assert fit_temperature(2 * torch.eye(3) - 1, torch.eye(3)) == 1
    run = trained()
    assert {score.name: score.value for score in run.evaluate("val")}["accuracy"] == 100
    assert run.task.finish(run.model, run.device).startswith("not calibrated: validation is all right")
    assert json.loads((run.folder / "labels.json").read_text())["temperature"] == 1


def test_calibration_is_kept_with_the_run_and_never_makes_validation_worse(trained: Make, tmp_path: Path) -> None:
    write_tsv(tmp_path / "noisy.tsv", [*EIGHT, ("place", "who")])  # which also is a person
    recipe = tmp_path / "noisy.toml"
    recipe.write_text(RECIPE.format(family="bert", preset="tiny", task="", file="noisy.tsv", best="accuracy"))
    run = train(read_recipe(recipe, [f"run={tmp_path / 'run'}"]))
    kept = json.loads((run.folder / "labels.json").read_text())
    assert kept["temperature"] == run.task.classes.temperature != 1
    rows = run.task.split("val", run.folder / "cache")
    (planned,) = rows.plan(batch_tokens=8192, multiple=4, seed=0, epoch=0, shuffle=False)
    batch = rows.collate(planned)
    with torch.no_grad():
        logits, labels = run.model.logits(batch), batch.target.ids[:, 0]
    after = F.cross_entropy(logits / kept["temperature"], labels)
    assert after <= F.cross_entropy(logits, labels)
    torch.testing.assert_close(-run.task.log_probs(run.model, batch).mean(), after)
    assert load(run.folder, "cpu").predict(["who"]) == run.predict(["who"])
    plain = trained(task="calibrate = false")
    assert plain.task.classes.temperature == 1
    plain.task.classes = replace(plain.task.classes, temperature=2.0)  # of a training that was calibrated
    assert plain.task.finish(plain.model, plain.device) == ""
    assert json.loads((plain.folder / "labels.json").read_text())["temperature"] == 1


def test_metrics_by_hand() -> None:
    # classes a and b: said 2 and 1, right 1 and 2, hits 1 and 1
    said = torch.tensor([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    right = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 0]])
    assert f1_scores(said, right) == pytest.approx((100 * 2 / 3, 100 * 2 / 3))  # class c does not count
    assert f1_scores(said * 0, right * 0) == (0.0, 0.0)
    sure = torch.tensor([0.99, 0.97, 0.54, 0.55, 1.0])
    hits = torch.tensor([True, False, True, False, True])
    assert calibration_error(sure, hits) == pytest.approx(100 * (abs(2.96 - 2) + abs(1.09 - 1)) / 5)


# --- data


def test_a_share_is_held_out_by_the_text(tmp_path: Path) -> None:
    rows = [(str(i % 2), f"text number {i // 2}") for i in range(400)]  # each text twice
    write_tsv(tmp_path / "all.tsv", rows)
    table = {
        "run": str(tmp_path / "run"),
        "task": {"name": "classification"},
        "data": {"train": ["all.tsv"], "val_share": 0.2},
        "model": {"family": "bert", "preset": "tiny", "layers": 1, "model_dim": 8, "ffn_dim": 8},
        "train": {"device": "cpu", "max_steps": 1, "batch_tokens": 512},
    }
    run = train(parse(table, where="recipe.toml", folder=tmp_path))
    parts = {name: [example.source for example in run.task.examples(name)] for name in ("train", "val")}
    assert sorted(parts["train"] + parts["val"]) == sorted(text for _, text in rows)
    assert not set(parts["train"]) & set(parts["val"])
    assert 40 < len(parts["val"]) < 120
    assert all(is_held_out(text, 0.2) for text in parts["val"])
    assert len(run.task.split("val", tmp_path / "cache")) == len(parts["val"])
    assert run.task.classes.examples == len(parts["train"])


def test_plans_of_one_text() -> None:
    plan = plan_batches([3, 3, 9, 2], None, batch_tokens=12, shuffle=False)
    assert [(planned.rows.tolist(), planned.shape) for planned in plan] == [([3, 0, 1], (3, 4, 0)), ([2], (1, 9, 0))]


@pytest.mark.parametrize(
    ("name", "content", "several", "wanted"),
    [
        ("a.tsv", "label\ttext\n1\tone\n", False, [("one", ("1",))]),
        ("a.tsv", "1\tone\r\n2\ttwo\n", False, [("one", ("1",)), ("two", ("2",))]),
        ("a.tsv", "x, y\tone\n\ttwo\n", True, [("one", ("x", "y")), ("two", ())]),
        ("a.jsonl", '{"text": "one", "label": 3}\n', False, [("one", ("3",))]),
        ("a.jsonl", '{"source": "one", "target": "x"}\n', False, [("one", ("x",))]),
        ("a.jsonl", '{"text": "one", "label": ["x", "y", "x"]}\n', True, [("one", ("x", "y"))]),
    ],
)
def test_what_is_read(tmp_path: Path, name: str, content: str, several: bool, wanted: object) -> None:
    (tmp_path / name).write_bytes(content.encode())
    found = [(e.source, e.targets) for e in read_labelled([tmp_path / name], multi_label=several)]
    assert found == wanted
    with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
        file.write(content.encode())
    assert [e.source for e in read_labelled([tmp_path / f"{name}.gz"], need_labels=False)] == [
        text
        for text, _ in wanted  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "one\n", "no label; wanted label and text"),
        ("a.tsv", "1\tone\ttwo\n", "3 columns; wanted label, tab, text"),
        ("a.tsv", "yes\t \n", "the text is empty"),
        ("a.tsv", " \tone\n", "the label is empty"),
        ("a.tsv", "yess\tone\n", 'the label "yess" is not one of the training split; did you mean "yes"?'),
        ("a.tsv", "xyz\tone\n", 'the label "xyz" is not one of the training split; known are: yes, no'),
        ("a.jsonl", '{"label": "yes"}\n', 'no key "text"; there are: label'),
        ("a.jsonl", '{"text": "one", "label": ["yes"]}\n', 'the label is not a string: ["yes"]'),
        ("a.jsonl", "[]\n", "not a JSON object; wanted one with label and text"),
    ],
)
def test_bad_lines(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError) as error:
        list(read_labelled([path], known=["yes", "no"]))
    assert str(error.value).startswith(f"a bad line\n  got:    {message}\n  where:  {path}:1\n")
    report = ReadReport()
    assert list(read_labelled([path], known=["yes", "no"], on_bad_line="skip", report=report)) == []
    assert report.bad == [(f"{path}:1", message)]


def test_files_that_are_no_labelled_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(
        DataError, match=r"a file without labels\n  got:    .*a.txt\n  wanted: one .tsv \(label, text\)"
    ):
        list(read_labelled([tmp_path / "a.txt"]))
    with pytest.raises(DataError, match="labelled texts are one file\n  got:    2 files"):
        list(read_labelled([tmp_path / "a.txt"] * 2))
    (tmp_path / "b.tsv").write_text("text\tlabel\none\tyes\n")
    with pytest.raises(DataError, match=r"not in the order that is read\n  got:    text, label\n  wanted: label, text"):
        list(read_labelled([tmp_path / "b.tsv"]))


# --- errors


def test_errors(trained: Make, tmp_path: Path) -> None:
    run = trained()
    with pytest.raises(
        ConfigError,
        match='no such label\n  got:    plcae\n  wanted: number, person, place\n  try:    did you mean "place"',
    ):
        run.task.pair("who", "plcae")
    with pytest.raises(ConfigError, match="prefixes has no use here"):
        run.predict(["who"], prefixes=["pl"])
    with pytest.raises(
        DataError, match=r"the text is too long\n  got:    300 tokens\n  wanted: at most 256 .*\n  where:  source 2"
    ):
        run.predict(["who", "who " * 300])
    with pytest.raises(DataError, match="where:  source 4,098\n  try:    a shorter text"):
        run.predict(["who", "who " * 300], first_index=4096)
    good, long = run.predict(["who", "who " * 300], on_bad_line="skip")
    assert (good, long.text) == (run.predict(["who"])[0], "")
    assert long.wrong.startswith("the text is too long\n  got:    300 tokens")
    with pytest.raises(ConfigError, match="on_bad_line is unknown\n  got:    drop\n  wanted: error or skip"):
        run.predict(["who"], on_bad_line="drop")
    with pytest.raises(ConfigError, match=r"threshold is a probability\n  got:    1\.0"):
        parse_task(tmp_path, threshold=1.0)
    with pytest.raises(
        ConfigError, match="the task needs a model that reads a text\n  got:    gpt, which continues a text"
    ):
        parse({**table(tmp_path), "model": {"family": "gpt"}}, where="r.toml", folder=tmp_path)
    write_tsv(tmp_path / "a.tsv", [("1", "one"), ("1", "two")])
    with pytest.raises(DataError, match="there is nothing to tell apart\n  got:    2 examples, labels: "):
        train(parse({**table(tmp_path), "run": str(tmp_path / "run")}, where="r.toml", folder=tmp_path))
    (tmp_path / "labels.json").write_text('{"labels": ["a"]}')
    with pytest.raises(RunError, match=r"the labels cannot be read\n  got:    KeyError\('counts'\)"):
        Classes.load(tmp_path / "labels.json")


def table(folder: Path) -> dict[str, Any]:
    data = {"train": ["a.tsv"], "val": ["a.tsv"]}
    return {"task": {"name": "classification"}, "data": data, "model": {"family": "bert", "preset": "tiny"}}


def parse_task(folder: Path, **words: Any) -> None:
    parse({**table(folder), "task": {"name": "classification", **words}}, where="r.toml", folder=folder)


def test_a_label_may_hold_a_comma(tmp_path: Path) -> None:
    rows = [("a, b" if i % 2 else "c", text) for i, (_, text) in enumerate(EIGHT)]
    file = write_tsv(tmp_path / "a.tsv", rows)
    recipe = parse({**table(tmp_path), "tokenizer": {"kind": "words"}}, where="r.toml", folder=tmp_path)
    task = Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=lambda split: [file], folder=tmp_path)
    right = [Prediction((label,), (1.0,), ((label,),)) for label, _ in rows]
    assert [score.value for score in task.score(right, task.examples("val"))] == [100.0, 100.0]


def test_labels_with_commas_are_looked_at_as_they_are_said(tmp_path: Path) -> None:
    lines = [{"source": text, "target": ["US, the", "b"] if i % 2 else ["b"]} for i, (_, text) in enumerate(EIGHT)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    keys = {**table(tmp_path), "tokenizer": {"kind": "words"}}
    keys["task"] = {**keys["task"], "multi_label": True}
    recipe = parse(keys, where="r.toml", folder=tmp_path)
    task = Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=lambda split: [file], folder=tmp_path)
    batch, axes = task.pair("who", "US, the,b")
    assert axes["target"].tokens == ("US, the,b",)
    assert batch.target is not None
    assert batch.target.ids.tolist() == [[1, 1]]


def test_it_has_no_form_in_onnx(trained: Make, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no ONNX form of what a task puts over its model\n.*a run of classification"
    ):
        convert(trained().folder, tmp_path / "onnx", "onnx")


# --- looking, vectors


def test_vectors_of_texts(trained: Make) -> None:
    run = trained()
    texts = [text for _, text in EIGHT] * 10  # more than one batch
    vectors = run.vectors(texts)
    assert vectors.shape == (80, 32)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(80))
    torch.testing.assert_close(vectors[:8], vectors[72:])
    ids = torch.tensor([[2, *run.task.tokenizer.encode_batch(["who"])[0], 3]])
    hidden = run.model.hidden(Batch(Sequences(ids, torch.tensor([ids.shape[1]]))))  # type: ignore[operator]
    torch.testing.assert_close(run.vectors(["who"], normalize=False), hidden.mean(1).detach())
    torch.testing.assert_close(run.vectors(["who"], pooling="first", normalize=False), hidden[:, 0].detach())
    assert run.vectors([]).shape[0] == 0
    with pytest.raises(ConfigError, match="there is no such pooling\n  got:    average\n  wanted: mean, max"):
        run.vectors(["who"], pooling="average")


@pytest.mark.parametrize("several", [False, True])
def test_a_text_is_looked_into(
    trained: Make, several: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = trained(several=several), "a rose in the sky" if several else "who wrote the play ?"
    look = run.look(text)
    assert look.trace.info["answer"] == run.predict([text])[0].text == ("blue,red" if several else "person")
    tokens = ("<s>", *text.split(), "</s>")
    assert look.trace.axes["source"].tokens == tokens
    assert {(view.rows_axis, view.keys_axis) for view in look.trace} == {("source", "source")}
    assert look.found.relevance == {"rows": "target", "keys": "source", "bin": [1, 1]}
    assert look.found.tensors["relevance"].shape == (1, len(tokens))
    assert {method["name"] for method in look.found.card["methods"]} >= {"attention", "relevance", "gradient"}
    assert len(look.found.ablation["heads"]) == 2
    assert len(look.html()) > 100_000
    given = run.look(text, "green" if several else "place", quick=True)
    assert given.trace.info["answer"] == ("green" if several else "place")

    file = write_tsv(tmp_path / "some.tsv", (SEVERAL if several else EIGHT)[:3])
    page = tmp_path / "page.html"
    assert not regard("look", run.folder, file, "--no-open", "--out", page, "--device", "cpu")
    assert "means over 3 texts" in capsys.readouterr().out
    table = run.ablate(split="test")
    assert table["metrics"]["accuracy"] == 100
    run.prune(tmp_path / "pruned", keep=0.5, split="test")
    assert len(load(tmp_path / "pruned", "cpu").predict([text])) == 1


def test_an_answer_is_read_from_the_places_that_are_pooled(trained: Make) -> None:
    batch = Batch(Sequences(torch.tensor([[2, 5, 6, 3, 0], [2, 5, 3, 0, 0]]), torch.tensor([4, 3])))
    for how, wanted in (("mean", [[1 / 4] * 4 + [0], [1 / 3] * 3 + [0] * 2]), ("first", [[1, 0, 0, 0, 0]] * 2)):
        run = trained(task="" if how == "mean" else f'pooling = "{how}"')
        torch.testing.assert_close(run.task.places(run.model, batch), torch.tensor(wanted, dtype=torch.float))


def test_what_the_heads_do_in_training_is_observed(trained: Make, tmp_path: Path) -> None:
    table = tomllib.loads((trained().folder / "recipe.toml").read_text())
    table |= {"run": str(tmp_path / "run"), "observe": {"every": 1}}
    table["train"] |= {"max_steps": 2}
    run = train(parse(table, where="recipe.toml", folder=tmp_path))
    seen = read_observations(run.folder / "observe.jsonl")
    assert seen["steps"].tolist() == [0, 1, 2]
    assert seen["entropy"].shape == (3, 1, 2)


def test_what_is_deleted_are_the_words_of_a_text_alone(trained: Make) -> None:
    run = trained()
    subject = run.subject()
    batch, axes = run.task.pair("who wrote the play ?", "person")
    trace = observed(subject, batch, axes)
    one = case(subject, batch, trace, None)
    assert {len(values) for values in one.attributions.values()} == {5}
    kept = torch.tensor([[True] * 5, [False] * 5, [True, False, False, False, True]])
    texts = ["who wrote the play ?", None, "who ?"]
    rows = [[2, *(run.task.tokenizer.encode_batch([text])[0] if text else []), 3] for text in texts]
    batches = [replace(batch, source=Sequences(torch.tensor([row]), torch.tensor([len(row)]))) for row in rows]
    wanted = [run.task.log_probs(run.model, each).item() for each in batches]
    torch.testing.assert_close(one.score(kept), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
