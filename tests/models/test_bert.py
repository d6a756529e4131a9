"""BERT and RoBERTa against transformers' own, under its weights, both ways; and what the paper says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from regard.config import read_section
from regard.errors import ConfigError, RegardError, RunError
from regard.layers.ngrams import hash_ngrams
from regard.look.collect import observe
from regard.models import Sizes, with_preset
from regard.models._foreign import to_ours, to_theirs
from regard.models.bert import (
    PRESETS,
    UNUSED,
    Bert,
    Config,
    build,
    copies,
    from_foreign,
    pairs,
    settle,
    to_foreign,
)
from regard.ops.attention import backends_used
from regard.ops.positions import sinusoid
from regard.train.checkpoint import put_weights, weights
from regard.types import Batch, Sequences

DOUBLE = {"rtol": 0.0, "atol": 1e-9}
EXACT = {"rtol": 0.0, "atol": 1e-12}


@dataclass(frozen=True)
class Case:
    """One of their classes, with the sizes of its config."""

    name: str
    sizes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.sizes.items())])

    def theirs(self, **more: Any) -> Any:
        """Their model with random weights, all of which matter."""
        kind = "Roberta" if self.name.startswith("Roberta") else "Bert"
        base = {"hidden_size": 15, "num_attention_heads": 3, "intermediate_size": 19, "num_hidden_layers": 2}
        table = {"vocab_size": 37, "max_position_embeddings": 23, **base, **self.sizes, **more}
        model = getattr(transformers, self.name)(getattr(transformers, f"{kind}Config")(**table)).eval()
        model.set_attn_implementation("eager")  # the formula, and not the kernel that ours may call as well
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        return model


PRETRAINING = Case("BertForPreTraining", {"type_vocab_size": 3})
ROBERTA = Case("RobertaForMaskedLM", {"type_vocab_size": 1, "layer_norm_eps": 1e-5})
CASES = [
    PRETRAINING,
    Case("BertForMaskedLM", {"hidden_size": 12, "num_attention_heads": 4, "hidden_act": "gelu_new"}),
    Case("BertModel", {"num_hidden_layers": 3, "num_attention_heads": 1, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    Case("BertForNextSentencePrediction", {"hidden_act": "silu", "num_attention_heads": 5}),
    ROBERTA,
    Case("RobertaForMaskedLM", {"pad_token_id": 4, "hidden_size": 14, "num_attention_heads": 2, "hidden_act": "relu"}),
    Case("RobertaModel", {"pad_token_id": 0, "num_hidden_layers": 1}),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def ours_of(theirs: Any) -> tuple[Bert, Config]:
    """Our model with the weights of one of theirs, as `save_pretrained` would name them."""
    config, sizes = from_foreign(theirs.config.to_dict() | {"architectures": [type(theirs).__name__]})
    model = build(config, sizes).to(theirs.dtype).eval()
    put_weights(model, to_ours(pairs(config), saved(theirs), where="theirs"), where="theirs")
    return model, config


def saved(theirs: Any) -> dict[str, Tensor]:
    """Their tensors without those that are another one's copy."""
    repeats = (
        "predictions.decoder.weight",
        "predictions.decoder.bias",
        "lm_head.decoder.weight",
        "lm_head.decoder.bias",
    )
    return {name: tensor.detach() for name, tensor in theirs.state_dict().items() if not name.endswith(repeats)}


def a_source(theirs: Any, lengths: tuple[int, ...] = (7, 3, 1, 5)) -> Sequences:
    """Rows of two or more texts, padded with their padding."""
    config, pad = theirs.config, theirs.config.pad_token_id
    ids = torch.randint(pad + 1, config.vocab_size, (len(lengths), max(lengths)))
    places = torch.arange(max(lengths))
    ids[places >= torch.tensor(lengths)[:, None]] = pad
    segments = torch.randint(config.type_vocab_size, ids.shape)
    return Sequences(ids, torch.tensor(lengths), segments)


