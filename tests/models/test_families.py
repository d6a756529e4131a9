"""What every family file has, and what a user is told when a name or a key is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from regard.config import read_section, to_table
from regard.errors import ConfigError
from regard.models import KINDS, Sizes, build, family, names, with_preset
from regard.types import Batch, Sequences

every_family = pytest.mark.parametrize("name", names())


def smallest(name: str) -> str:
    """The preset that a family names last."""
    return list(family(name).PRESETS)[-1]


def read(name: str, **table: Any) -> Any:
    return read_section(family(name).Config, with_preset(name, table), where="recipe.toml", name="model")


def error_of(name: str, **table: Any) -> str:
    with pytest.raises(ConfigError) as error:
        read(name, **table)
    return str(error.value)


def test_the_families_of_this_version() -> None:
    assert {"convolutional", "recurrent", "transformer"} <= set(names("seq2seq"))
    assert "gpt" in names("causal")


def test_every_family_is_of_a_kind() -> None:
    assert sorted({name for kind in KINDS for name in names(kind)}) == names()
    both = set(names("seq2seq")) & set(names("causal")) & set(names("encoder"))
    assert {"convolutional", "recurrent"} <= both


def test_a_family_of_another_kind_says_which_there_are() -> None:
    assert family("transformer", "seq2seq") is family("transformer")
    with pytest.raises(ConfigError) as error:
        family("gpt", "seq2seq")
    assert str(error.value) == (
        "the task needs a model that reads one text and writes another\n"
        "  got:    gpt, which continues a text\n"
        f"  wanted: {', '.join(names('seq2seq'))}"
    )


def test_an_unknown_family_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as error:
        family("transfomer")
    assert str(error.value) == (
        "no such model family\n"
        "  got:    transfomer\n"
        f"  wanted: {', '.join(names())}\n"
        '  try:    did you mean "transformer"?'
    )


def test_a_family_far_from_every_name() -> None:
    with pytest.raises(ConfigError, match="try:    `regard models` lists them"):
        family("xyz")


@every_family
def test_every_key_is_explained(name: str) -> None:
    fields = dataclasses.fields(family(name).Config)
    assert [field.name for field in fields if not field.metadata.get("doc")] == []
    assert fields[0].name == "preset"


@every_family
def test_presets_are_valid_and_named_in_the_key(name: str) -> None:
    doc = dataclasses.fields(family(name).Config)[0].metadata["doc"]
    for preset in family(name).PRESETS:
        assert read(name, preset=preset).preset == preset
        assert preset in doc


@every_family
def test_the_first_preset_is_the_one_of_an_empty_section(name: str) -> None:
    assert read(name) == family(name).Config() == read(name, preset=next(iter(family(name).PRESETS)))


@every_family
def test_a_config_reads_back_equal(name: str) -> None:
    config = read(name, preset=smallest(name), dropout=0.25)
    assert read(name, **to_table(config)) == config


def test_a_preset_fills_in_what_is_not_said() -> None:
    table = {"preset": "tiny", "num_heads": 8}
    assert with_preset("transformer", table) == {
        "preset": "tiny",
        "encoder_layers": 4,
        "decoder_layers": 4,
        "model_dim": 128,
        "num_heads": 8,
        "ffn_dim": 256,
    }
    assert table == {"preset": "tiny", "num_heads": 8}


@pytest.mark.parametrize(
    ("preset", "text"),
    [
        ("bas", '"bas"\n  got:    bas\n  wanted: base, tiny, small, big\n  try:    did you mean "base"?'),
        ("xyz", '"xyz"\n  got:    xyz\n  wanted: base, tiny, small, big'),
        (3, '"3"\n  got:    3\n  wanted: base, tiny, small, big'),
        (
            ["tiny"],
            "\"['tiny']\"\n  got:    ['tiny']\n  wanted: base, tiny, small, big\n  try:    did you mean \"tiny\"?",
        ),
    ],
)
def test_a_wrong_preset(preset: object, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        with_preset("transformer", {"preset": preset})
    assert str(error.value) == f"transformer has no preset {text}"


@pytest.mark.parametrize(
    ("name", "table", "what", "got", "wanted"),
    [
        ("transformer", {"model_dim": 0}, "model_dim is too small", "0", "1 or more"),
        ("transformer", {"encoder_layers": 0}, "encoder_layers is too small", "0", "1 or more"),
        ("transformer", {"ffn_dim": -1}, "ffn_dim is too small", "-1", "1 or more"),
        ("transformer", {"attention_dropout": 1.0}, "attention_dropout is a share", "1.0", "0 <= x < 1"),
        ("transformer", {"dropout": float("nan")}, "dropout is a share", "nan", "0 <= x < 1"),
        (
            "transformer",
            {"num_heads": 6},
            "model_dim (512) must be divisible by num_heads (6)",
            "512",
            "6 x width",
        ),
        (
            "transformer",
            {"num_heads": 8, "num_kv_heads": 3},
            "num_heads (8) must be divisible by num_kv_heads (3)",
            "3",
            "a divisor of num_heads, or 0",
        ),
        (
            "transformer",
            {"num_kv_heads": -1},
            "num_heads (8) must be divisible by num_kv_heads (-1)",
            "-1",
            "a divisor of num_heads, or 0",
        ),
        (
            "transformer",
            {"position": "rotary", "model_dim": 12, "num_heads": 4},
            "rotary positions turn pairs",
            "heads of width 3",
            "an even width",
        ),
        ("recurrent", {"hidden_dim": 7}, "hidden_dim is halved", "7", "an even number"),
        ("recurrent", {"decoder_layers": 0}, "decoder_layers is too small", "0", "1 or more"),
        ("recurrent", {"dropout": -0.1}, "dropout is a share", "-0.1", "0 <= x < 1"),
        ("convolutional", {"kernel": 0}, "kernel is too small", "0", "1 or more"),
        (
            "convolutional",
            {"kernels": [3, 4, 5]},
            "kernels are the widths that share hidden_dim",
            "[3, 4, 5]",
            "widths over 0, as many as divide hidden_dim (256)",
        ),
        (
            "convolutional",
            {"kernels": [3, 0]},
            "kernels are the widths that share hidden_dim",
            "[3, 0]",
            "widths over 0, as many as divide hidden_dim (256)",
        ),
        ("convolutional", {"ngrams": 1}, "ngrams are runs of tokens", "1", "0 (none), 2 or more"),
        ("convolutional", {"ngrams": -2}, "ngrams are runs of tokens", "-2", "0 (none), 2 or more"),
        ("convolutional", {"letters": -1}, "letters is a length", "-1", "0 (none) or more"),
        ("convolutional", {"ngrams": 2, "ngram_rows": 0}, "ngram_rows is too small", "0", "1 or more"),
        ("gpt", {"layers": 0}, "layers is too small", "0", "1 or more"),
        ("gpt", {"embedding_dropout": 1.0}, "embedding_dropout is a share", "1.0", "0 <= x < 1"),
        ("gpt", {"head_dim": -1}, "head_dim is too small", "-1", "0 or more"),
        ("gpt", {"norm_eps": 0.0}, "norm_eps is too small", "0.0", "more than 0"),
        ("gpt", {"rotary_base": -1.0}, "rotary_base is too small", "-1.0", "more than 0"),
        ("gpt", {"num_heads": 5}, "model_dim (768) must be divisible by num_heads (5)", "768", "5 x width"),
        (
            "gpt",
            {"num_kv_heads": 5},
            "num_heads (12) must be divisible by num_kv_heads (5)",
            "5",
            "a divisor of num_heads, or 0",
        ),
        (
            "gpt",
            {"preset": "llama", "head_dim": 9},
            "rotary positions turn pairs",
            "heads of width 9",
            "an even width",
        ),
        ("convolutional", {"dropout": 1.5}, "dropout is a share", "1.5", "0 <= x < 1"),
    ],
)
def test_values_that_cannot_be_meant(name: str, table: dict[str, Any], what: str, got: str, wanted: str) -> None:
    text = f"{what}\n  got:    {got}\n  wanted: {wanted}\n  where:  [model] in recipe.toml"
    assert error_of(name, **table) == text


@pytest.mark.parametrize(
    ("name", "table", "text"),
    [
        (
            "recurrent",
            {"cell": "lstn"},
            "\"model.cell\" has a wrong value\n  got:    'lstn'\n"
            "  wanted: 'rnn', 'lstm' or 'gru'\n  where:  recipe.toml\n"
            '  try:    did you mean "lstm"?',
        ),
        (
            "transformer",
            {"model_dim": "256"},
            "\"model.model_dim\" has a wrong value\n  got:    '256'\n  wanted: a valid integer\n  where:  recipe.toml",
        ),
        (
            "transformer",
            {"norm_first": 1},
            '"model.norm_first" has a wrong value\n  got:    1\n  wanted: a valid boolean\n  where:  recipe.toml',
        ),
    ],
)
def test_values_of_a_wrong_kind(name: str, table: dict[str, Any], text: str) -> None:
    assert error_of(name, **table) == text


def test_an_unknown_key_names_the_nearest() -> None:
    text = error_of("transformer", layers=4)
    assert text.startswith('unknown key "model.layers"\n  got:    layers\n  wanted: preset, encoder_layers,')
    assert text.endswith('  where:  recipe.toml\n  try:    did you mean "model.encoder_layers"?')


@every_family
@pytest.mark.parametrize("shared", [False, True])
def test_builds_from_its_smallest_preset(name: str, shared: bool) -> None:
    for kind in family(name).KINDS:
        together = shared or kind != "seq2seq"
        sizes = Sizes(30, 30 if together else 40, together)
        model = build(name, read(name, preset=smallest(name)), sizes, kind).eval()
        texts = (Sequences(torch.randint(30, (1, length)), torch.tensor([length])) for length in (3, 4))
        assert model.head(model.hidden(Batch(*texts))).shape == (1, 3, sizes.target)


@pytest.mark.parametrize(
    ("name", "kind", "table", "text"),
    [
        (
            "recurrent",
            "causal",
            {"attention": "none"},
            "a model that continues a text has no use for attention\n  got:    none\n  wanted: additive, as if unsaid",
        ),
        (
            "recurrent",
            "encoder",
            {"decoder_layers": 2},
            "a model that reads a text has no use for decoder_layers\n  got:    2\n  wanted: 1, as if unsaid",
        ),
        (
            "recurrent",
            "seq2seq",
            {"weight_dropout": 0.5},
            "a model that reads one text and writes another has no use for weight_dropout\n"
            "  got:    0.5\n  wanted: 0.0, as if unsaid",
        ),
        (
            "convolutional",
            "causal",
            {"max_length": 64},
            "a model that continues a text has no use for max_length\n  got:    64\n  wanted: 512, as if unsaid",
        ),
        (
            "convolutional",
            "encoder",
            {"kernels": [3, 5], "kernel": 5},
            "a model that reads a text has no use for kernel\n  got:    5\n  wanted: 3, as if unsaid",
        ),
        (
            "convolutional",
            "seq2seq",
            {"ngrams": 2},
            "a model that reads one text and writes another has no use for ngrams\n"
            "  got:    2\n  wanted: 0, as if unsaid",
        ),
        (
            "convolutional",
            "causal",
            {"letters": 3},
            "a model that continues a text has no use for letters\n  got:    3\n  wanted: 0, as if unsaid",
        ),
        (
            "convolutional",
            "encoder",
            {"letters": 3},
            "letters need a task that says how tokens are spelled\n  got:    letters = 3\n"
            "  wanted: classification, tagging or another that reads one text",
        ),
        (
            "convolutional",
            "encoder",
            {"ngram_rows": 1000},
            "a model that reads a text has no use for ngram_rows\n  got:    1000\n  wanted: 50000, as if unsaid",
        ),
    ],
)
def test_a_key_of_another_kind_is_refused(name: str, kind: str, table: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(name, read(name, **table), Sizes(30, 30, True), kind)
    assert str(error.value) == text
