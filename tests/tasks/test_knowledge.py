"""Knowledge beside texts (K-BERT): a label follows from triples, a branch is seen by its entity alone."""

from __future__ import annotations

import io
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.cli.main import main
from regard.errors import ConfigError, DataError, RunError
from regard.layers.classifier import pool
from regard.layers.relation import RelationClassifier
from regard.looking.explain import case
from regard.looking.subject import joined, observed
from regard.ops.masks import branching
from regard.recipe import parse, shipped
from regard.run import Run, load, train
from regard.types import Batch, Sequences

# what a city is like is said by the triples alone: its name stands in one text, too few for the vocabulary
COLD, WARM = ("oslo", "nuuk", "tromso", "yakutsk", "anadyr"), ("cairo", "lima", "manila", "dakar", "havana")
TRIPLES = [(city, "climate", kind) for kind, cities in (("cold", COLD), ("warm", WARM)) for city in cities]
TEXTS = [("yes" if city in COLD else "no", f"a coat for {city}") for city in (*COLD[:4], *WARM[:4])]
TEXTS += [("yes", "cold"), ("no", "warm")]
NEW = [("yes", f"a coat for {COLD[4]}"), ("no", f"a coat for {WARM[4]}")]


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder of the tests' own, and one thread: on a busy machine two wait for each other."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(number)


def table(folder: Path, name: str = "run", **sections: Any) -> dict[str, Any]:
    """A recipe that learns the texts with the triples."""
    (folder / "rows.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in TEXTS))
    (folder / "cities.spo").write_text("".join("\t".join(triple) + "\n" for triple in TRIPLES))
    base = {
        "task": {"name": "classification", "dropout": 0.0, "knowledge": "cities.spo", "pooling": "first"},
        "data": {split: ["rows.tsv"] for split in ("train", "val", "test")},
        "tokenizer": {"kind": "words", "min_frequency": 2},
        "model": {"family": "bert", "preset": "tiny", "layers": 2, "model_dim": 32, "num_heads": 2, "ffn_dim": 64},
        "train": {"device": "cpu", "max_steps": 40, "learning_rate": 1e-2, "warmup_steps": 5, "schedule": "cosine"},
    }
    base["model"] |= {"dropout": 0.0, "max_length": 64}
    base["train"] |= {"best": "accuracy"}
    return {"run": str(folder / name), **{part: {**keys, **sections.get(part, {})} for part, keys in base.items()}}


def trained(folder: Path, **sections: Any) -> Run:
    return train(parse(table(folder, **sections), where="recipe.toml", folder=folder))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("cities"), train={"max_steps": 120})


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


# --- from triples to labels


