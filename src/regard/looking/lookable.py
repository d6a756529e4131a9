"""What can be asked of a run beside its answers: `Run` inherits it."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch

from regard import tasks
from regard.decode.config import DecodeConfig
from regard.errors import RegardError, RunError, require
from regard.files import require_room
from regard.look import intervene
from regard.look.corpus import Summary
from regard.look.document import Exact
from regard.looking import heads as heads_off
from regard.looking.file import look_at_file
from regard.looking.subject import OnStep, Subject
from regard.looking.text import Look, Wanted, look
from regard.recipe import MARK, RECIPE, Recipe
from regard.tasks.classification import KNOWLEDGE
from regard.train import checkpoint
from regard.types import Example

GREEDY = {"method": "greedy", "n_best": 1}  # where many models are compared, unless asked for otherwise


class Lookable:
    """A run that can be looked into: its texts, its heads."""

    folder: Path
    recipe: Recipe
    task: Any
    model: torch.nn.Module
    device: torch.device

    def _decode_config(self, changes: dict[str, Any], usual: dict[str, Any] | None = None) -> DecodeConfig:
        raise NotImplementedError

    def look(
        self,
        text: str,
        target: str | None = None,
        *,
        exact: Exact = "auto",
        bins: int = 128,
        quick: bool = False,
        thorough: bool = False,
        **decode: Any,
    ) -> Look:
        """One text looked into: who reads what, in every head, and what can be said of it; shown inline in a notebook.

        The answer is `target`, or what the model answers (with these decode keys). Weights are exact to 1,024 tokens
        and for the (layer, head) pairs in `exact`, pooled into `bins` beyond. `quick` shows maps and measures only;
        `thorough` leaves nothing out that takes long (relevance, the check, heads off).
        """
        return look(self.subject(decode), text, target, Wanted(exact, bins, quick, thorough))

    def look_at_file(
        self,
        path: str | Path,
        *,
        limit: int = 0,
        quick: bool = False,
        on_step: OnStep | None = None,
        **decode: Any,
    ) -> Summary:
        """What each head does over the texts of a .jsonl, .tsv or text file; `limit` reads no more than that many.

        That is how an evaluation is looked into: give it the file of the split, whose right answers it takes.
        """
        return look_at_file(self.subject(decode), Path(path), limit=limit, quick=quick, on_step=on_step)

    def ablate(
        self,
        heads: Sequence[tuple[int, int]] | None = None,
        *,
        mode: Literal["mask", "mean"] = "mask",
        split: str = "val",
        limit: int = 100,
        answers: bool = True,
        on_step: OnStep | None = None,
        **decode: Any,
    ) -> dict[str, Any]:
        """What changes in loss, metrics and answers without each of these (layer, head) pairs, or without each head.

        It is judged by the first `limit` examples of a split (0: all), decoded greedily unless other keys are given.
        """
        subject = self.subject(decode, GREEDY)
        examples = self._examples(split, limit)
        return heads_off.ablate(subject, examples, heads, mode=mode, answers=answers, on_step=on_step)

    def prune(
        self,
        out: str | Path,
        *,
        keep: float,
        split: str = "val",
        limit: int = 100,
        answers: bool = True,
        on_step: OnStep | None = None,
        **decode: Any,
    ) -> list[dict[str, Any]]:
        """Writes a new run that keeps this share of the heads, the most important ones; gives the curve on the way.

        The others' columns of the output projections are 0: the new run answers as if they were not there. Which go is
        found out on as many examples of the train split, where that is there, so that those that judge did not choose.
        """
        heads = intervene.all_heads(self.model)
        share = isinstance(keep, Real) and 0 < keep <= 1
        require(share, "keep is a share of the heads", got=keep, wanted="0 < x <= 1, as 0.5")
        folder = Path(out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError("the folder of the new run is not empty", got=folder, remedy="another --out")
        require_room(folder, "the new run")
        number, subject = max(1, round(keep * len(heads))), self.subject(decode, GREEDY)
        examples = self._examples(split, limit)
        chosen_by, choosing = self._choosing(split, examples)
        points = heads_off.prune_curve(subject, examples, number, chosen_by=choosing, answers=answers, on_step=on_step)
        points = [{**point, "chosen_on": chosen_by, "judged_on": split} for point in points]
        model = copy.deepcopy(self.model)
        intervene.prune(model, points[-1]["pruned"])
        self._write(folder, model)
        return points

    def _write(self, folder: Path, model: torch.nn.Module) -> None:
        """A run folder like this one, with other weights; whole or not at all, as it is made beside its place."""
        place = folder.resolve()
        draft = place.with_name(f".{place.name}.{os.getpid()}")
        try:
            draft.mkdir(parents=True)
            kept = {*self.folder.glob("tokenizer*.json"), *(self.folder / name for name in self._files())}
            kept |= set(self.folder.glob(KNOWLEDGE))
            for path in sorted(kept):
                shutil.copyfile(path, draft / path.name)
            checkpoint.save_weights(draft / checkpoint.MODEL, checkpoint.weights(model))
            recipe = dataclasses.replace(self.recipe, run=str(folder))
            checkpoint.write_text(draft / RECIPE, f"{MARK}\n{recipe.to_toml()}")
            if place.exists():  # and empty
                place.rmdir()
            os.replace(draft, place)
        except (OSError, RunError) as error:
            found = checkpoint.not_written(folder, error)
            raise RunError(found.what, got=found.got, where=folder, remedy="more space, or another --out") from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _files(self) -> Sequence[str]:
        """What the task keeps in a run folder."""
        files: Sequence[str] = tasks.task(self.recipe.task_name).FILES
        return files

    def _choosing(self, split: str, examples: list[Example]) -> tuple[str, list[Example]]:
        """The split and the examples that say which heads go: as many as judge, of the train split if it is there."""
        try:
            return "train", self._examples("train", len(examples))
        except RegardError:  # a run may have been copied without its data
            return split, examples

    def _examples(self, split: str, limit: int) -> list[Example]:
        examples: list[Example] = self.task.examples(split)
        if not examples:
            raise RunError("the split is empty", got=split, wanted="examples to judge by")
        return examples[: limit or None]

    def subject(self, decode: dict[str, Any] | None = None, usual: dict[str, Any] | None = None) -> Subject:
        """What is looked into, with what is usual where no decode key says otherwise."""
        config, recipe = self._decode_config(decode or {}, usual), self.recipe
        reason = getattr(tasks.task(recipe.task_name), "NOT_LOOKED_INTO", None)
        if reason is not None:
            remedy = "with regard.observe(run.model) as trace: run.hidden(ids)"
            got = f"{recipe.task_name}: {reason}"
            raise RunError("the answers of this task cannot be looked into", got=got, where=self.folder, remedy=remedy)
        kind = tasks.task(recipe.task_name).KIND
        return Subject(self.model, self.task, self.device, config, self.folder, recipe.family, recipe.task_name, kind)
