import pytest

from regard.config import read_section, to_table
from regard.decode.config import OWN_KEYS, DecodeConfig
from regard.errors import ConfigError
from regard.recipe import parse


def test_a_section_reads_back_equal():
    config = DecodeConfig(method="sample", n_best=9, top_p=0.9)
    assert read_section(DecodeConfig, to_table(config), where="recipe.toml", name="decode") == config


def test_every_key_is_explained():
    assert all(field.metadata["doc"] for field in DecodeConfig.__dataclass_fields__.values())


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"beam": 0}, "beam is too small\n  got:    0\n  wanted: at least 1\n  where:  [decode] in r.toml"),
        ({"n_best": 6}, "n_best (6) must not be larger than beam (5)\n  got:    6\n  wanted: at most 5"),
        ({"method": "greedy", "n_best": 2}, "greedy search has one output\n  got:    n_best = 2"),
        ({"method": "nucleus"}, "\"decode.method\" has a wrong value\n  got:    'nucleus'"),
        ({"length_penalty": -1.0}, "length_penalty is out of range\n  got:    -1.0\n  wanted: 0 to 10"),
        ({"length_penalty": 1e9}, "length_penalty is out of range"),
        ({"length_penalty": float("nan")}, "length_penalty is out of range\n  got:    nan"),
        ({"max_ratio": float("inf")}, "max_ratio is out of range\n  got:    inf\n  wanted: above 0, at most 1000000"),
        ({"max_ratio": float("nan")}, "max_ratio is out of range"),
        ({"temperature": 1e-30}, "temperature is out of range\n  got:    1e-30\n  wanted: 0.001 to 1000"),
        ({"temperature": float("inf")}, "temperature is out of range"),
        ({"temperature": float("nan")}, "temperature is out of range"),
        ({"temperature": 0.0}, 'try:    method = "greedy" is the limit of temperature 0'),
        ({"top_p": 0.0}, "top_p is out of range\n  got:    0.0\n  wanted: above 0, at most 1"),
        ({"top_p": float("1.01")}, "top_p is out of range"),
        ({"min_p": 1.5}, "min_p is out of range\n  got:    1.5\n  wanted: 0 to 1"),
        ({"top_k": -1}, "top_k is too small"),
        ({"max_ratio": 0.0}, "max_ratio is out of range\n  got:    0.0\n  wanted: above 0"),
        ({"min_length": 20, "max_length": 20}, "min_length (20) leaves no room below max_length (20)"),
        ({"penalty": 1.5}, "penalty is out of range\n  got:    1.5\n  wanted: 0 to 1"),
        ({"draft_tokens": 0}, "draft_tokens is too small\n  got:    0\n  wanted: at least 1"),
        ({"method": "contrastive"}, "contrastive search weighs the top_k likeliest tokens\n  got:    top_k = 0"),
        ({"method": "contrastive", "top_k": 4, "n_best": 2}, "contrastive search has one output"),
        ({"beams": 5}, 'try:    did you mean "decode.beam"?'),
    ],
)
def test_what_cannot_be_meant_is_an_error(table, message):
    with pytest.raises(ConfigError) as error:
        read_section(DecodeConfig, table, where="r.toml", name="decode").need_outputs()
    assert message in str(error.value)


def test_a_recipe_is_asked_for_its_outputs_where_something_is_searched(tmp_path):
    table = {"data": {"train": ["a.tsv"], "val_share": 0.5}, "decode": {"n_best": 6}}
    recipe = parse(
        {**table, "task": {"name": "classification"}, "model": {"family": "bert"}}, where="r", folder=tmp_path
    )
    assert recipe.decode.n_best == 6
    with pytest.raises(ConfigError, match=r"n_best \(6\) must not be larger than beam \(5\)(.|\n)*\[decode\] in r"):
        parse({**table, "task": {"name": "translation"}}, where="r", folder=tmp_path)


def test_rows_that_a_source_takes():
    assert DecodeConfig(beam=4).rows_per_source == 4
    assert DecodeConfig(method="greedy").rows_per_source == 1
    assert DecodeConfig(method="sample", n_best=7).rows_per_source == 7
    assert DecodeConfig(method="contrastive", top_k=6).rows_per_source == 6


def test_what_can_be_had_token_by_token():
    assert all(DecodeConfig(method=method, top_k=2).streams for method in ("greedy", "sample", "contrastive"))
    assert DecodeConfig(beam=1).streams
    assert not DecodeConfig().streams
    assert not DecodeConfig(method="sample", n_best=2).streams
    with pytest.raises(ConfigError, match="can be had token by token"):
        DecodeConfig().need_streams()


def test_a_key_without_a_use_is_refused_where_it_was_just_set():
    names = [field for field in DecodeConfig.__dataclass_fields__ if field not in ("draft_tokens", "known")]
    assert {name for keys in OWN_KEYS.values() for name in keys} <= set(names)
    shared = [name for name in names if not any(name in keys for keys in OWN_KEYS.values())]
    for method, keys in OWN_KEYS.items():
        config = DecodeConfig(method=method, top_k=2)
        config.refuse_unused([*shared, *keys], drafted=False, controlled=True)
        for name in set(names) - set(shared) - set(keys):
            with pytest.raises(ConfigError, match=f'method = "{method}" does not use {name}'):
                config.refuse_unused([name], drafted=False)
    DecodeConfig(method="greedy").refuse_unused(["draft_tokens"], drafted=True)
    with pytest.raises(ConfigError, match="draft_tokens says how a draft model guesses"):
        DecodeConfig(method="greedy").refuse_unused(["draft_tokens"], drafted=False)
    with pytest.raises(ConfigError, match="cannot be told how long its outputs should be"):
        DecodeConfig().refuse_unused(["words"], drafted=False)
    with pytest.raises(ConfigError, match="max_ratio has no use here\n  got:    max_ratio\n  wanted: max_length"):
        DecodeConfig().refuse_unused(["max_ratio"], drafted=False, sourced=False)
    with pytest.raises(ConfigError, match="this run knows no facts that could be left out"):
        DecodeConfig().refuse_unused(["known"], drafted=False)