def test_what_is_known_of_a_new_word_decides(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new cities are in no text that was learned, and the run answers without data and triples."""
    folder = tmp_path / "moved"
    shutil.copytree(run.folder, folder)
    lines = (folder / "knowledge.tsv").read_text().splitlines()
    assert lines == ["\t".join(triple) for triple in TRIPLES]
    capsys.readouterr()
    assert not regard("predict", folder, "--device", "cpu", stdin="".join(f"{text}\n" for _, text in [*NEW, *TEXTS]))
    assert capsys.readouterr().out.splitlines() == [label for label, _ in [*NEW, *TEXTS]]
    (folder / "knowledge.tsv").write_text("oslo\tclimate\tcold\n")  # known no more: both new words are one to it
    answers = load(folder, "cpu").predict([text for _, text in NEW])
    assert answers[0].scores == answers[1].scores
    (folder / "knowledge.tsv").unlink()
    with pytest.raises(RunError, match=r"the run has lost its knowledge\n  got:    no knowledge\.tsv"):
        load(folder, "cpu")


def test_a_pruned_run_knows_as_much(run: Run, tmp_path: Path) -> None:
    run.prune(tmp_path / "pruned", keep=0.5, limit=2)
    assert (tmp_path / "pruned/knowledge.tsv").read_text() == (run.folder / "knowledge.tsv").read_text()
    assert len(load(tmp_path / "pruned", "cpu").predict([text for _, text in NEW])) == len(NEW)


def test_the_split_says_how_much_is_known(run: Run, tmp_path: Path) -> None:
    rows = run.task.split("train", tmp_path)
    assert rows.describe().startswith("10 texts, 70 tokens, 16 of them knowledge; ")
    batch = rows.first(3)
    assert batch.source.branches is not None
    assert batch.source.branches.shape == batch.source.ids.shape
    assert batch.source.branches[0].tolist() == [0, 0, 0, 0, 16, 17, 17, 0]
    assert {score.name: score.value for score in run.evaluate()}["accuracy"] == 100
    task = run.task
    fewer = type(task.knowledge)(task.knowledge.triples[:1], most=1)
    task.knowledge, kept = fewer, task.knowledge
    assert "2 of them knowledge" in task.split("train", tmp_path).describe()  # not what was encoded before
    task.knowledge = kept


def test_a_text_is_read_as_far_as_without_knowledge(tmp_path: Path) -> None:
    """Branches fill the room that a text leaves, and are never the reason to cut or to refuse it."""
    run = trained(tmp_path, data={"max_length": 5}, train={"max_steps": 1})
    rows = run.task.split("train", tmp_path)
    assert rows.texts.lengths.tolist() == [6] * 8 + [3] * 2  # four words, and no room for a branch of two
    assert rows.counts.truncated == 0
    assert run.predict(["a coat for oslo"])[0].cut == 0
    with pytest.raises(DataError, match="6 tokens"):
        run.predict(["a coat for oslo and lima"])


def test_other_words_than_triples_know_change_nothing(run: Run) -> None:
    """Where nothing is known of a text, the model is what it would be without knowledge."""
    task, text = run.task, "a coat for nobody"
    batch, _ = task.pair(text, "yes")
    plain = Batch(Sequences(batch.source.ids, batch.source.lengths), batch.target)
    assert batch.source.branches is not None
    with torch.no_grad():
        torch.testing.assert_close(run.model.logits(batch), run.model.logits(plain))
    scores = run.predict([text])[0].scores
    task.knowledge, kept = None, task.knowledge
    torch.testing.assert_close(torch.tensor(run.predict([text])[0].scores), torch.tensor(scores))
    task.knowledge = kept


def test_relations_may_have_knowledge_too(tmp_path: Path) -> None:
    recipe = table(tmp_path, task={"name": "relation"}, train={"max_steps": 1})
    (tmp_path / "rows.tsv").write_text("a\t<e1>oslo</e1> and <e2>lima</e2>\nb\t<e1>lima</e1> or <e2>oslo</e2>\n")
    run = train(parse(recipe, where="recipe.toml", folder=tmp_path))
    axis = run.task.pair("<e1>oslo</e1> and <e2>lima</e2>", "a")[1]["source"]
    words = "<s> <e1> oslo climate <unk> </e1> <unk> <e2> lima climate <unk> </e2> </s>"
    assert " ".join(axis.tokens) == words
    assert run.predict(["<e1>oslo</e1> and <e2>lima</e2>"])[0].text in ("a", "b")


# --- what sees what


@torch.no_grad()
def test_a_branch_reaches_the_text_through_its_entity_alone(run: Run) -> None:
    batch, _ = run.task.pair("a coat for oslo or lima", "yes")  # <s> a coat for oslo climate cold or lima ..
    codes = batch.source.branches
    assert codes is not None
    assert codes[0].tolist() == [0, 0, 0, 0, 16, 17, 17, 0, 32, 33, 33, 0]
    other = batch.source.ids.clone()
    other[0, 6] = run.task.tokenizer.encode_batch(["warm"])[0][0]

    def changed(layer: int) -> list[int]:
        """The places whose states differ after so many blocks."""
        states = [
            list(run.model.body.states(source))[layer] for source in (batch.source, replace(batch.source, ids=other))
        ]
        return (states[0] != states[1]).any(-1)[0].nonzero()[:, 0].tolist()

    assert changed(0) == [6]
    assert changed(1) == [4, 5, 6]  # its entity, its own branch
    assert changed(2) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 11]  # all of the text by now, and no other branch


@torch.no_grad()
def test_the_text_stands_where_it_would_stand_without_branches(run: Run) -> None:
    batch, _ = run.task.pair("a coat for oslo or lima", "yes")
    codes = batch.source.branches
    assert codes is not None
    text = codes[0] % 16 == 0
    plain = Sequences(batch.source.ids[:, text], text.sum()[None])
    first, without = (next(iter(run.model.body.states(source))) for source in (batch.source, plain))
    torch.testing.assert_close(first[:, text], without)
    beside = Sequences(batch.source.ids[:, [0, 1, 2, 3, 4, 5, 6]], torch.tensor([7]))  # goes on behind its entity
    torch.testing.assert_close(first[:, 5:7], next(iter(run.model.body.states(beside)))[:, 5:7])


@torch.no_grad()
def test_a_batch_gives_what_its_rows_give(run: Run) -> None:
    texts = ["a coat for oslo or lima", "coat", "a coat for nobody", "lima lima lima"]
    batches = [run.task.pair(text, "yes")[0] for text in texts]
    rows = run.task._rows(texts, run.task.tokenizer.encode_batch(texts))  # as predictions are made
    many = joined(run.subject(), batches)
    alone = torch.cat([run.model.logits(batch) for batch in batches])
    torch.testing.assert_close(run.model.logits(many), alone)
    torch.testing.assert_close(run.model.logits(rows.first(4)), alone)
    torch.testing.assert_close(run.model.logits(many.twice()), torch.cat([alone, alone]))


@torch.no_grad()
def test_a_text_becomes_one_state_of_its_own_tokens(run: Run) -> None:
    """What is known of an entity is read by it, and is no word of the text that could be averaged."""
    batch, _ = run.task.pair("a coat for oslo or lima", "yes")
    hidden = run.model.body.hidden(batch)
    text = [0, 1, 2, 3, 4, 7, 8, 11]
    own = {
        "mean": hidden[:, text].mean(1),
        "max": hidden[:, text].amax(1),
        "first": hidden[:, 0],
        "last": hidden[:, 11],
    }
    for how, wanted in own.items():
        torch.testing.assert_close(pool(run.model.body, hidden, batch.source, how), wanted)  # type: ignore[arg-type]


@torch.no_grad()
def test_what_is_known_of_an_entity_is_no_part_of_it_in_a_relation() -> None:
    """<s> <e1> oslo climate cold </e1> <e2> lima </e2> </s>."""
    torch.manual_seed(0)
    ids, codes = torch.tensor([[2, 5, 9, 10, 11, 6, 7, 12, 8, 3]]), torch.tensor([[0, 0, 16, 17, 17, 0, 0, 0, 0, 0]])
    source, hidden = Sequences(ids, torch.tensor([10]), branches=codes), torch.randn(1, 10, 4)
    first, second = RelationClassifier._entities(SimpleNamespace(markers=(5, 6, 7, 8)), hidden, source)  # type: ignore[arg-type]
    torch.testing.assert_close(first, hidden[:, [1, 2, 5]].mean(1))
    torch.testing.assert_close(second, hidden[:, 6:9].mean(1))


@torch.no_grad()
def test_vectors_are_those_of_the_text_with_what_is_known(run: Run) -> None:
    texts = ["a coat for oslo", "a coat for nuuk", "coat", "a coat for lima"]
    found = run.vectors(texts, pooling="first", normalize=False)
    for text, vector in zip(texts, found, strict=True):
        batch, _ = run.task.pair(text, "yes")
        torch.testing.assert_close(vector, run.model.body.hidden(batch)[0, 0])
    oslo, nuuk, _, lima = found  # one word to the tokenizer: only what is known tells them apart
    torch.testing.assert_close(oslo, nuuk)
    assert not torch.allclose(oslo, lima, atol=1e-2)


def test_a_text_is_looked_into(run: Run) -> None:
    text = "a coat for oslo for lima"
    look = run.look(text)
    axis = look.trace.axes["source"]
    assert " ".join(axis.tokens) == "<s> a coat for <unk> climate cold for <unk> climate warm </s>"
    assert [text[start:end] for start, end in axis.offsets] == (
        ["", "a", "coat", "for", "oslo", "", "", "for", "lima", "", "", ""]
    )
    codes = torch.tensor([[0, 0, 0, 0, 16, 17, 17, 0, 32, 33, 33, 0]])
    seen = branching(codes).block(torch.arange(12), torch.arange(12))[0, 0]
    for view in look.trace:
        weights: Tensor = view.rows(range(12))[0]
        assert torch.equal(weights > 0, seen.expand_as(weights))
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 12))
    assert "cut" not in look.trace.info
    assert look.found.card is not None
    subject = run.subject()
    batch, axes = run.task.pair(text, "no")  # which it does not say: the figures are not all alike
    one = case(subject, batch, observed(subject, batch, axes), None)
    kept = torch.ones(2, 10, dtype=torch.bool)
    kept[1, 3:6] = False  # oslo and what is known of it
    short = run.task.pair("a coat for for lima", "no")[0]
    wanted = [float(subject.log_probs(found).detach().sum()) for found in (batch, short)]
    assert one.score(kept).tolist() == pytest.approx(wanted, abs=1e-5)


# --- what is refused


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"family": "xlnet", "preset": "tiny"}, "XLNet"),
        ({"family": "recurrent", "preset": "tiny"}, "RecurrentEncoder"),
        ({"family": "efficient", "preset": "tiny"}, "Efficient"),
        ({"family": "bert", "preset": "tener"}, "Bert"),
        ({"family": "bert", "preset": "tiny", "bigrams": 100}, "Bert"),
    ],
)
def test_models_that_cannot_tell_knowledge_from_text_are_refused(
    tmp_path: Path, model: dict[str, Any], name: str
) -> None:
    recipe = table(tmp_path)
    recipe["model"] = model
    with pytest.raises(ConfigError) as caught:
        train(parse(recipe, where="recipe.toml", folder=tmp_path))
    told = str(caught.value)
    assert told == (
        f"this model cannot read knowledge beside a text\n  got:    task.knowledge and {name}\n"
        '  wanted: family = "bert" with position = "learned" and bigrams = 0'
    )


def test_stories_are_refused_it_by_such_models_too(tmp_path: Path) -> None:
    (tmp_path / "stories.txt").write_text(
        "1 Mary went to oslo .\n2 Where is Mary ?\toslo\t1\n1 Mary went to rome .\n2 Where is Mary ?\trome\t1\n",
        encoding="utf-8",
    )
    (tmp_path / "known.tsv").write_text("oslo\tclimate\tcold\n", encoding="utf-8")
    files = {"train": ["stories.txt"], "val": ["stories.txt"]}
    recipe = {
        "task": {"name": "story-question-answering", "knowledge": "known.tsv"},
        "data": files,
        "tokenizer": {"kind": "words"},
        "model": {"family": "memory"},
        "run": str(tmp_path / "run"),
    }
    with pytest.raises(ConfigError, match="this model cannot read knowledge beside a text"):
        train(parse(recipe, where="recipe.toml", folder=tmp_path))


@pytest.mark.parametrize("number", [0, 16])
def test_an_entity_has_one_to_fifteen_branches(tmp_path: Path, number: int) -> None:
    recipe = table(tmp_path, task={"knowledge_branches": number})
    with pytest.raises(ConfigError, match=f"knowledge_branches is out of range\n  got:    {number}\n  wanted: 1 to 15"):
        parse(recipe, where="recipe.toml", folder=tmp_path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    recipe = table(tmp_path, task={"knowledge": "city.spo"})
    with pytest.raises(DataError) as caught:
        train(parse(recipe, where="recipe.toml", folder=tmp_path))
    assert "no such file\n" in str(caught.value)
    assert "  where:  task.knowledge\n" in str(caught.value)
    assert "cities.spo?" in str(caught.value)


# --- the recipe


def test_the_recipe_is_that_without_knowledge_and_one_more() -> None:
    recipes = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in shipped()}
    plain, known = recipes["chnsenticorp"], recipes["chnsenticorp-kbert"]
    assert known["task"] == {**plain["task"], "knowledge": "hownet", "knowledge_branches": 2}
    assert {**known, "task": 0, "run": 0} == {**plain, "task": 0, "run": 0}
