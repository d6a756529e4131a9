"""`regard convert`: from and to the folders of others."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from regard.cli.output import say


class Form(StrEnum):
    """What a folder can be made into."""

    run = "run"
    hf = "hf"
    ctranslate2 = "ctranslate2"
    onnx = "onnx"


def convert(
    source: Path = typer.Argument(metavar="SOURCE", help="A run, or a Hugging Face folder with config.json."),
    target: Path = typer.Argument(metavar="TARGET", help="The folder that is made; it may not be there yet."),
    to: Form | None = typer.Option(
        None, help="What to make: run (of a Hugging Face folder), hf, ctranslate2 or onnx (of a run)."
    ),
) -> None:
    """Make a run of other people's weights, or theirs of a run.

    Every conversion is verified: logits or outputs are compared, and tensors there and back. Where something is not
    the same there is no TARGET.
    """
    from regard.convert import convert as convert_folder

    convert_folder(source, target, None if to is None else to.value, say=say)
    say(f"made:      {target}")
