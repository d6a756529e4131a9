"""Tagging: eight texts are learned by heart and come back through the command line, by words and by characters."""

from __future__ import annotations

import io
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import models
from regard.cli.main import main
from regard.data.conll import TaggedText, tagged
from regard.data.marked import unmark
from regard.data.noise import Noise
from regard.data.parts import NoisyData
from regard.data.readers import ReadReport
from regard.data.schemes import to_spans, to_tags
from regard.errors import ConfigError, DataError, RunError
from regard.recipe import parse, read_recipe
from regard.run import Run, load, train
from regard.tasks.tagging import Tags, Task, read_split, windows_of
from regard.types import Batch, Example, Sequences

EIGHT = [
    "[Ann](person) lives in [New York](city) .",
    "[Bob](person) and [Carl Smith](person) met in [Rome](city) .",
    "nobody was there",
    "in [Rome](city) [Ann](person) slept",
    "[Oslo](city) is cold , [Lima](city) is warm , and so it goes on",
    "she met [Carl Smith](person)",
    "where is [New York](city) ?",
    "[Bob](person)",
]
CHINESE = [
    "[高小勇](NAME)，男，住在[北京](LOC)",
    "[李](NAME)是[上海](LOC)人",
    "没有人",
    "[北京](LOC)的[高勇](NAME)",
] * 2
RECIPE = """
[task]
name = "tagging"
dropout = 0.0
{task}

[data]
train = ["{file}"]
val = ["{file}"]
test = ["{file}"]
max_length = {max_length}

[tokenizer]
kind = "{tokenizer}"
vocab_size = {size}

[model]
family = "{family}"
preset = "tiny"
layers = 1
model_dim = 32
num_heads = 2
ffn_dim = 64
dropout = 0.0

[train]
device = "cpu"
max_steps = 50
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 5
validate_every = 50
best = "f1"
"""
Make = Callable[..., Run]
HEADS = {"crf": "", "linear": 'head = "linear"'}


