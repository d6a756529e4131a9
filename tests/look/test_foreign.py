"""Models of transformers are observed as they are: exact weights, and outputs that no bit of changes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.generation.configuration_utils import CompileConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from regard.errors import RegardError
from regard.look.collect import LayerView, observe
from regard.types import Trace, View

SIZES: dict[str, Any] = {"vocab_size": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
BERT: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA: dict[str, Any] = {**BERT, "num_key_value_heads": 2, "head_dim": 8}
BART = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
BART |= {"d_model": 32, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 32}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": ("GPT2Config", {"n_layer": 2, "n_head": 4, "n_embd": 32}),
    "LlamaForCausalLM": ("LlamaConfig", LLAMA),
    "MistralForCausalLM": ("MistralConfig", LLAMA | {"sliding_window": 3}),
    "Gemma3ForCausalLM": (
        "Gemma3TextConfig",
        LLAMA | {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "BertModel": ("BertConfig", BERT),
    "AlbertModel": ("AlbertConfig", BERT | {"embedding_size": 16}),
    "DistilBertModel": ("DistilBertConfig", {"n_layers": 2, "n_heads": 4, "dim": 32, "hidden_dim": 40}),
    "BartForConditionalGeneration": ("BartConfig", BART | {"decoder_start_token_id": 1, "forced_eos_token_id": None}),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"num_layers": 2, "num_heads": 4, "d_model": 32, "d_kv": 8, "d_ff": 40, "decoder_start_token_id": 0},
    ),
    "Gemma2ForCausalLM": ("Gemma2Config", LLAMA | {"attn_logit_softcapping": 1.0, "sliding_window": 3}),
    "GptOssForCausalLM": ("GptOssConfig", LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1}),
}
PLAIN = [name for name in CONFIGS if name not in ("Gemma2ForCausalLM", "GptOssForCausalLM")]
CAUSAL = ["GPT2LMHeadModel", "LlamaForCausalLM"]


def build(name: str, implementation: str = "sdpa", **more: Any) -> Any:
    """A small model with weights that are large enough for heads to differ."""
    config_name, sizes = CONFIGS[name]
    config = getattr(transformers, config_name)(**SIZES | sizes | more)
    config._attn_implementation = implementation
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def inputs(model: Any, pad: str = "none") -> dict[str, Tensor]:
    ids, mask = torch.randint(2, 40, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    if pad != "none":
        mask[1, slice(4, 7) if pad == "right" else slice(0, 3)] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    return given | ({"decoder_input_ids": torch.randint(2, 40, (2, 5))} if model.config.is_encoder_decoder else {})


def attentions(model: Any, given: dict[str, Tensor]) -> list[Tensor]:
    """What the model itself says, which it does with eager attention only, in the order of its layers."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    said = model(**given, output_attentions=True)
    model.set_attn_implementation(before)
    if not model.config.is_encoder_decoder:
        return list(said.attentions)
    both = zip(said.decoder_attentions, said.cross_attentions, strict=True)
    return [*said.encoder_attentions, *(layer for pair in both for layer in pair)]


def whole(view: View) -> Tensor:
    return view.rows(range(view.shape[2]))


def tensors(output: Any) -> list[Tensor]:
    return [value for value in output.values() if isinstance(value, Tensor)]


def functions() -> dict[str, Any]:
    return dict(ALL_ATTENTION_FUNCTIONS)


@pytest.fixture(autouse=True)
def the_library_is_left_as_it_was() -> Iterator[None]:
    before, stance = functions(), torch._dynamo.eval_frame._stance.stance
    yield
    assert functions() == before
    assert torch._dynamo.eval_frame._stance.stance == stance == "default"
    assert "eager" not in before


# --- the same numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pad", ["none", "right", "left"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_a_trace_is_what_eager_attention_says(name: str, implementation: str, pad: str) -> None:
    model = build(name, implementation)
    given = inputs(model, pad)
    plain = model(**given)
    with observe(model) as trace:
        seen = model(**given)
    for one, other in zip(tensors(seen), tensors(plain), strict=True):
        assert torch.equal(one, other)
    wanted = attentions(model, given)
    assert len(trace) == len(wanted)
    for view, weights in zip(trace, wanted, strict=True):
        assert view.shape == weights.shape
        found, entropy = whole(view), view.entropy
        if implementation == "sdpa" and view.rows_axis == "source":
            # a row of padding may attend nowhere: zeros for sdpa, the same everywhere for eager, and so on above
            real = given["attention_mask"][:, None]
            assert (found.sum(-1) * real > 0.99).eq(real == 1).all()
            found, weights, entropy = found * real[..., None], weights * real[..., None], entropy * real
        torch.testing.assert_close(found, weights, rtol=0, atol=1e-5)
        assert isinstance(view, LayerView)
        assert view.call is not None  # not the matrix: q and k
        assert view.value_norms is not None
        torch.testing.assert_close(entropy, torch.special.entr(weights).sum(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "GptOssForCausalLM"])
