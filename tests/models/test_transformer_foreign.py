"""Marian and BART are our Transformer with their weights: states, logits, gradients, outputs, and the way back."""

from __future__ import annotations

import json
import math
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

from regard.decode.config import DecodeConfig
from regard.decode.search import decode
from regard.errors import ConfigError, RunError
from regard.models import Sizes, transformer
from regard.models._foreign import to_ours, to_theirs
from regard.models.transformer import Config, Transformer
from regard.ops.losses import token_cross_entropy
from regard.train.checkpoint import put_weights, weights
from regard.types import Batch, Sequences, Specials

NEAR = {"rtol": 0.0, "atol": 1e-9}
MARIAN = {
    "max_position_embeddings": 64,
    "pad_token_id": 2,
    "eos_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
BART = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}


def sizes_of(vocabulary: int, dim: int, heads: int, ffn: int, encoder: int, decoder: int) -> dict[str, Any]:
    heads_and_ffn = {"attention_heads": heads, "ffn_dim": ffn}
    twice = {f"{stack}_{name}": value for name, value in heads_and_ffn.items() for stack in ("encoder", "decoder")}
    return {"vocab_size": vocabulary, "d_model": dim, "encoder_layers": encoder, "decoder_layers": decoder, **twice}


FORMS: dict[str, dict[str, Any]] = {
    "marian": {**sizes_of(37, 12, 3, 10, 2, 2), **MARIAN, "scale_embedding": True, "activation_function": "swish"},
    "marian-odd": {**sizes_of(29, 15, 5, 7, 1, 2), **MARIAN, "activation_function": "relu"},
    "marian-shallow": {**sizes_of(41, 16, 2, 9, 3, 1), **MARIAN, "scale_embedding": True, "dropout": 0.3},
    "bart": {**sizes_of(31, 12, 2, 11, 2, 2), **BART, "max_position_embeddings": 45},
    "bart-scaled": {**sizes_of(33, 10, 5, 8, 1, 2), **BART, "scale_embedding": True, "activation_function": "gelu_new"},
}
every_form = pytest.mark.parametrize("name", FORMS)


@pytest.fixture
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def their_model(name: str) -> Any:
    """One of theirs, with no number left that would hide what it does."""
    kind = name.split("-")[0]
    config = transformers.AutoConfig.for_model(kind, **FORMS[name])
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter) * parameter.requires_grad)
        model.final_logits_bias.normal_(std=0.3)
        if (
            kind == "marian" and torch.get_default_dtype() == torch.float64
        ):  # their sinusoids are float32 whatever comes
            for stack in (model.model.encoder, model.model.decoder):
                stack.embed_positions.weight.copy_(sines_then_cosines(*stack.embed_positions.weight.shape))
    return model


