"""GPT-2 and Llama against transformers' own, with the same weights: states, gradients, outputs, and the way back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from regard.config import read_section
from regard.errors import ConfigError, RunError
from regard.look.collect import observe
from regard.models import Sizes, gpt, with_preset
from regard.models._foreign import to_ours, to_theirs
from regard.types import Batch, Sequences

NEAR = {"rtol": 0.0, "atol": 1e-9}
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_positions": 40, "bos_token_id": None, "eos_token_id": None}
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": None}
FORMS: dict[str, dict[str, Any]] = {
    "gpt2": {**GPT2, "vocab_size": 37, "n_embd": 12, "n_head": 3},
    "gpt2 odd": {**GPT2, "vocab_size": 29, "n_embd": 15, "n_head": 5, "n_inner": 17, "layer_norm_epsilon": 1e-3}
    | {"activation_function": "gelu", "resid_pdrop": 0.3, "embd_pdrop": 0.2, "attn_pdrop": 0},
    "gpt2 untied": {**GPT2, "vocab_size": 31, "n_embd": 7, "n_head": 1, "n_layer": 3, "tie_word_embeddings": False}
    | {"activation_function": "relu"},
    "llama": {**LLAMA, "vocab_size": 41, "hidden_size": 24, "intermediate_size": 31, "num_attention_heads": 6}
    | {"num_key_value_heads": 2},
    "llama with biases": {**LLAMA, "vocab_size": 23, "hidden_size": 20, "intermediate_size": 9, "head_dim": 6}
    | {"num_attention_heads": 5, "num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}
    | {
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_theta": 50, "rope_type": "default"},
    },
    "llama ungrouped": {**LLAMA, "vocab_size": 19, "hidden_size": 10, "intermediate_size": 13, "num_hidden_layers": 3}
    | {"num_attention_heads": 5, "hidden_act": "gelu", "attention_dropout": 0.2, "max_position_embeddings": 64},
}
every_form = pytest.mark.parametrize("name", FORMS)


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wide numbers everywhere: their Llama would norm and turn in float32 whatever it is given."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def waves(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        width, base = self.config.head_dim, self.config.rope_parameters["rope_theta"]
        angles = position_ids[..., None] / base ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        return angles.cos().repeat(1, 1, 2), angles.sin().repeat(1, 1, 2)

    monkeypatch.setattr(LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", waves)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def their_model(name: str) -> Any:
    """One of theirs, with no number left that would hide what it does."""
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**FORMS[name])).eval()
    model = model.to(torch.get_default_dtype())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def saved(model: Any, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors that save_pretrained writes."""
    model.save_pretrained(path)
    return json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")


def loaded(config: gpt.Config, sizes: Sizes, tensors: dict[str, Tensor]) -> gpt.GPT:
    model = gpt.build(config, sizes).eval()
    ours = to_ours(gpt.pairs(config), tensors, where="here", unused=gpt.UNUSED, copies=gpt.copies(config))
    missing, unexpected = model.load_state_dict(ours, strict=False)
    assert (missing, unexpected) == (["head.weight"] if config.tie_embeddings else [], [])
    return model


def both(name: str, path: Path) -> tuple[Any, gpt.GPT]:
    """One of theirs and the same of ours."""
    theirs = their_model(name)
    config, tensors = saved(theirs, path)
    return theirs, loaded(*gpt.from_foreign(config), tensors)


def a_batch(name: str) -> Batch:
    """Rows of several lengths; what pads them is random, as nobody may look."""
    return Batch(Sequences(torch.randint(FORMS[name]["vocab_size"], (4, 33)), torch.tensor([33, 1, 17, 8])))


def real(batch: Batch) -> Tensor:
    return torch.arange(batch.source.ids.shape[1]) < batch.source.lengths[:, None]


