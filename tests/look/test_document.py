"""The page's document says what the float64 matrix says, in the form that the page expects."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from regard.errors import ConfigError
from regard.look import document as document_module
from regard.look.collect import LayerView, observe
from regard.look.document import Document, check_heads, dump, make_document
from regard.look.trace import load, save
from regard.models import Sizes, convolutional, recurrent, transformer
from regard.ops.attention import reference
from regard.ops.call import Call
from regard.types import Axis, Batch, Sequences, Trace

NAMES = {"entropy", "confidence", "distance", "first", "lse", "received", "map"}


def batch_of(source: int = 7, target: int = 6) -> Batch:
    ids = [torch.randint(4, 20, (1, length)) for length in (source, target)]
    return Batch(*(Sequences(row, torch.tensor([row.shape[1]])) for row in ids))


def traced(model: Any, batch: Batch) -> Trace:
    with torch.no_grad(), observe(model.eval()) as trace:
        model.hidden(batch)
    return trace


def transformer_model(**keys: Any) -> Any:
    sizes = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "model_dim": 24,
        "num_heads": 6,
        "num_kv_heads": 2,
        "ffn_dim": 16,
    }
    return transformer.build(transformer.Config(**{**sizes, **keys}), Sizes(20, 20, False))


def matrices(model: Any, batch: Batch) -> list[Tensor]:
    """The weights of every layer by the formula, in float64, with the whole matrix: H x N x M."""
    return [reference(view.call)[1][0].detach() for view in traced(model.double(), batch)]  # type: ignore[attr-defined]


def rows_of(made: Document, layer: int) -> Any:
    """The weights as the page computes them, from what is in the document alone."""
    about, tensors = made.doc["layers"][layer], made.tensors
    if about["exact"] == "weights":
        return tensors[f"{layer}.weights"]
    q, k = (tensors[f"{layer}.{name}"].astype(np.float64) for name in "qk")
    k = np.repeat(k, about["heads"] // about["kv_heads"], axis=0)
    scores = about["scale"] * q @ k.swapaxes(1, 2)
    left, right = about["band"]
    ahead = np.arange(k.shape[1]) - np.arange(q.shape[1])[:, None]
    hidden = np.zeros_like(ahead, dtype=bool)
    hidden |= False if right is None else ahead > right
    hidden |= False if left is None else -ahead > left
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "alibi", "t5", "shaw"])
def test_numbers_are_those_of_the_matrix(position: str) -> None:
    model, batch = transformer_model(position=position), batch_of()
    made = make_document(traced(model, batch))
    wanted = matrices(model, batch)
    forms = [layer["exact"] for layer in made.doc["layers"]]
    assert forms == (["qk"] * 3 if position in ("sinusoidal", "rotary") else ["weights", "weights", "qk"])
    for i, weights in enumerate(wanted):
        p = weights.numpy()
        heads, rows, keys = p.shape
        assert_allclose(rows_of(made, i), p, atol=1e-5)
        assert_allclose(made.tensors[f"{i}.map"], p, atol=1e-5)
        assert_allclose(made.tensors[f"{i}.entropy"], -(p * np.log(np.where(p > 0, p, 1))).sum(-1), atol=1e-5)
        assert_allclose(made.tensors[f"{i}.confidence"], p.max(-1), atol=1e-5)
        away = np.abs(np.arange(keys) - np.arange(rows)[:, None])
        assert_allclose(made.tensors[f"{i}.distance"], (p * away).sum(-1), atol=1e-5)
        assert_allclose(made.tensors[f"{i}.first"], p[:, :, 0], atol=1e-5)
        assert_allclose(made.tensors[f"{i}.received"], p.sum(1), atol=1e-5)
        assert_allclose(made.tensors[f"{i}.top.weights"][:, :, 0], p.max(-1), atol=1e-5)
        assert (
            made.tensors[f"{i}.top.weights"].shape == made.tensors[f"{i}.top.keys"].shape == (heads, rows, min(8, keys))
        )
        found = np.take_along_axis(p, np.maximum(made.tensors[f"{i}.top.keys"], 0).astype(int), -1)
        assert_allclose(
            np.where(made.tensors[f"{i}.top.keys"] < 0, 0, found), made.tensors[f"{i}.top.weights"], atol=1e-5
        )


def test_value_norms_are_those_of_what_reaches_the_output() -> None:
    model, batch = transformer_model(), batch_of()
    trace = traced(model, batch)
    made = make_document(trace)
    for i, view in enumerate(trace):
        v, out = view.call.v[0].double(), model.get_submodule(view.name).out.weight.double()  # type: ignore[attr-defined]
        parts = out.unflatten(1, (6, 4))  # D x H x d
        wanted = torch.einsum("hmd,ohd->hmo", v.repeat_interleave(3, dim=0), parts).norm(dim=-1)
        assert_allclose(made.tensors[f"{i}.norms"], wanted.detach(), rtol=1e-5)


def test_pooled_maps_weighted_by_values_are_exact(tmp_path: Path) -> None:
    model, batch = transformer_model(), batch_of(150, 6)
    trace = traced(model, batch)
    made = make_document(trace)
    assert "1.weighted" not in made.tensors  # of single cells, the map times the norms is the same
    for i in (0, 2):
        p = matrices(copy.deepcopy(model), batch)[i].numpy() * made.tensors[f"{i}.norms"][:, None]
        p /= p.sum(-1, keepdims=True)
        wanted = np.add.reduceat(p, range(0, 150, 2), axis=2)
        if i == 0:
            wanted = np.add.reduceat(wanted, range(0, 150, 2), axis=1) / 2
        assert_allclose(made.tensors[f"{i}.weighted"], wanted, atol=1e-5)
    save(trace, tmp_path)
    assert_allclose(make_document(load(tmp_path)).tensors["0.weighted"], made.tensors["0.weighted"])
    # a trace that was saved without it is shown as it is: raw
    saved = load(tmp_path)
    del saved[0]._tensors["weighted"]  # type: ignore[attr-defined]
    assert {"0.norms", "0.weighted"}.isdisjoint(make_document(saved).tensors)


def test_layers_are_described() -> None:
    made = make_document(traced(transformer_model(), batch_of()))
    encoder, own, cross = made.doc["layers"]
    assert [layer["label"] for layer in made.doc["layers"]] == ["encoder 1", "decoder 1", "decoder 1, cross"]
    assert encoder["name"] == "encoder.blocks.0.attention.body"
    assert (encoder["kind"], encoder["rows"], encoder["keys"], encoder["band"]) == (
        "self",
        "source",
        "source",
        [None, None],
    )
    assert (own["kind"], own["rows"], own["keys"], own["band"]) == ("self", "target", "target", [None, 0])
    assert (cross["kind"], cross["rows"], cross["keys"], cross["band"]) == ("cross", "target", "source", [None, None])
    assert (cross["heads"], cross["kv_heads"], cross["width"], cross["scale"]) == (6, 2, 4, 0.5)
    assert cross["bin"] == [1, 1]
    assert made.doc["exact_heads"] is None
    assert made.tensors["0.v"].shape == (2, 7, 4)
    json.dumps(made.json(), allow_nan=False)


@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_a_recurrent_model_has_its_weights(attention: Any) -> None:
    config = recurrent.Config(attention=attention, embedding_dim=8, hidden_dim=8)
    trace = traced(recurrent.build(config, Sizes(20, 20, False)), batch_of())
    made = make_document(trace)
    (layer,) = made.doc["layers"]
    assert (layer["label"], layer["exact"], layer["heads"], layer["width"]) == ("decoder, cross", "weights", 1, None)
    assert made.tensors["0.weights"].shape == (1, 5, 7)
    assert_allclose(made.tensors["0.weights"].sum(-1), 1, rtol=1e-5)
    assert "0.norms" not in made.tensors


def test_a_convolutional_model_is_exact_by_its_queries() -> None:
    config = convolutional.Config(encoder_layers=1, decoder_layers=2, embedding_dim=8, hidden_dim=8)
    model, batch = convolutional.build(config, Sizes(20, 20, False)), batch_of()
    made = make_document(traced(model, batch))
    assert [layer["label"] for layer in made.doc["layers"]] == ["decoder 1, cross", "decoder 2, cross"]
    for i, weights in enumerate(matrices(model, batch)):
        assert made.doc["layers"][i]["exact"] == "qk"
        assert made.doc["layers"][i]["scale"] == 1.0
        assert_allclose(rows_of(made, i), weights.numpy(), atol=1e-5)


def test_tokens_stand_along_the_sides() -> None:
    trace = traced(transformer_model(), batch_of(source=2))
    plain = make_document(trace).doc["axes"]
    assert plain["source"] == {"tokens": ["1", "2"], "offsets": [[0, 0], [0, 0]], "text": ""}
    axis = Axis("source", ("a", "</s>"), ((0, 1), (1, 1)), "a")
    named = make_document(Trace(trace.layers, {"source": axis}, {"text": "a", "answer": "b"}), title="a")
    assert named.doc["axes"]["source"] == {"tokens": ["a", "</s>"], "offsets": [[0, 1], [1, 1]], "text": "a"}
    assert (named.doc["text"], named.doc["answer"], named.doc["title"], named.doc["version"]) == ("a", "b", "a", 1)


# --- long texts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of more than 5 tokens are long ones."""
    monkeypatch.setattr(document_module, "EXACT_LENGTH", 5)


