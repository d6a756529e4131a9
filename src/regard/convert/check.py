"""Whether what was converted is the same model: its logits against transformers', and its tensors there and back."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.convert.tokenizers import kind_of, specials_of
from regard.errors import RunError
from regard.layers.output import NoHead
from regard.models import Sizes
from regard.models._foreign import Foreign, from_theirs, to_theirs
from regard.run import Run

NEAR = 2e-5  # of the largest logit, or of 1


@dataclass(frozen=True)
class Rows:
    """Random ids, several rows of several lengths; what pads them is the id for that. No other special id is there."""

    ids: Tensor  # B x N
    lengths: Tensor  # B
    targets: Tensor | None  # B x T, where the model writes

    @property
    def real(self) -> Tensor:
        """Which of the ids are no padding: B x N."""
        return torch.arange(self.ids.shape[1]) < self.lengths[:, None]


def random_rows(run: Run, length: int = 24) -> Rows:
    """Rows that fit a run's vocabulary and positions; the same each time."""
    draw = torch.Generator().manual_seed(0)
    length = min(length, asdict(run.recipe.model).get("max_length", length))
    sizes, special = run.task.sizes, specials_of(run)

    def ids(size: int, width: int) -> Tensor:
        plain = torch.ones(size).index_fill(0, torch.tensor([special.start, special.end, special.pad]), 0).nonzero()
        return plain[torch.randint(len(plain), (4, width), generator=draw), 0]

    lengths = torch.tensor([length, 1, max(1, length // 2), max(1, length - 1)])
    source = ids(sizes.source, length)
    source[torch.arange(length) >= lengths[:, None]] = special.pad
    targets = None
    if kind_of(run) == "seq2seq":
        targets = ids(sizes.target, max(1, length // 2))
        targets[:, 0] = special.start
    return Rows(source, lengths, targets)


def found_and_wanted(run: Run, rows: Rows, theirs: Any) -> tuple[Tensor, Tensor]:
    """Our logits and theirs at every place that is no padding; the states where the model has no head."""
    given: dict[str, Any] = {"input_ids": rows.ids, "attention_mask": rows.real.long()}
    if rows.targets is not None:
        given["decoder_input_ids"] = rows.targets
    if number := asdict(run.recipe.model).get("global_tokens"):  # which theirs are told of with each batch
        given["global_attention_mask"] = (torch.arange(rows.ids.shape[1]) < number).long().expand_as(rows.ids)
    headless = isinstance(run.model.head, NoHead)
    ours = run.hidden if headless else run.logits
    with torch.random.fork_rng(devices=[]):  # a model that draws numbers draws the same ones
        torch.manual_seed(0)
        found = ours(rows.ids, rows.targets, lengths=rows.lengths)
        torch.manual_seed(0)
        with torch.inference_mode():
            out = (theirs.base_model if headless else theirs)(**given)
    wanted = next(out[name] for name in ("last_hidden_state", "prediction_logits", "logits") if name in out)
    everywhere = torch.ones(wanted.shape[:2], dtype=torch.bool) if rows.targets is not None else rows.real
    return found[everywhere], wanted[everywhere]


def same_logits(run: Run, folder: Path, family: Foreign) -> str:
    """Compares whole logits with transformers' model of a folder; says how far apart they are, raises if too far.

    The class is the one that the run would be written as: a folder may name one without the head, or none at all.
    """
    try:
        import transformers
    except ImportError:
        return "not compared: transformers is not installed (pip install transformers)"
    (name,) = family.to_foreign(run.recipe.model, run.task.sizes)["architectures"]
    with _quiet():
        theirs = getattr(transformers, name).from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
        rows = random_rows(run)
        found, wanted = found_and_wanted(run, rows, theirs.eval())
    what = "states" if isinstance(run.model.head, NoHead) else "logits"
    return apart(found, wanted, NEAR, f"{what} of transformers {transformers.__version__}", folder)


def apart(found: Tensor, wanted: Tensor, near: float, what: str, where: object) -> str:
    """How far two tensors lie apart, as a line; raises where that is more than `near` of the largest value, or of 1."""
    most, largest = near * max(1.0, wanted.abs().max().item()), (found - wanted).abs().max().item()
    if not largest <= most:  # also if it is not a number
        raise RunError(
            "the converted model is not the same",
            got=f"{largest:.1e} between its numbers and the {what}",
            wanted=f"at most {most:.1e}",
            where=where,
        )
    return f"largest difference {largest:.1e} of {found.numel():,} {what} (at most {most:.1e} is allowed)"


def same_tensors_back(
    family: Foreign, config: Any, sizes: Sizes, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> str:
    """Converts our state back: it must have the names that the file had, and be equal to the bit."""
    copies = family.copies(config)
    _, named = family.settle(config, tensors)
    back = to_theirs(family.pairs(config), state, copies=copies)
    kept = {name: x for name, x in named.items() if name in back or not _said_twice(name, family, copies)}
    _equal(back, kept)
    left = len(tensors) - len(kept)
    renamed = sum(name not in tensors for name in kept)
    more = f"; {left} more were constants or copies" if left else ""
    return f"{len(back)} tensors equal to the bit{more}" + (f"; {renamed} have newer names" if renamed else "")


def _said_twice(name: str, family: Foreign, copies: Mapping[str, str]) -> bool:
    return name in copies or name.endswith(family.UNUSED)


def same_state_back(
    family: Foreign, config: Any, table: dict[str, Any], tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> str:
    """Reads what was written: it must be our state to the bit, or in their form where that is another (of T5)."""
    read, _, back = from_theirs(family, table, tensors, where="the target")
    if asdict(read).get("scaled") == asdict(config).get("scaled"):
        _equal(back, state)
    else:
        _equal(to_theirs(family.pairs(read), back, copies=family.copies(read)), tensors)
    return f"{len(back)} tensors equal to the bit"


def _equal(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    apart = sorted(found.keys() ^ wanted.keys())
    apart = apart or sorted(name for name in found if not _same(found[name], wanted[name]))
    if apart:
        raise RunError("the tensors that come back are other ones", got=apart[0], wanted="the same names and values")


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Transformers without its bars and warnings: what matters is said here."""
    from transformers.utils import logging as theirs

    logging: Any = theirs  # which has no types
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
