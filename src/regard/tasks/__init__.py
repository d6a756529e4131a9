"""The tasks, one file each: a file name (with - for _) is a task's name.

Every task file has `SUMMARY` (a line for lists), `KIND` (of the families that it trains, see `regard.models`), `FILES`
(what it keeps in the run folder, its tokenizer first), `Config` (the keys of `[task]`) and `Task`, which is made with
`Task.open(...)` and then knows its tokenizers and splits: examples in, loss, metrics, predictions out. `Task.dress`
gives a family's model what the task needs beside it; a module that it is put into has it as `body`, where fine-tuning
finds it again. `train` and `run` need nothing else.

What a task may have: `finish(model, device)` learns from validation once the model is trained, and says what;
`read(path)` reads a file of texts that are to be answered, where it is not a source a line; `places(model, batch)` says
from which places' states a label is read, where the answer is no text; `units(batch)` says which places are one thing
where models read such (`units_axis` is its name: "sentences"). `TAKES` of its file names what it honours of
"train_share" (it reads training through `data.parts.in_split`) and "noise" (it reads every split so). A task of
encoders searches nothing, so its file says in `DECODE` which keys of `[decode]` it has a use for all the same.
`WITHOUT` names keys of the other sections, or whole sections, that have no part in it.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from regard.config import nearest
from regard.errors import ConfigError

HELPERS = {"gaps", "metrics", "texts"}  # and what begins with _


def names() -> list[str]:
    """The tasks that are there.

    >>> "translation" in names()
    True
    """
    found = {module.name for module in pkgutil.iter_modules(__path__)} - HELPERS
    return sorted(name.replace("_", "-") for name in found if not name.startswith("_"))


def task(name: str) -> ModuleType:
    """The file of a task; an unknown name gives the nearest known one."""
    if name not in names():
        near = nearest(name, names())
        remedy = f'did you mean "{near}"?' if near else "`regard tasks` lists them"
        raise ConfigError("no such task", got=name, wanted=", ".join(names()), remedy=remedy)
    return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")


def refuse_unused(name: str, sections: Mapping[str, Any]) -> None:
    """Raises where a key has another value than it has by itself, and no part in the task."""
    for unused in getattr(task(name), "WITHOUT", ()):
        section, _, only = unused.partition(".")
        values = vars(sections[section])
        for field in dataclasses.fields(sections[section]):
            value = values[field.name]
            if only in ("", field.name) and value != field.default:
                wanted = f"{field.default}, or nothing"
                raise ConfigError(f"{section}.{field.name} has no part in {name}", got=value, wanted=wanted)


def need(name: str, what: str, asked: str) -> None:
    """Raises unless the task honours "train_share" or "noise"."""
    if what not in getattr(task(name), "TAKES", ()):
        takes = [other for other in names() if what in getattr(task(other), "TAKES", ())]
        raise ConfigError(f"{asked} has no meaning here", got=name, wanted=f"one of {', '.join(takes)}")
