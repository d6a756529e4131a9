"""Link prediction: ranks as by hand, nothing learned from what is judged by, a small graph through the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard import models
from regard.cli.main import main
from regard.config import read_section
from regard.data.asked import Asked
from regard.data.facts import FIRST, MASK, Graph, read_facts
from regard.data.readers import ReadReport
from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, DataError, RunError
from regard.layers.links import LinkPredictor, labels_of
from regard.recipe import parse, read_recipe
from regard.run import Run, load, train
from regard.tasks.link_prediction import Config
from regard.tasks.metrics import filtered_ranks
from regard.types import Batch

TRAIN = """ann	lives in	New York
bob	lives in	Rome
carl	lives in	Rome
dora	lives in	Oslo
New York	is in	America
Rome	is in	Europe
Oslo	is in	Europe
ann	knows	bob
bob	knows	carl
ann	knows	dora
"""
VAL, TEST = "ann\tknows\tcarl\neve\tlives in\tRome\n", "bob\tknows\tdora\neve\tknows\tfay\n"
RECIPE = """
[task]
name = "link-prediction"
dropout = 0.0
label_smoothing = 0.0
{task}

[data]
train = ["train.tsv"]
val = ["val.tsv"]
test = ["test.tsv"]

[model]
family = "bert"
preset = "tiny"
layers = 1
model_dim = 64
num_heads = 2
ffn_dim = 64
dropout = 0.0
attention_dropout = 0.0
pooler = false
next_sentence = false

[train]
device = "cpu"
max_steps = 100
batch_tokens = 90
learning_rate = 3e-3
schedule = "cosine"
warmup_steps = 10
validate_every = 100
"""
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def surroundings() -> Iterator[None]:
    """One thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("facts")
    for name, text in {"train": TRAIN, "val": VAL, "test": TEST}.items():
        (found / f"{name}.tsv").write_text(text)
    for name, task in {"plain": "", "context": "neighbours = 2\nhide = 0.3"}.items():
        (found / f"{name}.toml").write_text(RECIPE.format(task=task))
    return found


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """A run that has learned the training facts by heart."""
    return train(read_recipe(folder / "plain.toml", [f"run={folder / 'runs' / 'plain'}"]))


@pytest.fixture(scope="module")
def context(folder: Path) -> Run:
    """The same with two neighbours of each entity."""
    return train(read_recipe(folder / "context.toml", [f"run={folder / 'runs' / 'context'}", "train.max_steps=5"]))


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def triples(text: str) -> set[tuple[str, ...]]:
    return {tuple(line.split("\t")) for line in text.splitlines()}


# --- ranks ------------------------------------------------------------------------------------------------------------


def rank_by_hand(scores: list[float], right: int, known: set[int]) -> float:
    """Sorted in the best and the worst order of equals; the mean of both places."""
    others = [score for i, score in enumerate(scores) if i != right and i not in known]
    best = 1 + len([score for score in others if score > scores[right]])
    worst = 1 + len([score for score in others if score >= scores[right]])
    return (best + worst) / 2


def test_filtered_ranks_are_those_by_hand() -> None:
    draw = torch.Generator().manual_seed(1)
    scores = torch.randint(5, (200, 12), generator=draw).float()  # many equals
    right = torch.randint(12, (200,), generator=draw)
    known = torch.rand(200, 12, generator=draw) < 0.2
    known[::2, :].scatter_(1, right[::2, None], True)
    found = filtered_ranks(scores, right, *known.nonzero(as_tuple=True))
    wanted = [
        rank_by_hand(row.tolist(), int(i), set(own.nonzero()[:, 0].tolist()))
        for row, i, own in zip(scores, right, known, strict=True)
    ]
    assert found.tolist() == wanted
    assert len({rank % 1 for rank in wanted}) == 2


