"""Observing regard's own models: every layer in its place, every row exact, and no output changed by it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.config import read_section
from regard.errors import ConfigError, RegardError
from regard.layers.attention import CrossAttention, SelfAttention, merge_heads
from regard.look.collect import LayerView, observe
from regard.models import Sizes, family, with_preset
from regard.ops.attention import attend, reference
from regard.ops.call import Call
from regard.ops.masks import causal, padding
from regard.types import Batch, Sequences, View

WORDS = 11
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"encoder_layers": 2, "decoder_layers": 2, "model_dim": 16, "num_heads": 4, "ffn_dim": 16},
    "recurrent": {"embedding_dim": 8, "hidden_dim": 12},
    "convolutional": {"encoder_layers": 1, "decoder_layers": 2, "embedding_dim": 8, "hidden_dim": 12},
}
POSITIONS = ["sinusoidal", "rotary", "alibi", "t5", "shaw", "transformer-xl"]
FORMS: list[tuple[str, dict[str, Any]]] = [
    *(("transformer", {"position": position, "num_kv_heads": 2}) for position in POSITIONS),
    ("recurrent", {"attention": "additive"}),
    ("recurrent", {"attention": "multiplicative", "cell": "lstm"}),
    ("convolutional", {}),
]
every_form = pytest.mark.parametrize(
    ("name", "form"), FORMS, ids=lambda part: "-".join(map(str, part.values())) if isinstance(part, dict) else part
)


def build(name: str, **form: Any) -> Any:
    config = read_section(family(name).Config, with_preset(name, SMALL[name] | form), where="this test")
    return family(name).build(config, Sizes(WORDS, WORDS, shared=False)).eval()


def sequences(lengths: list[int]) -> Sequences:
    return Sequences(torch.randint(WORDS, (len(lengths), max(lengths))), torch.tensor(lengths))


def a_batch() -> Batch:
    return Batch(sequences([5, 3]), sequences([7, 6]))


def whole(view: View) -> Tensor:
    return view.rows(range(view.shape[2]))


def run_steps(model: Any, batch: Batch, sizes: tuple[int, ...]) -> Any:
    assert batch.target is not None
    state = model.start(batch.source, 8)
    for tokens in batch.target.ids[:, : sum(sizes)].split(list(sizes), dim=1):
        _, state = model.step(tokens, state)
    return state


# --- what is seen -----------------------------------------------------------------------------------------------------


@every_form
@torch.no_grad()
def test_no_output_changes(name: str, form: dict[str, Any]) -> None:
    model, batch = build(name, **form), a_batch()
    plain = model.hidden(batch)
    with observe(model):
        seen = model.hidden(batch)
    assert torch.equal(seen, plain)


@torch.no_grad()
def test_layers_come_in_order_with_their_names_and_axes() -> None:
    model, batch = build("transformer"), a_batch()
    with regard.observe(model) as trace:
        model.hidden(batch)
    own, cross = ("self", "target", "target"), ("cross", "target", "source")
    assert [(v.name, v.kind, v.rows_axis, v.keys_axis, v.shape) for v in trace] == [
        ("encoder.blocks.0.attention.body", "self", "source", "source", (2, 4, 5, 5)),
        ("encoder.blocks.1.attention.body", "self", "source", "source", (2, 4, 5, 5)),
        ("decoder.blocks.0.attention.body", *own, (2, 4, 6, 6)),
        ("decoder.blocks.0.cross.body", *cross, (2, 4, 6, 5)),
        ("decoder.blocks.1.attention.body", *own, (2, 4, 6, 6)),
        ("decoder.blocks.1.cross.body", *cross, (2, 4, 6, 5)),
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("recurrent", ["decoder.attention"]), ("convolutional", ["decoder.0", "decoder.1"])],
)
@torch.no_grad()
def test_other_families_look_at_the_source(name: str, wanted: list[str]) -> None:
    model, batch = build(name), a_batch()
    with observe(model) as trace:
        model.hidden(batch)
    assert [(v.name, v.kind, v.rows_axis, v.keys_axis) for v in trace] == [
        (path, "cross", "target", "source") for path in wanted
    ]
    assert {v.shape for v in trace} == {(2, 1, 6, 5)}
    for view in trace:
        assert whole(view)[1, :, :, 3:].abs().max() == 0  # padding of the source
        torch.testing.assert_close(whole(view).sum(-1), torch.ones(2, 1, 6))
        assert (view.value_norms is None) == (name == "recurrent")


@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_weights_and_values_give_what_the_layer_puts_out(position: str) -> None:
    """Independent of what observing remembers: the input of each output projection, caught by a hook."""
    model, batch = build("transformer", position=position, num_kv_heads=2), a_batch()
    caught: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, (SelfAttention, CrossAttention)):
            module.out.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    with observe(model) as trace:
        model.hidden(batch)
    assert len(trace) == len(caught) == 6
    for view, wanted in zip(trace, caught, strict=True):
        assert isinstance(view, LayerView)
        assert view.call is not None
        values = view.call.v.repeat_interleave(2, dim=1)
        torch.testing.assert_close(merge_heads(whole(view) @ values), wanted)
        torch.testing.assert_close(view.received, whole(view).sum(2))
        torch.testing.assert_close(view.top(2)[0], whole(view).topk(2).values)
        torch.testing.assert_close(view.map(64), whole(view))


@torch.no_grad()
def test_value_norms_are_those_of_the_projected_values() -> None:
    layer = SelfAttention(8, 2)
    with observe(layer) as trace:
        layer(torch.randn(1, 3, 8))
    (view,) = trace
    assert isinstance(view, LayerView)
    assert view.call is not None
    for head in range(2):
        written = view.call.v[:, head] @ layer.out.weight[:, 4 * head : 4 * head + 4].t()
        assert view.value_norms is not None
        torch.testing.assert_close(view.value_norms[:, head], written.norm(dim=-1))


@torch.no_grad()
def test_a_trace_is_never_empty() -> None:
    """A model without attention, and one that did not run inside: an error says which of the two it was."""
    model = build("recurrent", attention="none")
    nothing = (
        "no attention of this model could be observed\n  got:    {}\n"
        "  wanted: layers that call regard's attend, or the attention functions of transformers"
    )
    with pytest.raises(RegardError) as raised, observe(model):
        model.hidden(a_batch())
    assert str(raised.value) == nothing.format("Recurrent")
    linear = nn.Linear(2, 2)
    with pytest.raises(RegardError) as raised, observe(linear):
        linear(torch.zeros(1, 2))
    assert str(raised.value) == nothing.format("Linear")
    with pytest.raises(RegardError) as raised, observe(SelfAttention(8, 2)):
        pass
    assert str(raised.value) == (
        "nothing was observed: the model did not run inside the block\n  got:    SelfAttention\n"
        "  try:    with regard.observe(model) as trace: model(ids)"
    )


def test_what_goes_wrong_inside_the_block_comes_out_of_it_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), observe(nn.Linear(2, 2)):
        _ = 1 / 0


def test_only_models_are_observed() -> None:
    observed: Any = "x"
    with pytest.raises(RegardError) as raised, observe(observed):
        pass
    assert str(raised.value) == (
        "this is no model to observe\n  got:    str\n"
        "  wanted: a torch.nn.Module; that of a run is regard.load(folder).model"
    )


@torch.no_grad()
def test_layers_and_rows_that_are_not_there_are_named() -> None:
    model = nn.Sequential(SelfAttention(8, 2), SelfAttention(8, 2))
    with observe(model) as trace:
        model(torch.randn(1, 5, 8))
    with pytest.raises(IndexError) as raised:
        trace[5]
    assert isinstance(raised.value, RegardError)
    assert str(raised.value) == "no such layer in this trace\n  got:    5\n  wanted: 0 to 1"
    assert trace[-1] is trace[1]
    assert len(list(reversed(trace))) == 2  # type: ignore[call-overload]
    for rows in (slice(0, 2), 1, ["a"], [0.5]):
        given: Any = rows
        with pytest.raises(ConfigError) as refused:
            trace[0].rows(given)
        assert str(refused.value) == (
            f"these rows are not understood\n  got:    {rows!r}\n  wanted: numbers from 0 to 4, as range(0, 3)"
        )


@torch.no_grad()
def test_a_trace_can_be_asked_while_it_fills() -> None:
    layer, x = SelfAttention(8, 2), torch.randn(1, 3, 8)
    with observe(layer) as trace:
        layer(x)
        inside = whole(trace[0])
    assert torch.equal(whole(trace[0]), inside)


@torch.no_grad()
def test_one_pass_through_shared_weights_is_several_layers() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = SelfAttention(8, 2)

        def forward(self, x: Tensor) -> Any:
            return self.layer(self.layer(x))

    model = Twice()
    with observe(model) as trace:
        model(torch.randn(1, 3, 8))
        model(x := torch.randn(1, 4, 8))
    assert [(v.name, v.shape) for v in trace] == [("layer", (1, 2, 4, 4)), ("layer#2", (1, 2, 4, 4))]
    with observe(model.layer) as first:
        y = model.layer(x)
    with observe(model.layer) as second:
        model.layer(y)
    assert torch.equal(whole(trace[0]), whole(first[0]))
    assert torch.equal(whole(trace[1]), whole(second[0]))


@torch.no_grad()
def test_rows_of_padding_count_nowhere_if_told() -> None:
    model, batch = build("transformer"), a_batch()
    assert batch.target is not None
    lengths = {"source": batch.source.lengths, "target": batch.target.lengths - 1}
    with observe(model) as plain:
        model.hidden(batch)
    with observe(model, lengths=lengths) as told:
        model.hidden(batch)
    for before, after in zip(plain, told, strict=True):
        real = torch.arange(after.shape[2]) < lengths[after.rows_axis][:, None]
        wanted = whole(before) * real[:, None, :, None]
        assert not torch.equal(whole(before), wanted)
        torch.testing.assert_close(whole(after), wanted)
        torch.testing.assert_close(after.received, wanted.sum(2))
        assert (after.entropy * ~real[:, None]).abs().max() == 0


# --- several calls ----------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1, 1), (3, 1, 2)])
@torch.no_grad()
def test_cached_steps_become_the_rows_of_one_view(name: str, form: dict[str, Any], sizes: tuple[int, ...]) -> None:
    model, batch = build(name, **form), a_batch()
    with observe(model) as wanted:
        model.hidden(batch)
    with observe(model) as found:
        run_steps(model, batch, sizes)
    assert [v.name for v in found] == [v.name for v in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(whole(one), whole(other), rtol=0, atol=1e-5)
        torch.testing.assert_close(one.distance, other.distance, rtol=0, atol=1e-4)
        torch.testing.assert_close(one.diagonal(-1), other.diagonal(-1), rtol=0, atol=1e-5)
        assert isinstance(one, LayerView)
        if name == "transformer":
            assert one.call is not None
            assert one.call.positions is None


@every_form
@torch.no_grad()
def test_another_pass_replaces_the_first(name: str, form: dict[str, Any]) -> None:
    model, first, second = build(name, **form), a_batch(), Batch(sequences([4]), sequences([5]))
    with observe(model) as wanted:
        model.hidden(second)
    with observe(model) as found:
        model.hidden(first)
        model.hidden(second)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(whole(one), whole(other))
    with observe(model) as found:
        run_steps(model, first, (2, 1))
        run_steps(model, second, (1, 3))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(whole(one), whole(other), rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_same_pass_twice_is_not_twice_as_long() -> None:
    model, batch = build("transformer"), a_batch()
    with observe(model) as trace:
        model.hidden(batch)
        model.hidden(batch)
    assert {v.shape for v in trace} == {(2, 4, 5, 5), (2, 4, 6, 6), (2, 4, 6, 5)}


@torch.no_grad()
def test_steps_that_were_taken_back_are_gone() -> None:
    model, batch = build("transformer", position="rotary"), a_batch()
    assert batch.target is not None
    with observe(model) as wanted:
        run_steps(model, batch, (6,))
    with observe(model) as found:
        state = model.start(batch.source, 8)
        for tokens in (batch.target.ids[:, :3], torch.randint(WORDS, (2, 2))):
            _, state = model.step(tokens, state)
        _, state = model.step(batch.target.ids[:, 3:6], state.truncate(torch.tensor([3, 3])))
    for one, other in zip(found, wanted, strict=True):
        if one.kind == "self":
            torch.testing.assert_close(whole(one), whole(other), rtol=0, atol=1e-5)


@torch.no_grad()
def test_steps_after_a_prefix_that_was_not_seen_keep_their_positions() -> None:
    model, batch = build("transformer", position="alibi"), a_batch()
    assert batch.target is not None
    with observe(model) as wanted:
        model.hidden(batch)
    state = run_steps(model, batch, (4,))
    with observe(model) as found:
        for tokens in batch.target.ids[:, 4:6].split(1, dim=1):
            _, state = model.step(tokens, state)
    own = [view for view in found if view.kind == "self"]
    for one, other in zip(own, [v for v in wanted if v.kind == "self" and v.rows_axis == "target"], strict=True):
        assert one.shape == (2, 4, 2, 6)
        torch.testing.assert_close(whole(one), whole(other)[:, :, 4:], rtol=0, atol=1e-5)
        torch.testing.assert_close(one.distance, other.distance[:, :, 4:], rtol=0, atol=1e-4)


@torch.no_grad()
def test_rows_that_change_places_between_steps_are_an_error() -> None:
    model, batch = build("transformer"), a_batch()
    assert batch.target is not None
    with observe(model):
        state = run_steps(model, batch, (2,))
        same = state.select(torch.tensor([0, 1]))
        model.step(batch.target.ids[:, 2:3], same)
    with pytest.raises(RegardError) as error, observe(model):
        model.step(batch.target.ids[:, 2:3], run_steps(model, batch, (2,)).select(torch.tensor([1, 0])))
    assert str(error.value).splitlines() == [
        "the keys of earlier rows changed between two steps, so that these are rows of different texts",
        '  got:    step 3 of "decoder.blocks.0.attention.body"',
        "  wanted: a cache that only grows, and rows of the batch that stay in their places (no beam search)",
        "  try:    observe one forward pass over the finished text",
    ]


@torch.no_grad()
def test_a_cache_that_is_written_on_does_not_reach_the_trace() -> None:
    model, batch = build("transformer"), a_batch()
    assert batch.target is not None
    with observe(model) as trace:
        state = run_steps(model, batch, (2, 1))
    expected = None
    for _ in range(2):
        found = [whole(view) for view in trace]
        expected = expected or found
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        model.step(torch.randint(WORDS, (2, 3)), state.truncate(torch.tensor([0, 0])))


def a_view(kind: str) -> LayerView:
    return LayerView("layer", kind, ("", ""), None)


@pytest.mark.parametrize("start", [0, 2])
def test_weights_of_steps_stand_where_their_keys_are(start: int) -> None:
    """Steps that give weights: from the first token or after some that were not seen, and with a step taken back."""
    weights, keys = torch.rand(1, 2, 6, 6).tril(), torch.randn(1, 2, 6, 4)
    view = a_view("self")
    for first, last in ((start, 4), (4, 6), (5, 6)):
        view.add_weights(weights[:, :, first:last, :last], keys[:, :, :last], keys[:, :, :last], None)
    assert view.shape == (1, 2, 6 - start, 6)
    assert torch.equal(whole(view), weights[:, :, start:])
    away = (torch.arange(6) - torch.arange(start, 6)[:, None]).abs()
    torch.testing.assert_close(view.distance, (weights[:, :, start:] * away).sum(-1))


@pytest.mark.parametrize("same", [True, False])
def test_a_step_under_another_mask_leaves_earlier_rows_alone(same: bool) -> None:
    q, k, v = torch.randn(3, 2, 2, 4, 8)
    masks = [causal() & padding(torch.tensor([4, lengths])) for lengths in (2, 2 if same else 1)]
    calls = [
        Call(q[:, :, :3], k[:, :, :3], v[:, :, :3], masks[0], (), 0.5, 0.0, None),
        Call(q[:, :, 3:], k, v, masks[1], (), 0.5, 0.0, torch.tensor([3])),
    ]
    view = a_view("self")
    for call in calls:
        view.add_call(call, None)
    assert (view.call is not None) == same
    wanted = [reference(call)[1] for call in calls]
    torch.testing.assert_close(whole(view)[:, :, :3, :3], wanted[0])
    torch.testing.assert_close(whole(view)[:, :, 3:], wanted[1])


# --- limits and care --------------------------------------------------------------------------------------------------


def test_gradients_flow_and_the_trace_holds_none() -> None:
    model, batch = build("transformer").train(), a_batch()
    with observe(model) as trace:
        model.hidden(batch).sum().backward()
    assert model.decoder.blocks[0].attention.body.qkv.weight.grad is not None
    view = trace[2]
    assert isinstance(view, LayerView)
    assert view.call is not None
    assert not any(x.requires_grad for x in (view.call.q, view.call.k, whole(view), view.value_norms, view.entropy))


@pytest.mark.parametrize("position", ["t5", "sinusoidal"])
def test_measures_after_an_update_are_refused(position: str) -> None:
    """The bias of T5 and the output projection are the model's own weights, not copies of them."""
    model, batch = build("transformer", position=position), a_batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observe(model) as trace:
        model.hidden(batch).sum().backward()
    before = whole(trace[0])
    assert torch.equal(whole(trace[0]), before)
    optimizer.step()
    with pytest.raises(RegardError, match=r'of "encoder.*body" were changed after it was observed'):
        whole(trace[0])


