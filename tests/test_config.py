"""Errors, the strict reader of recipes, and its writer. The texts are what users see, so they are tested whole."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.config import key, nearest, override, read_section, read_toml, to_table, to_toml, toml_value
from regard.errors import BackendError, ConfigError, DataError, RegardError, RunError, require


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = key(0.5, "a share")

    def __post_init__(self) -> None:
        require(0 <= self.rate <= 1, "rate is a share", got=self.rate, wanted="0 <= rate <= 1", remedy="rate = 0.5")


@dataclass(frozen=True, kw_only=True)
class Section:
    layers: int = key(2, "how many")
    kind: Literal["plain", "gated"] = key("plain", "which")
    files: list[str] = key([], "some files")
    pair: tuple[int, int] = key((1, 2), "two numbers")
    name: str | None = key(None, "a name, or none")
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = key(None, "an inner section, or none")


@dataclass(frozen=True, kw_only=True)
class Needy:
    path: str = field(metadata={"doc": "a file"})


def read(table: object, cls: type = Section) -> Any:
    return read_section(cls, table, where="recipe.toml", name="model")


def text_of(table: object, cls: type = Section) -> str:
    with pytest.raises(ConfigError) as error:
        read(table, cls)
    return str(error.value)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_says_what_got_wanted_where_and_what_to_do() -> None:
    error = DataError("bad line", got="3 columns", wanted="2", where="a.tsv:7", remedy='data.on_bad_line = "skip"')
    assert str(error) == (
        'bad line\n  got:    3 columns\n  wanted: 2\n  where:  a.tsv:7\n  try:    data.on_bad_line = "skip"'
    )
    assert (error.what, error.got, error.where) == ("bad line", "3 columns", "a.tsv:7")


def test_what_is_not_known_is_not_said() -> None:
    assert str(RegardError("it broke")) == "it broke"
    assert str(RegardError("it broke", got=0)) == "it broke\n  got:    0"  # zero is something


@pytest.mark.parametrize("kind", [ConfigError, DataError, RunError, BackendError])
def test_one_base_catches_all(kind: type[RegardError]) -> None:
    with pytest.raises(RegardError):
        raise kind("x")


def test_require() -> None:
    require(True, "never", got=1, wanted=2)
    with pytest.raises(ConfigError) as error:
        require(False, "too small", got=0, wanted="1 or more", remedy="layers = 1")
    assert str(error.value) == "too small\n  got:    0\n  wanted: 1 or more\n  try:    layers = 1"


# --- reading a section ------------------------------------------------------------------------------------------------


def test_an_empty_section_is_the_defaults() -> None:
    assert read({}) == Section()


def test_a_full_section() -> None:
    table = {"layers": 3, "kind": "gated", "files": ["a"], "pair": [3, 4], "name": "n", "inner": {"rate": 1}}
    found = read(table)
    assert found == Section(layers=3, kind="gated", files=["a"], pair=(3, 4), name="n", inner=Inner(rate=1.0))
    assert isinstance(found.inner.rate, float)


def test_defaults_are_not_shared() -> None:
    read({}).files.append("x")
    assert read({}).files == []


def test_an_unknown_key_names_the_nearest() -> None:
    assert text_of({"layer": 3}) == (
        'unknown key "model.layer"\n'
        "  got:    layer\n"
        "  wanted: layers, kind, files, pair, name, inner, maybe\n"
        "  where:  recipe.toml\n"
        '  try:    did you mean "model.layers"?'
    )


def test_an_unknown_key_that_is_near_to_none() -> None:
    assert text_of({"zzzz": 3}) == (
        'unknown key "model.zzzz"\n'
        "  got:    zzzz\n"
        "  wanted: layers, kind, files, pair, name, inner, maybe\n"
        "  where:  recipe.toml"
    )


@pytest.mark.parametrize("section", ["inner", "maybe"])
def test_an_unknown_key_of_an_inner_section(section: str) -> None:
    assert text_of({section: {"rat": 0.1}}) == (
        f'unknown key "model.{section}.rat"\n'
        "  got:    rat\n"
        "  wanted: rate\n"
        "  where:  recipe.toml\n"
        f'  try:    did you mean "model.{section}.rate"?'
    )


@pytest.mark.parametrize(
    ("table", "name", "got", "wanted"),
    [
        ({"layers": "3"}, "layers", "'3'", "a valid integer"),
        ({"layers": 3.0}, "layers", "3.0", "a valid integer"),
        ({"layers": True}, "layers", "True", "a valid integer"),
        ({"files": "a"}, "files", "'a'", "a valid array"),
        ({"files": ["a", 3]}, "files.1", "3", "a valid string"),
        ({"inner": {"rate": "x"}}, "inner.rate", "'x'", "a valid number"),
    ],
)
def test_a_value_of_a_wrong_type(table: dict[str, Any], name: str, got: str, wanted: str) -> None:
    assert text_of(table) == (
        f'"model.{name}" has a wrong value\n  got:    {got}\n  wanted: {wanted}\n  where:  recipe.toml'
    )


def test_a_choice_that_is_not_there_names_the_nearest() -> None:
    assert text_of({"kind": "gate"}) == (
        "\"model.kind\" has a wrong value\n  got:    'gate'\n  wanted: 'plain' or 'gated'\n  where:  recipe.toml\n"
        '  try:    did you mean "gated"?'
    )
    assert "try:" not in text_of({"kind": "zebra"})


def test_a_missing_key() -> None:
    assert text_of({}, Needy) == '"model.path" is missing\n  wanted: a value\n  where:  recipe.toml'


def test_a_value_where_a_section_belongs() -> None:
    assert text_of(3) == '"model" must be a section\n  got:    3\n  wanted: [model]\n  where:  recipe.toml'


def test_a_range_that_a_config_checks_itself() -> None:
    assert text_of({"inner": {"rate": 1.5}}) == (
        "rate is a share\n"
        "  got:    1.5\n"
        "  wanted: 0 <= rate <= 1\n"
        "  where:  [model] in recipe.toml\n"
        "  try:    rate = 0.5"
    )
    with pytest.raises(ConfigError, match=r"where:  recipe\.toml"):
        read_section(Inner, {"rate": 2.0}, where="recipe.toml")


def test_infinity_and_nan_are_numbers_that_a_range_may_refuse() -> None:
    assert "got:    inf" in text_of({"inner": {"rate": math.inf}})
    assert "got:    nan" in text_of({"inner": {"rate": math.nan}})


def test_a_date_is_not_a_string(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("name = 2024-05-01\n")
    assert text_of(read_toml(tmp_path / "r.toml")) == (
        "a date or time has no meaning here\n"
        "  got:    2024-05-01\n"
        '  wanted: a string: "2024-05-01"\n'
        "  where:  [model] in recipe.toml"
    )


def test_a_config_as_a_table_reads_back_equal() -> None:
    config = Section(layers=5, pair=(7, 8), files=["é", '"'], inner=Inner(rate=1e-9))
    assert read(to_table(config)) == config


def test_the_nearest_name() -> None:
    assert nearest("dropuot", ["dropout", "layers"]) == "dropout"
    assert nearest("qqq", ["dropout", "layers"]) is None


def test_a_key_carries_its_explanation() -> None:
    assert Section.__dataclass_fields__["layers"].metadata["doc"] == "how many"


# --- overrides --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("layers=4", {"layers": 4}),
        ("model.layers=4", {"model": {"kind": "plain", "layers": 4}}),
        ("model.inner.rate=1e-4", {"model": {"kind": "plain", "inner": {"rate": 1e-4}}}),
        ("new.key=true", {"new": {"key": True}}),
        ("run=runs/a", {"run": "runs/a"}),
        ('run="4"', {"run": "4"}),
        ("run=2024-05-01", {"run": "2024-05-01"}),
        ("run=12:30:00", {"run": "12:30:00"}),
        ("run=", {"run": ""}),
        ("run=a=b", {"run": "a=b"}),
        ("run=1\nlayers=9", {"run": "1\nlayers=9"}),
        ('files=["a", "b"]', {"files": ["a", "b"]}),
        ("model={layers = 3}", {"model": {"layers": 3}}),
    ],
)
def test_an_override(word: str, wanted: dict[str, Any]) -> None:
    table = {"model": {"kind": "plain"}}
    assert override(table, [word]) == {**table, **wanted}
    assert table == {"model": {"kind": "plain"}}  # what was given is left alone


def test_the_last_override_wins() -> None:
    assert override({}, ["a.b=1", "a.b=2"]) == {"a": {"b": 2}}


@pytest.mark.parametrize("word", ["layers", "=4", "model.=4", ".x=4", "my-key=4", "--layers=4", "a b=4"])
def test_an_override_that_is_none(word: str) -> None:
    with pytest.raises(ConfigError) as error:
        override({}, [word])
    assert str(error.value) == (
        f"an override is not understood\n  got:    {word}\n  wanted: key=value, as in model.layers=4"
    )


def test_an_override_inside_a_value() -> None:
    with pytest.raises(ConfigError) as error:
        override({"task": "translation"}, ["task.name=x"])
    assert str(error.value) == '"task" is a value, not a section\n  got:    task.name=x\n  wanted: task=value'


def test_a_date_survives_overrides_to_be_refused(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("name = 2024-05-01\n")
    assert "a date or time has no meaning here" in text_of(override(read_toml(tmp_path / "r.toml"), ["layers=3"]))


# --- files ------------------------------------------------------------------------------------------------------------


def file_error(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        read_toml(path)
    return str(error.value)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "no.toml"
    assert file_error(path) == (
        f"no such recipe\n  got:    {path}\n  try:    `regard recipes` lists the ones that are there"
    )


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[model]\nlayers = 4\nkind = plain\n")
    text = file_error(path)
    assert text.startswith("the recipe is not valid TOML\n  got:    ")
    assert "line 3, column 8" in text
    assert text.endswith(f"  where:  {path}")


def test_a_key_twice_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("layers = 4\nlayers = 5\n")
    assert "line 2" in file_error(path)


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b'name = "\xff"\n')
    assert "the recipe is not valid TOML" in file_error(path)


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    assert file_error(tmp_path) == f"the recipe cannot be read\n  got:    Is a directory\n  where:  {tmp_path}"


def test_a_byte_order_mark_is_no_syntax_error(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbflayers = 4\r\n")
    assert read_toml(path) == {"layers": 4}


# --- writing ----------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]))  # surrogates are no text in UTF-8
atoms = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), texts)
values = st.one_of(atoms, st.lists(st.one_of(atoms, st.lists(atoms, max_size=2)), max_size=3))
flat = st.dictionaries(texts, values, max_size=4)
tables = st.dictionaries(texts, st.one_of(values, st.dictionaries(texts, st.one_of(values, flat), max_size=4)))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tables)
def test_written_tables_read_back_equal(tmp_path: Path, table: dict[str, Any]) -> None:
    """Any text, with quotes, newlines and control characters, any finite number and infinity, sections in sections."""
    path = tmp_path / "table.toml"
    path.write_text(to_toml(table), encoding="utf-8")
    assert repr_sorted(read_toml(path)) == repr_sorted(table)


def repr_sorted(table: object) -> object:
    """With types, as 1 == 1.0 == True, and without order, as sections are written after values."""
    if isinstance(table, dict):
        return sorted((name, repr_sorted(value)) for name, value in table.items())
    return repr(table)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-9, "1e-09"),
        (1e22, "1e+22"),
        (-0.0, "-0.0"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (True, "true"),
        (10**20, "100000000000000000000"),
        ('say "hi"\\', '"say \\"hi\\"\\\\"'),
        ("a\nb\tc\r", '"a\\nb\\tc\\r"'),
        ("\x00\x1f\x7f", '"\\u0000\\u001f\\u007f"'),
        ("注意 é 😀", '"注意 é 😀"'),
        (("a", 1), '["a", 1]'),
        ([{"a b": 1}, {}], '[{"a b" = 1}, {}]'),
    ],
)
def test_values_as_toml_spells_them(tmp_path: Path, value: object, text: str) -> None:
    assert toml_value(value) == text
    (tmp_path / "v.toml").write_text(f"value = {text}\n", encoding="utf-8")
    found = read_toml(tmp_path / "v.toml")["value"]
    assert repr(found) == repr(list(value) if isinstance(value, tuple) else value)


def test_sections_come_after_values_and_none_is_left_out() -> None:
    table = {"model": {"layers": 4, "name": None, "inner": {"rate": 0.5}}, "task": "translation", "seed": None}
    assert to_toml(table) == 'task = "translation"\n\n[model]\nlayers = 4\n\n[model.inner]\nrate = 0.5\n'


def test_keys_that_need_quotes_get_them() -> None:
    assert to_toml({"a b": {"c.d": 1}}) == '["a b"]\n"c.d" = 1\n'


@dataclass(frozen=True)
class Entry:
    """One of several."""

    name: str = key("", "its name")


@dataclass(frozen=True)
class Several:
    """A section with a list of tables."""

    parts: tuple[Entry, ...] = key((), "the entries")


def test_a_wrong_key_in_a_list_of_tables_is_named() -> None:
    assert read_section(Several, {"parts": [{"name": "a"}]}, where="x.toml", name="task").parts == (Entry("a"),)
    with pytest.raises(ConfigError) as caught:
        read_section(Several, {"parts": [{"name": "a"}, {"nmae": "b"}]}, where="x.toml", name="task")
    assert caught.value.what == 'unknown key "task.parts.1.nmae"'
    assert caught.value.remedy == 'did you mean "task.parts.1.name"?'
