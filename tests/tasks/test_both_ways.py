"""Answers from both ends: the mirrored half of a batch, the search from either side, and what judges its findings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.cli.main import main
from regard.decode.config import DecodeConfig
from regard.decode.rules import rank
from regard.decode.search import decode
from regard.errors import ConfigError, RegardError
from regard.models import Sizes, build, family
from regard.recipe import read_recipe
from regard.run import load, train
from regard.tasks._both_ways import both, mirrored, search
from regard.tasks.translation import Config, Task, sum_loss
from regard.types import Batch, Sequences, Specials

SPECIAL = Specials(start=1, end=2, pad=0)
PAIRS = [("ab", "x y"), ("abc", "x y z"), ("ba", "y x"), ("cab", "z x y"), ("c", "z"), ("cc", "z z"), ("aab", "x x y")]
RECIPE = """
[task]
name = "translation"
metrics = ["exact_match"]
label_smoothing = 0.0
both_ways = true

[data]
train = ["pairs.tsv"]
val = ["pairs.tsv"]
test = ["pairs.tsv"]

[tokenizer]
kind = "characters"
target_kind = "words"
shared = false

[model]
family = "{family}"
{sizes}

[train]
max_steps = 300
batch_tokens = 256
learning_rate = 1e-2
warmup_steps = 20
validate_every = 300
checkpoint_every = 300
device = "cpu"

