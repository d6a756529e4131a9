"""What CTranslate2 makes of our models: the same numbers, and the same outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import numpy
import pytest
import tokenizers
import torch

from regard import load
from regard.convert import convert, to_ctranslate2

Command = Callable[..., Any]
SMALL = {"encoder_layers": 2, "decoder_layers": 1, "model_dim": 24, "num_heads": 6, "ffn_dim": 20}
GPT = {"layers": 2, "model_dim": 24, "num_heads": 6, "ffn_dim": 20, "max_length": 40}
OURS: dict[str, dict[str, Any]] = {
    "the usual": {},
    "as in the paper": {"norm_first": False, "scale_embeddings": True},
    "halves, untied": {"position": "sinusoidal-halves", "tie_embeddings": False, "output_bias": True},
    "learned, gelu": {"position": "learned", "max_length": 40, "first_position": 2, "activation": "gelu"}
    | {"norm_first": False, "embedding_norm": True},
    "rotary, grouped, gated": {"position": "rotary", "num_kv_heads": 2, "activation": "swiglu", "norm": "rms"},
    "buckets": {"position": "t5", "activation": "gelu-tanh"},
    "nowhere": {"position": "none", "activation": "geglu"},
    "two vocabularies": {"shared": False},
    "two vocabularies, untied": {"shared": False, "tie_embeddings": False},
}


def made(regard: Command, source: Path, target: Path) -> str:
    done = regard("convert", source, target, "--to", "ctranslate2")
    assert done.code == 0, done.err
    return str(done.out)


@pytest.mark.parametrize("form", ["gpt2", "llama", "llama tied"])
def test_generators_of_others(form: str, tmp_path: Path, regard: Command, make: Any) -> None:
    """From their folder at once, by a run in between."""
    out = made(regard, make.folder(form), tmp_path / "ct2")
    assert "2,460 logits of ours" in out
    assert "greedy:    4 outputs are the same" in out
    assert ctranslate2.contains_model(str(tmp_path / "ct2"))


@pytest.mark.parametrize("form", ["t5", "t5 v1.1", "marian", "bart"])
def test_translators_of_others(form: str, tmp_path: Path, regard: Command, make: Any) -> None:
    out = made(regard, make.folder(form), tmp_path / "ct2")
    assert "48 log-probabilities of ours" in out
    assert "greedy:    4 outputs are the same" in out
    assert "beam 4:    4 of 4 outputs are the same" in out


@pytest.mark.parametrize("name", OURS)
def test_our_own_forms(name: str, tmp_path: Path, regard: Command, make: Any) -> None:
    run = make.run(**SMALL | OURS[name])
    out = made(regard, run, tmp_path / "ct2")
    assert "greedy:    4 outputs are the same" in out
    two = not OURS[name].get("shared", True)
    files = ["tokenizer.source.json", "tokenizer.target.json"] if two else ["tokenizer.json", "tokenizer.json"]
    source, target = (tokenizers.Tokenizer.from_file(str(tmp_path / "ct2" / file)) for file in files)
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32")
    never = [[target.id_to_token(0)], [target.id_to_token(2)]]
    answers = load(run).predict(make.texts[1:], method="greedy", max_ratio=1e6)
    options: dict[str, Any] = {"min_decoding_length": 0, "max_decoding_length": 12, "suppress_sequences": never}
    for text, answer in zip(make.texts[1:], answers, strict=True):
        (found,) = translator.translate_batch([source.encode(text).tokens], beam_size=1, **options)
        assert [target.token_to_id(token) for token in found.hypotheses[0]] == list(answer.ids[0])
        assert load(run).task.target.decode(answer.ids[0]) == answer.text


def test_a_search_from_both_ends_is_said_to_be_ours(tmp_path: Path, regard: Command, make: Any) -> None:
    recipe = make.run(**SMALL) / "recipe.toml"
    said = "search:    theirs looks from the beginning alone; task.both_ways is of our search"
    assert said not in made(regard, recipe.parent, tmp_path / "plain")
    recipe.write_text(recipe.read_text().replace("both_ways = false", "both_ways = true"))
    assert said in made(regard, recipe.parent, tmp_path / "both")


@pytest.mark.parametrize("model", [{}, {"preset": "nano"}, {"preset": "llama", "num_kv_heads": 2}])
def test_our_own_generators(model: dict[str, Any], tmp_path: Path, regard: Command, make: Any) -> None:
    run = make.run("run", "gpt", task="language-modeling", **model | GPT)
    assert "greedy:    4 outputs are the same" in made(regard, run, tmp_path / "ct2")
    generator = ctranslate2.Generator(str(tmp_path / "ct2"), compute_type="float32")
    reader = tokenizers.Tokenizer.from_file(str(tmp_path / "ct2/tokenizer.json"))
    ids = reader.encode(make.texts[1]).ids
    found = torch.from_numpy(numpy.array(generator.forward_batch([ids])))
    torch.testing.assert_close(found, load(run).logits(torch.tensor([ids])), rtol=0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "model", "text"),
    [
        ("transformer", {**SMALL, "position": "alibi"}, "CTranslate2 has no such positions\n  got:    alibi\n"),
        ("transformer", {**SMALL, "position": "shaw"}, "CTranslate2 has no such positions\n  got:    shaw\n"),
        ("recurrent", {"preset": "tiny"}, "CTranslate2 has no such model\n  got:    recurrent\n"),
    ],
)
def test_what_it_cannot_say(
    family: str, model: dict[str, Any], text: str, tmp_path: Path, regard: Command, make: Any
) -> None:
    done = regard("convert", make.run("run", family, **model), tmp_path / "ct2", "--to", "ctranslate2")
    assert (done.code, (tmp_path / "ct2").exists()) == (2, False)
    assert text in done.err


def test_another_model_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, regard: Command, make: Any) -> None:
    monkeypatch.setitem(to_ctranslate2.ACTIVATIONS, "relu", "GELU")
    done = regard("convert", make.run(**SMALL), tmp_path / "ct2", "--to", "ctranslate2")
    assert (done.code, (tmp_path / "ct2").exists()) == (2, False)
    assert "the converted model is not the same" in done.err
    monkeypatch.undo()
    monkeypatch.setattr(to_ctranslate2.check, "apart", lambda *_: "")
    monkeypatch.setitem(to_ctranslate2.ACTIVATIONS, "relu", "GELU")
    done = regard("convert", tmp_path / "run", tmp_path / "ct2", "--to", "ctranslate2")
    assert (done.code, (tmp_path / "ct2").exists()) == (2, False)
    assert "the converted model writes something else (greedily)" in done.err


def test_without_the_library_its_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, regard: Command
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    done = regard("convert", make.run(**SMALL), tmp_path / "ct2", "--to", "ctranslate2")
    assert done.code == 2
    assert 'CTranslate2 is not installed\n  try:    pip install "regard[ctranslate2]"' in done.err


def test_numbers_of_their_own_type(make: Any, tmp_path: Path) -> None:
    """Half-precision weights are written in float32, as the run loads them."""
    folder = make.save(make.model("gpt2").to(torch.bfloat16), tmp_path / "first")
    said: list[str] = []
    convert(folder, tmp_path / "ct2", "ctranslate2", say=said.append)
    assert said[-1] == "greedy:    4 outputs are the same"
