"""Files that are to be answered: a line that cannot be read keeps its place, so that there is one answer a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from regard.data.readers import OnBadLine, ReadReport, remedy_of
from regard.errors import DataError


def policy_of(report: ReadReport | None) -> OnBadLine:
    """What becomes of the bad lines of a file that is to be answered: where nobody is told of them, an error."""
    return "error" if report is None else "skip"


def in_place(texts: Iterable[str], report: ReadReport) -> Iterator[tuple[str, str]]:
    """Each text and "", and in the place of each bad line that the reading left out, "" and what is wrong with it.

    >>> report = ReadReport(bad=[("stdin:1", "not UTF-8")])
    >>> [text for text, wrong in in_place(["two"], report)]
    ['', 'two']
    """
    for text in texts:
        yield from _left_out(report)
        yield text, ""
    yield from _left_out(report)


def _left_out(report: ReadReport) -> Iterator[tuple[str, str]]:
    found, report.bad = report.bad, []
    for place, reason in found:
        yield "", str(DataError("a bad line", got=reason, where=place, remedy=remedy_of(None)))
