"""Relations: eight examples are learned by heart; the score is the official one; the entities are never cut off."""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.cli.main import main
from regard.data.markers import MARKS, flaw
from regard.data.noise import Noise
from regard.errors import ConfigError, DataError
from regard.layers.relation import RelationClassifier
from regard.looking.explain import case
from regard.looking.subject import observed
from regard.recipe import parse
from regard.run import Run, load, train
from regard.tasks.relation import relation_f1
from regard.types import Batch, Sequences

EIGHT = [
    ("Cause(e2,e1)", "the <e1>burst</e1> was caused by <e2>pressure</e2> ."),
    ("Cause(e1,e2)", "<e1>smoke</e1> makes the <e2>eyes</e2> cry ."),
    ("Other", "the <e1>child</e1> lay in the <e2>cradle</e2> ."),
    ("Maker(e2,e1)", "the <e1>company</e1> makes plastic <e2>chairs</e2> ."),
    ("Maker(e1,e2)", "<e1>chairs</e1> of this <e2>company</e2> are cheap ."),
    ("Part(e1,e2)", "the <e1>handle</e1> of the <e2>door</e2> is cold ."),
    ("Part(e2,e1)", "the <e1>car</e1> has a new <e2>engine</e2> ."),
    ("Part(e1,e2)", "the <e2>car</e2> has a new <e1>engine</e1> ."),  # the words alone do not tell
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


def table(folder: Path, rows: list[tuple[str, str]] = EIGHT, name: str = "run", **sections: Any) -> dict[str, Any]:
    """A recipe that learns these rows."""
    (folder / "rows.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows))
    base = {
        "task": {"name": "relation", "dropout": 0.0},
        "data": {split: ["rows.tsv"] for split in ("train", "val", "test")},
        "tokenizer": {"kind": "words"},
        "model": {"family": "bert", "preset": "tiny", "layers": 1, "model_dim": 32, "num_heads": 2, "ffn_dim": 64},
        "train": {"device": "cpu", "max_steps": 40, "learning_rate": 1e-2, "warmup_steps": 5, "schedule": "cosine"},
    }
    base["model"] |= {"dropout": 0.0}
    base["train"] |= {"validate_every": 40, "best": "macro_f1"}
    return {"run": str(folder / name), **{part: {**keys, **sections.get(part, {})} for part, keys in base.items()}}


def trained(folder: Path, *words: Any, **sections: Any) -> Run:
    return train(parse(table(folder, *words, **sections), where="recipe.toml", folder=folder))


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("eight"))


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_eight_examples_are_learned_and_come_back_through_the_command_line(
    eight: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not regard("predict", eight.folder, "--device", "cpu", stdin="".join(f"{text}\n" for _, text in EIGHT))
    assert capsys.readouterr().out.splitlines() == [label for label, _ in EIGHT]
    file = tmp_path / "TEST_FILE.TXT"
    file.write_text("".join(f'{i}\t"{text}"\n{label}\nComment:\n\n' for i, (label, text) in enumerate(EIGHT)))
    assert not regard("predict", eight.folder, file, "--format", "jsonl", "--n-best", 2, "--scores", "--device", "cpu")
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["target"][0], record["source"]) for record in records] == EIGHT
    assert not regard("evaluate", eight.folder, "--device", "cpu")
    told = capsys.readouterr().out
    assert "accuracy: 100.00\n" in told
    assert "macro_f1: 100.00\n  examples:8|relations:3|direction:yes|without:Other\n" in told
    assert [answer.text for answer in load(eight.folder, "cpu").predict(["", EIGHT[0][1]])] == ["", EIGHT[0][0]]


@pytest.mark.parametrize(
    ("family", "how"),
    [("recurrent", "pooled"), ("convolutional", "pooled"), ("convolutional", "mean-max"), ("xlnet", "pooled")],
)
def test_other_encoders_learn_as_well(tmp_path: Path, family: str, how: str) -> None:
    recipe = table(tmp_path, task={"pooling": how})
    recipe["model"] = {"family": family, "preset": "tiny", "dropout": 0.0}
    run = train(parse(recipe, where="recipe.toml", folder=tmp_path))
    assert [answer.text for answer in run.predict([text for _, text in EIGHT])] == [label for label, _ in EIGHT]


