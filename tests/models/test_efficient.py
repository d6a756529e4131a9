"""Efficient attention in models: transformers' Longformer under its weights, both ways; full attention where a form
should be that; what each costs; and what can be seen of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from regard.config import read_section
from regard.errors import BackendError, ConfigError, RegardError
from regard.look.collect import observe
from regard.look.document import make_document
from regard.models import Sizes, bert, efficient, efficient_causal, family, names, with_preset
from regard.models._foreign import to_ours, to_theirs
from regard.models.efficient import Config, Efficient, copies, from_foreign, pairs, to_foreign
from regard.ops.attention import backends_used
from regard.ops.masks import Mask, causal, padding
from regard.train.checkpoint import put_weights, weights
from regard.types import Axis, Batch, Sequences

DOUBLE = {"rtol": 0.0, "atol": 1e-9}
EXACT = {"rtol": 0.0, "atol": 1e-12}
VOCABULARY = 37


# --- against transformers' Longformer ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One of their classes with the sizes of its config, and how many tokens are global."""

    name: str
    global_tokens: int
    sizes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, str(self.global_tokens), *(f"{key}={value}" for key, value in self.sizes.items())])

    def theirs(self) -> Any:
        """Their model with random weights, all of which matter."""
        base = {"hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 19, "num_hidden_layers": 2}
        table = {"vocab_size": VOCABULARY, "max_position_embeddings": 43, "attention_window": 4, **base, **self.sizes}
        model = getattr(transformers, self.name)(transformers.LongformerConfig(**table)).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        return model

    def config_of(self, theirs: Any) -> tuple[Config, Sizes]:
        said = theirs.config.to_dict() | {"architectures": [self.name], "global_tokens": self.global_tokens}
        return from_foreign(said)

    def ours_of(self, theirs: Any) -> tuple[Efficient, Config]:
        """Our model with the weights of theirs, as `save_pretrained` would name them."""
        config, sizes = self.config_of(theirs)
        model = efficient.build(config, sizes).to(theirs.dtype).eval()
        put_weights(model, to_ours(pairs(config), saved(theirs), where="theirs"), where="theirs")
        return model, config

    def run_theirs(self, theirs: Any, source: Sequences) -> dict[str, Any]:
        everyone = torch.zeros_like(source.ids)
        everyone[:, : self.global_tokens] = 1
        out = theirs(
            source.ids,
            attention_mask=real(source).long(),
            global_attention_mask=everyone if self.global_tokens else None,
            token_type_ids=source.segments,
            output_hidden_states=True,
        )
        return {"states": out.hidden_states, "logits": out.get("logits"), "pooled": out.get("pooler_output")}


MASKED = Case("LongformerForMaskedLM", 1, {"layer_norm_eps": 1e-5, "type_vocab_size": 1})
CASES = [
    MASKED,
    Case("LongformerForMaskedLM", 0, {"hidden_act": "gelu_new", "hidden_size": 14, "num_attention_heads": 2}),
    Case("LongformerForMaskedLM", 3, {"attention_window": [4, 8], "num_attention_heads": 5, "pad_token_id": 4}),
    Case("LongformerModel", 2, {"num_hidden_layers": 3, "num_attention_heads": 1, "hidden_act": "relu"}),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def saved(theirs: Any) -> dict[str, Tensor]:
    """Their tensors without those that are another one's copy."""
    return {name: tensor.detach() for name, tensor in theirs.state_dict().items() if name not in copies(Config())}


def a_source(theirs: Any, lengths: tuple[int, ...] = (17, 5, 3, 10)) -> Sequences:
    """Rows that are padded with their padding."""
    config, pad = theirs.config, theirs.config.pad_token_id
    ids = torch.randint(pad + 1, config.vocab_size, (len(lengths), max(lengths)))
    ids[torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]] = pad
    return Sequences(ids, torch.tensor(lengths), torch.randint(config.type_vocab_size, ids.shape))


def real(source: Sequences) -> Tensor:
    return torch.arange(source.ids.shape[1]) < source.lengths[:, None]


def run_ours(model: Efficient, config: Config, source: Sequences) -> dict[str, Any]:
    states = tuple(model.states(source))
    assert torch.equal(model.hidden(Batch(source)), states[-1])
    return {
        "states": states,
        "logits": model.head(states[-1]) if config.masked_head else None,
        "pooled": model.pooled(states[-1], source.lengths) if config.pooler else None,
    }


def assert_same_answers(found: dict[str, Any], wanted: dict[str, Any], source: Sequences, atol: float) -> None:
    """All that theirs gives, at every real place."""
    places = real(source)
    assert len(found["states"]) == len(wanted["states"])
    for mine, other in zip(found["states"], wanted["states"], strict=True):
        assert_close(mine[places], other[places], rtol=0.0, atol=atol)
    assert (found["logits"] is None) == (wanted["logits"] is None)
    assert (found["pooled"] is None) == (wanted["pooled"] is None)
    if wanted["logits"] is not None:
        mine, other = found["logits"][places], wanted["logits"][places]
        assert_close(mine, other, rtol=0.0, atol=atol * (max(1.0, float(other.abs().max())) if atol > 1e-6 else 1.0))
    if wanted["pooled"] is not None:
        assert_close(found["pooled"], wanted["pooled"], rtol=0.0, atol=atol)


@pytest.fixture
def wide_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs makes float32 of its scores whatever they are; not here, where float64 is compared."""
    plain = F.softmax
    monkeypatch.setattr(F, "softmax", lambda x, dim, dtype=None: plain(x, dim=dim))


@every_case
@pytest.mark.parametrize("lengths", [(17, 5, 3, 10), (9, 9), (4,)], ids=["padded", "whole", "short"])
@pytest.mark.usefixtures("wide_softmax")
@torch.no_grad()
def test_every_state_and_logit_in_float64(case: Case, lengths: tuple[int, ...]) -> None:
    theirs = case.theirs().double()
    (ours, config), source = case.ours_of(theirs), a_source(theirs, lengths)
    assert_same_answers(run_ours(ours, config, source), case.run_theirs(theirs, source), source, 1e-9)


@every_case
@torch.no_grad()
def test_every_state_and_logit_in_float32(case: Case) -> None:
    theirs = case.theirs()
    (ours, config), source = case.ours_of(theirs), a_source(theirs)
    assert_same_answers(run_ours(ours, config, source), case.run_theirs(theirs, source), source, 2e-5)


@pytest.mark.usefixtures("wide_softmax")
def test_every_gradient() -> None:
    theirs = MASKED.theirs().double()
    (ours, config), source = MASKED.ours_of(theirs), a_source(theirs)
    labels = torch.randint(VOCABULARY, source.ids.shape).masked_fill(~real(source), -100)
    for model, answers in (
        (ours, run_ours(ours, config, source)),
        (theirs, MASKED.run_theirs(theirs, source)),
    ):
        F.cross_entropy(answers["logits"].flatten(0, 1), labels.flatten(), reduction="sum").backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    found = to_theirs(pairs(config), {name: parameter.grad for name, parameter in ours.named_parameters()})  # type: ignore[misc]
    assert_close(found, {name: parameter.grad for name, parameter in theirs.named_parameters()}, **DOUBLE)


@every_case
@torch.no_grad()
def test_there_and_back(case: Case, tmp_path: Path) -> None:
    theirs = case.theirs()
    theirs.save_pretrained(tmp_path / "theirs")
    table = json.loads((tmp_path / "theirs/config.json").read_text())
    tensors = load_file(tmp_path / "theirs/model.safetensors")
    config, sizes = from_foreign(table | {"global_tokens": case.global_tokens})
    ours = efficient.build(config, sizes)
    put_weights(ours, to_ours(pairs(config), tensors, where="theirs", copies=copies(config)), where="theirs")
    back = to_theirs(pairs(config), weights(ours))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    # and theirs reads what we write: its config, its class, and every tensor of it
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/config.json").write_text(json.dumps(to_foreign(config, sizes)))
    save_file(back, tmp_path / "ours/model.safetensors", {"format": "pt"})
    assert transformers.AutoConfig.from_pretrained(tmp_path / "ours").architectures == [case.name]
    again, info = getattr(transformers, case.name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert [info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set()] * 3
    source = a_source(theirs)
    found, wanted = case.run_theirs(again.eval(), source), case.run_theirs(theirs, source)
    assert torch.equal(found["states"][-1], wanted["states"][-1])


@every_case
def test_a_config_there_and_back(case: Case) -> None:
    config, sizes = case.config_of(case.theirs())
    assert config.global_tokens == case.global_tokens
    assert from_foreign(json.loads(json.dumps(to_foreign(config, sizes)))) == (config, sizes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"preset": "longformer", "layers": 3, "model_dim": 10, "num_heads": 5, "ffn_dim": 7, "window": (3, 4, 5)},
        {"activation": "gelu-tanh", "norm_eps": 1e-6, "dropout": 0.0, "attention_dropout": 0.3, "max_length": 9},
        {"masked_head": False, "pooler": True, "segment_kinds": 3, "first_position": 1},
        {"pooler": True, "global_tokens": 5},
        {"masked_head": False, "global_tokens": 0},
    ],
    ids=str,
)
def test_our_config_there_and_back(changes: dict[str, Any]) -> None:
    config, sizes = Config(**changes), Sizes(31, 31, True)
    assert from_foreign(json.loads(json.dumps(to_foreign(config, sizes)))) == (config, sizes)


def test_what_their_config_does_not_say_is_what_theirs_takes() -> None:
    full = transformers.LongformerConfig().to_dict()
    assert from_foreign({"model_type": "longformer"}) == from_foreign(full | {"architectures": ["LongformerModel"]})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_act": "mish"}, 'this "hidden_act"\n  got:    mish\n  wanted: gelu, gelu_new, '),
        ({"is_decoder": True}, 'this "is_decoder"\n  got:    True\n  wanted: False\n'),
        ({"tie_word_embeddings": False}, 'this "tie_word_embeddings"\n  got:    False'),
        ({"model_type": "bert"}, 'this "model_type"\n  got:    bert\n  wanted: longformer'),
        ({"architectures": ["LongformerForQuestionAnswering"]}, "wanted: LongformerModel, LongformerForMaskedLM\n"),
        ({"attention_window": [4, 3]}, "a window has two equal sides\n  got:    attention_window [4, 3]"),
        ({"attention_window": [4, 8]}, "windows do not fit the layers\n  got:    (2, 4)\n  wanted: one number, or one"),
    ],
    ids=str,
)
def test_another_model_is_not_taken_for_this_one(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_foreign({"model_type": "longformer", **changes})
    assert text in str(error.value)


@pytest.mark.parametrize(
    "form", [{"attention": "linear"}, {"global_projections": False}, {"first_position": 0}], ids=str
)
def test_what_theirs_is_not(form: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="transformers' Longformer has no other form"):
        to_foreign(Config(**form), Sizes(9, 9, True))


# --- identities -------------------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {"layers": 2, "model_dim": 12, "num_heads": 3, "ffn_dim": 10, "max_length": 16}


def small(module: Any = efficient, **changes: Any) -> Any:
    """A model with weights that all matter, in float64."""
    model = module.build(module.Config(**SIZES | changes), Sizes(VOCABULARY, VOCABULARY, True)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def rows(*lengths: int, width: int | None = None) -> Sequences:
    return Sequences(torch.randint(VOCABULARY, (len(lengths), width or max(lengths))), torch.tensor(lengths))


def full(model: Efficient) -> bert.Bert:
    """A BERT with the weights of an efficient encoder."""
    options = {"first_position": 1, "segment_kinds": 1, "norm_eps": 1e-5, "pooler": False, "next_sentence": False}
    other = bert.build(bert.Config(**SIZES | options), Sizes(VOCABULARY, VOCABULARY, True)).double().eval()
    state = {name: tensor for name, tensor in model.state_dict().items() if ".mix_" not in name}
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("form", [{"window": (7,), "global_tokens": 0}, {"window": (1,), "global_tokens": 8}], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference", "banded"])
@torch.no_grad()
def test_a_window_as_long_as_the_text_is_full_attention(form: dict[str, Any], backend: str) -> None:
    model, source = small(global_projections=False, backend=backend, **form), rows(8, 3, 5)
    found, wanted = (each.hidden(Batch(source)) for each in (model, full(model)))
    assert_close(found[real(source)], wanted[real(source)], **EXACT)


@torch.no_grad()
def test_a_shorter_window_is_not() -> None:
    model, source = small(global_projections=False, global_tokens=0, window=(6,)), rows(8)
    assert not torch.allclose(model.hidden(Batch(source)), full(model).hidden(Batch(source)))


@torch.no_grad()
def test_a_slot_for_each_token_is_full_attention() -> None:
    model, source = small(attention="low-rank", rank=8), rows(8, 8)
    for block in model.blocks:
        for mix in (block.attention.body.mix_keys, block.attention.body.mix_values):
            mix.copy_(torch.eye(8, 16))
    assert_close(model.hidden(Batch(source)), full(model).hidden(Batch(source)), **EXACT)


@torch.no_grad()
def test_global_projections_that_repeat_the_others_change_nothing() -> None:
    model, other = small(global_tokens=3, window=(2,)), small(global_tokens=3, window=(2,), global_projections=False)
    other.load_state_dict({name: t for name, t in model.state_dict().items() if ".global_" not in name})
    source = rows(9, 2, 5)
    assert not torch.allclose(model.hidden(Batch(source)), other.hidden(Batch(source)))
    for block in model.blocks:
        body = block.attention.body
        for name in ("weight", "bias"):
            q, kv = getattr(body.qkv, name).split([12, 24])
            getattr(body.global_q, name).copy_(q)
            getattr(body.global_kv, name).copy_(kv)
    assert_close(model.hidden(Batch(source)), other.hidden(Batch(source)), **EXACT)


@pytest.mark.parametrize(("sharing", "count"), [("heads", 4), ("keys-values", 2), ("layers", 1)])
def test_which_mixtures_are_one(sharing: str, count: int) -> None:
    model = small(attention="low-rank", rank=3, sharing=sharing)
    assert len([name for name, _ in model.named_parameters() if ".mix_" in name]) == count


# --- long texts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, 2])
def test_long_texts_are_banded_and_as_the_reference(tokens: int) -> None:
    found = {}
    source = rows(600, 300)
    for backend in ("auto", "reference"):
        torch.manual_seed(1)
        model = small(max_length=600, window=(9,), global_tokens=tokens, backend=backend)
        with backends_used() as used:
            hidden = model.hidden(Batch(source))
        assert set(used) == {"banded" if backend == "auto" else "reference"}
        hidden[real(source)].square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found[backend] = hidden.detach()[real(source)], gradients
    assert_close(found["auto"], found["reference"], rtol=1e-10, atol=1e-9)


FORMS = [
    (efficient, {"global_tokens": 2}),
    (efficient, {"attention": "linear"}),
    (efficient, {"attention": "low-rank", "rank": 16}),
    (efficient_causal, {}),
    (efficient_causal, {"attention": "linear"}),
]
every_form = pytest.mark.parametrize(
    ("module", "form"), FORMS, ids=[f"{module.KINDS[0]}-{form.get('attention', 'window')}" for module, form in FORMS]
)


@every_form
def test_the_cost_of_a_token_does_not_grow(module: Any, form: dict[str, Any]) -> None:
    """Multiply-adds of a text that is four times as long, on a device that does not compute."""

    def cost(length: int) -> float:
        with torch.device("meta"):
            model = module.build(
                module.Config(**SIZES | {"max_length": 2048, "window": (8,)} | form), Sizes(9, 9, True)
            )
            text = Sequences(torch.zeros(1, length, dtype=torch.long), torch.full((1,), length))
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as flops:
                model.hidden(Batch(text)).sum().backward()
        return flops.get_total_flops()

    assert cost(2048) < 4.4 * cost(512)


@pytest.mark.parametrize("dynamic", [False, True])
@every_form
@torch.no_grad()
def test_it_compiles_as_one_graph(module: Any, form: dict[str, Any], dynamic: bool) -> None:
    torch.compiler.reset()
    model, source = small(module, **form), rows(9, 4)
    compiled = torch.compile(model.hidden, backend="eager", fullgraph=True, dynamic=dynamic)
    assert_close(compiled(Batch(source)), model.hidden(Batch(source)), **EXACT)


# --- language models --------------------------------------------------------------------------------------------------

CAUSAL = [{"window": (3,)}, {"window": (70,), "num_kv_heads": 1}, {"attention": "linear"}]
CAUSAL += [{"attention": "linear", "num_kv_heads": 1}]
every_writer = pytest.mark.parametrize("form", CAUSAL, ids=str)


def logits(model: Any, source: Sequences) -> Tensor:
    result: Tensor = model.head(model.hidden(Batch(source)))
    return result


@every_writer
@pytest.mark.parametrize("sizes", [(1, 299), (300,), (200, 1, 1, 98)], ids=str)
@torch.no_grad()
def test_cached_steps_are_the_whole_pass(form: dict[str, Any], sizes: tuple[int, ...]) -> None:
    model, source = small(efficient_causal, max_length=300, **form), rows(300, 300)
    state, found = model.start(source, 300), []
    for piece in source.ids.split(sizes, dim=1):
        out, state = model.step(piece, state)
        found.append(out)
    assert_close(torch.cat(found, dim=1), logits(model, source), **DOUBLE)


@torch.no_grad()
def test_a_prompt_costs_its_window() -> None:
    model, source = small(efficient_causal, max_length=600, window=(9,)), rows(600)
    with backends_used() as used:
        model.step(source.ids, model.start(source, 700))
    assert used == ["banded", "banded"]


@torch.no_grad()
def test_sums_need_no_room() -> None:
    model, source = small(efficient_causal, attention="linear", position="sinusoidal"), rows(5, 5)
    short, long = (model.start(source, length) for length in (5, 5000))
    assert {name: cache.shape for name, cache in short.cache.items()} == {
        name: cache.shape for name, cache in long.cache.items()
    }
    assert short.cache["0.0"].shape == (2, 3, 4, 5)
    before = {name: cache.clone() for name, cache in short.cache.items()}
    _, after = model.step(source.ids, short)
    assert all(torch.equal(short.cache[name], tensor) for name, tensor in before.items())
    assert not torch.equal(after.cache["0.0"], before["0.0"])


@every_writer
@torch.no_grad()
def test_texts_in_one_row_do_not_see_each_other(form: dict[str, Any]) -> None:
    model, (one, other) = small(efficient_causal, max_length=200, **form), (rows(70), rows(130))
    ids = torch.cat([one.ids, other.ids], dim=1)
    packed = Sequences(ids, torch.tensor([200]), torch.tensor([[5] * 70 + [6] * 130]))
    apart = torch.cat([logits(model, one), logits(model, other)], dim=1)
    assert_close(logits(model, packed), apart, **EXACT)


@torch.no_grad()
def test_a_window_reaches_as_far_as_its_layers() -> None:
    model, source = small(efficient_causal, window=(2, 3)), rows(12)
    before = logits(model, source)
    changed = source.ids.clone()
    changed[0, 3] = (changed[0, 3] + 1) % VOCABULARY
    change = (logits(model, replace(source, ids=changed)) - before)[0].abs().amax(-1)
    assert (change > 1e-6).nonzero().flatten().tolist() == [3, 4, 5, 6, 7, 8]


# --- what can be seen -------------------------------------------------------------------------------------------------


def traced(model: Any, source: Sequences) -> Any:
    with observe(model, lengths={"source": source.lengths}) as trace, torch.no_grad():
        model.hidden(Batch(source))
    return trace


def opened(trace: Any, length: int) -> Any:
    """The document that a page shows."""
    for view in trace:
        view.rows_axis = "source"
        view.keys_axis = view.keys_axis or "source"
    tokens = tuple("abcdefghijklmnop"[:length])
    spans = tuple((i, i + 1) for i in range(length))
    return make_document(replace(trace, axes={"source": Axis("source", tokens, spans, "".join(tokens))}))


def test_windows_are_seen() -> None:
    model, source = small(window=(2,), global_tokens=1), rows(9)
    trace = traced(model, source)
    assert [(view.name, view.kind) for view in trace] == [(f"blocks.{i}.attention.body", "self") for i in range(2)]
    body, x = model.blocks[0].attention.body, model.source(source.ids)
    q, k, _ = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in body.qkv(x).chunk(3, dim=-1))
    wide_q, wide_k = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (body.global_q, body.global_kv))
    near = (torch.arange(9) - torch.arange(9)[:, None]).abs() <= 2
    near[:, 0] = True
    wanted = (q @ k.mT / 2).masked_fill(~near, -torch.inf).softmax(-1)
    wanted[:, :, 0] = (wide_q[:, :, 0:1] @ wide_k[:, :3].mT / 2).softmax(-1)[:, :, 0]
    assert_close(trace[0].rows(range(9)), wanted, **DOUBLE)
    document = opened(trace, 9)
    assert document.tensors["0.entropy"].shape == (3, 9)


def test_linear_attention_is_seen() -> None:
    for module in (efficient, efficient_causal):
        model, source = small(module, attention="linear"), rows(9)
        trace = traced(model, source)
        assert [view.kind for view in trace] == ["self", "self"]
        body, block = model.blocks[0].attention.body, model.blocks[0].attention
        x = model.source(source.ids)
        x = block.norm(x) if block.norm_first else x
        v = body.qkv(x).chunk(3, dim=-1)[2].unflatten(-1, (3, 4)).transpose(1, 2)
        read = trace[0].rows(range(9)) @ v
        assert_close(body.out(read.transpose(1, 2).flatten(2)), body(x, mask=mask_of(module)), **DOUBLE)
        assert_close(trace[0].rows(range(9)).sum(-1), torch.ones(1, 3, 9).double(), **DOUBLE)
        assert trace[0].value_norms.shape == (1, 3, 9)
        assert opened(trace, 9).tensors["1.entropy"].shape == (3, 9)


def mask_of(module: Any) -> Mask | None:
    return causal() if "causal" in module.KINDS else None


def test_slots_are_seen() -> None:
    model, source = small(attention="low-rank", rank=5), rows(9)
    trace = traced(model, source)
    assert [(view.kind, view.keys_axis, view.shape) for view in trace] == [("cross", "slots", (1, 3, 9, 5))] * 2
    assert_close(trace[0].rows(range(9)).sum(-1), torch.ones(1, 3, 9).double(), **DOUBLE)
    document = opened(trace, 9)
    assert document.doc["axes"]["slots"]["tokens"] == ["1", "2", "3", "4", "5"]


def test_steps_from_sums_are_not_shown_as_something_else() -> None:
    model, source = small(efficient_causal, attention="linear"), rows(3)
    with pytest.raises(BackendError, match="goes on from a state cannot be observed"), observe(model):
        model.step(source.ids, model.start(source, 5))


def test_steps_of_a_window_are_seen() -> None:
    model, source = small(efficient_causal, window=(2,)), rows(6)
    whole = traced(model, source)
    with observe(model) as trace, torch.no_grad():
        state = model.start(source, 6)
        for piece in source.ids.split([3, 1, 2], dim=1):
            _, state = model.step(piece, state)
    assert_close(trace[1].rows(range(6)), whole[1].rows(range(6)), **DOUBLE)


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_which_families_they_are() -> None:
    assert "efficient" in names("encoder")
    assert "efficient_causal" in names("causal")
    with pytest.raises(ConfigError, match="the task needs a model that continues a text"):
        family("efficient", "causal")


def error_of(make: Callable[[], object]) -> str:
    with pytest.raises(RegardError) as error:
        make()
    return str(error.value)


def test_low_rank_attention_cannot_continue_a_text() -> None:
    assert error_of(lambda: efficient_causal.Config(attention="low-rank")) == (
        "low-rank attention reads a whole text at once, and cannot continue one\n"
        '  got:    attention = "low-rank"\n'
        '  wanted: "window" or "linear"'
    )
    layer = small(attention="low-rank").blocks[0].attention.body
    text = error_of(lambda: layer(torch.zeros(1, 4, 12).double(), mask=causal() & padding(torch.tensor([4]))))
    wanted = "low-rank attention reads the whole text at once\n  got:    Band, Lengths\n  wanted: padding(lengths)"
    assert text == wanted


@pytest.mark.parametrize(
    ("module", "table", "what"),
    [
        (efficient, {"window": (2, 3, 4)}, "windows do not fit the layers\n  got:    (2, 3, 4)"),
        (efficient, {"window": ()}, "windows do not fit the layers\n  got:    ()"),
        (efficient, {"window": (0,)}, "a window is too small\n  got:    (0,)\n  wanted: 1 or more to each side"),
        (efficient, {"rank": 0}, "rank is too small\n  got:    0"),
        (efficient, {"global_tokens": -1}, "global_tokens is too small\n  got:    -1"),
        (efficient, {"num_heads": 7}, "model_dim (768) must be divisible by num_heads (7)"),
        (efficient, {"norm_eps": 0.0}, "norm_eps is too small"),
        (efficient, {"attention": "linear", "backend": "banded"}, "only a window is banded"),
        (efficient_causal, {"num_kv_heads": 5}, "num_heads (12) must be divisible by num_kv_heads (5)"),
    ],
    ids=str,
)
def test_values_that_cannot_be_meant(module: Any, table: dict[str, Any], what: str) -> None:
    assert what in error_of(lambda: module.Config(**table))


def test_a_text_longer_than_the_learned_positions() -> None:
    for form in ({}, {"attention": "low-rank"}):
        text = error_of(lambda form=form: small(**form).hidden(Batch(rows(17))))  # type: ignore[misc]
        assert "got:    17 tokens\n  wanted: at most 16" in text


def test_a_recipe_says_windows_as_a_list() -> None:
    config = read_section(Config, with_preset("efficient", {"preset": "tiny", "window": [3, 4]}), where="recipe.toml")
    assert [config.window_of(layer) for layer in range(2)] == [3, 4]


def test_the_size_of_the_paper() -> None:
    """Longformer-base has 149 million parameters: RoBERTa's, 4,096 positions, and the global projections."""
    with torch.device("meta"):
        model = efficient.build(Config(), Sizes(50265, 50265, True))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == 148.7


@torch.no_grad()
def test_fresh_weights() -> None:
    for module, form in ((efficient, {}), (efficient, {"attention": "low-rank"}), (efficient_causal, {})):
        model = module.build(
            module.Config(layers=1, model_dim=64, num_heads=2, ffn_dim=64, **form), Sizes(500, 500, True)
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert (parameter == 0).all()
            elif "norm" in name:
                assert (parameter == 1).all()
            else:
                assert 0.005 < float(parameter.std()) < 0.03, name
