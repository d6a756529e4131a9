"""What a recipe is made of: values for keys, each with the figures that speak for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """A value for a key, and why."""

    value: Any
    why: str = ""


Choices = dict[str, dict[str, Choice]]  # section -> key -> choice


def short(number: float) -> str:
    """A count that can be read at a glance.

    >>> short(999), short(12_345), short(44_000_000)
    ('999', '12.3 k', '44.0 M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.1f} {letter}"
    return f"{number:,.0f}"
