"""Words of a command line: which are files, which are key=value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.config import override
from regard.errors import ConfigError


def is_override(word: str) -> bool:
    """Whether a word is key=value; a file of such a name can be given as ./key=value.

    >>> [is_override(word) for word in ("beam=1", "decode.beam=1", "./beam=1", "test.en")]
    [True, True, False, False]
    """
    name, equals, _ = word.partition("=")
    return bool(equals) and all(part.isidentifier() for part in name.split("."))


def section(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The keys of one section, each with or without its name: beam=1 or decode.beam=1.

    >>> section("decode", ["beam=1", "decode.method=greedy"])
    {'beam': 1, 'method': 'greedy'}
    """
    table = override({}, [word.removeprefix(f"{name}.") for word in words])
    others = [key for key, value in table.items() if isinstance(value, dict)]
    if others:
        raise ConfigError(f"only keys of [{name}] can be set here", got=f"[{others[0]}]", wanted="key=value")
    return table
