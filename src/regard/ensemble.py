"""Several runs that answer as one: a token is as likely as they find it on average."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import tasks
from regard.data.noise import Noise
from regard.decode.together import Together
from regard.errors import RunError
from regard.looking.subject import Subject
from regard.run import Run, load


class Ensemble(Run):
    """Runs of one task with the same tokenizers, of any seeds, sizes and families.

    The data and what `[decode]` says are those of the first, in whose report.json the figures go, under a name that
    says who answered.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        first = runs[0]
        for other in runs[1:]:
            _check(first, other)
        super().__init__(first.folder, first.recipe, first.task, Together([run.model for run in runs]), first.device)
        self.others = [run.folder for run in runs[1:]]

    def subject(self, decode: dict[str, Any] | None = None, usual: dict[str, Any] | None = None) -> Subject:
        got = ", ".join(str(folder) for folder in (self.folder, *self.others))
        raise RunError("several runs together cannot be looked into", got=got, wanted="one of them")

    def _reported(self, split: str, noise: Noise | None = None) -> str:
        return super()._reported(", ".join([split, *(f"with {folder}" for folder in self.others)]), noise)


def together(folder: str | Path, *others: str | Path, device: str = "auto") -> Ensemble:
    """Opens trained runs that answer as one, an ensemble: `together("runs/a", "runs/b").predict(["attention"])`.

    >>> together("no/such/run", "runs/b")
    Traceback (most recent call last):
    regard.errors.RunError: no such run
      got:    no/such/run
      wanted: a folder with recipe.toml and model.safetensors
      try:    `regard train RECIPE run=DIR` makes one
    """
    return Ensemble([load(each, device) for each in (folder, *others)])


def _check(first: Run, other: Run) -> None:
    """Raises where two runs cannot answer as one."""
    name, theirs = first.recipe.task_name, other.recipe.task_name
    if tasks.task(name).KIND != "seq2seq":
        wanted = "runs that write a text in answer to another, as translation"
        raise RunError("these runs cannot answer together", got=name, wanted=wanted, where=first.folder)
    if name != theirs:
        wanted = f"{name}, as {first.folder}"
        raise RunError("runs that answer together have one task", got=theirs, wanted=wanted, where=other.folder)
    first.need_same_tokens(other, "runs that answer together speak the same tokens")
    one_way = getattr(first.task, "both_ways", False) and not getattr(other.task, "both_ways", False)
    if one_way:
        got, wanted = "task.both_ways = false", f"true, as in {first.folder}"
        raise RunError(
            "runs that answer from both ends all learn both ways", got=got, wanted=wanted, where=other.folder
        )