@pytest.mark.usefixtures("short_limit")
def test_beyond_the_limit_maps_are_pooled() -> None:
    model, batch = transformer_model(), batch_of(source=11, target=6)
    made = make_document(traced(model, batch), bins=4)
    assert [layer["exact"] for layer in made.doc["layers"]] == [None, "qk", None]  # the decoder's 5 rows are few
    assert [layer["bin"] for layer in made.doc["layers"]] == [[4, 4], [2, 2], [2, 4]]
    assert not {"0.q", "0.k", "0.weights", "2.q"} & set(made.tensors)
    weights = matrices(model, batch)[0].numpy()  # 6 x 11 x 11
    padded = np.pad(weights, ((0, 0), (0, 1), (0, 1))).reshape(6, 3, 4, 3, 4).sum((2, 4))
    assert_allclose(made.tensors["0.map"], padded / np.array([4, 4, 3])[:, None], atol=1e-5)
    assert_allclose(made.tensors["0.map"].sum(-1), 1, rtol=1e-5)


@pytest.mark.usefixtures("short_limit")
def test_heads_that_are_named_stay_exact() -> None:
    model, batch = transformer_model(), batch_of()
    made = make_document(traced(model, batch), exact=[(0, 3)])
    assert [layer["exact"] for layer in made.doc["layers"]] == ["qk", "qk", None]
    assert made.doc["exact_heads"] == [[0, 3], *([1, head] for head in range(6))]
    assert_allclose(rows_of(made, 0), matrices(model, batch)[0].numpy(), atol=1e-5)
    everything = make_document(traced(model.float(), batch), exact="all")
    assert [layer["exact"] for layer in everything.doc["layers"]] == ["qk"] * 3
    assert everything.doc["exact_heads"] is None


