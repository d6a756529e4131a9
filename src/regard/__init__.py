"""regard trains attention models and answers with them.

import regard
run = regard.load("runs/demo")
run.predict(["attention"])[0].text
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.asking import ask as ask
    from regard.ensemble import together as together
    from regard.look.collect import observe as observe
    from regard.looking.text import show as show
    from regard.recipe import read_recipe as read_recipe
    from regard.run import load as load

__version__ = "0.1.0"
__all__ = ["ask", "load", "observe", "read_recipe", "show", "together"]

_HOMES = {
    "ask": "regard.asking",
    "load": "regard.run",
    "observe": "regard.look.collect",
    "read_recipe": "regard.recipe",
    "show": "regard.looking.text",
    "together": "regard.ensemble",
}


def __getattr__(name: str) -> Any:
    # torch takes a second to import: only who asks for it waits for it
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
