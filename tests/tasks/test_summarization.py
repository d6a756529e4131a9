"""Summaries: eight are learned by heart and come back through the command line; copied words, lengths on demand."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from regard.cli.main import main
from regard.convert import convert
from regard.data.readers import ReadReport
from regard.errors import ConfigError, DataError
from regard.recipe import read_recipe
from regard.run import Run, train
from regard.tasks import summarization
from regard.tasks.summarization import length_pieces
from regard.types import Example

NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal")
THINGS = ("bag", "hat", "cup", "map", "key", "pen", "bell", "coin")
EIGHT = [
    ([f"#A#: Where is my {thing} ?", "#B#: Here it is ."], f"{name} asks #B# for a {thing} .")
    for name, thing in zip(NAMES, THINGS, strict=True)
]
RECIPE = """
[task]
name = "summarization"
label_smoothing = 0.0
{task}

[data]
train = ["{file}"]
val = ["{file}"]
test = ["{file}"]

[tokenizer]
vocab_size = 200
whole = ["#A#", "#B#"]

[model]
family = "{family}"
{model}
dropout = 0.0
copy = {copy}

[train]
device = "cpu"
max_steps = {steps}
learning_rate = 1e-2
schedule = "cosine"
warmup_steps = 10
validate_every = 1000
"""
SMALL = {
    "transformer": "encoder_layers = 1\ndecoder_layers = 1\nmodel_dim = 32\nnum_heads = 2\nffn_dim = 32",
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
    """A run that learned one of the sets; each is trained once."""
    folder = tmp_path_factory.mktemp("summaries")
    records = [{"dialogue": turns, "summary1": text, "summary2": text} for turns, text in EIGHT]
    (folder / "eight.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    # each document has a short and a long summary: only the wanted length tells which
    words = [[f"{THINGS[i]}{n}" for n in range(5)] for i in range(8)]
    rows = [f"{' '.join(own)}\t{' '.join(own[:size])}\n" for own in words for size in (2, 5)]
    (folder / "lengths.tsv").write_text("document\tsummary\n" + "".join(rows))
    runs: dict[str, Run] = {}

    def get(family: str = "transformer", file: str = "eight.jsonl", task: str = "", copy: bool = True) -> Run:
        name = f"{family}-{file}-{task}-{copy}"
        if name not in runs:
            path, steps = folder / f"{len(runs)}.toml", 80 if file == "eight.jsonl" else 150
            fields = {"model": SMALL[family], "copy": str(copy).lower(), "steps": steps}
            path.write_text(RECIPE.format(family=family, task=task, file=file, **fields))
            runs[name] = train(read_recipe(path, [f"run={folder / str(len(runs))}"]))
        return runs[name]

    return get


def regard(*words: object, stdin: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(("family", "copy"), [("transformer", True), ("transformer", False), ("recurrent", True)])
def test_eight_summaries_are_learned_and_come_back_through_the_command_line(
    trained: Make, family: str, copy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(family, copy=copy)
    capsys.readouterr()
    documents = ["\n".join(turns) for turns, _ in EIGHT]
    assert [answer.text for answer in run.predict(documents)] == [text for _, text in EIGHT]
    lines = "".join(" ".join(turns) + "\n" for turns, _ in EIGHT)  # white space is one
    assert not regard("predict", run.folder, "--device", "cpu", "method=greedy", stdin=lines)
    assert capsys.readouterr().out.splitlines() == [text for _, text in EIGHT]
    assert not regard("evaluate", run.folder, "--device", "cpu", "beam=2")
    out = capsys.readouterr().out
    assert "rouge1: 100.00\n  nrefs:2|mean over references|stemmer:yes|rouge-score\nrouge2: 100.00" in out
    assert "rougeL: 100.00" in out


def test_it_is_looked_into_and_what_it_copies_is_seen(trained: Make, tmp_path: Path) -> None:
    run = trained()
    look = run.look("\n".join(EIGHT[0][0]))
    assert look.trace.info["answer"] == EIGHT[0][1]
    assert [view.name for view in look.trace][-1] == "decoder.copying"
    assert {"attention", "relevance"} <= {method["name"] for method in look.found.card["methods"]}
    # of a file of examples the right summaries are taken
    records = [{"document": "\n".join(turns), "summary": text} for turns, text in EIGHT[:2]]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run.look_at_file(tmp_path / "two.jsonl", quick=True).num_texts == 2


def test_a_model_that_copies_is_not_given_to_others_as_one_that_does_not(trained: Make, tmp_path: Path) -> None:
    folder = trained().folder
    for to, what in (
        ("hf", "copy = True"),
        ("ctranslate2", "CTranslate2 does not copy"),
        ("onnx", "copy = true"),
    ):
        with pytest.raises(ConfigError, match=what):
            convert(folder, tmp_path / to, to, say=lambda line: None)


def test_summaries_are_as_long_as_they_are_asked_to_be(trained: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(file="lengths.tsv", task="length_control = true\nlength_ranges = 2")
    documents = [" ".join(f"{thing}{n}" for n in range(5)) for thing in THINGS]
    short, long = ([answer.text for answer in run.predict(documents, words=words)] for words in (2, 5))
    assert short == [" ".join(document.split()[:2]) for document in documents]
    assert long == documents
    assert [answer.text for answer in run.predict(documents)] == short  # half of the summaries have at most two words
    assert "".join(run.generate(documents[0], words=9)) == long[0]
    # a pair is read under the length of its summary
    batch, axes = run.task.pair(documents[0], long[0])
    assert axes["source"].tokens[0] == "<length 3->"
    assert axes["source"].offsets[0] == (0, 0)
    assert len(axes["source"].offsets) == len(axes["source"].tokens) == batch.source.ids.shape[1]
    assert run.task.pair(documents[0], short[0])[1]["source"].tokens[0] == "<length 0-2>"
    assert not regard("predict", run.folder, "words=5", "--device", "cpu", stdin=documents[1])
    assert capsys.readouterr().out == long[1] + "\n"


def test_a_length_is_only_asked_of_who_learned_lengths(trained: Make) -> None:
    with pytest.raises(ConfigError, match="this run cannot be told how long its outputs should be"):
        trained().predict(["a text"], words=5)
    with pytest.raises(ConfigError, match="words is too small"):
        trained().predict(["a text"], words=-1)


def test_ranges_of_lengths_hold_as_many_summaries_each() -> None:
    examples = [Example("", (" ".join("a" * n),)) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert length_pieces(examples, 3) == ["<length 0-3>", "<length 4-6>", "<length 7->"]
    chinese = [Example("", ("\u4f60" * n + "\u3002",)) for n in (2, 4)]
    assert length_pieces(chinese, 5) == ["<length 0-2>", "<length 3->"]
    with pytest.raises(DataError, match="all summaries are about as long"):
        length_pieces(examples[:1], 3)
    with pytest.raises(ConfigError, match="length_ranges tells lengths apart"):
        summarization.Config(length_ranges=1)


def test_the_shortest_recipe_holds_out_its_own_validation(tmp_path: Path) -> None:
    rows = [f"document {i} , a b c\tsummary {i}\n" for i in range(20)]
    (tmp_path / "own.tsv").write_text("".join(rows))
    path = tmp_path / "own.toml"
    path.write_text(
        '[task]\nname = "summarization"\n[data]\ntrain = ["own.tsv"]\nval_share = 0.2\n[tokenizer]\nvocab_size = 60\n'
        '[model]\nfamily = "transformer"\npreset = "tiny"\n[train]\ndevice = "cpu"\nmax_steps = 1\n'
    )
    run = train(read_recipe(path, [f"run={tmp_path / 'run'}"]))
    parts = [run.task.examples(name) for name in ("train", "val")]
    assert sorted(example.source for part in parts for example in part) == sorted(row.split("\t")[0] for row in rows)
    assert 0 < len(parts[1]) < 10
    assert len(run.task.split("val", tmp_path).store) == len(parts[1])


def test_documents_alone_cannot_be_learned_from(trained: Make, tmp_path: Path) -> None:
    run = trained()
    (tmp_path / "alone.txt").write_text("a document\n")
    read = summarization.read_split(
        run.task.config, run.task.data, lambda name: [tmp_path / "alone.txt"], "train", ReadReport()
    )
    with pytest.raises(DataError, match="there are no summaries to learn from"):
        list(read)