def conll(marked: list[str], scheme: str = "bio") -> str:
    """Marked texts whose words have spaces between them, or Chinese, as a CoNLL file."""
    found = ""
    for line in marked:
        text, spans = unmark(line)
        one = tagged(Example(text, (line,)), "words" if " " in text or text.isascii() else "characters")
        words = [text[a:b] for a, b in one.units]
        ends = {unit[1]: i + 1 for i, unit in enumerate(one.units)}
        starts = {unit[0]: i for i, unit in enumerate(one.units)}
        stretches = [(starts[span.start], ends[span.end], span.label) for span in spans]
        tags = to_tags(stretches, len(words), scheme)  # type: ignore[arg-type]
        found += "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n"
    return found


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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A run that learned one of the files; each is trained once."""
    folder = tmp_path_factory.mktemp("tagging")
    (folder / "eight.conll").write_text(conll(EIGHT))
    (folder / "chinese.bmes").write_text(conll(CHINESE, "bmes"), encoding="utf-8")
    records = [{"text": unmark(line)[0], "spans": [vars_of(span) for span in unmark(line)[1]]} for line in EIGHT]
    (folder / "eight.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    runs: dict[str, Run] = {}

    def get(file: str = "eight.conll", **keys: Any) -> Run:
        name = repr((file, sorted(keys.items())))
        if name not in runs:
            words = {"task": "", "family": "bert", "tokenizer": "words", "size": 60, "max_length": 64, **keys}
            path = folder / f"{len(runs)}.toml"
            path.write_text(RECIPE.format(file=file, **words))
            runs[name] = train(read_recipe(path, [f"run={folder / str(len(runs))}"]))
        return runs[name]

    return get


def vars_of(span: Any) -> dict[str, Any]:
    return {"start": span.start, "end": span.end, "label": span.label}


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


def texts_of(marked: list[str]) -> list[str]:
    return [unmark(line)[0] for line in marked]


# --- from files to answers


@pytest.mark.parametrize("head", HEADS)
def test_eight_texts_are_learned_and_come_back_through_the_command_line(
    trained: Make, head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(task=HEADS[head])
    texts = texts_of(EIGHT)
    capsys.readouterr()
    assert not regard("predict", run.folder, "--device", "cpu", stdin="".join(f"{text}\n" for text in texts))
    assert capsys.readouterr().out.splitlines() == EIGHT

    # a file with its tags is read for its texts
    (tmp_path / "some.conll").write_text(conll(EIGHT))
    assert not regard("predict", run.folder, tmp_path / "some.conll", "--format", "jsonl", "--device", "cpu")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["source"] for record in records] == texts
    assert records[0]["spans"][1].items() >= {"start": 13, "end": 21, "label": "city", "text": "New York"}.items()
    assert all(0.5 < span["score"] <= 1 for record in records for span in record.get("spans", []))

    # what `predict` wrote can be read again
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [each.source for each in run.task.read(tmp_path / "some.jsonl")] == texts

    assert not regard("evaluate", run.folder, "--device", "cpu")
    assert "f1: 100.00\n  texts:8|spans:12|exact|scheme:bio\nprecision: 100.00\n" in capsys.readouterr().out
    report = json.loads((run.folder / "report.json").read_text())["test"]
    assert list(report["metrics"]) == ["f1", "precision", "recall", "f1_city", "f1_person"]


def test_characters_are_found_by_themselves(trained: Make) -> None:
    run = trained("chinese.bmes", tokenizer="characters")
    assert run.task.tags == Tags(("LOC", "NAME"), "bmes", "characters")
    assert [answer.text for answer in run.predict(texts_of(CHINESE))] == CHINESE
    spaced = run.predict(["没有 人 "])[0]  # spaces have no tag
    assert spaced.text == "没有 人 "
    assert len(spaced.tokens[0]) == 3


def test_spans_of_a_jsonl_become_tags_of_the_run(trained: Make) -> None:
    run = trained("eight.jsonl", task='scheme = "bioes"')
    assert run.task.tags.scheme == "bioes"
    assert [answer.text for answer in run.predict(texts_of(EIGHT))] == EIGHT
    assert run.predict(["she met Carl Smith"])[0].tokens == (("O", "O", "B-person", "E-person"),)


@pytest.mark.parametrize("tokenizer", ["bpe", "characters", "byte-bpe"])
def test_pieces_of_words_have_one_tag(trained: Make, tokenizer: str) -> None:
    run = trained(tokenizer=tokenizer, size=300 if tokenizer == "byte-bpe" else 60)
    assert [answer.text for answer in run.predict(texts_of(EIGHT))] == EIGHT
    rows = run.task.split("train", run.folder / "cache")
    first, labels = rows.texts.row(0), rows.labels.row(0)
    assert len(first) == len(labels) > 8
    named = [run.task.names[label] for label in labels if label >= 0]
    assert named == ["B-person", "O", "O", "B-city", "I-city", "O"]
    assert labels[0] == labels[-1] == -100


@pytest.mark.parametrize("family", ["xlnet", "recurrent"])
def test_other_families_tag_as_well(trained: Make, family: str) -> None:
    task, model = unsure(trained(), model={"family": family, "preset": "tiny"})
    batch = task.split("train", trained().folder / "cache").first(2)
    assert model.emissions(batch).shape == (*batch.source.ids.shape, len(task.names))
    task.loss(model, batch)[0].backward()
    assert all(parameter.grad is not None for parameter in model.tag.parameters())


def unsure(run: Run, *, std: float = 0.3, scheme: str = "bio", **sections: Any) -> tuple[Task, Any]:
    """The task of a run in another form, and a model of it that has learned nothing."""
    recipe = parse({**table(), **sections}, where="r.toml", folder=run.folder)
    tags = replace(run.task.tags, scheme=scheme)
    task = Task(recipe.task, run.task.data, paths=run.task.paths, tokenizer=run.task.tokenizer, tags=tags)
    model = task.dress(models.build(recipe.family, recipe.model, task.sizes, "encoder")).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return task, model


def test_a_batch_of_one_answers_as_a_batch_of_many(trained: Make) -> None:
    run = trained()
    texts = texts_of(EIGHT)
    for text, answer in zip(texts, run.predict(texts), strict=True):
        alone = run.predict([text])[0]
        assert alone.text == answer.text
        assert alone.scores == pytest.approx(answer.scores, abs=1e-5)
        assert [span.score for span in alone.spans] == pytest.approx([span.score for span in answer.spans], abs=1e-5)
    assert run.predict([]) == []
    assert [answer.text for answer in run.predict(["Bob", "", " \t"])] == ["[Bob](person)", "", ""]


def test_offsets_are_those_of_the_users_own_text(trained: Make) -> None:
    text = "  she met\tCarl  Smith"
    answer = trained().predict([text])[0]
    assert [text[span.start : span.end] for span in answer.spans] == ["Carl  Smith"]
    assert answer.text == "  she met\t[Carl  Smith](person)"


def test_a_long_text_is_read_in_windows(trained: Make) -> None:
    """What is said of a word is what is said of it in the window that it is taken from."""
    run = trained(tokenizer="bpe")
    text = " . ".join(texts_of(EIGHT) * 12)
    answer = run.predict([text])[0]
    assert answer.cut == 0
    assert len(answer.tokens[0]) == len(text.split())
    whole = tagged(Example(text), "words")
    pieces = run.task._pieces(whole)
    with torch.inference_mode():
        (found,) = run.task._emissions(run.model, [whole], run.recipe.decode, run.device, None)
        windows = windows_of([len(piece) for piece in pieces], 64)
        assert len(windows) > 5
        for window in windows:
            row = [2, *itertools.chain(*pieces[window.first : window.stop]), 3]
            said = run.model.emissions(Batch(Sequences(torch.tensor([row]), torch.tensor([len(row)]))))[0]
            firsts = [1 + sum(map(len, pieces[window.first : i])) for i in range(window.keep, window.keep_stop)]
            torch.testing.assert_close(found[window.keep : window.keep_stop], said[firsts], rtol=1e-4, atol=1e-4)


def test_windows_read_every_word_once_with_others_around_it() -> None:
    for lengths in ([1] * 30, [3, 1, 9, 2, 2, 20, 1, 1], [5], [30, 30]):
        windows = windows_of(lengths, 10)
        assert [i for window in windows for i in range(window.keep, window.keep_stop)] == list(range(len(lengths)))
        for window in windows:
            assert window.first <= window.keep < window.keep_stop <= window.stop
            assert window.stop - window.first == 1 or sum(lengths[window.first : window.stop]) <= 10
    assert windows_of([], 10)[0].stop == 0


# --- probabilities


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("scheme", ["bio", "io", "bioes"])
def test_the_score_of_a_span_is_its_probability_over_all_taggings(trained: Make, head: str, scheme: str) -> None:
    """By enumeration of all taggings of three words, with a model that is not sure."""
    run = trained()
    task, model = unsure(run, scheme=scheme, task={"name": "tagging", "head": head})
    for text in ("Ann in Rome", "New York York"):
        answer = task.predict(model, [text], run.recipe.decode, device=torch.device("cpu"))[0]
        pieces = task._pieces(tagged(Example(text), "words"))
        ids = torch.tensor([[2, *itertools.chain(*pieces), 3]])
        with torch.no_grad():
            emissions = model.emissions(Batch(Sequences(ids, torch.tensor([5]))))[0, 1:4].double()
        chain = [part.detach().double() for part in model.chain()]
        worth: dict[tuple[int, ...], float] = {}
        for path in itertools.product(range(len(task.names)), repeat=3):
            score = chain[1][path[0]] + chain[2][path[-1]] + sum(emissions[i, tag] for i, tag in enumerate(path))
            worth[path] = float(score + sum(chain[0][a, b] for a, b in itertools.pairwise(path)))
        total = math.fsum(math.exp(score) for score in worth.values())
        best = max(worth, key=lambda path: worth[path])
        assert answer.ids == (best,)
        assert answer.scores[0] == pytest.approx((worth[best] - math.log(total)) / 3, abs=1e-4)
        found = to_spans([task.names[i] for i in best])
        assert len(found) == len(answer.spans)
        for stretch, span in zip(found, answer.spans, strict=True):
            paths = [path for path in worth if stretch in to_spans([task.names[i] for i in path])]
            # a span may be written in other tags where the head does not know what is legal
            same = [path for path in paths if path[stretch[0] : stretch[1]] == best[stretch[0] : stretch[1]]]
            wanted = math.fsum(math.exp(worth[path]) for path in same) / total
            assert span.score == pytest.approx(wanted, abs=1e-4)


def test_the_crf_says_legal_tags_alone(trained: Make) -> None:
    run = trained()
    task, model = unsure(run, std=1.0)
    for answer in task.predict(model, texts_of(EIGHT), run.recipe.decode, device=torch.device("cpu")):
        before = "O"
        for tag in answer.tokens[0]:
            assert not tag.startswith("I-") or before[2:] == tag[2:]
            before = tag


# --- case


def test_how_words_are_written_is_recovered(tmp_path: Path) -> None:
    """A tokenizer in lower case cannot tell them apart: the shape can."""
    rows = [
        "[Will](name) will go",
        "will [Will](name) go",
        "[Rose](name) rose",
        "a rose",
        "[MARK](name) a mark",
        "mark",
    ]
    (tmp_path / "case.conll").write_text(conll(rows * 5))
    scores = {}
    for case in (True, False):
        text = RECIPE.format(
            size=60,
            task=f"case = {str(case).lower()}",
            family="bert",
            tokenizer="words",
            max_length=64,
            file="case.conll",
        )
        path = tmp_path / f"{case}.toml"
        path.write_text(text.replace("vocab_size", "lowercase = true\nvocab_size"))
        run = train(read_recipe(path, [f"run={tmp_path / str(case)}", "train.max_steps=80"]))
        scores[case] = run.evaluate()[0].value
    assert scores[True] == 100 > scores[False]
    loaded = load(tmp_path / "True", "cpu")
    assert loaded.task.tags.shapes[:2] == ("xx", "Xxx")
    assert loaded.predict(["Will will go"])[0].text == "[Will](name) will go"
    ids = loaded.task.split("train", tmp_path / "cache").texts.row(0)
    assert int(ids.max()) >= loaded.task.tokenizer.size  # the shape is above the vocabulary
    assert ids[0] == 2


# --- training


def test_the_loss_is_a_sum_and_padding_counts_nothing(trained: Make) -> None:
    for head in HEADS:
        run = trained(task=HEADS[head])
        rows = run.task.split("train", run.folder / "cache")
        (planned,) = rows.plan(batch_tokens=8192, multiple=4, seed=0, epoch=0, shuffle=False)
        total, count = run.task.loss(run.model, rows.collate(planned))
        assert int(count) == sum(len(text.split()) for text in texts_of(EIGHT))
        parts = [rows.collate(type(planned)(planned.rows[i : i + 3], (5, 24, 0))) for i in (0, 3, 6)]  # rows missing
        losses = [run.task.loss(run.model, part) for part in parts]
        assert sum(int(number) for _, number in losses) == int(count)
        torch.testing.assert_close(sum(loss for loss, _ in losses), total, rtol=1e-4, atol=1e-4)


def test_hidden_words_keep_their_shape(trained: Make) -> None:
    task, _ = unsure(trained(), task={"name": "tagging", "word_dropout": 0.5, "case": True})
    size, seen = task.tokenizer.size, []

    class Watch:
        def loss(self, batch: Batch) -> tuple[None, None]:
            seen.append(batch.source.ids)
            return None, None

    ids = torch.full((1, 1000), 9 + 2 * size)
    ids[0, 0], ids[0, -1] = 2, 3
    batch = Batch(Sequences(ids, torch.tensor([1000])))
    task.loss(Watch(), batch)  # type: ignore[arg-type]
    task.loss(Watch(), batch, smoothing=0.0)  # type: ignore[arg-type]
    assert set(seen[0][0, 1:-1].tolist()) == {1 + 2 * size, 9 + 2 * size}
    assert seen[0][0, [0, -1]].tolist() == [2, 3]
    assert torch.equal(seen[1], ids)


def test_labels_that_training_did_not_have_are_misses(trained: Make) -> None:
    run = trained()
    right = [TaggedText("Oslo", ("[Oslo](town)",), "", ((0, 4),), unmark("[Oslo](town)")[1])]
    answers = run.predict(["Oslo"])
    assert answers[0].text == "[Oslo](city)"
    scores = {score.name: score.value for score in run.task.score(answers, right)}
    assert (scores["recall"], scores["precision"]) == (0, 0)
    assert run.task._tags(right[0]) == [0]


def test_a_split_is_read_with_typos_and_training_in_part(trained: Make) -> None:
    run = trained()
    clean = [tagged(each, "words") for each in run.task.examples("test")]
    data = NoisyData.of(run.task.data, Noise(0.9))
    changed = list(read_split(run.task.config, data, run.task.paths, "test", ReadReport()))
    for before, after in zip(clean, changed, strict=True):
        after = tagged(after, "words")
        assert len(after.units) == len(before.units)
        assert [span.label for span in after.spans] == [span.label for span in before.spans]
    assert sum(a.source != b.source for a, b in zip(clean, changed, strict=True)) > 5
    part = list(read_split(run.task.config, replace(data, train_share=0.5), run.task.paths, "train", ReadReport()))
    assert 0 < len(part) < 8


# --- looking


@pytest.mark.parametrize("head", HEADS)
def test_a_text_is_looked_into(trained: Make, head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, text = trained(task=HEADS[head]), "Ann lives in New York ."
    look = run.look(text)
    assert look.trace.info["answer"] == EIGHT[0]
    assert look.trace.axes["source"].tokens == ("<s>", *text.split(), "</s>")
    assert look.trace.axes["target"].tokens == ("", "B-person", "O", "O", "B-city", "I-city", "O", "")
    (start, end) = look.trace.axes["target"].offsets[4]
    assert look.trace.axes["target"].text[start:end] == "New"
    assert look.found.relevance == {"rows": "source", "keys": "source", "bin": [1, 1]}
    said = look.found.tensors["relevance"].abs().sum(1) > 0
    assert said.tolist() == [False, True, False, False, True, True, False, False]  # the names' rows
    assert {method["name"] for method in look.found.card["methods"]} >= {"attention", "relevance", "gradient"}
    assert len(look.found.ablation["heads"]) == 2
    assert len(look.html()) > 100_000
    given = run.look(text, "Ann lives in [New York](person) .", quick=True)
    assert given.trace.info["answer"] == "Ann lives in [New York](person) ."

    # nothing to delete, nothing found, too long
    assert run.look("Bob").found.card is None
    assert run.look("nobody was there").trace.info["answer"] == "nobody was there"
    capsys.readouterr()
    assert run.look("and so on " * 40, quick=True).trace.info["cut"] == 65  # with <s>
    assert "the text was cut to 65 tokens" in capsys.readouterr().err

    file, page = tmp_path / "some.conll", tmp_path / "page.html"
    file.write_text(conll(EIGHT[:6]))
    assert not regard("look", run.folder, file, "--no-open", "--out", page, "--device", "cpu")
    assert "means over 6 texts" in capsys.readouterr().out
    table = run.ablate(split="test")
    assert table["metrics"]["f1"] == 100
    run.prune(tmp_path / "pruned", keep=0.5, split="test")
    assert len(load(tmp_path / "pruned", "cpu").predict([text])) == 1


def test_what_is_said_of_tags_is_of_marginals(trained: Make) -> None:
    run = trained()
    batch, _ = run.task.pair("Ann lives in New York .", "[Ann](person) lives in New York .")
    assert batch.target is not None
    assert batch.target.ids.tolist() == [[-100, run.task.number["B-person"], -1, -1, -1, -1, -1, -100]]
    with torch.no_grad():
        found = run.task.log_probs(run.model, batch)
    assert found[0, 2:].tolist() == [0.0] * 6
    assert float(found[0, 1].exp()) == pytest.approx(
        run.predict(["Ann lives in New York ."])[0].spans[0].score, abs=0.1
    )


# --- errors


def test_errors(trained: Make, tmp_path: Path) -> None:
    run = trained()
    with pytest.raises(DataError, match="the answer is not the text with marks\n  got:    Bob\n  wanted: Ann"):
        run.task.pair("Ann", "[Bob](person)")
    with pytest.raises(ConfigError, match="dropout is a share"):
        parse(table(dropout=1.0), where="r.toml", folder=tmp_path)
    (tmp_path / "a.conll").write_text("a O\nb O\n")
    with pytest.raises(DataError, match="there is nothing to find\n  got:    1 texts without a span"):
        train(parse({**table(), "run": str(tmp_path / "run")}, where="r.toml", folder=tmp_path))
    (tmp_path / "a.conll").write_text("a B-x\n" * 40)
    long = {**table(), "run": str(tmp_path / "long")}
    long["data"]["max_length"] = 30
    with pytest.raises(DataError, match=r"the text is too long\n  got:    40 tokens\n  wanted: at most 30"):
        train(parse(long, where="r.toml", folder=tmp_path))
    (tmp_path / "tags.json").write_text('{"labels": ["a"]}')
    with pytest.raises(RunError, match=r"the tags cannot be read\n  got:    KeyError\('scheme'\)"):
        Tags.load(tmp_path / "tags.json")


def table(**task: Any) -> dict[str, Any]:
    data = {"train": ["a.conll"], "val": ["a.conll"]}
    tokenizer = {"kind": "words"}
    model = {"family": "bert", "preset": "tiny"}
    return {"task": {"name": "tagging", **task}, "data": data, "tokenizer": tokenizer, "model": model}


def test_a_share_is_held_out_by_the_text(tmp_path: Path) -> None:
    (tmp_path / "all.conll").write_text("".join(f"text O\nnumber{i % 50} B-x\n\n" for i in range(100)))
    keys = table() | {"run": str(tmp_path / "run"), "data": {"train": ["all.conll"], "val_share": 0.3}}
    keys["train"] = {"device": "cpu", "max_steps": 1, "batch_tokens": 512}
    run = train(parse(keys, where="recipe.toml", folder=tmp_path))
    parts = {name: {each.source for each in run.task.examples(name)} for name in ("train", "val")}
    assert len(parts["train"] | parts["val"]) == 50
    assert not parts["train"] & parts["val"]
    assert len(run.task.split("val", tmp_path / "cache")) == 2 * len(parts["val"])
