"""Runs from and to other people's folders. Every conversion is verified before its target has its name.

    Hugging Face folder  -> run                     hf.py
    run -> Hugging Face folder                      hf.py
    run -> CTranslate2, ONNX                        to_ctranslate2.py, to_onnx.py

One is made in a draft beside the target, which takes the target's name once `check.py` found nothing wrong.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from regard.convert import hf, to_ctranslate2, to_onnx
from regard.errors import ConfigError, RunError
from regard.recipe import RECIPE
from regard.run import load
from regard.train.checkpoint import not_written

Say = Callable[[str], None]
FORMS = {"hf": hf.from_run, "ctranslate2": to_ctranslate2.write, "onnx": to_onnx.write}


def convert(source: str | Path, target: str | Path, to: str | None = None, *, say: Say = print) -> None:
    """Makes the folder `target` of the folder `source`: a run of a Hugging Face folder, or another form of a run.

    `to` is "run", "hf", "ctranslate2" or "onnx"; without it, a run becomes "hf" and all else a "run". What was found
    out in verifying it is said; where it is not the same model, this raises and there is no target.
    """
    source, target = Path(source), Path(target)
    is_run = (source / RECIPE).is_file()
    to = to or ("hf" if is_run else "run")
    if to not in (*FORMS, "run"):
        raise ConfigError("there is no such form", got=to, wanted=", ".join(["run", *FORMS]))
    if to == "run" and is_run:
        raise ConfigError("the source is a run already", got=source, wanted=f"another --to: {', '.join(FORMS)}")
    if not is_run:
        hf.require_folder(source)
    with _draft(target) as draft:
        if to == "run":
            hf.to_run(source, draft, target, say=say)
        elif is_run:
            run = load(source, "cpu")
            FORMS[to](run, draft, say=say)
            if getattr(run.task, "both_ways", False):
                say("search:    theirs looks from the beginning alone; task.both_ways is of our search")
        elif to == "hf":
            raise ConfigError(
                "the source is a Hugging Face folder already", got=source, wanted="a run, or another --to"
            )
        else:
            with tempfile.TemporaryDirectory() as between:
                hf.to_run(source, Path(between), target, say=say)
                FORMS[to](load(between, "cpu"), draft, say=say)


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A folder that has the target's name at the end, if nothing was raised."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError("the target is there already", got=target, wanted="a folder that is not there, or is empty")
    draft = target.parent / f".{target.name}.{os.getpid()}"
    try:
        draft.mkdir(parents=True)
        yield draft
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except OSError as error:
        raise not_written(target, error) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
