"""A strict reader of TOML into a dataclass that it is given: unknown keys and wrong types never pass."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import difflib
import functools
import json
import math
import re
import tomllib
import typing
from pathlib import Path
from typing import Any, TypeVar

from regard.errors import ConfigError

T = TypeVar("T")


def key(default: Any, doc: str, *, may_change: bool = False) -> Any:
    """A field of a config with its explanation, which `regard new` writes into recipes.

    Of the sections that make a run what it is, only keys that `may_change` may be others when its training goes on.
    """
    about = {"doc": doc, "may_change": may_change}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=about)
    return dataclasses.field(default=default, metadata=about)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file; a syntax error names file, line and column."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError("no such recipe", got=path, remedy="`regard recipes` lists the ones that are there") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("the recipe is not valid TOML", got=error, where=path) from None
    except OSError as error:
        raise ConfigError("the recipe cannot be read", got=error.strerror, where=path) from None


def override(table: dict[str, Any], assignments: typing.Iterable[str]) -> dict[str, Any]:
    """Puts `section.key=value` words into a table; a value is TOML, or else a plain string.

    >>> override({"model": {"layers": 2}}, ["model.layers=4", "run=runs/a"])
    {'model': {'layers': 4}, 'run': 'runs/a'}
    """
    table = copy.deepcopy(table)
    for word in assignments:
        name, equals, text = word.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError("an override is not understood", got=word, wanted="key=value, as in model.layers=4")
        *sections, last = name.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f'"{section}" is a value, not a section', got=word, wanted=f"{section}=value")
        place[last] = _value_of(text)
    return table


def read_section(cls: type[T], table: object, *, where: str, name: str = "") -> T:
    """Validates a table against a dataclass. `where` is the file, `name` the section's dotted name."""
    from pydantic import ValidationError

    if not isinstance(table, dict):
        raise ConfigError(f'"{name}" must be a section', got=table, wanted=f"[{name}]", where=where)
    _check_keys(cls, table, where=where, name=name)
    try:
        text = json.dumps(table, default=_refuse_date)
        return _adapter(cls).validate_json(text, strict=True)  # type: ignore[no-any-return, arg-type]
    except ConfigError as error:  # a date, or a config's own __post_init__
        raise ConfigError(
            error.what,
            got=error.got,
            wanted=error.wanted,
            where=f"[{name}] in {where}" if name else where,
            remedy=error.remedy,
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        dotted = ".".join([*([name] if name else []), *(str(part) for part in first["loc"])])
        if first["type"] == "missing":
            raise ConfigError(f'"{dotted}" is missing', wanted="a value", where=where) from None
        choices = re.findall("'([^']*)'", first["msg"]) if first["type"] == "literal_error" else []
        near = nearest(str(first["input"]), choices)
        raise ConfigError(
            f'"{dotted}" has a wrong value',
            got=repr(first["input"]),
            wanted=first["msg"].removeprefix("Input should be "),
            where=where,
            remedy=f'did you mean "{near}"?' if near else None,
        ) from None


def nearest(name: str, known: typing.Iterable[str]) -> str | None:
    """The known name that this one was probably meant to be."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return close[0] if close else None


def to_table(config: Any) -> dict[str, Any]:
    """A config as the plain table that reads back equal."""
    return typing.cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(config))))


def to_toml(table: dict[str, Any]) -> str:
    """Writes tables of plain values; `read_toml` gives the same table back, without the keys that are None.

    >>> print(to_toml({"task": "translation", "model": {"layers": 4}}), end="")
    task = "translation"
    <BLANKLINE>
    [model]
    layers = 4
    """
    return "\n".join(_toml_lines(table, "")).lstrip("\n") + "\n"


def toml_value(value: object) -> str:
    """One value as TOML spells it; TOML's basic strings and finite numbers are JSON's.

    >>> toml_value([1e-09, float("inf"), "a"])
    '[1e-09, inf, "a"]'
    """
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):  # inside a list; elsewhere it is a section
        return f"{{{', '.join(f'{_toml_key(k)} = {toml_value(v)}' for k, v in value.items())}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_lines(table: dict[str, Any], prefix: str) -> list[str]:
    plain = {name: value for name, value in table.items() if not isinstance(value, dict) and value is not None}
    lines = [f"{_toml_key(name)} = {toml_value(value)}" for name, value in plain.items()]
    for name, section in table.items():
        if isinstance(section, dict):
            dotted = prefix + _toml_key(name)
            lines += ["", f"[{dotted}]", *_toml_lines(section, f"{dotted}.")]
    return lines


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def _value_of(text: str) -> object:
    """The value of an override: what TOML reads, except that a date (`run=2024-05-01`) is a word as any other."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    dates = (datetime.date, datetime.time)
    return text if len(table) > 1 or isinstance(table["value"], dates) else table["value"]


def _refuse_date(value: object) -> object:
    # the only values of TOML that are not JSON's
    raise ConfigError("a date or time has no meaning here", got=value, wanted=f'a string: "{value}"')


def _check_keys(cls: type, table: dict[str, Any], *, where: str, name: str) -> None:
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    prefix = f"{name}." if name else ""
    for k, value in table.items():
        if k not in known:
            near = nearest(k, known)
            raise ConfigError(
                f'unknown key "{prefix}{k}"',
                got=k,
                wanted=", ".join(known),
                where=where,
                remedy=f'did you mean "{prefix}{near}"?' if near else None,
            )
        sections = [hint for hint in (hints[k], *typing.get_args(hints[k])) if dataclasses.is_dataclass(hint)]
        parts = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
        for i, part in enumerate(parts):
            if sections and isinstance(part, dict):
                inner = f"{prefix}{k}" if part is value else f"{prefix}{k}.{i}"
                _check_keys(typing.cast(type, sections[0]), part, where=where, name=inner)


@functools.cache
def _adapter(cls: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)
