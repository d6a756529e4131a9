"""Traces on disk: what was saved comes back bit by bit, what was not says so, and damage is noticed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from regard.errors import ConfigError, DataError, RegardError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.look import trace as saved
from regard.look.collect import observe
from regard.look.trace import load, save
from regard.ops.masks import causal, padding
from regard.types import Axis, Trace, View

AXES = {
    "source": Axis("source", ("<s>", "grün", "</s>"), ((0, 0), (0, 4), (4, 4)), "grün"),
    "target": Axis("target", ("g",), ((0, 1),), "g"),
}
INFO = {"run": "runs/demo", "text": "grün", "step": 50, "scores": [0.5, None]}


@torch.no_grad()
def a_trace(rows: int = 9, keys: int = 13) -> Trace:
    """Two layers, one with padding that lets a row of the batch see nothing at all."""
    own, cross = SelfAttention(16, 4, num_kv_heads=2), CrossAttention(16, 4)
    model = torch.nn.ModuleDict({"encoder": own, "decoder": cross})
    with observe(model) as trace:
        own(torch.randn(2, rows, 16), mask=causal())
        cross(torch.randn(2, rows, 16), cross.project(torch.randn(2, keys, 16)), mask=padding(torch.tensor([keys, 0])))
    return Trace(trace.layers, AXES, INFO)


def every_answer(view: View, bins: int | tuple[int, int]) -> dict[str, Tensor | None]:
    names = ("lse", "entropy", "confidence", "distance", "received", "value_norms")
    return {
        **{name: getattr(view, name) for name in names},
        **{f"top {k} {part}": found for k in (1, 8) for part, found in zip("wk", view.top(k), strict=True)},
        **{f"diagonal {offset}": view.diagonal(offset) for offset in (-1, 0, 1)},
        "first": view.first(),
        "map": view.map(bins),
        "weighted map": view.weighted_map(bins),
    }


def same(one: dict[str, Tensor | None], other: dict[str, Tensor | None]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        a, b = one[name], other[name]
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            assert a.dtype == b.dtype, name
            assert torch.equal(a, b), name


def file_of(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def change(folder: Path, **keys: Any) -> None:
    table = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
    (folder / "trace.json").write_text(json.dumps(table | keys), encoding="utf-8")


# --- round trips ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("bins", [4, 128])
def test_everything_comes_back(tmp_path: Path, exact: bool, bins: int) -> None:
    trace = a_trace()
    save(trace, tmp_path / "a" / "trace", exact=exact, bins=bins)
    back = load(str(tmp_path / "a" / "trace"))
    assert back.axes == AXES
    assert back.info == INFO
    assert len(back) == 2
    for one, other in zip(back, trace, strict=True):
        for name in ("name", "kind", "rows_axis", "keys_axis", "shape"):
            assert getattr(one, name) == getattr(other, name)
        same(every_answer(one, bins), every_answer(other, bins))
        if exact:
            assert torch.equal(one.rows(range(2, 5), [1, 3]), other.rows(range(9))[:, [1, 3], 2:5])
            torch.testing.assert_close(one.diagonal(-3), other.diagonal(-3))
            torch.testing.assert_close(one.map((3, 5)), other.map((3, 5)))
            torch.testing.assert_close(one.weighted_map((3, 5)), other.weighted_map((3, 5)))
            keys = torch.randint(-1, 9, (2, 9))
            torch.testing.assert_close(one.pairs(keys), other.pairs(keys))


@torch.no_grad()
def test_rows_that_do_not_start_at_zero_keep_their_places(tmp_path: Path) -> None:
    layer = SelfAttention(16, 4)
    cache, x = layer.new_cache(1, 6, torch.zeros(())), torch.randn(1, 6, 16)
    places = torch.arange(6)[None]
    layer(x[:, :4], mask=causal(), positions=places[:, :4], cache=cache, bound=4)
    with observe(layer) as trace:
        layer(x[:, 4:], mask=causal(), positions=places[:, 4:], cache=cache, bound=6)
    save(trace, tmp_path, exact=True)
    torch.testing.assert_close(load(tmp_path)[0].diagonal(-4), trace[0].diagonal(-4))
    assert trace[0].diagonal(-4).min() > 0


def test_a_loaded_trace_can_be_saved_again(tmp_path: Path) -> None:
    trace = a_trace()
    save(trace, tmp_path / "one", exact=True)
    save(load(tmp_path / "one"), tmp_path / "two", exact=True)
    assert file_of(tmp_path / "one").name == file_of(tmp_path / "two").name
    assert (tmp_path / "one" / "trace.json").read_bytes() == (tmp_path / "two" / "trace.json").read_bytes()


def test_a_trace_of_nothing(tmp_path: Path) -> None:
    save(Trace(()), tmp_path)
    assert load(tmp_path) == Trace(())


def test_a_new_trace_replaces_the_old_and_leaves_other_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"mine")
    save(a_trace(), tmp_path)
    first = set(os.listdir(tmp_path))
    save(trace := a_trace(5), tmp_path)
    second = set(os.listdir(tmp_path))
    assert len(first) == len(second) == 3
    assert first & second == {"model.safetensors", "trace.json"}
    same(every_answer(load(tmp_path)[0], 128), every_answer(trace[0], 128))


@pytest.mark.parametrize("file", [1, 2])
def test_a_write_that_fails_leaves_the_old_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: int) -> None:
    save(trace := a_trace(), tmp_path)
    before, files = set(os.listdir(tmp_path)), iter((1, 2))

    def full(handle: int) -> None:
        if next(files) == file:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match="No space left on device") as error:
            save(a_trace(5), tmp_path)
    assert error.value.where == tmp_path
    assert len(set(os.listdir(tmp_path)) - before) == file - 1  # whole tensors that nothing names yet
    same(every_answer(load(tmp_path)[0], 128), every_answer(trace[0], 128))
    save(a_trace(5), tmp_path)
    assert len(os.listdir(tmp_path)) == 2


# --- what was not saved -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "got", "wanted"),
    [
        (lambda view: view.rows(range(2)), "exact rows", "measures, the map and the top keys"),
        (lambda view: view.pairs(torch.zeros(2, 9)), "weights of given keys", "measures, the map and the top keys"),
        (lambda view: view.diagonal(2), "diagonal 2", "diagonals -1, 0, 1"),
        (lambda view: view.map((64, 9)), "a map of 64 x 9 bins", "the one of 3 x 3 bins"),
    ],
)
def test_what_was_not_saved_says_so(tmp_path: Path, ask: Any, got: str, wanted: str) -> None:
    save(a_trace(), tmp_path, bins=4)
    with pytest.raises(RegardError) as error:
        ask(load(tmp_path)[0])
    assert str(error.value).splitlines() == [
        'this was not saved of "encoder"',
        f"  got:    {got}",
        f"  wanted: {wanted}",
        "  try:    observe the model again, or save the trace with exact=True",
    ]


def test_bins_that_come_to_the_same_are_the_same(tmp_path: Path) -> None:
    save(trace := a_trace(), tmp_path, bins=4)
    assert torch.equal(load(tmp_path)[0].map(3), trace[0].map(3))


def test_too_long_for_exact_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "EXACT_LENGTH", 12)
    with pytest.raises(ConfigError, match="exact weights of so long a text are not saved") as error:
        save(a_trace(), tmp_path, exact=True)
    assert (error.value.got, error.value.wanted) == ("13", "at most 12 tokens")
    assert list(tmp_path.iterdir()) == []


def test_an_axis_has_one_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an axis stands under another name"):
        save(Trace((), axes={"other": AXES["source"]}), tmp_path)


def test_info_must_be_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be plain JSON"):
        save(Trace((), info={"model": object()}), tmp_path)
    with pytest.raises(ConfigError, match="must be plain JSON"):
        save(Trace((), info={"loss": float("nan")}), tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- damage -----------------------------------------------------------------------------------------------------------


def test_no_trace(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no trace") as error:
        load(tmp_path / "nowhere")
    assert (error.value.got, error.value.wanted) == (tmp_path / "nowhere", "a folder with trace.json")


def test_no_tensors(tmp_path: Path) -> None:
    save(a_trace(), tmp_path)
    file_of(tmp_path).unlink()
    with pytest.raises(DataError, match="a trace cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize("cut", [0, 5, 200, -1])
def test_truncated_tensors(tmp_path: Path, cut: int) -> None:
    save(a_trace(), tmp_path)
    path = file_of(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match="a trace is damaged") as error:
        load(tmp_path)
    assert error.value.where == path
    assert "bytes that are not the ones written" in str(error.value)


def test_one_flipped_bit(tmp_path: Path) -> None:
    save(a_trace(), tmp_path)
    path = file_of(tmp_path)
    data = bytearray(path.read_bytes())
    data[-7] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="a trace is damaged"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"version": 1}', '{"version": "1"}', "\udcff"])
def test_a_header_that_is_none(tmp_path: Path, text: str) -> None:
    save(a_trace(), tmp_path)
    (tmp_path / "trace.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match="a trace is damaged") as error:
        load(tmp_path)
    assert error.value.where == tmp_path / "trace.json"


@pytest.mark.parametrize(
    "keys",
    [
        {"tensors": "../../secret.safetensors"},
        {"tensors": "model.safetensors"},
        {"layers": [{"name": "x"}]},
        {"layers": 3},
        {"axes": [{"name": "source", "tokens": [1], "offsets": [], "text": ""}]},
        {"unknown": 1},
    ],
)
def test_a_header_that_says_something_else(tmp_path: Path, keys: dict[str, Any]) -> None:
    save(a_trace(), tmp_path)
    change(tmp_path, **keys)
    with pytest.raises(DataError, match="a trace is damaged"):
        load(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("shape", [2, 4, 8, 8]), ("shape", [2, 4, -9, 9]), ("bins", [0, 1])])
def test_a_header_that_does_not_fit_its_tensors(tmp_path: Path, name: str, value: list[int]) -> None:
    save(a_trace(), tmp_path)
    layers = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["layers"]
    change(tmp_path, layers=[layers[0] | {name: value}, *layers[1:]])
    with pytest.raises(DataError, match="a trace is damaged"):
        load(tmp_path)


@pytest.mark.parametrize("shape", [(8,), (3, 9), (2, 1, 9), ()])
def test_places_that_are_not_those_of_the_rows(tmp_path: Path, shape: tuple[int, ...]) -> None:
    save(a_trace(), tmp_path, exact=True)
    tensors = load_file(file_of(tmp_path))
    tensors["0.positions"] = torch.zeros(shape, dtype=torch.long)
    data = to_bytes(tensors)
    file_of(tmp_path).write_bytes(data)
    change(tmp_path, sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(DataError, match=r'a trace is damaged\n  got:    "positions" of '):
        load(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "got", "wanted"),
    [
        (("layers", 0, "shape", 0), None, '"layers.0.shape.0" has a wrong value: None', "a valid int"),
        (("layers", 0, "bins"), [0, 1], 'sizes of "encoder": shape [2, 4, 9, 9], bins [0, 1]', "a shape of 0 or more"),
        (("layers", 1, "kind"), "own", 'kind of "decoder": own', "self or cross"),
        (("axes", 0, "offsets"), [], 'axis "source": 0 offsets', "3, as many as it has tokens"),
        (("tensors",), "../x", "tensors: '../x'", "the name of a file beside it"),
    ],
)
def test_a_header_that_was_edited_says_where_it_is_wrong(
    tmp_path: Path, place: tuple[Any, ...], value: Any, got: str, wanted: str
) -> None:
    save(a_trace(), tmp_path)
    table = inner = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    change(tmp_path, **table)
    with pytest.raises(DataError, match="a trace is damaged") as error:
        load(tmp_path)
    assert error.value.got == got
    assert str(error.value.wanted).startswith(wanted)
    assert error.value.where == tmp_path / "trace.json"


def test_a_header_of_endless_brackets(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(DataError, match="a trace is damaged"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "change_of", "got", "wanted"),
    [
        ("map", lambda x: x.long(), "(2, 4, 9, 9), torch.int64", "(2, 4, 9, 9), torch.float32"),
        ("weights", lambda x: x.double(), "(2, 4, 9, 9), torch.float64", "(2, 4, 9, 9), torch.float32"),
        ("top.keys", lambda x: x.float(), "(2, 4, 9, 8), torch.float32", "(2, 4, 9, 8), torch.int32"),
        ("top.keys", lambda x: x + 100, "100", "-1 .. 8"),
        ("lse", lambda x: x[:, :1], "(2, 1, 9), torch.float32", "(2, 4, 9), torch.float32"),
    ],
)
def test_tensors_of_another_type_say_so(tmp_path: Path, name: str, change_of: Any, got: str, wanted: str) -> None:
    save(a_trace(), tmp_path, exact=True)
    tensors = load_file(file_of(tmp_path))
    tensors[f"0.{name}"] = change_of(tensors[f"0.{name}"]).contiguous()
    data = to_bytes(tensors)
    file_of(tmp_path).write_bytes(data)
    change(tmp_path, sha256=hashlib.sha256(data).hexdigest())
    with pytest.raises(DataError, match="a trace is damaged") as error:
        load(tmp_path)
    assert error.value.got == f'"{name}" of "encoder": {got}'
    assert error.value.wanted == wanted
    assert error.value.where == tmp_path / "trace.json"


def test_a_later_version(tmp_path: Path) -> None:
    save(a_trace(), tmp_path)
    change(tmp_path, version=2, more="of it")
    with pytest.raises(DataError, match="a trace of a later version") as error:
        load(tmp_path)
    assert (error.value.got, error.value.wanted, error.value.remedy) == (2, 1, "a newer regard reads it")