def real(source: Sequences) -> Tensor:
    return torch.arange(source.ids.shape[1]) < source.lengths[:, None]


def run_theirs(model: Any, source: Sequences) -> dict[str, Any]:
    mask = real(source).long()
    out = model(source.ids, attention_mask=mask, token_type_ids=source.segments, output_hidden_states=True)
    return {
        "states": out.hidden_states,
        "pooled": out.get("pooler_output"),
        "logits": out.get("prediction_logits", out.get("logits") if "MaskedLM" in type(model).__name__ else None),
        "follows": out.get("seq_relationship_logits", out.get("logits") if "Next" in type(model).__name__ else None),
    }


def run_ours(model: Bert, config: Config, source: Sequences) -> dict[str, Any]:
    states = tuple(model.states(source))
    hidden = model.hidden(Batch(source))
    assert torch.equal(hidden, states[-1])
    pooled = model.pooled(hidden, source.lengths)
    return {
        "states": states,
        "pooled": pooled if config.pooler else None,
        "logits": model.head(hidden) if config.masked_head else None,
        "follows": model.next_sentence(pooled) if config.next_sentence else None,
    }


def assert_same_answers(found: dict[str, Any], wanted: dict[str, Any], source: Sequences, atol: float) -> None:
    """All that theirs gives, at every real place."""
    places = real(source)
    assert len(found["states"]) == len(wanted["states"])
    for mine, other in zip(found["states"], wanted["states"], strict=True):
        assert_close(mine[places], other[places], rtol=0.0, atol=atol)
    given = [name for name in ("pooled", "logits", "follows") if wanted[name] is not None]
    for name in given:
        mine, other = (answer[name][places] if name == "logits" else answer[name] for answer in (found, wanted))
        assert_close(mine, other, rtol=0.0, atol=atol * (max(1.0, float(other.abs().max())) if atol > 1e-6 else 1.0))


# --- against theirs ---------------------------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("lengths", [(7, 3, 1, 5), (6, 6)], ids=["padded", "whole"])
@torch.no_grad()
def test_every_state_and_logit_in_float64(case: Case, lengths: tuple[int, ...]) -> None:
    theirs = case.theirs().double()
    (ours, config), source = ours_of(theirs), a_source(theirs, lengths)
    assert_same_answers(run_ours(ours, config, source), run_theirs(theirs, source), source, 1e-9)


@every_case
@torch.no_grad()
def test_every_state_and_logit_in_float32(case: Case) -> None:
    theirs = case.theirs()
    (ours, config), source = ours_of(theirs), a_source(theirs)
    assert_same_answers(run_ours(ours, config, source), run_theirs(theirs, source), source, 2e-5)


@torch.no_grad()
def test_what_stands_at_padding_is_theirs_too() -> None:
    """In BERT; RoBERTa has a position of its own for padding, which nobody reads."""
    theirs = PRETRAINING.theirs().double()
    (ours, config), source = ours_of(theirs), a_source(theirs)
    found, wanted = run_ours(ours, config, source), run_theirs(theirs, source)
    assert_close(found["logits"], wanted["logits"], **DOUBLE)


@torch.no_grad()
def test_without_segments_all_is_of_the_first() -> None:
    for case in (PRETRAINING, ROBERTA):
        theirs = case.theirs().double()
        (ours, _), source = ours_of(theirs), a_source(theirs, (6, 6))
        source = replace(source, segments=None)
        assert_close(ours.head(ours.hidden(Batch(source))), theirs(source.ids)[0], **DOUBLE)


@torch.no_grad()
def test_the_longest_text() -> None:
    for case, longest in ((PRETRAINING, 23), (ROBERTA, 21)):
        theirs = case.theirs().double()
        (ours, config), source = ours_of(theirs), a_source(theirs, (longest, 2))
        assert_same_answers(run_ours(ours, config, source), run_theirs(theirs, source), source, 1e-9)
        with pytest.raises(RegardError, match=f"got:    {longest + 1} tokens\n  wanted: at most {longest}"):
            ours.hidden(Batch(a_source(theirs, (longest + 1,))))