def compared(name: str, path: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """Last states and logits of all that is not padding, ours and theirs."""
    theirs, ours = both(name, path)
    batch = a_batch(name)
    wanted = theirs(batch.source.ids, attention_mask=real(batch).long(), output_hidden_states=True)
    hidden = ours.hidden(batch)
    yield hidden[real(batch)], wanted.hidden_states[-1][real(batch)]
    yield ours.head(hidden)[real(batch)], wanted.logits[real(batch)]


# --- the same model ---------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_states_and_logits_in_float64(name: str, tmp_path: Path) -> None:
    for found, wanted in compared(name, tmp_path):
        assert wanted.abs().max() > 1  # there is something to compare
        assert_close(found, wanted, **NEAR)


@every_form
@torch.no_grad()
def test_states_and_logits_in_float32(name: str, tmp_path: Path) -> None:
    for found, wanted in compared(name, tmp_path):
        assert_close(found, wanted, rtol=0.0, atol=2e-5 * max(1.0, wanted.abs().max().item()))


@every_form
@pytest.mark.usefixtures("float64")
def test_gradients(name: str, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path)
    batch = a_batch(name)
    labels = batch.source.ids.roll(-1, dims=1).masked_fill(~real(batch), -100).flatten()
    logits = theirs(batch.source.ids, attention_mask=real(batch).long()).logits
    for found in (logits, ours.head(ours.hidden(batch))):
        nn.functional.cross_entropy(found.flatten(0, 1), labels).backward()
    config, _ = gpt.from_foreign(theirs.config.to_dict())
    found = to_theirs(gpt.pairs(config), {n: p.grad for n, p in ours.named_parameters() if p.grad is not None})
    wanted = {n: p.grad for n, p in theirs.named_parameters()}
    assert found.keys() == wanted.keys()
    assert_close(found, wanted, **NEAR)


@every_form
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_cached_steps_are_theirs(name: str, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path)
    batch = a_batch(name)
    state, past = ours.start(batch.source, 33), None
    for tokens in batch.source.ids.split([9, 1, 1, 22], dim=1):
        wanted = theirs(tokens, past_key_values=past, use_cache=True)
        found, state = ours.step(tokens, state)
        past = wanted.past_key_values
        assert_close(found, wanted.logits, **NEAR)


@every_form
@torch.no_grad()
def test_what_is_observed_are_their_weights(name: str, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path)
    theirs.set_attn_implementation("eager")
    ids = a_batch(name).source.ids
    wanted = theirs(ids, output_attentions=True).attentions
    whole = Sequences(ids, torch.full((4,), 33))
    with observe(ours) as trace:
        ours.hidden(Batch(whole))
    with observe(ours) as stepped:
        state = ours.start(whole, 33)
        for tokens in ids.split([20, 1, 12], dim=1):
            _, state = ours.step(tokens, state)
    for views in (trace, stepped):
        assert len(views) == len(wanted)
        for view, weights in zip(views, wanted, strict=True):
            assert_close(view.rows(range(33)), weights, rtol=0.0, atol=1e-5)


def continued(model: gpt.GPT, prompt: Tensor, number: int) -> Tensor:
    """The likeliest next token, again and again."""
    state = model.start(Sequences(prompt, torch.full((len(prompt),), prompt.shape[1])), prompt.shape[1] + number)
    tokens, written = prompt, [prompt]
    for _ in range(number):
        logits, state = model.step(tokens, state)
        tokens = logits[:, -1:].argmax(-1)
        written.append(tokens)
    return torch.cat(written, dim=1)


@every_form
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_greedy_output(name: str, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path)
    options = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    prompts = torch.randint(FORMS[name]["vocab_size"], (5, 6))
    found = continued(ours, prompts, 12)
    assert len(found[:, 6:].unique()) > 2
    assert torch.equal(found, theirs.generate(prompts, attention_mask=torch.ones_like(prompts), **options))
    # theirs in one batch, padded at the left; ours one by one
    lengths = [6, 1, 3, 5, 2]
    mask = torch.arange(6) >= 6 - torch.tensor(lengths)[:, None]
    wanted = theirs.generate(prompts.masked_fill(~mask, 0), attention_mask=mask.long(), **options)
    for row, length in enumerate(lengths):
        assert torch.equal(continued(ours, prompts[row : row + 1, 6 - length :], 12)[0], wanted[row, 6 - length :])


# --- and back ---------------------------------------------------------------------------------------------------------


@every_form
def test_the_way_back_is_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    config, tensors = saved(theirs, tmp_path)
    ours = loaded(*gpt.from_foreign(config), tensors)
    back = to_theirs(gpt.pairs(gpt.from_foreign(config)[0]), ours.state_dict())
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) and back[name].is_contiguous() for name in tensors)


