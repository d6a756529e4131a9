"""One text looked into: `look` finds an answer, observes a pass over it, explains it; `Look` shows it."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import ConfigError, RunError
from regard.files import put_file
from regard.look.document import Document, Exact, Explanations, check_exact, check_heads, dump, make_document
from regard.look.page import page
from regard.look.pictures import draw, has_hops, panel, terminal, terminal_hops, write
from regard.looking.explain import described, explain
from regard.looking.subject import Subject, observed
from regard.train.progress import say
from regard.types import Axis, Trace

if TYPE_CHECKING:
    from rich.console import Console

    from regard.look.live import Live

FRAME = '<iframe srcdoc="{page}" style="width: 100%; height: 820px; border: 0" title="regard"></iframe>'


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a text is to be looked into; `Lookable.look` says what each of these means."""

    exact: Exact
    bins: int
    quick: bool
    thorough: bool

    def __post_init__(self) -> None:
        check_exact(self.exact)


class Look:
    """A text and its answer, seen: the trace, and the page, the pictures and the tables made of it."""

    def __init__(
        self,
        trace: Trace,
        found: Explanations,
        *,
        bins: int = 128,
        exact: Exact = "auto",
        left_out: Sequence[str] = (),
    ) -> None:
        check_exact(exact)
        self.trace, self.found, self.bins, self.exact = trace, found, bins, exact
        self.left_out = tuple(left_out)  # what would have taken too long

    @property
    def title(self) -> str:
        text = " ".join(str(self.trace.info.get("text", "")).split())
        return (text if len(text) <= 60 else f"{text[:59]}…") or "regard"

    def document(self, live: str | None = None) -> Document:
        """What the page shows, as plain values and arrays."""
        return make_document(self.trace, self.found, title=self.title, bins=self.bins, exact=self.exact, live=live)

    def html(self) -> str:
        """The page, which needs nothing else."""
        return page(self.document())

    def save(self, path: str | Path) -> Path:
        """Writes the page into a file."""
        return write_page(Path(path), self.html())

    def json(self) -> str:
        """All numbers as JSON: the weights of every head where they are exact, else its pooled map."""
        return dump(self.trace, self.document(), self.exact)

    def best_head(self) -> tuple[int, int]:
        """The head to show first: the one that aligns the two texts best, else the first."""
        found = self.found.alignment
        return (0, 0) if found is None else (found["layer"], found["head"])

    def png(
        self, path: str | Path, layer: int | None = None, head: int | None = None, *, raw: bool = False
    ) -> list[str]:
        """Draws one head, a layer's or all of them; gives the characters that no font here can draw."""
        return write(draw(self.trace, layer=layer, head=head, raw=raw), Path(path), "png")

    def svg(self, path: str | Path, layer: int | None = None, head: int | None = None, *, raw: bool = False) -> None:
        """The same as an SVG, whose letters are drawn by who looks at it."""
        write(draw(self.trace, layer=layer, head=head, raw=raw), Path(path), "svg")

    def terminal(
        self, layer: int | None = None, head: int | None = None, *, raw: bool = False, console: Console | None = None
    ) -> None:
        """Prints a heat map of one head; where a question reads in hops, and none is named, what all of them read."""
        from rich.console import Console

        if layer is None and has_hops(self.trace):
            return terminal_hops(self.trace, console or Console(highlight=False))
        best = self.best_head()
        place = best if layer is None else (layer, head if head is not None else best[1] if layer == best[0] else 0)
        terminal(panel(self.trace, *place, raw=raw), console or Console(highlight=False))

    def live(self, port: int = 0) -> Live:
        """A server of the page for this machine, with every row exact: `with look.live() as live: live.serve()`."""
        from regard.look.live import Live

        return Live(self.trace, self.document, port)

    def _repr_html_(self) -> str:
        return FRAME.format(page=html.escape(self.html()))


def look(
    subject: Subject,
    text: str,
    target: str | None,
    wanted: Wanted,
) -> Look:
    """Decodes the text unless a target is given, observes one pass over the answer, and explains it."""
    _need_words("text", text)
    if target is not None:
        _need_words("target", target)
    batch, axes = subject.task.pair(text, subject.answer(text)[1] if target is None else target)
    trace = observed(subject, batch, axes)
    if "cut" in trace.info:
        say(f"the text was cut to {trace.info['cut']:,} tokens (data.max_length)")
    if not isinstance(wanted.exact, str):
        check_heads(trace, wanted.exact)  # before the long part
    given, quick, thorough = target is not None, wanted.quick, wanted.thorough
    found, left_out = explain(subject, text, batch, trace, given=given, quick=quick, thorough=thorough)
    return Look(trace, found, bins=wanted.bins, exact=wanted.exact, left_out=left_out)


def show(
    trace: Trace,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    title: str = "",
    thorough: bool = False,
    **options: Any,
) -> Look:
    """The page of any trace of one text: `source` are its tokens, `target` those of a decoder's text.

    What takes long for a long text (the rollout) is left out unless `thorough`.

    >>> import regard, torch
    >>> from regard.layers.attention import SelfAttention
    >>> model = torch.nn.ModuleDict({"encoder": SelfAttention(8, num_heads=2)})
    >>> with regard.observe(model) as trace:
    ...     _ = model["encoder"](torch.randn(1, 2, 8))
    >>> regard.show(trace, ["to", " be"]).title
    'to be'
    """
    rows = {view.shape[0] for view in trace}
    if rows - {1}:
        got, remedy = f"a batch of {max(rows)}", "observe one row at a time"
        raise ConfigError("a page shows one text", got=got, wanted="a batch of 1", remedy=remedy)
    given = {"source": source, "target": target}
    axes = {**trace.axes, **{name: _axis(name, tokens) for name, tokens in given.items() if tokens is not None}}
    text = title or (axes["source"].text if "source" in axes else "")
    named = replace(trace, axes=axes, info={**trace.info, "text": text} if text else trace.info)
    for view in named:
        for name, length in zip((view.rows_axis, view.keys_axis), view.shape[2:], strict=True):
            if name in axes and len(axes[name].tokens) != length:
                got, wanted = f"{len(axes[name].tokens)} {name} tokens", f"{length}, as many as the model saw"
                raise ConfigError("the tokens are not those of the trace", got=got, wanted=wanted, where=view.name)
    found, left_out = described(named, thorough=thorough)
    return Look(named, found, left_out=left_out, **options)


def write_page(path: Path, text: str) -> Path:
    """Writes a page, whole or not at all, and the folder that it is in where that is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_file(path, lambda place: place.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise RunError("the page cannot be written", got=error.strerror, where=path) from None
    return path


def _need_words(name: str, given: object) -> None:
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(f"there is no {name} to look at", got=repr(given)[:80], wanted="some words")
    try:
        given.encode()  # a shell can hand on bytes that are no text
    except UnicodeEncodeError:
        raise ConfigError(f"the {name} is not UTF-8", got=repr(given)[:80]) from None


def _axis(name: str, tokens: Sequence[str]) -> Axis:
    """Tokens as they are, and the text that they make: a mark for a space is one."""
    texts = [token.translate({ord("\u0120"): " ", ord("\u2581"): " "}) for token in tokens]
    ends = list(itertools.accumulate(map(len, texts), initial=0))
    return Axis(name, tuple(tokens), tuple(itertools.pairwise(ends)), "".join(texts))
