"""Extractive summaries: eight are learned by heart and come back through the command line, with where they stand."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from regard.cli.main import main
from regard.errors import ConfigError, DataError
from regard.recipe import read_recipe
from regard.run import Run, train
from regard.tasks import extractive_summarization as extractive
from regard.tasks._sentences import cut_sentences, join_sentences, oracle, select
from regard.tasks.metrics import rouge
from regard.types import Prediction

THINGS = ("bag", "hat", "cup", "map", "key", "pen", "bell", "coin")
# a greeting, what matters at another place each time, and more
EIGHT = [
    [*["Good day to you.", "Fine weather today."][: i % 3], f"Ann lost her {thing}!", "So it goes."]
    for i, thing in enumerate(THINGS)
]
SAID = [f"Ann lost her {thing}!" for thing in THINGS]
RECIPE = """
[task]
name = "extractive-summarization"
sentences = 1
dropout = 0.0
{task}

[data]
train = ["eight.jsonl"]
val = ["eight.jsonl"]
test = ["eight.jsonl"]
{data}

[tokenizer]
vocab_size = 150

[model]
family = "{family}"
{model}
dropout = 0.0

[train]
device = "cpu"
max_steps = 40
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 5
validate_every = 40
best = "rouge2"
"""
SMALL = {
    "bert": "layers = 1\nmodel_dim = 32\nnum_heads = 2\nffn_dim = 64\nmax_length = 64",
    "recurrent": "embedding_dim = 32\nhidden_dim = 32",
}


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
    """A run that learned the eight; each kind is trained once."""
    folder = tmp_path_factory.mktemp("extracts")
    records = [
        {"document": " ".join(text), "summary": f"Ann has lost her {THINGS[i]}."} for i, text in enumerate(EIGHT)
    ]
    (folder / "eight.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    runs: dict[str, Run] = {}

    def get(family: str = "bert", task: str = "", data: str = "") -> Run:
        name = f"{family}-{task}-{data}"
        if name not in runs:
            path = folder / f"{len(runs)}.toml"
            path.write_text(RECIPE.format(family=family, model=SMALL[family], task=task, data=data))
            runs[name] = train(read_recipe(path, [f"run={folder / str(len(runs))}"]))
        return runs[name]

    return get


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("family", ["bert", "recurrent"])
def test_eight_extracts_are_learned_and_come_back_through_the_command_line(
    trained: Make, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(family)
    capsys.readouterr()
    documents = [" ".join(text) for text in EIGHT]
    assert not regard("predict", run.folder, "--device", "cpu", stdin="".join(f"{text}\n" for text in documents))
    assert capsys.readouterr().out.splitlines() == SAID
    assert not regard("predict", run.folder, run.folder.parent / "eight.jsonl", "--format", "jsonl", "--device", "cpu")
    for line, document, said in zip(capsys.readouterr().out.splitlines(), documents, SAID, strict=True):
        record = json.loads(line)
        (span,) = record["spans"]
        assert (record["source"], record["target"], span["text"]) == (document, said, said)
        assert document[span["start"] : span["end"]] == said
        assert span["score"] > 0.5
    assert not regard("evaluate", run.folder, "--device", "cpu")
    out = capsys.readouterr().out
    values = {line.split(":")[0]: float(line.split(":")[1]) for line in out.splitlines() if not line.startswith(" ")}
    assert list(values) == list(run.task.metrics)
    references = [(f"Ann has lost her {thing}.",) for thing in THINGS]
    lead = [" ".join(text[:3]) for text in EIGHT]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert values[name] == values[f"oracle.{name}"] == round(rouge(name)(SAID, references).value, 2)
        assert values[f"lead3.{name}"] == round(rouge(name)(lead, references).value, 2) < values[name]


def test_the_loss_asks_the_states_that_begin_sentences(trained: Make) -> None:
    run = trained()
    rows = run.task.split("train", run.folder / "cache")
    batch = rows.first(8)
    start = run.task.tokenizer.specials.start
    assert ((batch.target.ids >= 0) == (batch.source.ids == start)).all()
    assert (batch.target.ids == 1).sum(1).tolist() == [1] * 8  # one sentence each matches its summary best
    logits, real = run.model.logits(batch), batch.target.ids >= 0
    wanted = F.binary_cross_entropy_with_logits(logits[real], batch.target.ids[real].float(), reduction="sum")
    loss, count = run.task.loss(run.model, batch)
    torch.testing.assert_close(loss, wanted)
    assert int(count) == sum(map(len, EIGHT))


def test_a_batch_of_one_answers_as_a_batch_of_many(trained: Make) -> None:
    run = trained()
    documents = [" ".join(text) for text in EIGHT]
    for document, answer in zip(documents, run.predict(documents), strict=True):
        (alone,) = run.predict([document])
        assert (alone.texts, alone.ids) == (answer.texts, answer.ids)
        assert alone.scores == pytest.approx(answer.scores, abs=1e-6)
    assert run.predict([]) == []
    assert run.predict(["", " \n "]) == [Prediction(("",), (0.0,), ((),), ids=((),))] * 2


def test_turns_are_sentences_where_lines_are(trained: Make) -> None:
    run = trained(task='cut = "lines"')
    for between in ("\n", "\t"):
        text = between.join(["Good day. Fine weather.", " Ann lost her bag! Oh.", "", "So it goes."])
        (document,) = run.task.documents([text])
        assert document.sentences == ["Good day. Fine weather.", "Ann lost her bag! Oh.", "So it goes."]
        (answer,) = run.predict([text])
        (span,) = answer.spans
        assert text[span.start : span.end] == answer.text == document.sentences[answer.ids[0][0]]


def test_what_is_beyond_the_longest_row_is_not_read(trained: Make) -> None:
    run = trained(data='max_length = 12\ntoo_long = "truncate"')
    text = " ".join(EIGHT[2] * 9)
    (answer,) = run.predict([text])
    (document,) = run.task.documents([text])
    assert answer.cut == len(document.ids) - 12
    assert all(document.starts[i] < 12 for i in answer.ids[0])
    batch, axes = run.task.pair(text, answer.ids[0])
    assert batch.source.ids.shape[1] == len(axes["source"].tokens) == len(axes["source"].offsets) == 12
    with pytest.raises(DataError, match="the text is too long"):
        trained().predict([text * 9])
    long, good = trained().predict([text * 9, " ".join(EIGHT[2])], on_bad_line="skip")
    assert (long.text, good.text) == ("", SAID[2])
    assert long.wrong.startswith("the text is too long\n")


def test_it_is_looked_into(trained: Make, tmp_path: Path) -> None:
    run, text = trained(), " ".join(EIGHT[1])
    look = run.look(text)
    assert look.trace.info["answer"] == SAID[1]
    assert {"attention", "relevance"} <= {method["name"] for method in look.found.card["methods"]}
    batch, axes = run.task.pair(text, run.predict([text])[0].ids[0])
    source, target = axes["source"], axes["target"]
    assert len(source.tokens) == len(target.tokens) == batch.source.ids.shape[1]
    (place,) = (batch.target.ids[0] == 1).nonzero()[:, 0].tolist()
    assert target.tokens[place] == target.text == SAID[1]
    assert target.offsets[place] == (0, len(SAID[1]))
    inner = source.offsets[place + 1 : place + 3]
    assert source.text[inner[0][0] :].startswith("Ann")
    # a summary stands for the sentences that it is best made of
    other, axes = run.task.pair(text, "the weather is good")
    assert axes["target"].text == "Good day to you."
    assert run.task.log_probs(run.model, other).sum() < run.task.log_probs(run.model, batch).sum()
    assert "rouge1" in str(run.ablate(limit=2))
    assert run.look_at_file(run.folder.parent / "eight.jsonl", limit=2, quick=True).num_texts == 2


@pytest.mark.parametrize(("key", "value"), [("sentences", 0), ("threshold", 1.5), ("dropout", 1.0)])
def test_keys_have_ranges(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        extractive.Config(**{key: value})


# --- sentences


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("It costs 3.50 in the U.S. and no less. Mr. J. Hill, e.g. Dr. No, paid.", None),
        ('He said "Go." Then he went... Really?! Yes (no.) And "no."', 5),
        (
            "\u4ed6\u8bf4\uff1a\u201c\u8d70\u5427\u3002\u201d\u7136\u540e\u8d70\u4e86\uff01\u597d\u2026\u2026\u662f\u5417\uff1f",
            4,
        ),
        ("a line\r\nanother one\n\n third", ["a line", "another one", "third"]),
        ("", []),
        (" . ", ["."]),
    ],
)
def test_sentences_are_cut_by_rules(text: str, wanted: object) -> None:
    found = [text[start:end] for start, end in cut_sentences(text)]
    if wanted is None:
        wanted = ["It costs 3.50 in the U.S. and no less.", "Mr. J. Hill, e.g. Dr. No, paid."]
    assert len(found) == wanted if isinstance(wanted, int) else found == wanted
    assert "".join("".join(found).split()) == "".join(text.split())  # nothing is lost


def test_sentences_are_joined_as_their_language_is() -> None:
    assert join_sentences(["One.", "Two."]) == "One. Two."
    assert join_sentences(["\u4f60\u597d\u3002", "\u597d\u3002"]) == "\u4f60\u597d\u3002\u597d\u3002"


def test_the_oracle_grows_while_it_gets_better() -> None:
    texts = ["the cat sat on the mat", "a dog barked", "it rained on the mat", "the cat sat"]
    assert oracle(texts, ["the cat sat on the mat"], 3) == [0]
    assert oracle(texts, ["the cat sat and a dog barked"], 3) == [1, 3]
    assert oracle(texts, ["the cat sat and a dog barked"], 1) == [1]
    assert oracle(texts, ["the cat sat and a dog barked", "it rained on the mat"], 3)  # the mean of both
    assert oracle(texts, ["nothing alike"], 3) == []
    assert oracle(["\u732b\u5750\u4e0b", "\u72d7\u53eb"], ["\u72d7"], 1) == [1]


def test_what_repeats_a_choice_is_left_out() -> None:
    texts, scores = ["a b c d", "x A b, c", "e f", "g"], [0.9, 0.8, 0.3, 0.6]
    assert select(texts, scores, 2, least=0.0, block=True) == [0, 3]
    assert select(texts, scores, 2, least=0.0, block=False) == [0, 1]
    assert select(texts, scores, 4, least=0.5, block=True) == [0, 3]
    assert select(texts, scores, 4, least=1.0, block=True) == [0]  # the best is always said
    assert select([], [], 3, least=0.0, block=True) == []