@every_form
def test_the_whole_state_with_its_copies_is_read_as_well(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    config, sizes = gpt.from_foreign(theirs.config.to_dict())
    ours = loaded(config, sizes, theirs.state_dict())
    assert torch.equal(ours.head.weight, theirs.lm_head.weight)
    if config.tie_embeddings:
        other = theirs.state_dict() | {"lm_head.weight": theirs.lm_head.weight + 1}
        with pytest.raises(RunError, match=r"lm_head\.weight is not what the config says it is"):
            loaded(config, sizes, other)


@every_form
def test_configs_come_back(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    written, _ = saved(theirs, tmp_path)
    config, sizes = gpt.from_foreign(written)
    assert sizes == Sizes(FORMS[name]["vocab_size"], FORMS[name]["vocab_size"], shared=True)
    assert gpt.from_foreign(gpt.to_foreign(config, sizes)) == (config, sizes)
    wanted = {**theirs.config.to_dict(), "dtype": None, "_name_or_path": ""}
    found = transformers.AutoConfig.for_model(**gpt.to_foreign(config, sizes)).to_dict()
    wanted["n_inner"] = found.get("n_inner")  # None there: 4 x n_embd
    assert {k: v for k, v in found.items() if v != wanted.get(k)} == {}


@every_form
@torch.no_grad()
def test_a_model_of_ours_is_loaded_by_transformers(name: str, tmp_path: Path) -> None:
    config, sizes = gpt.from_foreign(FORMS[name])
    ours = gpt.build(config, sizes).eval()
    tensors = to_theirs(gpt.pairs(config), ours.state_dict())
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(gpt.to_foreign(config, sizes)))
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values())
    batch = a_batch(name)
    wanted = theirs(batch.source.ids, attention_mask=real(batch).long()).logits
    assert_close(ours.head(ours.hidden(batch))[real(batch)], wanted[real(batch)], rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("preset", ["gpt2", "llama", "tiny"])
def test_presets_can_be_said_there(preset: str) -> None:
    config, sizes = read(preset=preset), Sizes(50, 50, True)
    again = gpt.from_foreign(gpt.to_foreign(config, sizes))
    assert again == (replace(config, preset=again[0].preset), sizes)


# --- their configs ----------------------------------------------------------------------------------------------------


def test_what_a_config_does_not_say_is_what_they_take() -> None:
    """Of GPT-2 and of Llama: the config of a file that says nothing."""
    for kind in ("gpt2", "llama"):
        usual = transformers.AutoConfig.for_model(kind).to_dict()
        assert gpt.from_foreign({"model_type": kind}) == gpt.from_foreign(usual)


def test_older_spellings() -> None:
    plain, _ = gpt.from_foreign(FORMS["gpt2"])
    names = {"n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_head": "num_attention_heads"}
    names["n_positions"] = "max_position_embeddings"
    assert gpt.from_foreign({names.get(name, name): value for name, value in FORMS["gpt2"].items()})[0] == plain
    llama, _ = gpt.from_foreign(FORMS["llama"])
    assert gpt.from_foreign(FORMS["llama"] | {"rope_theta": 5e5})[0] == replace(llama, rotary_base=5e5)
    assert gpt.from_foreign(FORMS["llama"] | {"rope_scaling": None})[0] == llama


def test_constants_in_older_files_are_left_out() -> None:
    config, sizes = gpt.from_foreign(FORMS["gpt2"])
    tensors = to_theirs(gpt.pairs(config), gpt.build(config, sizes).state_dict())
    old = {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4), "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
    loaded(config, sizes, tensors | old)
    with pytest.raises(RunError, match=r"no place for\n  got:    transformer\.h\.0\.crossattention\.bias"):
        loaded(config, sizes, tensors | {"transformer.h.0.crossattention.bias": torch.ones(1)})


@pytest.mark.parametrize(
    ("name", "change", "got", "wanted"),
    [
        ("gpt2", {"model_type": "gpt_neo"}, "gpt_neo", "gpt2, llama"),
        ("gpt2", {"activation_function": "tanh"}, "tanh", "gelu_new, gelu_pytorch_tanh, gelu, relu, silu"),
        ("gpt2", {"scale_attn_weights": False}, "False", "True"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "True", "False"),
        ("gpt2", {"reorder_and_upcast_attn": True}, "True", "False"),
        ("gpt2", {"add_cross_attention": True}, "True", "False"),
        ("llama", {"hidden_act": "gelu_new"}, "gelu_new", "silu, gelu, gelu_pytorch_tanh, relu"),
    ],
)
def test_what_would_be_another_model_is_refused(name: str, change: dict[str, Any], got: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        gpt.from_foreign(FORMS[name] | change)
    assert str(error.value) == (
        f'no model of this family has this "{next(iter(change))}"\n'
        f"  got:    {got}\n  wanted: {wanted}\n  where:  config.json"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}},
        {"rope_scaling": {"type": "llama3", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}},
    ],
)
def test_scaled_rotary_positions_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        gpt.from_foreign(FORMS["llama"] | change)
    assert str(error.value) == (
        'no model of this family has this "rope_type"\n  got:    llama3\n  wanted: default\n  where:  config.json'
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"n_embd": "12"},
            "\"model_dim\" has a wrong value\n  got:    '12'\n  wanted: a valid integer",
        ),
        ({"n_embd": 13}, "model_dim (13) must be divisible by num_heads (3)\n  got:    13\n  wanted: 3 x width"),
        ({"attn_pdrop": 1.5}, "attention_dropout is a share\n  got:    1.5\n  wanted: 0 <= x < 1"),
    ],
)
def test_values_that_cannot_be_meant(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        gpt.from_foreign(FORMS["gpt2"] | change)
    assert str(error.value) == f"{text}\n  where:  config.json"


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"norm": "rms"}, "the GPT-2 of transformers has no other norm\n  got:    rms\n  wanted: layer"),
        ({"preset": "nano"}, "the GPT-2 of transformers has no other bias\n  got:    False\n  wanted: True"),
        (
            {"num_kv_heads": 4},
            "the GPT-2 of transformers has no other num_kv_heads\n  got:    4\n  wanted: 0, 12",
        ),
        ({"head_dim": 10}, "the GPT-2 of transformers has no other head_dim\n  got:    10\n  wanted: 0, 64"),
        (
            {"preset": "llama", "activation": "silu"},
            "the Llama of transformers has no other activation\n"
            "  got:    silu\n  wanted: swiglu, geglu, geglu-tanh, reglu",
        ),
    ],
)
def test_what_theirs_cannot_say_is_refused(keys: dict[str, Any], text: str) -> None:
    config = read(**keys)
    for ask in (lambda: gpt.to_foreign(config, Sizes(9, 9, True)), lambda: gpt.pairs(config)):
        with pytest.raises(ConfigError) as error:
            ask()
        assert str(error.value) == text