class Fixed(torch.nn.Module):
    """Gives every query scores that follow from its ids alone."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores  # entities x relations and their ways back x entities

    def logits(self, batch: Batch) -> Tensor:
        number = len(self.scores)
        rows = [
            (row[:2] - torch.tensor([FIRST, FIRST + number])).tolist() if row[0] else (0, 0) for row in batch.source.ids
        ]
        return torch.stack([self.scores[a, b] for a, b in rows])


@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluate_is_what_is_computed_by_hand(run: Run, split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, number = run.task.graph, len(run.task.graph.entities)
    scores = torch.randint(4, (number, 2 * len(graph.relations), number), generator=torch.Generator().manual_seed(2))
    monkeypatch.setattr("regard.tasks.link_prediction.SCORES", 3 * number)  # three rows at a time
    found = run.task.evaluate(Fixed(scores.float()), split, DecodeConfig(), device=CPU)
    known = triples(TRAIN) | triples(VAL) | (triples(TEST) if split == "test" else set())
    names, relations = list(graph.entities), list(graph.relations)
    ranks: dict[str, list[float]] = {"tails": [], "heads": []}
    for head, relation, tail in triples({"val": VAL, "test": TEST}[split]):
        h, r, t = names.index(head), relations.index(relation), names.index(tail)
        tails = {names.index(c) for a, b, c in known if (a, b) == (head, relation)}
        heads = {names.index(a) for a, b, c in known if (b, c) == (relation, tail)}
        ranks["tails"].append(rank_by_hand(scores[h, r].tolist(), t, tails))
        ranks["heads"].append(rank_by_hand(scores[t, r + len(relations)].tolist(), h, heads))
    values = {score.name: score.value for score in found.scores}
    both = ranks["tails"] + ranks["heads"]
    assert values["mrr"] == pytest.approx(100 * np.mean([1 / rank for rank in both]))
    for n in (1, 3, 10):
        assert values[f"hits{n}"] == pytest.approx(100 * np.mean([rank <= n for rank in both]))
    for way, own in ranks.items():
        assert values[f"mrr_{way}"] == pytest.approx(100 * np.mean([1 / rank for rank in own]))
        assert values[f"hits10_{way}"] == pytest.approx(100 * np.mean([rank <= 10 for rank in own]))
    assert list(values) == list(run.task.metrics)
    filtered = "train,val,test" if split == "test" else "train,val"
    assert found.scores[0].signature == f"facts:2|entities:11|filtered:{filtered}|ties:mean"


# --- what is learned from ---------------------------------------------------------------------------------------------


def test_nothing_is_learned_from_what_is_judged_by(run: Run, tmp_path: Path) -> None:
    graph, rows = run.task.graph, run.task.split("train", tmp_path)
    named = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.facts]
    assert set(named) == triples(TRAIN)
    assert {"eve", "fay"} < set(graph.entities)  # of others the names alone
    asked = {(*graph.tokens(row[:2]), graph.entities[row[2]]) for row in rows.queries}
    backward = {(t, f"{r}^-1", h) for h, r, t in triples(TRAIN)}
    assert asked == triples(TRAIN) | backward
    assert len(rows) == 20


def neighbours(graph: Graph, batch: Batch, row: int) -> set[tuple[str, ...]]:
    tokens = graph.tokens(batch.source.ids[row, : batch.source.lengths[row]])
    assert tokens[-1] == "<mask>"
    return set(zip(tokens[2:-1:2], tokens[3:-1:2], strict=True))


def test_neighbours_are_of_training_and_never_what_is_asked(context: Run, tmp_path: Path) -> None:
    graph = context.task.graph
    known = triples(TRAIN) | {(t, f"{r}^-1", h) for h, r, t in triples(TRAIN)}
    seen: set[tuple[str, ...]] = set()
    for split in ("train", "val", "test"):
        rows = context.task.split(split, tmp_path)
        for epoch in range(20):
            for planned in rows.plan(batch_tokens=60, multiple=4, seed=1, epoch=epoch, shuffle=True):
                batch = rows.collate(planned)
                torch.testing.assert_close(batch.source.ids, rows.collate(planned).source.ids)
                for row, place in enumerate(batch.rows):
                    entity, relation = graph.tokens(rows.queries[place, :2])
                    found, answer = neighbours(graph, batch, row), graph.entities[rows.queries[place, 2]]
                    own = {(r, t) for h, r, t in known if h == entity} - {(relation, answer)}
                    assert found <= own
                    assert len(found) == min(2, len(own))
                    assert labels_of(batch)[row] == rows.queries[place, 2]
                    seen |= {(entity, relation, *pair) for pair in found}
    shown = {pair[2:] for pair in seen if pair[:2] == ("ann", "knows")}
    assert shown == {("lives in", "New York"), ("knows", "bob"), ("knows", "dora")}  # others each epoch


def test_an_entity_that_is_hidden_is_told_by_its_neighbours(context: Run, tmp_path: Path) -> None:
    rows = context.task.split("train", tmp_path)
    batch = rows.collate(rows.plan(batch_tokens=300, multiple=4, seed=1, epoch=0, shuffle=True)[0])
    read: list[Tensor] = []

    class Reads:
        def loss(self, batch: Batch, smoothing: float, negatives: int = 0, *, several: bool = False) -> None:
            read.append(batch.source.ids)

    torch.manual_seed(1)
    for _ in range(20):
        context.task.loss(Reads(), batch)
    context.task.loss(Reads(), batch, smoothing=0.0)
    hidden = torch.stack(read[:20])[:, :, 0] == MASK
    assert 0.2 < hidden[:, batch.source.lengths > 3].float().mean() < 0.4
    assert not hidden[:, batch.source.lengths == 3].any()
    torch.testing.assert_close(read[-1], batch.source.ids)


def test_a_share_is_held_out_by_facts(tmp_path: Path) -> None:
    facts = [f"p{i}\tlikes\tp{j}\n" for i in range(20) for j in range(10)]
    (tmp_path / "train.tsv").write_text("head\trelation\ttail\n" + "".join(facts))
    recipe = parse(
        {
            "task": {"name": "link-prediction"},
            "data": {"train": ["train.tsv"], "val_share": 0.2},
            "model": {"family": "bert", "preset": "tiny"},
        },
        where="a test",
        folder=tmp_path,
    )
    from regard.run import _paths
    from regard.tasks.link_prediction import Task

    task = Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=_paths(recipe), folder=tmp_path)
    learned, judged = (len(task.split(name, tmp_path)) // 2 for name in ("train", "val"))
    assert (learned, judged, len(task.graph.facts)) == (155, 45, 155)
    assert len(task.graph.entities) == 20


# --- the loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "recurrent", "convolutional", "xlnet", "efficient"])
def test_only_entities_are_scored(run: Run, family: str, tmp_path: Path) -> None:
    graph, file = run.task.graph, models.family(family)
    config = read_section(file.Config, models.with_preset(family, {"preset": list(file.PRESETS)[-1]}), where="a test")
    torch.manual_seed(1)
    model = run.task.dress(models.build(family, config, run.task.sizes, "encoder")).eval()
    batch = run.task.split("val", tmp_path).first(4)
    logits = model.logits(batch)
    assert logits.shape == (4, len(graph.entities))
    loss, number = model.loss(batch, 0.1)
    smooth = torch.nn.functional.cross_entropy(logits, labels_of(batch), reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(loss, smooth)
    assert number == 4
    loss.backward()
    gradient = model.body.source.tokens.weight.grad
    assert gradient[FIRST : FIRST + len(graph.entities)].abs().sum(1).min() > 0


def test_scores_are_not_rounded(run: Run, tmp_path: Path) -> None:
    batch = run.task.split("train", tmp_path).first(8)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        logits = run.model.logits(batch)  # type: ignore[operator]
    assert (logits != logits.bfloat16()).float().mean() > 0.9


def test_a_sampled_softmax_over_all_is_the_softmax(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = run.model, run.task.split("train", tmp_path).first(8)
    assert isinstance(model, LinkPredictor)
    number = len(run.task.graph.entities)
    queries, labels = model.queries(batch), labels_of(batch).clone()
    labels[3] = -100
    asked = batch.source.ids[:, 0] - FIRST
    wanted = model.loss(batch, 0.1)[0]
    monkeypatch.setattr(torch, "randint", lambda high, size, device: torch.arange(high, device=device))
    torch.testing.assert_close(model._sampled(queries, labels_of(batch), asked, 0.1, number), wanted)
    without = torch.nn.functional.cross_entropy(
        queries @ model.entities().T, labels, reduction="sum", label_smoothing=0.1
    )
    torch.testing.assert_close(model._sampled(queries, labels, asked, 0.1, number), without)
    # what is asked about is told from the answer also where it was not drawn, but where it is the answer or hidden
    alone = torch.stack([labels_of(batch)[0], asked[0]])
    monkeypatch.setattr(torch, "randint", lambda high, size, device: alone[:1].expand(size))
    pair = (queries[:1] @ model.entities()[alone].T).log_softmax(-1)[0, 0]
    torch.testing.assert_close(model._sampled(queries[:1], alone[:1], alone[1:], 0.0, 5), -pair)
    for other in (alone[:1], torch.tensor([MASK - FIRST])):
        assert model._sampled(queries[:1], alone[:1], other, 0.0, 5) == 0


def test_a_sampled_softmax_is_near_the_softmax() -> None:
    torch.manual_seed(1)
    graph = Graph(tuple(f"e{i}" for i in range(2000)), ("r",), np.array([[0, 0, 1], [2, 0, 3]]))
    config = read_section(models.family("bert").Config, models.with_preset("bert", {"preset": "tiny"}), where="a test")
    body = models.build("bert", config, models.Sizes(graph.size, graph.size, shared=True), "encoder")
    model = LinkPredictor(body, first=FIRST, num_entities=2000, dropout=0.0).eval()
    rows = Asked(graph, graph.asked(graph.facts))
    batch = rows.first(4)
    with torch.no_grad():
        exact = model.loss(batch, 0.1)[0]
        drawn = [model.loss(batch, 0.1, negatives=500)[0] for _ in range(20)]
    assert torch.stack(drawn).mean() == pytest.approx(exact.item(), rel=5e-3)
    assert len({value.item() for value in drawn}) == 20


def test_facts_that_ask_the_same_are_one_question(run: Run, folder: Path, tmp_path: Path) -> None:
    """Loss and gradients are those of all facts one by one; validation asks each alone."""
    recipe = read_recipe(folder / "plain.toml", [f"run={tmp_path / 'run'}", "task.answers=2", "train.max_steps=5"])
    task = train(recipe).task
    model, plain, grouped = run.model, run.task.split("train", tmp_path), task.split("train", tmp_path)
    assert isinstance(model, LinkPredictor)
    assert len(grouped) < len(plain)
    assert grouped.describe() == plain.describe()
    assert len(task.split("val", tmp_path)) == len(run.task.split("val", tmp_path))
    found, wanted = [], []
    for target, rows, own in ((found, grouped, task), (wanted, plain, run.task)):
        batch = rows.first(len(rows))
        loss, number = own.loss(model, batch)
        target += [loss, number, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


# --- a run ------------------------------------------------------------------------------------------------------------


def test_the_training_facts_are_learned_by_heart(run: Run) -> None:
    values = {score.name: score.value for score in run.evaluate("train")}
    assert values["mrr"] == values["hits1"] == 100
    sources = ["ann\tlives in", "?\tis in\tAmerica", "bob\tknows\t?", ""]
    assert [answer.text for answer in run.predict(sources)] == ["New York", "New York", "carl", ""]


def test_through_the_command_line(
    run: Run, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("evaluate", run.folder) == 0
    assert "mrr_heads: " in capfd.readouterr().out
    typed = "dora\tlives in\n\n?\tlives in\tRome\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
    assert command("predict", run.folder, "--n-best", 2, "--format", "jsonl", "--scores") == 0
    first, empty, heads = map(json.loads, capfd.readouterr().out.splitlines())
    assert first["target"][0] == "Oslo"
    assert 1 > first["score"][0] > first["score"][1] > 0
    assert (empty["target"], empty["score"]) == ([""], [0.0])
    assert set(heads["target"]) == {"bob", "carl"}
    assert command("predict", run.folder, folder / "train.tsv") == 0
    answers = capfd.readouterr().out.splitlines()
    assert [answers[i] for i in (0, 3, 4)] == ["New York", "Oslo", "America"]
    (folder / "some.txt").write_text("ann\tlives in\nnonsense\n\nzed\tlives in\n")
    assert command("predict", run.folder, folder / "some.txt") == 2
    told = capfd.readouterr()
    assert told.out.splitlines() == ["New York", "", "", ""]
    assert "error: a query is not understood\n  got:    nonsense\n" in told.err
    assert "  where:  source 4\n" in told.err
    assert command("look", run.folder, "ann\tlives in", "--no-open") == 0
    assert command("look", run.folder, "?\tis in\tEurope", "--target", "Oslo", "--terminal") == 0
    assert "Europe" in capfd.readouterr().out


def test_known_facts_may_be_left_out(run: Run) -> None:
    kept, left = (run.predict(["ann\tknows"], n_best=3, known=known)[0] for known in (True, False))
    assert set(kept.texts[:2]) == {"bob", "dora"}
    assert not {"bob", "dora"} & set(left.texts)
    everything = run.predict(["ann\tknows"], n_best=100, known=False)[0]
    assert sum(everything.scores) == pytest.approx(1)
    assert set(everything.texts) == set(run.task.graph.entities) - {"bob", "dora"}


def test_a_row_and_its_answer_as_look_has_them(run: Run, context: Run) -> None:
    batch, axes = run.task.pair("?\tlives in\tRome", "carl")
    assert axes["source"].tokens == ("Rome", "lives in^-1", "<mask>")
    assert axes["source"].text == "Rome lives in^-1"
    assert [axes["source"].text[a:b] for a, b in axes["source"].offsets] == ["Rome", "lives in^-1", ""]
    assert axes["target"].text == "carl"
    found = run.task.log_probs(run.model, batch)
    wanted = run.model.logits(batch).log_softmax(-1)[0, run.task.graph.entity("carl")]  # type: ignore[operator]
    torch.testing.assert_close(found, torch.stack([torch.zeros(()), torch.zeros(()), wanted])[None])
    assert len(context.look("ann\tlives in", quick=True).trace.axes["source"].tokens) == 7


def test_a_loaded_run_answers_without_its_data(run: Run, context: Run, tmp_path: Path) -> None:
    for each in (run, context):
        again = load(each.folder, device="cpu")
        assert again.predict(["bob\tknows"]) == each.predict(["bob\tknows"])
    damaged = tmp_path / "run"
    damaged.mkdir()
    for name in ("recipe.toml", "model.safetensors"):
        (damaged / name).write_bytes((run.folder / name).read_bytes())
    (damaged / "graph.json").write_text('{"entities": []}')
    with pytest.raises(RunError, match="the graph cannot be read"):
        load(damaged)


def test_a_training_goes_on(folder: Path) -> None:
    whole, parts = folder / "runs" / "whole", folder / "runs" / "parts"
    keys = ["train.schedule=inverse-sqrt", "train.checkpoint_every=3", "train.validate_every=3"]
    for run, steps in ((whole, 6), (parts, 3), (parts, 6)):
        train(read_recipe(folder / "context.toml", [f"run={run}", f"train.max_steps={steps}", *keys]))
    first, second = (load(run, device="cpu").predict(["ann\tlives in"], n_best=5)[0] for run in (whole, parts))
    assert first == second


def test_heads_can_be_switched_off(run: Run) -> None:
    found = run.ablate(limit=4)
    assert len(found["heads"]) == 2
    assert set(found["metrics"]) == {"hits1", "changed"}


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("an\tlives in", 'no such entity\n.*got: +an\n.*one of the 11 .*\n.*source 1\n.*did you mean "ann"'),
        ("ann\tlive in", 'no such relation\n(.*\n)*.*did you mean "lives in"'),
        ("ann lives in", "a query is not understood\n.*got: +ann lives in\n.*wanted: head<TAB>relation, or"),
        ("ann\tlives in\tRome", "a query is not understood"),
        ("?\tlives in", "no such entity"),
    ],
)
def test_a_query_that_cannot_be_meant(run: Run, source: str, wanted: str) -> None:
    with pytest.raises(DataError, match=wanted) as error:
        run.predict([source])
    bad, good = run.predict([source, "ann\tlives in"], on_bad_line="skip")
    assert (bad.text, bad.wrong) == ("", str(error.value))
    assert good == run.predict(["ann\tlives in"])[0]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("a\tb\n", "2 columns; wanted head, relation, tail with tabs between them"),
        ("a\t\tc\n", "the relation is empty"),
        ("?\tb\tc\n", "the head is a question mark, which asks for a name"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, wanted: str) -> None:
    file = tmp_path / "facts.tsv"
    file.write_text(f"Head\tRelation\tTail\na\tb\tc\n{line}")
    with pytest.raises(DataError, match=f"{wanted}\n(.*\n)*.*facts.tsv:3"):
        list(read_facts([file]))
    report = ReadReport()
    assert len(list(read_facts([file], on_bad_line="skip", report=report))) == 1
    assert report.num_bad == 1


def test_files_that_cannot_be_meant(tmp_path: Path, run: Run) -> None:
    with pytest.raises(DataError, match="facts are one file"):
        read_facts([tmp_path, tmp_path])
    (tmp_path / "none.tsv").write_text("head\trelation\ttail\n")
    keys = [f"run={tmp_path / 'run'}", f"data.train=['{tmp_path / 'none.tsv'}']"]
    with pytest.raises(DataError, match="the training split holds no example\n  got:    0 examples"):
        train(read_recipe(run.folder / "recipe.toml", keys))


def test_a_name_that_training_did_not_know(run: Run, tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("ann\tknows\tgus\n")
    keys = [f"run={run.folder}", f"data.test=['{tmp_path / 'other.tsv'}']"]
    recipe = read_recipe(run.folder / "recipe.toml", keys)
    from regard.run import _paths
    from regard.tasks.link_prediction import Task

    task = Task.open(recipe.task, recipe.data, recipe.tokenizer, paths=_paths(recipe), folder=run.folder)
    with pytest.raises(DataError, match=r"no such entity\n.*gus\n(.*\n)*.*other.tsv:1"):
        task.split("test", tmp_path)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"neighbours": -1}, "neighbours is too small"),
        ({"negatives": -1}, "negatives is too small"),
        ({"answers": 0}, "answers is too small"),
        ({"answers": 2, "negatives": 9}, "told from all entities"),
        ({"answers": 2, "neighbours": 9}, "nothing is read beside"),
        ({"dropout": 1.0}, "dropout is a share"),
        ({"hide": 0.5}, "an entity that is hidden is told by its neighbours"),
    ],
)
def test_keys_that_cannot_be_meant(keys: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        Config(**keys)


def test_what_has_no_meaning_here(run: Run) -> None:
    with pytest.raises(ConfigError, match="this model has no vectors of texts"):
        run.vectors(["ann"])


def test_a_recipe_is_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{a} {i}\tis before\t{a} {i + 1}\n" for a in ("week", "year") for i in range(40)]
    Path("facts.tsv").write_text("".join(lines))
    assert command("new", "link-prediction", "--train", "facts.tsv", "--out", "facts.toml") == 0
    assert "train: 80 examples" in capfd.readouterr().out
    recipe = read_recipe("facts.toml", ["train.max_steps=2", "train.validate_every=2", "train.device=cpu"])
    assert (recipe.model.max_length, recipe.data.val_share, recipe.train.best) == (3, 0.1, "mrr")
    assert len(train(recipe).task.graph.entities) == 82