@torch.no_grad()
def test_a_soft_cap_or_a_sink_is_seen_as_it_is(name: str) -> None:
    model = build(name, "eager")
    given = inputs(model, "right")
    plain = model(**given)
    with observe(model) as trace:
        seen = model(**given)
    assert torch.equal(seen.logits, plain.logits)
    for view, weights in zip(trace, attentions(model, given), strict=True):
        torch.testing.assert_close(whole(view), weights, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_soft_cap_too_weak_to_show_in_one_row_is_known_all_the_same() -> None:
    model = build("Gemma2ForCausalLM", "eager", attn_logit_softcapping=1e4)
    with observe(model) as trace:
        model(**inputs(model))
    assert all(isinstance(view, LayerView) and view.call is None for view in trace)


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_half_precision(name: str) -> None:
    model = build(name).to(torch.bfloat16)
    given = inputs(model, "right")
    plain = model(**given)
    with observe(model) as trace:
        seen = model(**given)
    assert torch.equal(seen.logits, plain.logits)
    for view, weights in zip(trace, attentions(model, given), strict=True):
        torch.testing.assert_close(whole(view), weights.float(), rtol=0, atol=0.03)


@torch.no_grad()
def test_names_kinds_and_axes() -> None:
    model = build("BartForConditionalGeneration")
    with observe(model) as trace:
        model(**inputs(model))
    assert [(v.name, v.kind, v.rows_axis, v.keys_axis) for v in trace][1:4] == [
        ("model.encoder.layers.1.self_attn", "self", "source", "source"),
        ("model.decoder.layers.0.self_attn", "self", "target", "target"),
        ("model.decoder.layers.0.encoder_attn", "cross", "target", "source"),
    ]
    llama = build("LlamaForCausalLM")
    with observe(llama) as trace:
        llama(**inputs(llama))
    assert [(v.name, v.kind, v.rows_axis, v.keys_axis) for v in trace] == [
        (f"model.layers.{i}.self_attn", "self", "source", "source") for i in range(2)
    ]


@torch.no_grad()
def test_layers_that_share_their_weights_are_several() -> None:
    model = build("AlbertModel")
    with observe(model) as trace:
        model(**inputs(model))
    path = "encoder.albert_layer_groups.0.albert_layers.0.attention"
    assert [view.name for view in trace] == [path, f"{path}#2"]


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "BertModel"])
@torch.no_grad()
def test_cross_attention_says_that_it_is(name: str) -> None:
    model = build(name, add_cross_attention=True, is_decoder=True)
    given = inputs(model) | {"encoder_hidden_states": torch.randn(2, 7, 32)}
    with observe(model) as trace:
        said = model(**given)
    assert said is not None
    assert [view.kind for view in trace] == ["self", "cross"] * 2


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("GPT2LMHeadModel", lambda model: model.transformer.h[0].attn.c_proj.weight.t()),
        ("LlamaForCausalLM", lambda model: model.model.layers[0].self_attn.o_proj.weight),
        ("BertModel", lambda model: model.encoder.layer[0].attention.output.dense.weight),
    ],
)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_the_output_projection_is_found(name: str, implementation: str, weight: Callable[[Any], Tensor]) -> None:
    model = build(name, implementation)
    with observe(model) as trace:
        model(**inputs(model))
    view = trace[0]
    assert isinstance(view, LayerView)
    assert view.call is not None
    values = view.call.v.repeat_interleave(4 // view.call.v.shape[1], dim=1)
    for head in range(4):
        written = values[:, head] @ weight(model)[:, 8 * head : 8 * head + 8].t()
        assert view.value_norms is not None
        torch.testing.assert_close(view.value_norms[:, head], written.norm(dim=-1))


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BartForConditionalGeneration"])
def test_outputs_and_values_are_told_in_their_graph(name: str) -> None:
    """As for regard's own models: what explains by gradients has them here too."""
    model = build(name)
    told: list[tuple[Any, Tensor, Tensor]] = []
    with observe(model, tell=lambda *one: told.append(one)) as trace:
        score = model(**inputs(model)).logits.sum()
    assert [view for view, _, _ in told] == list(trace)
    gradients = torch.autograd.grad(score, [out for _, out, _ in told])
    for (view, out, values), gradient in zip(told, gradients, strict=True):
        assert gradient.abs().max() > 0
        torch.testing.assert_close(whole(view) @ values.repeat_interleave(4 // values.shape[1], dim=1), out)


@torch.no_grad()
def test_a_long_causal_text_keeps_no_mask() -> None:
    model = build("LlamaForCausalLM")
    with observe(model) as trace:
        model(input_ids=torch.randint(2, 40, (1, 30)))
    for view in trace:
        assert isinstance(view, LayerView)
        assert view.call is not None
        assert view.call.plain_causal


# --- generation -------------------------------------------------------------------------------------------------------


def generated(model: Any, given: dict[str, Tensor], **options: Any) -> tuple[Trace, Tensor]:
    with observe(model) as trace:
        ids = model.generate(**given, max_new_tokens=5, do_sample=False, disable_compile=True, **options)
    return trace, ids


def continued(ids: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What one pass over a text and what was generated after it is given; the last token was never read."""
    mask = torch.cat([given["attention_mask"], torch.ones(2, 4, dtype=torch.long)], dim=1)
    return {"input_ids": ids[:, :-1], "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("pad", ["none", "left"])
@pytest.mark.parametrize("name", [*CAUSAL, "BartForConditionalGeneration", "T5ForConditionalGeneration"])
@torch.no_grad()
def test_generation_shows_what_one_pass_over_its_text_shows(name: str, pad: str, cache: str) -> None:
    model = build(name)
    given = {key: value for key, value in inputs(model, pad).items() if key != "decoder_input_ids"}
    trace, ids = generated(model, given, cache_implementation=cache)
    plain = model.generate(**given, max_new_tokens=5, do_sample=False, disable_compile=True, cache_implementation=cache)
    assert torch.equal(ids, plain)
    again = given | {"decoder_input_ids": ids[:, :-1]} if model.config.is_encoder_decoder else continued(ids, given)
    with observe(model) as wanted:
        model(**again)
    assert len(trace) == len(wanted)
    for one, other in zip(trace, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(whole(one), whole(other), rtol=0, atol=1e-5)
        torch.testing.assert_close(one.distance, other.distance, rtol=0, atol=1e-4)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("room", [0, 9])
@pytest.mark.parametrize("name", CAUSAL)
def test_what_is_written_into_a_cache_later_does_not_reach_the_trace(name: str, room: int, inference: bool) -> None:
    """After the block the same memory is filled with another text: the trace stays, or says that it cannot."""
    with torch.inference_mode(inference), torch.no_grad():
        model = build(name)
        first, second = (inputs(model)["input_ids"] for _ in range(2))
        cache = transformers.StaticCache(config=model.config, max_cache_len=first.shape[1] + room)
        with observe(model) as trace:
            model(input_ids=first, past_key_values=cache)
        with observe(model) as wanted:
            model(input_ids=first)
        cache.reset()
        model(input_ids=second, past_key_values=cache)
        for one, other in zip(trace, wanted, strict=True):
            if room or inference:
                torch.testing.assert_close(whole(one), whole(other))
                torch.testing.assert_close(one.value_norms, other.value_norms)
            else:
                with pytest.raises(RegardError, match=r"weights, masks or keys of .* were changed after"):
                    whole(one)


@torch.no_grad()
def test_generation_that_compiles_itself_runs_as_it_is_written() -> None:
    model = build("LlamaForCausalLM")
    compiles = CompileConfig(backend="eager", mode=None)
    compiles._compile_all_devices = True  # or it would be CUDA only
    given = {key: value for key, value in inputs(model).items() if key == "input_ids"}
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with observe(model) as trace:
        model.generate(**given, max_new_tokens=5, cache_implementation="static", compile_config=compiles)
    assert [view.shape for view in trace] == [(2, 4, 11, 11)] * 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("window", [3, 9], ids=["shorter than the prompt", "longer"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["MistralForCausalLM", "Gemma3ForCausalLM"])
@torch.no_grad()
def test_a_window_that_slides_over_the_cache_is_followed(name: str, cache: str, window: int) -> None:
    """Its cache forgets, and one that is static moves what it holds; the trace has every key in its place."""
    model = build(name, sliding_window=window)
    for pad in ("none", "left"):
        given = inputs(model, pad)
        trace, ids = generated(model, given, cache_implementation=cache)
        with observe(model) as wanted:
            model(**continued(ids, given))
        for one, other in zip(trace, wanted, strict=True):
            assert one.shape == other.shape == (2, 4, 11, 11)
            torch.testing.assert_close(whole(one), whole(other), rtol=0, atol=1e-5)
            torch.testing.assert_close(one.distance, other.distance, rtol=0, atol=1e-4)
            torch.testing.assert_close(one.value_norms, other.value_norms, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_beam_search_is_refused() -> None:
    model = build("LlamaForCausalLM")
    with pytest.raises(RegardError, match="no beam search"):
        generated(model, inputs(model), num_beams=4)


# --- care -------------------------------------------------------------------------------------------------------------


def test_training_goes_as_without() -> None:
    model = build("LlamaForCausalLM", attention_dropout=0.5).train()
    given = inputs(model)
    gradients = []
    for watched in (False, True):
        torch.manual_seed(7)
        model.zero_grad()
        if watched:
            with observe(model) as trace:
                model(**given, labels=given["input_ids"]).loss.backward()
            assert len(trace) == 2
        else:
            model(**given, labels=given["input_ids"]).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_everything_is_restored_after_an_error() -> None:
    model = build("GPT2LMHeadModel")
    before = functions()
    with pytest.raises(IndexError), observe(model):
        model(input_ids=torch.tensor([[99]]))
    assert functions() == before
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in model.modules())
    assert model.config._attn_implementation == "sdpa"


@torch.no_grad()
def test_somebodys_own_function_is_called_and_put_back() -> None:
    model, used = build("LlamaForCausalLM"), []
    library = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def mine(*args: Any, **options: Any) -> Any:
        used.append(args[0])
        return library(*args, **options)

    ALL_ATTENTION_FUNCTIONS["sdpa"] = mine
    try:
        with observe(model) as trace:
            model(**inputs(model))
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is mine
        assert len(trace) == len(used) == 2
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


@torch.no_grad()
def test_a_function_that_does_something_else_is_an_error() -> None:
    model, library = build("LlamaForCausalLM"), ALL_ATTENTION_FUNCTIONS["sdpa"]
    ALL_ATTENTION_FUNCTIONS["sdpa"] = lambda module, q, *rest, **options: library(module, 2 * q, *rest, **options)
    try:
        with pytest.raises(RegardError) as error, observe(model):
            model(**inputs(model))
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]
    assert str(error.value).splitlines() == [
        "this layer does more than scaled dot-product attention (a soft cap, a sink), so its weights are not known",
        "  got:    LlamaAttention",
        '  try:    model.set_attn_implementation("eager"), which gives its weights itself',
    ]


@torch.no_grad()
def test_blocks_may_lie_in_each_other_and_in_different_threads() -> None:
    one, other = build("LlamaForCausalLM"), build("BertModel")
    both, results = threading.Barrier(2, timeout=20), {}

    def early(name: str, model: Any) -> None:
        with torch.no_grad(), observe(model) as trace:
            both.wait()
            model(**inputs(model))
        results[name] = trace

    def late(name: str, model: Any) -> None:
        with torch.no_grad(), observe(model) as trace:
            both.wait()
            first.join()  # the functions must still be there after the other has gone
            model(**inputs(model))
        results[name] = trace

    first = threading.Thread(target=early, args=("one", one))
    second = threading.Thread(target=late, args=("other", other))
    first.start(), second.start()
    first.join(), second.join()
    assert {name: len(trace) for name, trace in results.items()} == {"one": 2, "other": 2}
    with observe(one) as outer, observe(one) as inner:
        one(**inputs(one))
    assert [len(outer), len(inner)] == [2, 2]
    assert torch.equal(whole(outer[0]), whole(inner[0]))


@torch.no_grad()
def test_a_model_inside_another_is_heard() -> None:
    model = nn.ModuleDict({"reader": build("BertModel")})
    with observe(model) as trace:
        model["reader"](**inputs(model["reader"]))
    assert [view.name for view in trace] == [f"reader.encoder.layer.{i}.attention.self" for i in range(2)]


def test_other_functions_are_refused_at_once() -> None:
    model = build("LlamaForCausalLM", "flex_attention")
    with pytest.raises(RegardError) as error, observe(model):
        pass
    assert str(error.value).splitlines() == [
        "this attention of transformers is not observed",
        "  got:    flex_attention",
        "  wanted: sdpa or eager",
        '  try:    model.set_attn_implementation("sdpa")',
    ]


@torch.no_grad()
def test_attention_outside_of_the_interface_is_an_error() -> None:
    model = build("GPT2LMHeadModel", "eager", reorder_and_upcast_attn=True)
    with pytest.raises(RegardError, match="no attention of this model could be observed"), observe(model):
        model(**inputs(model))


def test_transformers_is_not_imported_for_other_models() -> None:
    code = (
        "import sys, torch, regard\n"
        "from regard.layers.attention import SelfAttention\n"
        "layer = SelfAttention(8, 2)\n"
        "with regard.observe(layer) as trace:\n"
        "    layer(torch.randn(1, 3, 8))\n"
        "assert len(trace) == 1\n"
        "assert 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
