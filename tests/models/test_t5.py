"""T5 against transformers' own, with the same weights: states, logits, gradients, outputs, and the way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from transformers.models.t5.modeling_t5 import T5LayerNorm

from regard.decode.config import DecodeConfig
from regard.decode.search import decode
from regard.errors import ConfigError, RunError
from regard.layers.attention import CrossAttention, SelfAttention
from regard.models import Sizes, t5, with_preset
from regard.models._foreign import to_ours, to_theirs
from regard.models.transformer import Transformer
from regard.train.checkpoint import put_weights, weights
from regard.types import Batch, Sequences, Specials

NEAR = {"rtol": 0.0, "atol": 1e-9}
FORMS: dict[str, dict[str, Any]] = {
    # 1.0, with texts beyond the last bucket
    "tied": {"vocab_size": 37, "d_model": 12, "d_kv": 5, "d_ff": 23, "num_layers": 2, "num_heads": 3}
    | {"relative_attention_num_buckets": 9, "relative_attention_max_distance": 11},
    # 1.1, and a decoder that is shorter than the encoder (their cache fails on the contrary)
    "untied": {"vocab_size": 41, "d_model": 16, "d_kv": 3, "d_ff": 10, "num_layers": 3, "num_decoder_layers": 2}
    | {"num_heads": 7, "layer_norm_epsilon": 1e-5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    # 1.1 as transformers makes it now: not scaled, but the output's weight is the embedding's until someone unties it
    "repeated": {"vocab_size": 29, "d_model": 10, "d_kv": 4, "d_ff": 7, "num_layers": 2, "num_heads": 2}
    | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
}
SPECIAL = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
every_form = pytest.mark.parametrize("name", FORMS)


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wide numbers everywhere: their norm would measure the variance in float32 whatever it is given."""

    def wide(self: T5LayerNorm, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(T5LayerNorm, "forward", wide)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def their_model(name: str) -> transformers.T5ForConditionalGeneration:
    """One of theirs, with no number left that would hide what it does."""
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**FORMS[name], **SPECIAL)).eval()
    if name == "untied":
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@dataclass(frozen=True)
class Folder:
    """What save_pretrained wrote."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def saved(model: nn.Module, path: Path) -> Folder:
    model.save_pretrained(path)
    return Folder(json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors"))


def converted(folder: Folder) -> tuple[Transformer, t5.Config, Sizes]:
    config, sizes = t5.from_foreign(folder.config)
    model = t5.build(config, sizes).eval()
    put_weights(model, ours_of(config, folder.tensors), where="this test")
    return model, config, sizes


def ours_of(config: t5.Config, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return to_ours(t5.pairs(config), tensors, where="this test", unused=t5.UNUSED, copies=t5.copies(config))


def a_batch(vocabulary: int) -> Batch:
    """Rows of several lengths, some beyond every bucket but the last; what pads them is random, as nobody may look."""
    source, target = torch.tensor([40, 17, 1, 9]), torch.tensor([30, 5, 12, 2])
    return Batch(
        Sequences(torch.randint(vocabulary, (4, 40)), source), Sequences(torch.randint(vocabulary, (4, 30)), target)
    )


def asked(batch: Batch) -> dict[str, Tensor]:
    """The same batch as theirs takes it."""
    assert batch.target is not None
    places = torch.arange(batch.source.ids.shape[1])
    mask = (places < batch.source.lengths[:, None]).long()
    return {"input_ids": batch.source.ids, "attention_mask": mask, "decoder_input_ids": batch.target.ids[:, :-1]}


def compared(name: str, path: Path) -> list[tuple[Tensor, Tensor]]:
    """Memory, last states and logits, ours and theirs, of every place that is not padding."""
    theirs = their_model(name)
    ours, config, sizes = converted(saved(theirs, path))
    batch = a_batch(sizes.source)
    assert batch.target is not None
    wanted = theirs(**asked(batch), output_hidden_states=True)
    read = asked(batch)["attention_mask"].bool()
    written = torch.arange(29) < batch.target.lengths[:, None] - 1
    hidden = ours.hidden(batch)
    scale = config.model_dim**-0.5 if config.tie_embeddings else 1.0
    last = theirs.decoder(
        batch.target.ids[:, :-1],
        encoder_hidden_states=wanted.encoder_last_hidden_state,
        encoder_attention_mask=asked(batch)["attention_mask"],
    ).last_hidden_state
    return [
        (ours.encode(batch.source)[read], wanted.encoder_last_hidden_state[read]),
        (hidden[written], last[written] * scale),
        (ours.head(hidden)[written], wanted.logits[written]),
    ]


@every_form
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_states_and_logits(name: str, tmp_path: Path) -> None:
    for found, wanted in compared(name, tmp_path):
        assert_close(found, wanted, **NEAR)


@every_form
@torch.no_grad()
def test_states_and_logits_in_float32(name: str, tmp_path: Path) -> None:
    for found, wanted in compared(name, tmp_path):
        assert_close(found, wanted, rtol=0.0, atol=2e-5 * max(1.0, wanted.abs().max().item()))


@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.usefixtures("float64")
def test_gradients(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    ours, config, sizes = converted(saved(theirs, tmp_path))
    batch = a_batch(sizes.source)
    wanted = theirs(**asked(batch)).logits
    weight = torch.randn_like(wanted) / wanted.shape[1]
    (wanted * weight).sum().backward()
    (ours.head(ours.hidden(batch)) * weight).sum().backward()
    gradients = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    found = to_theirs(t5.pairs(config), gradients)
    assert_close(found, {n: p.grad for n, p in theirs.named_parameters()}, **NEAR)


@every_form
@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_cached_steps_give_their_logits(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    ours, _, sizes = converted(saved(theirs, tmp_path))
    batch = a_batch(sizes.source)
    assert batch.target is not None
    state, found = ours.start(batch.source, 29), []
    for piece in batch.target.ids[:, :-1].split([1, 1, 7, 1, 19], dim=1):
        logits, state = ours.step(piece, state)
        found.append(logits)
    assert_close(torch.cat(found, dim=1), theirs(**asked(batch)).logits, **NEAR)


# --- outputs ----------------------------------------------------------------------------------------------------------


def some_sources(vocabulary: int) -> list[list[int]]:
    return [[*torch.randint(2, vocabulary, (n,)).tolist(), 1] for n in (11, 4, 1, 7, 19, 3, 2, 8, 5, 6)]


def their_outputs(model: Any, sources: list[list[int]], **options: Any) -> list[list[int]]:
    """What generate writes, with the end where it came to one. Padding, which ours never writes, is forbidden to it."""
    rows = nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
    found = model.generate(
        rows, attention_mask=rows.ne(0), max_new_tokens=40, do_sample=False, suppress_tokens=[0], **options
    )
    assert found[:, 0].eq(0).all()  # the start
    return [row[1 : row.index(1) + 1] if 1 in row else row[1:] for row in found.tolist()]


def our_outputs(model: Any, folder: Folder, sources: list[list[int]], **options: Any) -> list[list[list[int]]]:
    special = t5.specials(folder.config)
    config = DecodeConfig(max_length=40, max_ratio=100.0, **options)
    found = decode(model, sources, config, bos=special.start, eos=special.end, pad=special.pad)
    return [[[*hypothesis.ids, *[special.end] * hypothesis.finished] for hypothesis in row] for row in found]


@every_form
@pytest.mark.usefixtures("float64")
def test_greedy_outputs_are_theirs(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    folder = saved(theirs, tmp_path)
    ours, _, sizes = converted(folder)
    sources = some_sources(sizes.source)
    found = [row[0] for row in our_outputs(ours, folder, sources, method="greedy")]
    assert found == their_outputs(theirs, sources, num_beams=1)
    assert len({tuple(row) for row in found}) > 2  # not one answer for all


@pytest.mark.parametrize(("length_penalty", "early_stop"), [(0.0, False), (0.6, False), (1.0, False), (1.0, True)])
@pytest.mark.usefixtures("float64")
def test_beam_outputs_are_theirs(length_penalty: float, early_stop: bool, tmp_path: Path) -> None:
    """All four of a beam, where they ended: what the limit cuts off stands last in ours, among the others in theirs."""
    theirs = their_model("untied")
    with torch.no_grad():  # a direction that all states share makes the end likely enough
        theirs.shared.weight += 1.0
        theirs.lm_head.weight *= 0.6
        theirs.lm_head.weight[1] = 0.7 * theirs.decoder.final_layer_norm.weight.sign()
    folder = saved(theirs, tmp_path)
    ours, _, sizes = converted(folder)
    sources, options = some_sources(sizes.source), {"length_penalty": length_penalty}
    found = our_outputs(ours, folder, sources, beam=4, n_best=4, early_stop=early_stop, **options)
    stopping = True if early_stop else "never"
    flat = their_outputs(theirs, sources, num_beams=4, num_return_sequences=4, early_stopping=stopping, **options)
    wanted = [flat[n : n + 4] for n in range(0, len(flat), 4)]
    ended = [n for n, row in enumerate(wanted) if all(output[-1] == 1 for output in row)]
    assert [found[n] for n in ended] == [wanted[n] for n in ended]
    assert len(ended) > 5


# --- both ways --------------------------------------------------------------------------------------------------------


@every_form
def test_back_again_with_the_same_keys_and_bits(name: str, tmp_path: Path) -> None:
    folder = saved(their_model(name), tmp_path)
    ours, config, _ = converted(folder)
    found = to_theirs(t5.pairs(config), weights(ours), copies=t5.copies(config))
    assert found.keys() == folder.tensors.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in folder.tensors.items())


@every_form
def test_the_config_goes_and_comes_back(name: str, tmp_path: Path) -> None:
    saved_config = saved(their_model(name), tmp_path).config
    config, sizes = t5.from_foreign(saved_config)
    assert t5.from_foreign(t5.to_foreign(config, sizes)) == (config, sizes)
    theirs = transformers.AutoConfig.for_model(**t5.to_foreign(config, sizes)).to_dict()
    assert {key for key in saved_config if saved_config[key] != theirs.get(key)} <= {
        *SPECIAL,
        "dtype",
        "transformers_version",
    }


@torch.no_grad()
@every_form
@pytest.mark.parametrize("scaled", [False, True])
def test_a_model_of_ours_is_loaded_by_transformers(name: str, scaled: bool, tmp_path: Path) -> None:
    config, sizes = t5.from_foreign(FORMS[name])
    config = replace(config, scaled=scaled)
    ours = t5.build(config, sizes).eval()
    (tmp_path / "config.json").write_text(json.dumps(t5.to_foreign(config, sizes)))
    save_file(to_theirs(t5.pairs(config), weights(ours), copies=t5.copies(config)), tmp_path / "model.safetensors")
    theirs, told = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert [told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set(), set(), set()]
    batch = a_batch(sizes.source)
    wanted = theirs.eval()(**asked(batch)).logits
    assert_close(ours.head(ours.hidden(batch)), wanted, rtol=0.0, atol=2e-5 * max(1.0, wanted.abs().max().item()))


def test_what_a_config_leaves_out_is_the_same_in_both() -> None:
    plain = transformers.T5Config().to_dict()
    assert t5.from_foreign({}) == t5.from_foreign(plain) == (t5.Config(scaled=False), Sizes(32128, 32128, True))


def test_an_old_config_of_1_1_says_that_nothing_is_scaled_by_untying() -> None:
    assert t5.from_foreign({"tie_word_embeddings": False})[0].tie_embeddings is False
    assert t5.from_foreign({"tie_word_embeddings": True, "scale_decoder_outputs": False})[0].tie_embeddings is False
    assert t5.from_foreign({"tie_word_embeddings": True})[0].tie_embeddings is True


def test_special_tokens() -> None:
    assert t5.specials({}) == Specials(start=0, end=1, pad=0)
    assert t5.specials({"decoder_start_token_id": 5, "pad_token_id": 3, "eos_token_id": 7}) == Specials(5, 7, 3)
    assert t5.specials({"decoder_start_token_id": None, "pad_token_id": 3}) == Specials(3, 1, 3)
    with pytest.raises(ConfigError, match="a text has one start, one end and one padding"):
        t5.specials({"eos_token_id": [1, 2]})


def test_old_files_may_repeat_tensors_and_hold_one_that_nobody_reads(tmp_path: Path) -> None:
    folder = saved(their_model("tied"), tmp_path)
    config, _ = t5.from_foreign(folder.config)
    unread = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(9, 3)}
    repeated = {name: folder.tensors["shared.weight"].clone() for name in t5.copies(config)}
    plain, old = ours_of(config, folder.tensors), ours_of(config, folder.tensors | unread | repeated)
    assert plain.keys() == old.keys()
    assert all(torch.equal(plain[name], old[name]) for name in plain)


def run_error(config: t5.Config, tensors: dict[str, Tensor]) -> str:
    with pytest.raises(RunError) as error:
        ours_of(config, tensors)
    return str(error.value)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    folder = saved(their_model("tied"), tmp_path)
    config, _ = t5.from_foreign(folder.config)
    assert run_error(config, folder.tensors | {"lm_head.weight": torch.zeros(37, 12)}) == (
        "lm_head.weight is not what the config says it is\n"
        "  got:    other values than those of shared.weight\n"
        "  wanted: the same tensor (tied), or a config that unties them\n"
        "  where:  this test"
    )
    assert "no place for\n  got:    classifier.weight" in run_error(
        config, folder.tensors | {"classifier.weight": torch.zeros(1)}
    )
    deeper = replace(config, decoder_layers=3)
    assert "got:    no decoder.block.2.layer.0.SelfAttention.q.weight" in run_error(deeper, folder.tensors)


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        ({"feed_forward_proj": "gated-tanh"}, 'this "feed_forward_proj"\n  got:    gated-tanh\n  wanted: relu, gelu'),
        ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, 'this "dense_act_fn"\n  got:    gelu'),
        ({"feed_forward_proj": "relu", "is_gated_act": True}, 'this "is_gated_act"\n  got:    True'),
        ({"is_encoder_decoder": False}, 'this "is_encoder_decoder"\n  got:    False\n  wanted: True'),
        ({"d_model": "12"}, "\"model_dim\" has a wrong value\n  got:    '12'"),
        ({"relative_attention_num_buckets": 3}, "num_buckets is too small\n  got:    3\n  wanted: 4 or more"),
        (
            {"relative_attention_max_distance": 16},
            "max_distance (16) must be larger than half of num_buckets (32)\n  got:    16\n  wanted: 17 or more",
        ),
    ],
)
def test_configs_that_ours_cannot_be(theirs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        t5.from_foreign(theirs)
    assert text in str(error.value)
    assert "config.json" in str(error.value)


def test_two_vocabularies_are_not_theirs() -> None:
    with pytest.raises(ConfigError, match="their T5 has one vocabulary"):
        t5.to_foreign(t5.Config(), Sizes(30, 30, shared=False))


# --- fresh models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "millions"),  # as the authors and their checkpoints have it
    [
        ("small", 60.5),
        ("base", 222.9),
        ("large", 737.7),
        ("v1.1-small", 77.0),
        ("v1.1-base", 247.6),
        ("v1.1-large", 783.2),
    ],
)
def test_sizes_of_the_paper(preset: str, millions: float) -> None:
    with torch.device("meta"):
        model = t5.build(t5.Config(**with_preset("t5", {"preset": preset})), Sizes(32128, 32128, True))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == millions


@pytest.mark.parametrize("scaled", [False, True])
def test_fresh_scores_are_neither_flat_nor_hard(scaled: bool) -> None:
    """Those of normed states begin with a variance of about one, whether the queries are small or the scores scaled."""
    model = t5.build(t5.Config(encoder_layers=1, decoder_layers=1, scaled=scaled), Sizes(300, 300, True))
    states = torch.nn.functional.normalize(torch.randn(200, 512), dim=-1) * 512**0.5
    for module in model.modules():
        if isinstance(module, SelfAttention):
            q, k, _ = module.qkv(states).split(module.sizes, dim=-1)
        elif isinstance(module, CrossAttention):
            q, k = module.q(states), module.kv(states).chunk(2, dim=-1)[0]
        else:
            continue
        assert module.scale is not None
        scores = q[:, :64] @ k[:, :64].T * module.scale
        assert 0.8 < scores.std().item() < 1.2


def test_a_fresh_loss_is_that_of_guessing() -> None:
    sizes = Sizes(300, 300, True)
    for form in ({}, {"tie_embeddings": False, "activation": "geglu-tanh"}):
        model = t5.build(t5.Config(**with_preset("t5", {"preset": "tiny", **form})), sizes).eval()
        batch = a_batch(300)
        assert batch.target is not None
        logits = model.head(model.hidden(batch))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.target.ids[:, 1:].flatten()).item()
        assert abs(loss - torch.tensor(300.0).log().item()) < 1.0