def test_nothing_stays_behind_after_an_error() -> None:
    layer = SelfAttention(8, 2)
    with pytest.raises(RuntimeError), observe(layer):
        layer(torch.randn(1, 3, 7))
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in layer.modules())
    with observe(layer) as trace:
        layer(torch.randn(1, 3, 8))
    assert len(trace) == 1


@torch.no_grad()
def test_only_the_model_that_is_observed_is_seen() -> None:
    one, other, x = SelfAttention(8, 2), SelfAttention(8, 4), torch.randn(1, 3, 8)
    with observe(one) as outer, observe(other) as inner:
        other(x)
        one(x)
        attend(*torch.randn(3, 1, 2, 9, 4), mask=causal())
    assert [v.shape for v in outer] == [(1, 2, 3, 3)]
    assert [v.shape for v in inner] == [(1, 4, 3, 3)]


@torch.no_grad()
def test_what_another_thread_runs_is_not_seen() -> None:
    class Waits(nn.Module):
        def forward(self, x: Tensor) -> Any:
            inside.set()
            assert finished.wait(20)
            return model["layer"](x)

    inside, finished = threading.Event(), threading.Event()
    model = nn.ModuleDict({"layer": SelfAttention(8, 2), "waits": Waits()})
    with observe(model) as trace:
        thread = threading.Thread(target=lambda: model["waits"](torch.randn(1, 5, 8)))
        thread.start()
        assert inside.wait(20)
        for rows in (4, 3):  # two passes while the other thread is in the middle of one
            model["layer"](torch.randn(1, rows, 8))
        finished.set()
        thread.join()
    assert [(v.name, v.shape) for v in trace] == [("layer", (1, 2, 3, 3))]


@pytest.mark.parametrize("inference", [False, True])
def test_it_works_in_inference_mode(inference: bool) -> None:
    model, batch = build("transformer", position="t5"), a_batch()
    with torch.inference_mode(inference), observe(model) as trace:
        model.hidden(batch)
    for view in trace:
        assert view.entropy.isfinite().all()


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_a_compiled_model_is_refused(how: str) -> None:
    model: Any = SelfAttention(8, 2)
    if how == "wrapped":
        model = torch.compile(model, backend="eager")
    else:
        model.compile(backend="eager")
    with pytest.raises(RegardError, match="a compiled model cannot be observed"), observe(model):
        pass


def test_attention_that_cannot_be_seen_is_an_error_and_not_an_empty_trace() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    with pytest.raises(RegardError, match="no attention of this model could be observed"), observe(layer):
        layer(torch.randn(1, 3, 8))