@pytest.mark.parametrize("case", [PRETRAINING, ROBERTA], ids=str)
def test_every_gradient(case: Case) -> None:
    theirs = case.theirs().double()
    (ours, config), source = ours_of(theirs), a_source(theirs)
    labels = torch.randint(37, source.ids.shape).masked_fill(~real(source), -100)
    for model, answers in ((ours, run_ours(ours, config, source)), (theirs, run_theirs(theirs, source))):
        loss = F.cross_entropy(answers["logits"].flatten(0, 1), labels.flatten(), reduction="sum")
        if answers["follows"] is not None:
            loss = loss + F.cross_entropy(answers["follows"], torch.tensor([0, 1, 1, 0]), reduction="sum")
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    found = to_theirs(pairs(config), {name: parameter.grad for name, parameter in ours.named_parameters()})  # type: ignore[misc]
    wanted = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert_close(found, wanted, **DOUBLE)


@pytest.mark.parametrize("dropout", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
@torch.no_grad()
def test_dropout_falls_where_theirs_does(dropout: str) -> None:
    """The same draws in the same order: embeddings, attention weights, and each sublayer before its residual."""
    others = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, dropout: 0.5}
    theirs = PRETRAINING.theirs(**others).double().train()
    (converted, config), source = ours_of(theirs), a_source(theirs)
    ours = build(replace(config, backend="reference"), Sizes(37, 37, True)).double()
    put_weights(ours, weights(converted), where="here")
    torch.manual_seed(3)
    wanted = run_theirs(theirs, source)
    torch.manual_seed(3)
    states = tuple(ours.train().states(source))
    for mine, other in zip(states, wanted["states"], strict=True):
        assert_close(mine, other, **DOUBLE)
    assert not torch.equal(states[-1], tuple(ours.states(source))[-1])


# --- weights, both ways -----------------------------------------------------------------------------------------------