[decode]
beam = 3
"""
SMALL = """preset = "tiny"
encoder_layers = 1
decoder_layers = 1
model_dim = 32
num_heads = 2
ffn_dim = 32
dropout = 0.0"""


def _model(name: str = "transformer") -> Any:
    sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "model_dim": 16, "num_heads": 2, "ffn_dim": 32}
    if name in ("recurrent", "convolutional"):
        sizes = {"encoder_layers": 1, "decoder_layers": 1, "embedding_dim": 8, "hidden_dim": 8}
    elif name == "copying":
        name, sizes = "transformer", {**sizes, "copy": True}
    config = family(name).Config(**sizes, dropout=0.0)
    torch.manual_seed(3)
    return build(name, config, Sizes(9, 9, True), "seq2seq").eval()


def _batch() -> Batch:
    source = Sequences(torch.tensor([[4, 5, 6, 2], [7, 2, 0, 0]]), torch.tensor([4, 2]))
    return Batch(source, Sequences(torch.tensor([[1, 5, 6, 7, 2], [1, 8, 2, 0, 0]]), torch.tensor([5, 3])))


def _log_probs(model: Any, batch: Batch) -> Tensor:
    assert batch.target is not None
    labels, lengths = batch.target.ids[:, 1:], batch.target.lengths - 1
    found = model.head(model.hidden(batch)).log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    return found * (torch.arange(labels.shape[1]) < lengths[:, None])  # type: ignore[no-any-return]


def _search(sources: list[list[int]], **keys: Any) -> Any:
    model, config = _model(), DecodeConfig(**{"beam": 4, "max_length": 8, **keys})
    more: dict[str, Any] = {"source_pad": 0, "special": SPECIAL, "device": torch.device("cpu")}
    return search(model, sources, config, log_probs=lambda batch: _log_probs(model, batch), **more)


def test_each_source_has_its_target_and_the_same_mirrored() -> None:
    twice = both(_batch())
    assert twice.source.ids.equal(_batch().source.ids)
    assert twice.target is not None
    assert twice.target.ids[::2].equal(_batch().target.ids)  # type: ignore[union-attr]
    assert twice.target.ids[1::2].tolist() == [[2, 7, 6, 5, 1], [2, 8, 1, 0, 0]]
    assert twice.target.lengths.tolist() == [5, 5, 3, 3]
    assert mirrored(mirrored(twice.target)).ids.equal(twice.target.ids)
    assert twice.num_tokens == _batch().num_tokens
    assert twice.spread().source.ids.tolist() == [ids for ids in twice.source.ids.tolist() for _ in range(2)]


@pytest.mark.parametrize("name", ["transformer", "copying", "recurrent", "convolutional"])
def test_the_loss_is_that_of_either_way(name: str) -> None:
    model, batch = _model(name), _batch()
    assert batch.target is not None
    back = Batch(batch.source, mirrored(batch.target))
    total, count = sum_loss(model, both(batch), 0.1)
    (forth, some), (other, more) = sum_loss(model, batch, 0.1), sum_loss(model, back, 0.1)
    assert count == some + more == 12
    torch.testing.assert_close(total, forth + other)


def test_validation_goes_forward_alone() -> None:
    model, batch = _model(), _batch()
    task = SimpleNamespace(config=Config(both_ways=True, label_smoothing=0.0), both_ways=True)
    assert Task.loss(task, model, batch)[1] == 6  # type: ignore[arg-type]
    assert Task.loss(task, model.train(), batch)[1] == 12  # type: ignore[arg-type]


def test_what_either_search_finds_is_judged_by_the_mean_of_both() -> None:
    sources = [[4, 5, 6, 2], [7, 2], [8, 4, 4, 2]]
    model, ways = _model(), {1: 0, 2: 0}
    for source, hypotheses in zip(sources, _search(sources, n_best=4), strict=True):
        assert len(hypotheses) == 4
        assert hypotheses == sorted(hypotheses, key=rank)
        for hypothesis in hypotheses:
            rows = [[1, *hypothesis.ids, 2], [2, *hypothesis.ids[::-1], 1]]
            given = Sequences(torch.tensor([source] * 2), torch.tensor([len(source)] * 2))
            target = Sequences(torch.tensor(rows), torch.tensor([len(rows[0])] * 2))
            wanted = _log_probs(model, Batch(given, target)).sum(1).double().mean().item()
            assert hypothesis.log_prob == pytest.approx(wanted, abs=1e-5)
            assert hypothesis.score == pytest.approx(wanted / (len(hypothesis.ids) + 1), abs=1e-5)
        best = _search([source], n_best=1)[0][0]
        assert (best.ids, best.score) == (hypotheses[0].ids, pytest.approx(hypotheses[0].score, abs=1e-5))
        for begin, end in ((1, 2), (2, 1)):  # neither search alone has all of them
            config = DecodeConfig(beam=4, n_best=4, max_length=8)
            (alone,) = decode(model, [source], config, bos=begin, eos=end, pad=0)
            found = {each.ids if begin == 1 else each.ids[::-1] for each in alone}
            ways[begin] += len({each.ids for each in hypotheses} - found)
    assert all(ways.values())


def test_a_batch_of_one_is_a_batch_of_many_and_an_empty_text_stays_empty() -> None:
    sources = [[4, 5, 6, 2], [2], [7, 2], [8, 4, 4, 5, 6, 7, 2]]
    many = _search(sources, batch_tokens=16)
    assert many[1][0].ids == ()
    for source, found in zip(sources, many, strict=True):
        ((alone,),) = _search([source])
        assert alone.ids == found[0].ids
        assert alone.score == pytest.approx(found[0].score, abs=1e-5)


def test_there_are_no_more_answers_than_beams() -> None:
    with pytest.raises(ConfigError, match=r"n_best \(5\) must not be larger than beam \(4\)"):
        _search([[4, 5, 2]], n_best=5)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("transformer", SMALL), ("recurrent", "embedding_dim = 32\nhidden_dim = 32\ndropout = 0.0")],
)
def test_it_is_learned_and_answers_from_the_command_line(
    name: str, sizes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    Path("recipe.toml").write_text(RECIPE.format(family=name, sizes=sizes), encoding="utf-8")
    run = train(read_recipe("recipe.toml", ["run=out"]))
    assert [answer.text for answer in run.predict([a for a, _ in PAIRS])] == [b for _, b in PAIRS]
    assert run.evaluate("test")[0].value == 100.0
    Path("in.txt").write_text("ab\n\ncab\n", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["predict", "out", "in.txt", "--n-best", "2", "--scores", "--format", "jsonl"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert '"x y"' in lines[0]
    greedy = load("out").predict(["cab"], method="greedy")
    assert greedy[0].text == "z x y"


def test_a_target_without_a_start_token_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.tasks import translation

    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    Path("recipe.toml").write_text(RECIPE.format(family="transformer", sizes=SMALL), encoding="utf-8")
    task = train(read_recipe("recipe.toml", ["run=out", "train.max_steps=1"])).task

    class Like:
        size = 9
        specials = Specials(start=0, end=2, pad=0)

    with pytest.raises(RegardError, match="both_ways needs a start token of its own"):
        translation.Task(
            task.config,
            task.data,
            paths=task.paths,
            source=task.source,
            target=Like(),
            shared=False,  # type: ignore[arg-type]
        )
