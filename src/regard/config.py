"""A strict reader of TOML into a dataclass that it is given: unknown keys and wrong types never pass."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import tomllib
import typing
from pathlib import Path
from typing import Any, TypeVar

from regard.errors import ConfigError

T = TypeVar("T")


def key(default: Any, doc: str) -> Any:
    """A field of a config with its explanation, which `regard new` writes into recipes."""
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata={"doc": doc})
    return dataclasses.field(default=default, metadata={"doc": doc})


def read_toml(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file; a syntax error names file, line and column."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
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
    table = json.loads(json.dumps(table, default=str))
    for word in assignments:
        name, equals, text = word.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError("an override is not understood", got=word, wanted="key=value, as in model.layers=4")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *sections, last = name.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise ConfigError(f'"{section}" is a value, not a section', got=word, wanted=f"{section}=value")
        place[last] = value
    return table


def read_section(cls: type[T], table: object, *, where: str, name: str = "") -> T:
    """Validates a table against a dataclass. `where` is the file, `name` the section's dotted name."""
    from pydantic import ValidationError

    if not isinstance(table, dict):
        raise ConfigError(f'"{name}" must be a section', got=table, wanted=f"[{name}]", where=where)
    _check_keys(cls, table, where=where, name=name)
    try:
        text = json.dumps(table)
    except TypeError as error:
        raise ConfigError("a value of this kind has no meaning here", got=error, where=f"[{name}] in {where}") from None
    try:
        return _adapter(cls).validate_json(text, strict=True)  # type: ignore[no-any-return]
    except ConfigError as error:  # a config's own __post_init__
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
        what = f'"{dotted}" is missing' if first["type"] == "missing" else f'"{dotted}" has a wrong value'
        got = None if first["type"] == "missing" else repr(first["input"])
        raise ConfigError(what, got=got, wanted=first["msg"], where=where) from None


def nearest(name: str, known: typing.Iterable[str]) -> str | None:
    """The known name that this one was probably meant to be."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return close[0] if close else None


def to_table(config: Any) -> dict[str, Any]:
    """A config as the plain table that reads back equal."""
    return typing.cast(dict[str, Any], json.loads(json.dumps(dataclasses.asdict(config))))


def to_toml(table: dict[str, Any]) -> str:
    """Writes tables of plain values; `read_toml` gives the same table back.

    >>> print(to_toml({"task": "translation", "model": {"layers": 4}}), end="")
    task = "translation"
    <BLANKLINE>
    [model]
    layers = 4
    """
    lines = [f"{name} = {toml_value(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for name, section in table.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]"]
            lines += [f"{k} = {toml_value(v)}" for k, v in section.items() if v is not None]
    return "\n".join(lines).lstrip("\n") + "\n"


def toml_value(value: object) -> str:
    """One value as TOML spells it; TOML's basic strings, numbers and lists are JSON's."""
    if isinstance(value, float) and value != value:
        return "nan"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


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
        if dataclasses.is_dataclass(hints[k]) and isinstance(value, dict):
            _check_keys(typing.cast(type, hints[k]), value, where=where, name=f"{prefix}{k}")


@functools.cache
def _adapter(cls: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)
