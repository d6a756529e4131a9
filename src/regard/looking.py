"""What `run.look` does: finds an answer, observes one pass over it, explains it, and shows it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.decode.config import DecodeConfig
from regard.errors import ConfigError, RunError
from regard.look.collect import observe
from regard.look.document import Document, Exact, Explanations, make_document
from regard.look.page import page
from regard.types import Axis, Batch, Trace

if TYPE_CHECKING:
    pass

FRAME = '<iframe srcdoc="{page}" style="width: 100%; height: 820px; border: 0" title="regard"></iframe>'


@dataclass(frozen=True, eq=False)
class Subject:
    """The trained model that is looked into."""

    model: Any  # nn.Module with the contract of `regard.models`
    task: Any
    device: torch.device
    decode: DecodeConfig
    name: str
    about: str  # one sentence


class Look:
    """A text and its answer, seen: the trace, and the page, the pictures and the tables made of it."""

    def __init__(self, trace: Trace, found: Explanations, *, bins: int = 128, exact: Exact = "auto") -> None:
        self.trace, self.found, self.bins, self.exact = trace, found, bins, exact

    @property
    def title(self) -> str:
        return str(self.trace.info.get("text", ""))[:80] or "regard"

    def document(self, live: str | None = None) -> Document:
        """What the page shows, as plain values and arrays."""
        return make_document(self.trace, self.found, title=self.title, bins=self.bins, exact=self.exact, live=live)

    def html(self) -> str:
        """The page, which needs nothing else."""
        return page(self.document())

    def save(self, path: str | Path) -> Path:
        """Writes the page into a file."""
        return _write(Path(path), self.html())

    def _repr_html_(self) -> str:
        return FRAME.format(page=html.escape(self.html()))


def look(
    subject: Subject,
    text: str,
    target: str | None = None,
    *,
    exact: Exact = "auto",
    bins: int = 128,
) -> Look:
    """Decodes the text unless a target is given, and observes one pass over the answer."""
    answer: str | Sequence[int] = _answer(subject, text) if target is None else target
    batch, axes = subject.task.pair(text, answer)
    trace = observed(subject, batch, axes)
    return Look(trace, Explanations(), bins=bins, exact=exact)


def observed(subject: Subject, batch: Batch, axes: dict[str, Axis]) -> Trace:
    """What the attentions weigh in one teacher-forced pass, with the tokens that stand along them."""
    batch = batch.to(subject.device)
    with torch.no_grad(), observe(subject.model) as trace:
        subject.model.hidden(batch)
    if not len(trace):
        raise ConfigError("this model has no attention to look at", got=subject.about, where=subject.name)
    for view in trace:
        # a decoder's rows are named by what they write, its keys by what it has read
        if view.kind == "self" and view.rows_axis == "target":
            view.keys_axis = "prefix"  # type: ignore[misc]
    info = {"run": subject.name, "model": subject.about, "text": axes["source"].text, "answer": axes["target"].text}
    return replace(trace, axes=axes, info=info)


def _answer(subject: Subject, text: str) -> tuple[int, ...]:
    prediction = subject.task.predict(subject.model, [text], subject.decode, device=subject.device)[0]
    return tuple(prediction.ids[0])


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError("a file cannot be written", got=error.strerror, where=path) from None
    return path