def test_runs_of_tokens_speak_for_relations_as_well(tmp_path: Path) -> None:
    run = train(parse(table(tmp_path, task={"ngrams": 2, "ngram_rows": 500}), where="recipe.toml", folder=tmp_path))
    assert [answer.text for answer in run.predict([text for _, text in EIGHT])] == [label for label, _ in EIGHT]
    assert run.model.ngrams.weight.any()


# --- the model


class Body(nn.Module):
    """An encoder whose states are known."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def hidden(self, batch: Batch) -> Tensor:
        return self.states[:, : batch.source.ids.shape[1]]


def test_the_head_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    states = torch.randn(2, 9, 4)
    model = RelationClassifier(
        Body(states), markers=(5, 6, 7, 8), num_classes=3, pooling="first", dropout=0.5, weights=torch.ones(3)
    ).eval()
    ids = torch.tensor([[2, 5, 9, 9, 6, 7, 9, 8, 3], [2, 9, 7, 9, 8, 5, 6, 3, 0]])
    batch = Batch(Sequences(ids, torch.tensor([9, 8])))
    entities = [(states[0, 1:5], states[0, 5:8]), (states[1, 5:7], states[1, 2:5])]  # with their marks
    rows = []
    for i, (first, second) in enumerate(entities):
        own = [states[i, 0], first.mean(0), second.mean(0)]
        layers = [model.whole, model.entity, model.entity]
        rows.append(torch.cat([layer(state.tanh()) for layer, state in zip(layers, own, strict=True)]))
    torch.testing.assert_close(model.logits(batch), model.classify(torch.stack(rows)))
    # a row without entities, as those that fill a batch up, gives no nan
    empty = Batch(Sequences(torch.zeros(2, 9, dtype=torch.long), torch.tensor([0, 0])))
    assert model.logits(empty).isfinite().all()


def test_a_batch_of_one_answers_as_a_batch_of_many(eight: Run) -> None:
    texts = [text for _, text in EIGHT]
    for text, answer in zip(texts, eight.predict(texts), strict=True):
        assert eight.predict([text])[0].scores == pytest.approx(answer.scores, abs=1e-6)


def test_marks_are_never_hidden(tmp_path: Path) -> None:
    run = trained(tmp_path, task={"word_dropout": 0.99}, train={"max_steps": 1, "validate_every": 1})
    batch = run.task.split("train", tmp_path / "cache").first(8)
    seen: list[Tensor] = []

    class Model:
        weights, training = torch.ones(7), True

        def logits(self, batch: Batch) -> Tensor:
            seen.append(batch.source.ids)
            return torch.zeros(len(batch.source.ids), 7)

    run.task.loss(Model(), batch)
    ids, hidden = batch.source.ids, seen[0]
    fixed = torch.isin(ids, torch.tensor([2, 3, *run.task.tokenizer.markers]))
    assert torch.equal(hidden[fixed], ids[fixed])
    assert (hidden[~fixed] == 1).float().mean() > 0.9


# --- the score


def decided(answers: list[str], labels: list[str]) -> Tensor:
    return torch.tensor([[answer == label for label in labels] for answer in answers])


def test_the_official_score_by_hand() -> None:
    labels = ["A(e1,e2)", "A(e2,e1)", "B(e1,e2)", "B(e2,e1)", "C(e1,e2)", "Other"]
    right = ["A(e1,e2)", "A(e1,e2)", "A(e2,e1)", "B(e1,e2)", "B(e2,e1)", "Other", "Other", "B(e1,e2)"]
    said = ["A(e1,e2)", "A(e2,e1)", "A(e2,e1)", "B(e1,e2)", "Other", "A(e1,e2)", "Other", "C(e1,e2)"]
    # A: 2 right with their direction, of 4 said and 3 there: P 1/2, R 2/3, F1 4/7; the wrong direction is said as well
    # B: 1 of 1 said and 3 there: P 1, R 1/3, F1 1/2; C is in no right answer and makes no class, nor does Other
    score = relation_f1(decided(said, labels), decided(right, labels), labels, ["Other"])
    assert score.value == pytest.approx(100 * (4 / 7 + 1 / 2) / 2)
    assert score.signature == "examples:8|relations:2|direction:yes|without:Other"
    assert relation_f1(decided(["Other"], labels), decided(["Other"], labels), labels, ["Other"]).value == 0
    # all directions wrong: nothing is right
    turned = ["A(e2,e1)", "B(e1,e2)"], ["A(e1,e2)", "B(e2,e1)"]
    assert relation_f1(*(decided(each, labels) for each in turned), labels, ["Other"]).value == 0


def test_labels_without_a_direction_are_plain_classes() -> None:
    labels = ["born in", "lives in", "none"]
    right = decided(["born in", "born in", "lives in", "none"], labels)
    said = decided(["born in", "lives in", "lives in", "born in"], labels)
    found = relation_f1(said, right, labels, ["none"])
    assert found.value == pytest.approx(100 * (1 / 2 + 2 / 3) / 2)
    assert found.signature == "examples:4|relations:2|direction:none|without:none"
    assert relation_f1(said, right, labels, []).value == pytest.approx(100 * (1 / 2 + 2 / 3 + 0) / 3)


def precision_and_recall(said: list[str], right: list[str]) -> float:
    """The official score as its description has it, relation by relation."""
    bare: Callable[[str], str] = lambda label: label.partition("(")[0]  # noqa: E731
    scores = []
    for relation in sorted({bare(label) for label in right} - {"Other"}):
        pairs = list(zip(said, right, strict=True))
        hits = sum(a == b and bare(b) == relation for a, b in pairs)
        turned = sum(a != b and bare(a) == bare(b) == relation for a, b in pairs)
        proposed = sum(bare(a) == relation for a, b in pairs) - turned
        precision = hits / (proposed + turned) if proposed else 0.0
        recall = hits / sum(bare(b) == relation for b in right)
        scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    return 100 * sum(scores) / len(scores)


def test_the_official_score_on_random_answers() -> None:
    drawn = random.Random(1)
    labels = [f"{name}({one})" for name in "ABCD" for one in ("e1,e2", "e2,e1")] + ["Other"]
    for _ in range(20):
        said, right = ([drawn.choice(labels) for _ in range(30)] for _ in range(2))
        found = relation_f1(decided(said, labels), decided(right, labels), labels, ["Other"])
        assert found.value == pytest.approx(precision_and_recall(said, right))


# --- data


def test_what_is_too_long_is_cut_outside_of_the_entities(tmp_path: Path) -> None:
    long = [(label, f"{'well ' * 30}{text}{' so it is' * 10}") for label, text in EIGHT]
    data = {"max_length": 14, "too_long": "truncate"}
    run = trained(tmp_path, long, data=data)
    marks = run.task.tokenizer.markers
    rows = run.task.split("train", tmp_path / "cache")
    assert rows.counts.truncated == 8
    for i in range(8):
        row = rows.texts.row(i).tolist()
        assert len(row) == 16
        assert sorted(id for id in row if id in marks) == sorted(marks)
    answers = run.predict([text for _, text in long])
    assert [answer.text for answer in answers] == [label for label, _ in EIGHT]
    assert all(answer.cut for answer in answers)
    batch, axes = run.task.pair(long[0][1], long[0][0])
    assert batch.source.ids[0].tolist() == rows.texts.row(0).tolist()
    spans = [axes["source"].text[begin:end] for begin, end in axes["source"].offsets[1:-1]]
    assert spans == list(axes["source"].tokens[1:-1])


def test_a_label_may_stand_in_the_held_out_share_alone(tmp_path: Path) -> None:
    rows = [("A" if i % 2 else "B", f"<e1>one</e1> and <e2>{i}</e2>") for i in range(40)]
    data = {"train": ["rows.tsv"], "val": [], "val_share": 0.3}
    first = trained(tmp_path, rows, data=data, train={"max_steps": 1, "validate_every": 1})
    held_out = first.task.examples("val")[0]
    rows = [("rare" if text == held_out.source else label, text) for label, text in rows]
    weights = {"class_weights": "balanced"}
    run = trained(tmp_path, rows, "other", data=data, task=weights, train={"max_steps": 1, "validate_every": 1})
    assert run.task.classes.labels == ("A", "B", "rare")
    assert run.task.classes.counts[2] == 0
    assert run.model.weights.isfinite().all()


def test_errors(eight: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the entities of a text are not marked\n  got:    there is no <e2>: <e1>"):
        eight.predict([EIGHT[0][1], "<e1>a</e1>"])
    first, second = eight.predict([EIGHT[0][1], "<e1>a</e1>"], on_bad_line="skip")
    assert (first.text, first.wrong, second.text) == (EIGHT[0][0], "", "")
    assert second.wrong.startswith("the entities of a text are not marked")
    assert second.wrong.endswith("where:  source 2")
    (tmp_path / "a.txt").write_text(f"{EIGHT[0][1]}\n<e1>a</e1>\n")
    assert list(eight.sources(tmp_path / "a.txt")) == [EIGHT[0][1], "<e1>a</e1>"]
    with pytest.raises(DataError, match=r"are not marked\n.*\n.*\n  where:  .*a.txt:2"):
        eight.look_at_file(tmp_path / "a.txt")
    with pytest.raises(DataError, match="the entities of a text are not marked"):
        eight.look("no entity", "Other", quick=True)
    with pytest.raises(ConfigError, match=r"no room for two entities and .*\n  got:    7\n  wanted: 8 or more"):
        trained(tmp_path, data={"max_length": 7, "too_long": "truncate"})


# --- a base, looking


def test_a_base_needs_no_pieces_for_the_marks(tmp_path: Path) -> None:
    """A tokenizer that was trained on plain text keeps its size, so that every weight of the base is taken."""
    plain = table(tmp_path, name="base")
    plain["task"] = {"name": "classification"}
    plain["train"] |= {"max_steps": 1, "best": "loss"}
    base = train(parse(plain, where="recipe.toml", folder=tmp_path))
    recipe = {**table(tmp_path), "finetune": {"base": str(base.folder)}}
    del recipe["model"], recipe["tokenizer"]
    run = train(parse(recipe, where="recipe.toml", folder=tmp_path))
    assert run.task.tokenizer.size == base.task.tokenizer.size
    assert [answer.text for answer in run.predict([text for _, text in EIGHT])] == [label for label, _ in EIGHT]
    ids = run.task.tokenizer.encode_batch([EIGHT[3][1]])[0]
    assert [token for token in run.task.tokenizer.tokens(ids) if token in MARKS] == list(MARKS)


def test_a_text_is_looked_into(eight: Run) -> None:
    label, text = EIGHT[0]
    look = eight.look(text)
    assert look.trace.info["answer"] == label
    words = ["<s>", "the", "<e1>", "burst", "</e1>", "was", "caused", "by", "<e2>", "pressure", "</e2>", ".", "</s>"]
    assert list(look.trace.axes["source"].tokens) == words
    assert {method["name"] for method in look.found.card["methods"]} >= {"attention", "relevance", "gradient"}
    subject = eight.subject()
    batch, axes = eight.task.pair(text, label)
    one = case(subject, batch, observed(subject, batch, axes), None)
    assert {len(values) for values in one.attributions.values()} == {7}  # marks are no words
    assert one.score(torch.tensor([[False] * 7])).isfinite().all()
    read = eight.task.places(eight.model, batch)[0]
    assert [word for word, share in zip(words, read, strict=True) if share > 0] == words[:1] + words[2:5] + words[8:11]


# --- noise, shares


def test_noise_keeps_the_marks(eight: Run, capsys: pytest.CaptureFixture[str]) -> None:
    clean = eight.evaluate()
    noisy = {score.name: score for score in eight.evaluate(noise=1.0)}
    assert noisy["accuracy"].value < 100
    assert noisy["accuracy"].signature == "examples:8|classes:7|noise 1"
    report = json.loads((eight.folder / "report.json").read_text())
    assert report["test"]["metrics"] == {score.name: score.value for score in clean}  # the clean figures stay
    assert report["test, noise 1"]["metrics"]["accuracy"] == noisy["accuracy"].value
    assert eight.clean_scores("test", 1.0) == report["test"]["metrics"]
    for example in eight._noisy_task(Noise(1.0)).examples("test"):
        assert flaw(example.source) == ""
    assert not regard("evaluate", eight.folder, "--noise", 1, "--device", "cpu")
    told = f"accuracy: {noisy['accuracy'].value:.2f} (clean 100.00)\n  examples:8|classes:7|noise 1\n"
    assert told in capsys.readouterr().out
    assert not regard("evaluate", eight.folder, "--noise", 1, "--noise-seed", 2, "--device", "cpu")
    assert "|noise 1 seed 2\n" in capsys.readouterr().out