# --- ours -------------------------------------------------------------------------------------------------------------


def read(**table: Any) -> gpt.Config:
    return read_section(gpt.Config, with_preset("gpt", table), where="this test")


def on_paper(config: gpt.Config, vocabulary: int) -> gpt.GPT:
    with torch.device("meta"):
        return gpt.build(config, Sizes(vocabulary, vocabulary, True))


def test_the_sizes_of_the_presets() -> None:
    """GPT-2's 124,439,808; nanoGPT's "10.65M" without the positions; Llama's is what theirs of the same config has."""
    assert sum(p.numel() for p in on_paper(read(), 50257).parameters()) == 124_439_808
    nano = on_paper(read(preset="nano"), 65)
    assert sum(p.numel() for n, p in nano.named_parameters() if "position" not in n) == 10_646_784
    config = read(preset="llama")
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**gpt.to_foreign(config, Sizes(99, 99, True)))
        )
    assert sum(p.numel() for p in on_paper(config, 99).parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("preset", ["nano", "llama"])
@torch.no_grad()
def test_an_untrained_model_knows_nothing(preset: str) -> None:
    config = replace(read(preset=preset), layers=3, model_dim=96, num_heads=12, ffn_dim=128)
    model, ids = gpt.build(config, Sizes(60, 60, True)).eval(), torch.randint(60, (8, 64))
    logits = model.head(model.hidden(Batch(Sequences(ids, torch.full((8,), 64)))))
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert abs(loss.item() - math.log(60)) < 0.1
    weights = {n: p.std().item() for n, p in model.named_parameters() if p.dim() > 1}
    for name, std in weights.items():
        small = name.endswith(("attention.body.out.weight", "feedforward.body.down.weight"))
        assert std == pytest.approx(0.02 / 6**0.5 if small else 0.02, rel=0.1), name


@pytest.mark.parametrize("preset", ["gpt2", "llama"])
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_texts_in_one_row_are_as_texts_in_rows_of_their_own(preset: str) -> None:
    config = replace(read(preset=preset), layers=2, model_dim=16, num_heads=4, ffn_dim=10)
    model, ids = gpt.build(config, Sizes(20, 20, True)).eval(), torch.randint(20, (2, 12))
    cuts = [(5, 4, 3), (1, 9, 2)]
    segments = torch.stack([torch.repeat_interleave(torch.tensor([7, 2, 5]), torch.tensor(cut)) for cut in cuts])
    found = model.hidden(Batch(Sequences(ids, torch.tensor([12, 12]), segments)))
    for row, cut in enumerate(cuts):
        for part, states in zip(ids[row].split(cut), found[row].split(cut), strict=True):
            alone = model.hidden(Batch(Sequences(part[None], torch.tensor([len(part)]))))
            assert_close(states, alone[0], **NEAR)
