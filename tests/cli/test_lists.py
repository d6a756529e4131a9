"""What is there is listed: recipes, models as trees, tasks, data sets; and the doctor knows the machine."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import io
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import models, tasks
from regard.cli import doctor
from regard.cli.architecture import describe
from regard.config import read_section
from regard.data import catalogue
from regard.models import Sizes, family, with_preset
from regard.recipe import shipped

Command = Callable[..., Any]


def first_column(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:] if line]


def test_recipes(regard: Command) -> None:
    done = regard("recipes")
    assert done.code == 0, done.err
    assert first_column(done.out) == [path.stem for path in shipped()]
    assert all(len(line.split()) > 3 for line in done.out.splitlines())  # each says what it trains


def test_tasks(regard: Command) -> None:
    assert first_column(regard("tasks").out) == tasks.names()


def test_models(regard: Command) -> None:
    done = regard("models")
    assert first_column(done.out) == models.names()
    for name, line in zip(models.names(), done.out.splitlines()[1:], strict=True):
        assert line.removeprefix(name).lstrip().startswith(f"{', '.join(family(name).KINDS)}  ")
    assert "tiny" in done.out


def config_of(name: str, **keys: Any) -> Any:
    return read_section(family(name).Config, with_preset(name, keys), where="test")


@pytest.mark.parametrize("name", models.names())
@pytest.mark.parametrize("place", [0, -1], ids=["first preset", "last preset"])
def test_a_tree_counts_every_parameter_once(name: str, place: int) -> None:
    config = config_of(name, preset=list(family(name).PRESETS)[place])
    for kind in family(name).KINDS:
        tree = describe(name, config, vocab_size=100, length=8, kind=kind)
        with torch.device("meta"):
            model = models.build(name, config, Sizes(100, 100, shared=True), kind)
        assert tree.parameters == sum(parameter.numel() for parameter in model.parameters())
        assert tree.cost > 0


def test_a_family_of_several_kinds_shows_the_one_that_is_asked_for(regard: Command) -> None:
    done = regard("models", "recurrent", "preset=lm", "--kind", "causal")
    assert done.code == 0, done.err
    assert "recurrent: RecurrentLM" in done.out
    assert "layers.0-1: 2 x LSTM" in done.out
    assert done.out.endswith("in reading a text of 32 tokens\n")
    assert "recurrent: Recurrent " in regard("models", "recurrent").out
    assert "no such kind of model\n  got:    writer\n" in regard("models", "recurrent", "--kind", "writer").err


def test_the_cost_of_a_transformer_is_that_of_its_formulas() -> None:
    layers, dim, inner, vocab, length = 2, 64, 96, 100, 8
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "model_dim": dim, "ffn_dim": inner}
    tree = describe("transformer", config_of("transformer", **sizes, num_heads=4), vocab_size=vocab, length=length)
    attention = 4 * dim * dim + 2 * length * dim  # four projections; scores and reading
    feedforward = 2 * dim * inner
    encoder, decoder = layers * (attention + feedforward), layers * (2 * attention + feedforward)
    costs = {part.name: part.cost for part in tree.parts}
    assert costs == {"source": 0, "encoder": encoder, "target": 0, "decoder": decoder, "head": dim * vocab}
    assert tree.cost == encoder + decoder + dim * vocab


def test_the_cost_of_a_gpt_is_that_of_one_text(regard: Command) -> None:
    layers, dim, inner, vocab, length = 2, 64, 96, 100, 8
    config = config_of("gpt", layers=layers, model_dim=dim, ffn_dim=inner, num_heads=4)
    tree = describe("gpt", config, vocab_size=vocab, length=length)
    assert tree.cost == layers * (4 * dim * dim + 2 * length * dim + 2 * dim * inner) + dim * vocab
    said = "multiply-adds are a token's, in reading a text of 32 tokens\n"
    assert regard("models", "gpt", "preset=tiny").out.endswith(said)


def test_equal_blocks_are_shown_once(regard: Command) -> None:
    done = regard("models", "transformer", "preset=tiny", "model.encoder_layers=3", "--vocab-size", 500)
    assert done.code == 0, done.err
    assert "blocks.0-2: 3 x EncoderBlock" in done.out
    assert "weight 500 x 128 (shared)" in done.out
    assert "qkv: Linear" in done.out


def test_models_with_wrong_words(regard: Command) -> None:
    assert 'did you mean "transformer"?' in regard("models", "transfomer").err
    assert 'did you mean "model.dropout"?' in regard("models", "transformer", "dropuot=1").err


def test_data_lists_and_shows(regard: Command) -> None:
    listed = regard("data")
    assert first_column(listed.out) == [entry.name for entry in catalogue.entries()]
    shown = regard("data", "show", "multi30k").out
    assert f"sha256:  {catalogue.entry('multi30k').sha256}\n" in shown
    assert "licence: none stated\n" in shown
    wrong = regard("data", "show", "multi30")
    assert wrong.code == 2
    assert "did you mean" in wrong.err


def test_data_get(regard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_DATA", raising=False)
    missing = regard("data", "get", "trec", "--to", tmp_path / "to")
    assert missing.code == 2
    assert "--mirror DIR" in missing.err
    with tarfile.open(tmp_path / "trec.tar.xz", "w:xz") as tar:
        member = tarfile.TarInfo("trec/train.tsv")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"a\tb\n"))
    words = ["data", "get", "trec", "--to", tmp_path / "to", "--mirror", tmp_path]
    wrong = regard(*words)
    assert wrong.code == 2
    assert "error: the archive is not the one that the catalogue knows" in wrong.err
    found = hashlib.sha256((tmp_path / "trec.tar.xz").read_bytes()).hexdigest()
    monkeypatch.setattr(catalogue, "_ENTRIES", (dataclasses.replace(catalogue.entry("trec"), sha256=found),))
    done = regard(*words)
    assert done.code == 0, done.err
    assert done.out == f"{tmp_path / 'to' / 'trec'}\n"
    assert (tmp_path / "to" / "trec" / "train.tsv").read_text() == "a\tb\n"


def test_doctor(regard: Command, cache: Path) -> None:
    done = regard("doctor")
    assert done.code == 0, done.err
    rows = first_column(done.out)
    assert {"regard", "python", "torch", "cpu", "cache"} <= set(rows)
    assert importlib.metadata.version("torch") in done.out
    assert str(cache) in done.out
    assert "all that regard needs is here" in done.out


def test_doctor_says_what_is_missing_and_how_to_get_it(regard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    known = doctor._version
    gone = {"tensorboard", "rapidfuzz"}
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in gone else known(name))
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    done = regard("doctor")
    assert done.code == 1
    assert 'pip install "regard[tensorboard]"' in done.out
    assert "pip install rapidfuzz" in done.out
    assert "missing: rapidfuzz" in done.out
    assert "install g++" in done.out


def test_doctor_and_all_know_every_package_that_something_asks_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: set(needs) for name, needs in project["optional-dependencies"].items()}
    features = set(extras) - {"all", "test", "bench"}
    assert extras["all"] == {f"regard[{','.join(name for name in extras if name in features)}]"}
    wanted = set().union(*(extras[name] for name in features))
    assert wanted | {"transformers"} == set(doctor.OPTIONAL)


def test_doctor_sees_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none" / "yet"))
    rows = {what: (found, todo) for what, found, todo in doctor.folders()}
    assert "not writable" in rows["cache"][0]
    assert rows["cache"][1] == f"make {tmp_path} writable, or set XDG_CACHE_HOME"