def sines_then_cosines(length: int, dim: int) -> Tensor:
    angles = [[place / 10000 ** (2 * i / dim) for i in range((dim + 1) // 2)] for place in range(length)]
    rows = [[*map(math.sin, row), *map(math.cos, row[: dim // 2])] for row in angles]
    return torch.tensor(rows, dtype=torch.float64)


@dataclass(frozen=True)
class Folder:
    """What save_pretrained wrote."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def saved(model: nn.Module, path: Path) -> Folder:
    model.save_pretrained(path)
    return Folder(json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors"))


def converted(folder: Folder) -> tuple[Transformer, Config, Sizes]:
    config, sizes = transformer.from_foreign(folder.config)
    config, tensors = transformer.settle(config, folder.tensors)
    model = transformer.build(config, sizes).eval()
    put_weights(model, ours_of(config, tensors), where="this test")
    return model, config, sizes


def ours_of(config: Config, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    options: dict[str, Any] = {"unused": transformer.UNUSED, "copies": transformer.copies(config)}
    return to_ours(transformer.pairs(config), tensors, where="this test", **options)


def a_batch(vocabulary: int) -> Batch:
    """Rows of several lengths; what pads them is random, as nobody may look (and none the id of padding, which learns
    nothing in theirs)."""
    source, target = torch.tensor([40, 17, 1, 9]), torch.tensor([30, 5, 12, 2])
    ids = [torch.randint(3, vocabulary, (4, width)) for width in (40, 30)]
    return Batch(Sequences(ids[0], source), Sequences(ids[1], target))


def asked(batch: Batch) -> dict[str, Tensor]:
    """The same batch as theirs takes it."""
    assert batch.target is not None
    mask = (torch.arange(batch.source.ids.shape[1]) < batch.source.lengths[:, None]).long()
    return {"input_ids": batch.source.ids, "attention_mask": mask, "decoder_input_ids": batch.target.ids[:, :-1]}


def compared(name: str, path: Path) -> list[tuple[Tensor, Tensor]]:
    """Memory, last states and logits, ours and theirs, of every place that is not padding."""
    theirs = their_model(name)
    ours, _, sizes = converted(saved(theirs, path))
    batch = a_batch(sizes.source)
    assert batch.target is not None
    wanted = theirs(**asked(batch), output_hidden_states=True)
    read = asked(batch)["attention_mask"].bool()
    written = torch.arange(29) < batch.target.lengths[:, None] - 1
    hidden = ours.hidden(batch)
    return [
        (ours.encode(batch.source)[read], wanted.encoder_last_hidden_state[read]),
        (hidden[written], wanted.decoder_hidden_states[-1][written]),
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


@pytest.mark.parametrize("name", ["marian", "bart"])
@pytest.mark.usefixtures("float64")
def test_gradients(name: str, tmp_path: Path) -> None:
    """Of our loss, which never builds the logits, and of theirs, which does."""
    theirs = their_model(name)
    ours, config, sizes = converted(saved(theirs, tmp_path))
    batch = a_batch(sizes.source)
    assert batch.target is not None
    labels = batch.target.ids[:, 1:].flatten()
    wanted = theirs(**asked(batch)).logits.flatten(0, 1)
    nn.functional.cross_entropy(wanted, labels, reduction="sum").backward()
    token_cross_entropy(ours.hidden(batch).flatten(0, 1), ours.head.weight, labels, 0.0, ours.head.bias).backward()
    gradients = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    found = to_theirs(transformer.pairs(config), gradients)
    mine = found.pop("final_logits_bias")  # a constant in theirs
    assert_close(mine[0], wanted.detach().softmax(-1).sum(0) - labels.bincount(minlength=sizes.source), **NEAR)
    assert_close(found, {n: p.grad for n, p in theirs.named_parameters() if p.requires_grad}, **NEAR)


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


def outputs(name: str, path: Path, **options: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Ours and theirs for the same sources, with the end where they came to one; neither may write padding."""
    theirs, beam = their_model(name), options.get("num_beams", 1)
    with torch.no_grad():  # what was read speaks louder than the last token, which would only be said again
        for layer in theirs.model.decoder.layers:
            layer.encoder_attn.out_proj.weight *= 5
    folder = saved(theirs, path)
    ours, _, sizes = converted(folder)
    special = transformer.specials(folder.config)
    assert (special.start, special.pad) == (2, 2 if "marian" in name else 1)
    sources = [[*torch.randint(3, sizes.source, (n,)).tolist(), special.end] for n in (11, 4, 1, 7, 19, 3, 2, 8, 5, 6)]
    rows = nn.utils.rnn.pad_sequence(list(map(torch.tensor, sources)), batch_first=True, padding_value=special.pad)
    found = theirs.generate(
        rows,
        attention_mask=rows.ne(special.pad),
        max_new_tokens=25,
        do_sample=False,
        suppress_tokens=[special.pad],
        early_stopping="never" if beam > 1 else None,
        **options,
    )
    cut = [row[1 : row.index(special.end, 1) + 1] if special.end in row[1:] else row[1:] for row in found.tolist()]
    config = DecodeConfig(
        method="beam" if beam > 1 else "greedy",
        beam=beam,
        length_penalty=options.get("length_penalty", 1.0),
        max_length=25,
        max_ratio=100.0,
    )
    mine = decode(ours, sources, config, bos=special.start, eos=special.end, pad=special.pad)
    return [[*row[0].ids, *[special.end] * row[0].finished] for row in mine], cut


@every_form
@pytest.mark.usefixtures("float64")
def test_greedy_outputs_are_theirs(name: str, tmp_path: Path) -> None:
    found, wanted = outputs(name, tmp_path, num_beams=1)
    assert found == wanted
    assert len({tuple(row) for row in found}) > 1


@pytest.mark.parametrize("name", ["marian", "bart"])
@pytest.mark.usefixtures("float64")
def test_beam_outputs_are_theirs(name: str, tmp_path: Path) -> None:
    found, wanted = outputs(name, tmp_path, num_beams=4, length_penalty=0.6)
    assert found == wanted
    assert len({tuple(row) for row in found}) > 1


# --- both ways --------------------------------------------------------------------------------------------------------


@every_form
def test_back_again_with_the_same_keys_and_bits(name: str, tmp_path: Path) -> None:
    folder = saved(their_model(name), tmp_path)
    ours, config, _ = converted(folder)
    found = to_theirs(transformer.pairs(config), weights(ours), copies=transformer.copies(config))
    assert found.keys() == folder.tensors.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in folder.tensors.items())


@every_form
def test_the_config_goes_and_comes_back(name: str, tmp_path: Path) -> None:
    saved_config = saved(their_model(name), tmp_path).config
    config, sizes = transformer.from_foreign(saved_config)
    there = transformer.to_foreign(config, sizes)
    assert transformer.from_foreign(there) == (config, sizes)
    theirs = transformers.AutoConfig.for_model(**there).to_dict()
    same = {"activation_function": "silu"} if saved_config["activation_function"] == "swish" else {}
    different = {key for key, value in (saved_config | same).items() if value != theirs.get(key)}
    assert different <= {*BART, "dtype", "transformers_version", "id2label"}


@pytest.mark.parametrize("kind", ["marian", "bart"])
@pytest.mark.parametrize("output_bias", [False, True])
@torch.no_grad()
def test_a_model_of_ours_is_loaded_by_transformers(kind: str, output_bias: bool, tmp_path: Path) -> None:
    config, sizes = transformer.from_foreign({"model_type": kind, **sizes_of(30, 12, 2, 8, 1, 1)})
    config = replace(config, output_bias=output_bias)
    ours = transformer.build(config, sizes).eval()
    special = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2}
    (tmp_path / "config.json").write_text(json.dumps(transformer.to_foreign(config, sizes) | special))
    tensors = to_theirs(transformer.pairs(config), weights(ours), copies=transformer.copies(config))
    assert ("final_logits_bias" in tensors) == output_bias
    save_file(tensors, tmp_path / "model.safetensors")
    theirs, told = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert [told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set(), set(), set()]
    batch = a_batch(sizes.source)
    wanted = theirs.eval()(**asked(batch)).logits
    assert_close(ours.head(ours.hidden(batch)), wanted, rtol=0.0, atol=2e-5 * max(1.0, wanted.abs().max().item()))
    assert transformer.settle(config, tensors)[0] == config


@pytest.mark.parametrize("kind", ["marian", "bart"])
def test_what_a_config_leaves_out_is_what_theirs_means(kind: str) -> None:
    plain = transformers.AutoConfig.for_model(kind).to_dict()
    assert transformer.from_foreign({"model_type": kind}) == transformer.from_foreign(plain)
    assert transformer.specials({"model_type": kind}) == transformer.specials(plain)
    assert transformer.specials({"model_type": "bart"}) == Specials(start=2, end=2, pad=1)


def test_old_files_may_repeat_tensors_and_hold_sinusoids(tmp_path: Path) -> None:
    folder = saved(their_model("marian"), tmp_path)
    config, _ = transformer.from_foreign(folder.config)
    unread = {f"model.{stack}.embed_positions.weight": torch.ones(9, 12) for stack in ("encoder", "decoder")}
    repeated = {name: folder.tensors["model.shared.weight"].clone() for name in transformer.copies(config)}
    plain, old = ours_of(config, folder.tensors), ours_of(config, folder.tensors | unread | repeated)
    assert plain.keys() == old.keys()
    assert all(torch.equal(plain[name], old[name]) for name in plain)
    with pytest.raises(RunError, match=r"lm_head\.weight is not what the config says it is"):
        ours_of(config, folder.tensors | {"lm_head.weight": torch.zeros(37, 12)})


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        ({"activation_function": "tanh"}, '"activation_function"\n  got:    tanh\n  wanted: relu, gelu, gelu_new'),
        ({"tie_word_embeddings": False}, '"tie_word_embeddings"\n  got:    False\n  wanted: True'),
        ({"share_encoder_decoder_embeddings": False}, '"share_encoder_decoder_embeddings"\n  got:    False'),
        ({"decoder_vocab_size": 7}, '"decoder_vocab_size"\n  got:    7\n  wanted: 58101'),
        ({"decoder_ffn_dim": 7}, '"decoder_ffn_dim"\n  got:    7\n  wanted: 4096'),
        ({"decoder_attention_heads": 8}, '"decoder_attention_heads"\n  got:    8\n  wanted: 16'),
        ({"normalize_before": True}, '"normalize_before"\n  got:    True\n  wanted: False'),
        ({"encoder_layerdrop": 0.1}, '"encoder_layerdrop"\n  got:    0.1\n  wanted: 0.0'),
        ({"model_type": "mbart"}, '"model_type"\n  got:    mbart\n  wanted: marian, bart'),
        ({"d_model": "12"}, "\"model_dim\" has a wrong value\n  got:    '12'"),
    ],
)
def test_configs_that_ours_cannot_be(theirs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        transformer.from_foreign({"model_type": "marian", **theirs})
    assert text in str(error.value)
    assert "config.json" in str(error.value)


def test_a_transformer_that_is_neither() -> None:
    with pytest.raises(ConfigError) as error:
        transformer.to_foreign(Config(num_kv_heads=4, activation="swiglu"), Sizes(5, 6, False))
    assert str(error.value) == (
        "this Transformer is no Marian\n"
        "  got:    norm_first = True, position = sinusoidal, num_kv_heads = 4, activation = swiglu, two vocabularies\n"
        "  wanted: one vocabulary, full heads, norm = layer, norm_first = False, tie_embeddings = True, "
        "copy = False, position = sinusoidal-halves, first_position = 0, embedding_norm = False"
    )
    with pytest.raises(
        ConfigError, match="this Transformer is no BART\n  got:    first_position = 0, embedding_norm = "
    ):
        transformer.to_foreign(Config(position="learned", norm_first=False), Sizes(5, 5, True))
