"""A file of texts looked into: what each head does over all of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.data.readers import JSON_TARGET, data_suffix, read_examples, read_lines, require_file
from regard.errors import DataError
from regard.look import faithful
from regard.look.corpus import LINKS, Gold, Summary, read_gold
from regard.looking.explain import (
    NO_TEXT,
    can_be_checked,
    case,
    importance_on,
    is_long,
    is_long_to_explain,
    reads_text,
    scores_of,
    token_relevance,
)
from regard.looking.subject import OnStep, Subject, observed
from regard.train.progress import say
from regard.types import Batch, Example

CHECKED = 100  # texts that the check is made on


@dataclass(frozen=True)
class Text:
    """A line of the file: a source, and what is known of it."""

    source: str
    target: str | None
    gold: Gold | None
    place: str  # file:line, for messages


def look_at_file(
    subject: Subject, path: Path, *, limit: int = 0, quick: bool = False, on_step: OnStep | None = None
) -> Summary:
    """Observes each text of a file with its target, or with the model's answer where it has none.

    Not `quick`, the importance of heads is measured on all texts and explanations are checked on the first hundred,
    those left out that take too long.
    """
    found = labelled(subject, path) if hasattr(subject.task, "read") else read(path)
    texts = list(itertools.islice(found, limit or None))
    if not texts:
        raise DataError("there is no text to look at", got="no lines", where=path)
    _need(subject.task, texts)
    total = len(texts) + (0 if quick else min(CHECKED, len(texts)))
    summary, batches = Summary(), []
    cases: list[faithful.Case] = []
    for number, text in enumerate(texts, 1):
        batch, axes = subject.task.pair(text.source, text.target or subject.answer(text.source)[1])
        trace = observed(subject, batch, axes)
        summary.add(trace, scores_of(trace), text.gold)
        if not quick and not is_long(trace):
            batches.append(batch)
            if len(cases) < CHECKED and reads_text(trace) and _is_short(subject, batch):
                cases.append(case(subject, batch, trace, token_relevance(subject, batch).weights))
        if on_step is not None:
            on_step(number, total)
    if not quick and len(batches) < len(texts):
        say(f"left out of the importance of heads: {len(texts) - len(batches):,} texts, too long")
    if not quick and not cases:
        long = "left out: the check; every text is too long for it, or has no word that could be deleted"
        say(long if reads_text(trace) else NO_TEXT)
    if batches:
        summary.importance = {name: values.tolist() for name, values in importance_on(subject, batches).items()}
    if cases:
        summary.card = faithful.card([_told(one, len(texts) + n, total, on_step) for n, one in enumerate(cases, 1)])
    return summary


def _need(task: Any, texts: Sequence[Text]) -> None:
    """Raises where the task cannot read a text, and says in which line it stands."""
    for number, text in enumerate(texts if hasattr(task, "need") else (), 1):
        try:
            task.need(text.source, number)
        except DataError as error:
            place, remedy = text.place, error.remedy
            raise DataError(error.what, got=error.got, wanted=error.wanted, where=place, remedy=remedy) from None


def _is_short(subject: Subject, batch: Batch) -> bool:
    return not is_long_to_explain(batch) and can_be_checked(subject, batch)


def _told(one: faithful.Case, number: int, total: int, on_step: OnStep | None) -> faithful.Case:
    """The same case; as it is asked, it says how far the check is."""

    def score(kept: Tensor) -> Tensor:
        if on_step is not None:
            on_step(number, total)
        return one.score(kept)

    return replace(one, score=score)


def read(path: Path) -> Iterator[Text]:
    """The texts of a .jsonl (source, and if known target and alignment), a .tsv (source, target) or a text file."""
    require_file(path)
    suffix = data_suffix(path)
    pairs = suffix == ".tsv" and b"\t" in next(read_lines(path), b"")
    records = map(_known, read_lines(path)) if suffix == ".jsonl" else itertools.repeat({})
    for example, known in zip(read_examples([path], need_targets=pairs), records, strict=False):
        if example.source.strip():
            yield _text(example, known)


def labelled(subject: Subject, path: Path) -> Iterator[Text]:
    """The texts of a file as the task reads it, with all labels that it has, or the first right answer."""
    for example in subject.task.read(path):
        if example.source.strip():
            targets = example.targets if subject.only_reads else example.targets[:1]
            yield Text(example.source, ",".join(targets) or None, None, example.place)


def _known(line: bytes) -> dict[str, Any]:
    """What a record says beside its source; whether it is one, the readers have seen."""
    found = json.loads(line)
    targets = [value for name, value in found.items() if JSON_TARGET.fullmatch(name)]
    known = {"target": targets[0]} if targets else {}
    return {**known, **{name: found[name] for name in ("target", "alignment") if name in found}}


def _text(example: Example, known: dict[str, Any]) -> Text:
    target: Any = known.get("target", list(example.targets) or None)
    target = target[0] if isinstance(target, list) and target else target
    gold: Any = known.get("alignment")
    for name, value in (("target", target), ("alignment", gold)):
        # an alignment without links is one
        if value is not None and not (isinstance(value, str) and (value.strip() or name == "alignment")):
            got, wanted = json.dumps(value)[:40], LINKS if name == "alignment" else "a string that is not empty"
            raise DataError(f"a bad {name}", got=got, wanted=wanted, where=example.place)
    if gold is None:
        return Text(example.source, target, None, example.place)
    if target is None:
        raise DataError("an alignment needs its target", got="no key target", where=example.place)
    alignment = read_gold(gold, source=example.source, target=target, where=example.place)
    return Text(example.source, target, alignment, example.place)
