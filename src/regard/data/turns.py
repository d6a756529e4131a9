"""Conversations: one a line, and how a model reads who said what.

Turns stand between tabs, or end with `__eou__` as DailyDialog's do. To a tokenizer who speaks is one piece before each
turn. It is counted from the end: `<other>` said the last turn, the one that is answered, and `<self>` the one before.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from regard.data.markers import MarkedTokenizer, Part
from regard.data.readers import (
    BadLine,
    OnBadLine,
    ReadReport,
    data_suffix,
    decode_line,
    filled,
    good_lines,
    json_object,
    read_lines,
    require_file,
)
from regard.data.unread import policy_of
from regard.errors import DataError
from regard.types import Example

END = "__eou__"
SEPARATOR = re.compile(rf"{END}|\t")
SPEAKERS = ("<other>", "<self>")  # of the last turn, and of the one before
WANTED = f"a conversation a line, with a tab or {END} between its turns, or a .jsonl with turns"


def turns_of(text: str) -> list[str]:
    """The turns of a conversation.

    >>> turns_of("How are you ? __eou__ Fine , thanks . __eou__"), turns_of("Hi !\\tHello .")
    (['How are you ?', 'Fine , thanks .'], ['Hi !', 'Hello .'])
    """
    return [turn for turn in map(str.strip, SEPARATOR.split(text)) if turn]


def joined(turns: Sequence[str]) -> str:
    """The conversation of these turns.

    >>> joined(["Hi !", "Hello ."])
    'Hi ! __eou__ Hello .'
    """
    return f" {END} ".join(turns)


def digest(turns: Sequence[str]) -> str:
    """What a conversation is known by, however its words are spaced.

    >>> digest(["Hi !", "Hello ."]) == digest(["Hi  !", "Hello ."]) != digest(["Hi ! Hello ."])
    True
    """
    return hashlib.sha256("\t".join(" ".join(turn.split()) for turn in turns).encode()).hexdigest()[:16]


def replies(conversation: Example, most: int) -> Iterator[Example]:
    """Every turn but the first as the answer to those before it, to the last `most` of them (0: all).

    >>> [(each.source, each.targets) for each in replies(Example("a\\tb\\tc", ("a", "b", "c")), most=1)]
    [('a', ('b',)), ('b', ('c',))]
    """
    turns = turns_of(conversation.source)
    for i, reply in enumerate(conversation.targets[1:], 1):
        yield Example(joined(turns[max(0, i - most) if most else 0 : i]), (reply,), conversation.place)


def read_conversations(
    paths: Sequence[Path], *, on_bad_line: OnBadLine = "error", report: ReadReport | None = None
) -> Iterator[Example]:
    """Reads conversations of two turns and more: one a line, or a .jsonl with `turns`; the targets are all turns."""

    def whole(place: str, turns: list[str], known: list[str]) -> Example:
        turns = [*turns, *known]
        if len(turns) < 2:
            number = "one turn" if turns else "no turn"
            raise BadLine(f"{number}; wanted two or more, with a tab or {END} between them")
        return Example(joined(turns), tuple(turns), place)

    return good_lines(_parse(paths, whole), paths, on_bad_line, report)


def read_contexts(path: Path, report: ReadReport | None = None) -> Iterator[Example]:
    """Reads conversations that are to be answered, of any number of turns; of a .jsonl also `source` and `target`."""

    def begun(place: str, turns: list[str], known: list[str]) -> Example:
        return Example(joined(turns), tuple(known), place)

    return good_lines(_parse([path], begun), [path], policy_of(report), report)


Make = Callable[[str, list[str], list[str]], Example]  # of a place, turns, and a reply that is known apart


def _parse(paths: Sequence[Path], make: Make) -> Iterator[tuple[str, Example | str]]:
    """(place, example), or (place, reason) for a bad line."""
    if len(paths) != 1:
        raise DataError("conversations are one file", got=f"{len(paths)} files", wanted=WANTED)
    (path,) = paths
    require_file(path)
    is_json = data_suffix(path) == ".jsonl"
    for number, line in enumerate(read_lines(path), 1):
        place = f"{path}:{number}"
        try:
            text = decode_line(line)
            turns, known = _json_turns(text) if is_json else (_plain_turns(text), [])
            example = make(place, turns, known)
        except BadLine as reason:
            yield place, str(reason)
        else:
            yield place, example


def _plain_turns(line: str) -> list[str]:
    parts = [part.strip() for part in SEPARATOR.split(line)]
    while parts and not parts[-1]:  # what ends a turn may end the last one too
        parts.pop()
    if not all(parts):
        raise BadLine(f"turn {parts.index('') + 1} is empty")
    return parts


def _json_turns(line: str) -> tuple[list[str], list[str]]:
    """The turns of a record, and the reply where that is known apart from them, as in what `predict` writes."""
    record = json_object(line, "turns")
    if "turns" not in record and "source" in record:
        known = [filled(record["target"], "target")] if isinstance(record.get("target"), str) else []
        return turns_of(filled(record["source"], "source")), known
    if not isinstance(record.get("turns"), list):
        raise BadLine(f'no list "turns"; there are: {", ".join(map(str, record)) or "none"}')
    turns = [" ".join(filled(turn, f"turn {n}").split()) for n, turn in enumerate(record["turns"], 1)]
    for number, turn in enumerate(turns, 1):
        if END in turn:
            raise BadLine(f"turn {number} holds {END}, which ends turns")
    return turns, []


class TurnsTokenizer(MarkedTokenizer):
    """A tokenizer that puts who speaks before each turn of a conversation."""

    marks = SPEAKERS

    def parts(self, text: str) -> Iterator[Part]:
        """Each turn, and before it who says it."""
        turns, begin = [], 0
        for end in (*SEPARATOR.finditer(text), None):
            whole = text[begin : None if end is None else end.start()]
            turn = whole.strip()
            if turn:
                turns.append((turn, begin + whole.index(turn)))
            begin = len(text) if end is None else end.end()
        for left, (turn, start) in zip(range(len(turns) - 1, -1, -1), turns, strict=True):
            yield Part("", start, left % 2)
            yield Part(turn, start)


def last_turns(ids: Sequence[int], speakers: Sequence[int], most: int) -> list[int]:
    """Which places of a conversation that is too long are read: the last turns that fit, or the end of the last one.

    What stands before the first turn, and who says a turn, is always read.

    >>> last_turns([8, 1, 1, 9, 1, 1, 8, 1, 1], speakers=(8, 9), most=7)
    [3, 4, 5, 6, 7, 8]
    >>> last_turns([8, 1, 2, 3, 4, 5], speakers=(8, 9), most=3)
    [0, 4, 5]
    """
    if len(ids) <= most:
        return list(range(len(ids)))
    begins = [i for i, id in enumerate(ids) if id in speakers]
    before = list(range(begins[0]))
    room = most - len(before)
    begin = next((i for i in begins if len(ids) - i <= room), None)
    if begin is not None:
        return [*before, *range(begin, len(ids))]
    return [*before, begins[-1], *range(len(ids) - room + 1, len(ids))][:most]