@pytest.mark.usefixtures("short_limit")
def test_a_server_gives_the_rest() -> None:
    made = make_document(traced(transformer_model(), batch_of()), exact=[(2, 1)], live="/secret")
    assert [layer["exact"] for layer in made.doc["layers"]] == ["live", "qk", "qk"]
    assert made.doc["exact_heads"] is None
    assert made.doc["live"] == "/secret"


def test_what_no_browser_could_hold_is_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(transformer_model(position="t5"), batch_of())
    monkeypatch.setattr(document_module, "EXACT_BYTES", 1500)  # the encoder's 6 x 7 x 7 floats are 1,176
    assert [layer["exact"] for layer in make_document(trace).doc["layers"]] == ["weights", None, None]
    with pytest.raises(ConfigError) as refused:
        make_document(trace, exact="all")
    assert str(refused.value) == (
        "the exact weights of layer 2 (decoder 1) do not fit into a page\n"
        "  got:    0 MiB after 0 of other layers\n"
        "  wanted: at most 0 MiB in all\n"
        "  try:    fewer heads, or --live, which computes rows as you ask for them"
    )
    assert make_document(trace, exact="all", live="/x").doc["layers"][1]["exact"] == "live"


def test_distances_beyond_what_a_half_can_hold_stay_themselves() -> None:
    q, k = torch.ones(1, 2, 1, 4), torch.zeros(1, 2, 70_000, 4)
    k[:, 0, -1], k[:, 1, 9] = 100.0, 100.0  # one head reads the last key, the other a near one
    view = LayerView("layers.0", "cross", ("target", "source"), None)
    view.add_call(Call(q, k, k, None, (), 0.5, 0.0, None), torch.eye(8))
    made = make_document(Trace((view,)))
    assert made.tensors["0.distance"].tolist() == [[69_999.0], [9.0]]
    assert made.json()["tensors"]["0.distance"]["dtype"] == "f4"
    assert made.tensors["0.entropy"].dtype == np.float16


