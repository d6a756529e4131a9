"""Errors that say what is wrong, what was found, what was wanted, where, and what to do."""

from __future__ import annotations


class RegardError(Exception):
    """The base of every error that a user can cause and mend.

    >>> print(RegardError("unknown key", got="layer", wanted="layers", where="recipe.toml"))
    unknown key
      got:    layer
      wanted: layers
      where:  recipe.toml
    """

    def __init__(
        self,
        what: str,
        *,
        got: object = None,
        wanted: object = None,
        where: object = None,
        remedy: str | None = None,
    ) -> None:
        self.what, self.got, self.wanted, self.where, self.remedy = what, got, wanted, where, remedy
        parts = {"got:   ": got, "wanted:": wanted, "where: ": where, "try:   ": remedy}
        lines = [f"  {name} {value}" for name, value in parts.items() if value is not None]
        super().__init__("\n".join([what, *lines]))


class ConfigError(RegardError):
    """A recipe, an override or an argument that cannot be meant."""


class DataError(RegardError):
    """A file, a line or a set that cannot be read."""


class RunError(RegardError):
    """A run folder or a checkpoint that is missing, damaged or does not fit."""


class BackendError(RegardError):
    """A backend was asked by name for something that it does not support."""


def require(condition: bool, what: str, *, got: object, wanted: object, remedy: str | None = None) -> None:
    """Raises ConfigError unless the condition holds; used by the `__post_init__` of configs.

    >>> require(6 % 3 == 0, "num_heads must be divisible", got=6, wanted="a multiple of 3")
    """
    if not condition:
        raise ConfigError(what, got=got, wanted=wanted, remedy=remedy)


def require_positive(section: object, *names: str) -> None:
    """Raises ConfigError unless each of these fields is 1 or more."""
    for name in names:
        value = getattr(section, name)
        require(value >= 1, f"{name} is too small", got=value, wanted="1 or more")


def require_share(section: object, *names: str) -> None:
    """Raises ConfigError unless each of these fields is 0 or more and under 1."""
    for name in names:
        value = getattr(section, name)
        require(0 <= value < 1, f"{name} is a share", got=value, wanted="0 <= x < 1")