def folder_of(theirs: Any, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    theirs.save_pretrained(path)
    return json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")


@every_case
@torch.no_grad()
def test_there_and_back(case: Case, tmp_path: Path) -> None:
    theirs = case.theirs()
    table, tensors = folder_of(theirs, tmp_path / "theirs")
    config, sizes = from_foreign(table)
    assert settle(config, tensors)[0] == config
    assert settle(config, tensors)[1].keys() == tensors.keys()
    ours = build(config, sizes)
    put_weights(ours, to_ours(pairs(config), tensors, where="theirs"), where="theirs")
    back = to_theirs(pairs(config), weights(ours))
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    # and theirs reads what we write: its config, its class, and every tensor of it
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/config.json").write_text(json.dumps(to_foreign(config, sizes)))
    save_file(back, tmp_path / "ours/model.safetensors", {"format": "pt"})
    again_config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert again_config.architectures == [case.name]
    again, info = getattr(transformers, case.name).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert [info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")] == [set()] * 3
    source = a_source(theirs)
    again.eval().set_attn_implementation("eager")
    found, wanted = run_theirs(again, source), run_theirs(theirs, source)
    assert torch.equal(found["states"][-1], wanted["states"][-1])


@every_case
def test_a_config_there_and_back(case: Case) -> None:
    config, sizes = from_foreign(case.theirs().config.to_dict() | {"architectures": [case.name]})
    assert from_foreign(to_foreign(config, sizes)) == (config, sizes)


@pytest.mark.parametrize("preset", ["base", "roberta"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": 3, "model_dim": 10, "num_heads": 5, "ffn_dim": 7, "max_length": 9, "segment_kinds": 4},
        {"activation": "gelu-tanh", "norm_eps": 1e-6, "dropout": 0.0, "attention_dropout": 0.3},
        {"masked_head": False},
        {"pooler": True},
        {"masked_head": False, "pooler": False, "next_sentence": False},
        {"masked_head": False, "pooler": True, "next_sentence": False},
    ],
    ids=str,
)
def test_our_config_there_and_back(preset: str, changes: dict[str, Any]) -> None:
    config, sizes = Config(**PRESETS[preset] | {"preset": preset} | changes), Sizes(31, 31, True)
    theirs = to_foreign(config, sizes)
    assert from_foreign(json.loads(json.dumps(theirs))) == (config, sizes)


def test_what_their_config_does_not_say_is_what_theirs_takes() -> None:
    for kind, name in (("bert", "Bert"), ("roberta", "Roberta")):
        full = getattr(transformers, f"{name}Config")().to_dict()
        short = {"model_type": kind, "architectures": None, "auto_map": None, "pruned_heads": {}}
        assert from_foreign(short) == from_foreign(full | {"architectures": [f"{name}Model"]})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_act": "mish"}, 'this "hidden_act"\n  got:    mish\n  wanted: gelu, gelu_new, '),
        ({"is_decoder": True}, 'this "is_decoder"\n  got:    True\n  wanted: False\n'),
        ({"add_cross_attention": True}, 'this "add_cross_attention"'),
        ({"position_embedding_type": "relative_key"}, "got:    relative_key\n  wanted: absolute\n"),
        ({"tie_word_embeddings": False}, 'this "tie_word_embeddings"\n  got:    False'),
        ({"pruned_heads": {"0": [1]}}, 'this "pruned_heads"'),
        ({"auto_map": {"AutoModel": "modeling.MyBert"}}, 'this "auto_map"'),
        (
            {"architectures": ["BertForSequenceClassification"]},
            'this "architectures"\n  got:    BertForSequenceClassification\n'
            "  wanted: BertModel, BertForMaskedLM, BertForPreTraining, BertForNextSentencePrediction\n",
        ),
        ({"hidden_size": 100}, r"model_dim (100) must be divisible by num_heads (12)"),
        ({"hidden_size": "wide"}, '"model_dim" has a wrong value'),
    ],
    ids=str,
)
def test_another_model_is_not_taken_for_this_one(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_foreign({"model_type": "bert", **changes})
    assert text in str(error.value)
    assert str(error.value).count("where:  config.json") == 1


def test_roberta_has_no_next_sentence() -> None:
    with pytest.raises(ConfigError, match="wanted: RobertaModel, RobertaForMaskedLM\n"):
        from_foreign({"model_type": "roberta", "architectures": ["RobertaForPreTraining"]})
    with pytest.raises(ConfigError) as error:
        to_foreign(Config(first_position=2), Sizes(9, 9, True))
    text = "RoBERTa has no next-sentence head\n  got:    next_sentence = true\n  wanted: false"
    assert str(error.value) == text


def from_file(table: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[Bert, Config]:
    """Reads weights as they are found, whatever they call themselves."""
    config, sizes = from_foreign(dict(table))
    config, tensors = settle(config, tensors)
    model = build(config, sizes).eval()
    ours = to_ours(pairs(config), tensors, where="a file", unused=UNUSED, copies=copies(config))
    put_weights(model, ours, where="a file")
    return model, config


@torch.no_grad()
def test_a_file_with_more_than_its_config_says(tmp_path: Path) -> None:
    """As bert-base-uncased: all parts under the name of one, gamma and beta, counters, and the tied ones again."""
    theirs = PRETRAINING.theirs()
    table, tensors = folder_of(theirs, tmp_path)
    norms = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for name in [name for name in tensors if "LayerNorm" in name]:
        path, _, end = name.partition("LayerNorm.")
        tensors[path + norms[f"LayerNorm.{end}"]] = tensors.pop(name)
    tensors["bert.embeddings.position_ids"] = torch.arange(23)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    model, config = from_file(table | {"architectures": ["BertForMaskedLM"]}, tensors)
    assert (config.masked_head, config.pooler, config.next_sentence) == (True, True, True)
    source = a_source(theirs)
    assert_same_answers(run_ours(model, config, source), run_theirs(theirs, source), source, 2e-5)


@torch.no_grad()
def test_an_encoder_without_any_head(tmp_path: Path) -> None:
    """As sentence encoders come: no root in the names, sometimes no pooler; or with the root, and no head beside it."""
    theirs = Case("BertModel").theirs()
    table, tensors = folder_of(theirs, tmp_path)
    source = a_source(theirs)
    bare = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}
    for given, has in ((tensors, True), (bare, False), ({f"bert.{name}": bare[name] for name in bare}, False)):
        model, config = from_file(table, given)
        assert (config.masked_head, config.pooler, config.next_sentence) == (False, has, False)
        assert_close(model.hidden(Batch(source)), theirs(source.ids, real(source), source.segments)[0])
    hidden = model.hidden(Batch(source))
    assert torch.equal(model.pooled(hidden, source.lengths), hidden[:, 0])
    for part in ("head", "next_sentence"):
        name = {"head": "masked_head"}.get(part, part)
        with pytest.raises(RegardError) as error:
            getattr(model, part)(hidden)
        assert str(error.value) == (
            f"this model has no such head\n  got:    {name} = false\n"
            f"  try:    take weights that have it, or train one: model.{name} = true"
        )


def test_files_that_are_not_understood(tmp_path: Path) -> None:
    table, tensors = folder_of(PRETRAINING.theirs(), tmp_path)
    with pytest.raises(RunError, match=r"no place for\n  got:    bert\.classifier\.weight"):
        from_file(table, tensors | {"classifier.weight": torch.zeros(2, 15)})
    with pytest.raises(RunError, match=r"cls\.predictions\.decoder\.weight is not what the config says it is"):
        from_file(table, tensors | {"cls.predictions.decoder.weight": torch.zeros(37, 15)})
    with pytest.raises(RunError, match=r"lack a tensor\n  got:    no bert\.encoder\.layer\.1\.output\.dense\.bias"):
        from_file(table, {name: tensors[name] for name in tensors if name != "bert.encoder.layer.1.output.dense.bias"})
    with pytest.raises(ConfigError, match="next_sentence reads what the pooler gives"):
        from_file(table, {name: tensors[name] for name in tensors if "pooler" not in name})


# --- what it is -------------------------------------------------------------------------------------------------------


def small(**changes: Any) -> Bert:
    table = {"layers": 2, "model_dim": 12, "num_heads": 3, "ffn_dim": 10, "max_length": 16, **changes}
    model = build(Config(**table), Sizes(37, 37, True)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def rows(lengths: tuple[int, ...] = (7, 3, 1, 5), width: int = 7) -> Sequences:
    """What lies after a row's length is random too, as nobody may look at it."""
    shape = (len(lengths), width)
    return Sequences(torch.randint(37, shape), torch.tensor(lengths), torch.randint(2, shape))


FORMS: list[dict[str, Any]] = [{}, {"first_position": 2, "segment_kinds": 1, "next_sentence": False}]
every_form = pytest.mark.parametrize("form", FORMS, ids=["bert", "roberta"])


@every_form
def test_padding_changes_nothing(form: dict[str, Any]) -> None:
    """Neither its ids nor how much there is of it, in values or in gradients."""
    model, source = small(**form), rows()

    def answer(source: Sequences) -> tuple[Tensor, dict[str, Tensor | None]]:
        model.zero_grad()
        hidden = model.hidden(Batch(source))
        logits = model.head(hidden)[real(source)]
        (logits.logsumexp(-1).sum() + model.pooled(hidden, source.lengths).sum()).backward()
        return logits, {name: parameter.grad for name, parameter in model.named_parameters()}

    more = rows((7, 3, 1, 5), 11)
    for mine, other in ((source.ids, more.ids), (source.segments, more.segments)):
        assert mine is not None
        assert other is not None
        other[:, :7] = torch.where(real(source), mine, other[:, :7])
    found, wanted = answer(more), answer(source)
    assert_close(found, wanted, **EXACT)


@every_form
@torch.no_grad()
def test_one_row_is_as_among_many(form: dict[str, Any]) -> None:
    model, source = small(**form), rows()
    assert source.segments is not None
    many = model.hidden(Batch(source))
    for row, length in enumerate(source.lengths.tolist()):
        one = Sequences(source.ids[row : row + 1, :length], source.lengths[row : row + 1])
        one = replace(one, segments=source.segments[row : row + 1, :length])
        assert_close(model.hidden(Batch(one))[0], many[row, :length], **EXACT)


@torch.no_grad()
def test_every_token_sees_both_sides() -> None:
    model, source = small(), rows((6,), 6)
    before = model.hidden(Batch(source))
    for place in range(6):
        ids = source.ids.clone()
        ids[0, place] = (ids[0, place] + 1) % 37
        change = (model.hidden(Batch(replace(source, ids=ids))) - before).abs().amax(-1)
        assert (change > 1e-6).all()


@torch.no_grad()
def test_segments_tell_texts_apart_where_there_are_kinds_of_them() -> None:
    for form, differs in zip(FORMS, (True, False), strict=True):
        model, source = small(**form), rows((6,), 6)
        first, second = (replace(source, segments=torch.full_like(source.ids, kind)) for kind in (0, 1))
        assert torch.equal(model.hidden(Batch(first)), model.hidden(Batch(second))) is not differs


@torch.no_grad()
def test_an_empty_row_is_finite_and_leaves_its_neighbours_alone() -> None:
    model, source = small(), rows((4, 0, 2), 4)
    found = model.hidden(Batch(source))
    assert found.isfinite().all()
    for row in (0, 2):
        one = Sequences(source.ids[row : row + 1], source.lengths[row : row + 1], source.segments[row : row + 1])  # type: ignore[index]
        assert_close(model.hidden(Batch(one))[0], found[row], **EXACT)


@torch.no_grad()
def test_the_masked_head_in_two_steps() -> None:
    """A loss may take the places that it needs, and the vocabulary in pieces."""
    model, source = small(), rows()
    hidden = model.hidden(Batch(source))
    head: Any = model.head
    found = head.transform(hidden) @ model.source.tokens.weight.T + head.bias  # type: ignore[operator, union-attr]
    assert_close(found, head(hidden), **EXACT)


@torch.no_grad()
def test_backends_give_the_same() -> None:
    source, found = rows(), []
    for backend in ("reference", "fused"):
        torch.manual_seed(1)
        model = small(backend=backend)
        with backends_used() as used:
            found.append(model.hidden(Batch(source)))
        assert used == [backend] * 2
    assert_close(found[0], found[1], **EXACT)


@pytest.mark.parametrize("dynamic", [False, True])
@torch.no_grad()
def test_it_compiles_as_one_graph(dynamic: bool) -> None:
    torch.compiler.reset()
    model, source = small(), rows()
    compiled = torch.compile(model.hidden, backend="eager", fullgraph=True, dynamic=dynamic)
    assert_close(compiled(Batch(source)), model.hidden(Batch(source)), **EXACT)


def test_the_sizes_of_the_papers() -> None:
    """110M and 340M (Devlin et al. 2019, 3), 125M and 355M (Liu et al. 2019), with what the heads add."""
    wanted = {
        "base": (30522, 110.1),
        "large": (30522, 336.2),
        "roberta": (50265, 124.7),
        "roberta-large": (50265, 355.4),
    }
    for preset, (vocabulary, millions) in wanted.items():
        config = read_section(Config, with_preset("bert", {"preset": preset}), where="here")
        with torch.device("meta"):
            model = build(config, Sizes(vocabulary, vocabulary, True))
        assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6, 1) == millions


@torch.no_grad()
def test_fresh_weights() -> None:
    model = build(Config(layers=1, model_dim=64, num_heads=2, ffn_dim=64), Sizes(500, 500, True))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        elif "norm" in name:
            assert (parameter == 1).all()
        else:
            assert float(parameter.abs().max()) <= 0.04
            assert_close(float(parameter.std()), 0.02 * 0.8796, rtol=0.15, atol=0.0)  # a normal cut at two deviations


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"next_sentence": True, "pooler": False}, "next_sentence reads what the pooler gives"),
        ({"num_heads": 7}, r"model_dim \(768\) must be divisible by num_heads \(7\)"),
        ({"norm_eps": 0.0}, "norm_eps is too small"),
        ({"first_position": -1}, "first_position is too small"),
        ({"segment_kinds": 0}, "segment_kinds is too small"),
    ],
)
def test_values_that_cannot_be_meant(table: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Config(**table)


# --- TENER ------------------------------------------------------------------------------------------------------------


def tener(**keys: Any) -> Bert:
    table = {"layers": 2, "model_dim": 12, "num_heads": 3, "ffn_dim": 10, "preset": "tener", **keys}
    torch.manual_seed(0)
    return build(read_section(Config, with_preset("bert", table), where="this test"), Sizes(9, 9, True)).double().eval()


def test_tener_has_distances_for_positions_and_tells_their_direction() -> None:
    model = tener()
    assert not any("positions" in name for name, _ in model.named_parameters())
    assert {block.attention.body.scale for block in model.blocks} == {1.0}
    ids = torch.tensor([[3, 5, 5, 5, 4, 3, 5]])
    batch = Batch(Sequences(ids, torch.tensor([7])))
    with torch.no_grad():
        found = model.hidden(batch)[0]
        turned = model.hidden(Batch(Sequences(ids.flip(1), torch.tensor([7]))))[0].flip(0)
        again = model.hidden(Batch(Sequences(ids.repeat(1, 200), torch.tensor([1400]))))  # of any length
    assert (found - turned).abs().max() > 1e-3
    assert again.isfinite().all()


def test_tener_is_observed_as_the_others_are() -> None:
    model = tener()
    x = Batch(Sequences(torch.tensor([[3, 5, 1, 4]]), torch.tensor([4])))
    with torch.no_grad(), observe(model) as trace:
        model.hidden(x)
    body, state = model.blocks[0].attention.body, model.source(x.source.ids)
    q, k, _ = (part.view(4, 3, 4).transpose(0, 1) for part in body.qkv(state)[0].chunk(3, dim=-1))
    places = torch.arange(4)
    waves = sinusoid(places[:, None] - places, 4).double()  # i, j, d
    u, v = body.relative.content_bias[:, None], body.relative.position_bias[:, None]
    scores = (q + u) @ k.transpose(1, 2) + torch.einsum("hid,ijd->hij", q + v, waves)
    assert_close(trace[0].rows(range(4))[0], scores.softmax(-1), rtol=0.0, atol=1e-6)


def test_bigrams_are_of_a_token_and_the_one_before_it() -> None:
    model = tener(bigrams=50)
    ids = torch.tensor([[3, 5, 1, 4]])
    plain = model.source.bigrams
    with torch.no_grad():
        whole = model.source(ids)
        for place in range(4):
            before = int(ids[0, place - 1]) if place else 0
            (alone,) = hash_ngrams(torch.tensor([[before, int(ids[0, place])]]), 2, 50)[0, 1:].tolist()
            x = model.source.tokens(ids[0, place]) + model.source.segments.weight[0] + plain.weight[alone]
            assert_close(whole[0, place], model.source.norm(x))


@pytest.mark.parametrize(("key", "value"), [("position", "tener"), ("bigrams", 9)])
def test_others_have_no_such_bert(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"others have no BERT with this {key}\n  got:    {value}"):
        to_foreign(replace(Config(), **{key: value}), Sizes(9, 9, True))