def test_long_rows_are_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_module, "LONG", 5)
    monkeypatch.setattr(document_module, "TOP_LENGTH", 5)
    made = make_document(traced(transformer_model(), batch_of()))
    named = made.json()["tensors"]
    assert {name: named[f"0.{name}"]["dtype"] for name in ("map", "entropy", "norms", "received")} == {
        "map": "f2",
        "entropy": "f2",
        "norms": "f2",
        "received": "f4",
    }
    assert "0.top.keys" not in named
    assert "0.lse" not in named
    assert named["1.entropy"] == {"dtype": "f4", "shape": [6, 5]}
    assert named["1.top.keys"] == {"dtype": "i4", "shape": [6, 5, 5]}


@pytest.mark.parametrize("head", [(3, 0), (0, 6), (-1, 0)])
def test_heads_that_are_not_there(head: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"no such head\n  got:    .*\n  wanted: LAYER.HEAD from 1.1 to 3.6"):
        check_heads(traced(transformer_model(), batch_of()), [head])


def test_all_numbers_as_json() -> None:
    model, batch = transformer_model(), batch_of()
    trace = traced(model, batch)
    read = json.loads(dump(trace, make_document(trace, bins=4)))
    for layer, weights in zip(read["layers"], matrices(model, batch), strict=True):
        assert_allclose(layer["weights"], weights.numpy(), atol=1e-5)
        assert "map" not in layer
        assert set(layer) >= NAMES - {"map", "lse"}


@pytest.mark.usefixtures("short_limit")
def test_json_has_the_heads_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, asked = traced(transformer_model(), batch_of()), []
    rows = type(trace[0]).rows

    def noted(view: Any, places: range, heads: Any = None) -> Tensor:
        asked.append((view.name, heads))
        return rows(view, places, heads)

    made = make_document(trace, exact=[(0, 3)])
    monkeypatch.setattr(type(trace[0]), "rows", noted)
    first, second, third = json.loads(dump(trace, made, [(0, 3)]))["layers"]
    assert [head is None for head in first["weights"]] == [True] * 3 + [False] + [True] * 2
    assert_allclose(first["weights"][3], rows(trace[0], range(7))[0, 3].numpy(), atol=1e-5)
    assert ("map" in first, "map" in second, "map" in third) == (True, False, True)
    assert "weights" not in third
    assert asked == [(trace[0].name, [3]), *((trace[1].name, [head]) for head in range(6))]


def test_json_that_would_be_too_long_is_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(transformer_model(), batch_of())
    made = make_document(trace)
    monkeypatch.setattr(document_module, "EXACT_BYTES", 3000)  # the encoder's 6 x 7 x 7 numbers are 2,940 letters
    layers = json.loads(dump(trace, made))["layers"]
    assert [("weights" in layer, "map" in layer) for layer in layers] == [(True, False), (False, True), (False, True)]
    monkeypatch.setattr(type(trace[0]), "rows", None)  # it is refused before a row is computed
    for exact in ("all", [(1, 2)]):
        with pytest.raises(ConfigError) as refused:
            dump(trace, made, exact)  # type: ignore[arg-type]
        assert str(refused.value) == (
            "the exact weights of layer 2 (decoder 1) are too long for JSON\n"
            "  got:    0 MiB\n"
            "  wanted: at most 0 MiB\n"
            "  try:    fewer heads in --exact, or without --json"
        )


def test_what_is_not_finite_is_null_in_json() -> None:
    from regard.look.document import _nested

    assert _nested(np.array([[1.0, -np.inf], [np.nan, 0.1234567]], dtype="f4")) == [[1.0, None], [None, 0.123457]]


def test_a_part_of_a_text_and_nothing_at_all_are_refused() -> None:
    weights = torch.full((1, 2, 2, 5), 0.2)
    part = SimpleNamespace(name="x", rows_axis="source", keys_axis="source", shape=tuple(weights.shape))
    with pytest.raises(ConfigError) as refused:
        make_document(Trace((part,), {}, {}))  # type: ignore[arg-type]
    assert str(refused.value) == (
        "the trace holds a part of a text\n"
        "  got:    5 places of source\n"
        "  wanted: 2, as elsewhere\n"
        "  where:  x\n"
        "  try:    observe one pass over the whole text"
    )
    with pytest.raises(ConfigError, match="there is nothing to show"):
        make_document(Trace((), {}, {}))
