"""What the heads do over many texts: one line a head, as a table, JSON or a plain HTML page.

Gold alignments are links between words, as white space parts them: `0-0 1-2`, source word - target word; `0?1` is a
link that is possible, not sure. Tokens are brought to words by their places in the text.
"""

from __future__ import annotations

import html
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.errors import DataError
from regard.look.document import label
from regard.look.measures import NOTHING, alignment, alignment_error, gives_nothing, head_kinds
from regard.types import Axis, Trace, View

Link = tuple[int, int, int]  # text, source word, target word
LINK = re.compile(r"(\d+)([-?p])(\d+)")
LINKS = "links source-target, as in 0-0 1-2, and 1?2 for one that is possible, not sure"
CHINESE = {
    "head": "头",
    "layer": "层",
    "entropy": "熵",
    "confidence": "置信度",
    "distance": "距离",
    "first": "首个词元",
    "importance": "重要性",
    "error": "对齐错误率",
    "error, read": "对齐错误率（已读）",
    "kinds": "类型",
}
SHOWN = ("entropy", "confidence", "distance", "first")


@dataclass(frozen=True)
class Gold:
    """The links of one text that must be found, and those that may be."""

    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


def read_gold(text: str, *, source: str, target: str, where: str) -> Gold:
    """Reads `0-0 1?2`; each number must be that of a word. No links are an alignment, too.

    >>> sorted(read_gold("0-0 1-2", source="a b", target="x y z", where="a.jsonl:1").sure)
    [(0, 0), (1, 2)]
    """
    found: dict[str, set[tuple[int, int]]] = {"-": set(), "?": set()}
    for word in text.split():
        link = LINK.fullmatch(word)
        if link is None:
            raise DataError("a bad alignment", got=word, wanted=LINKS, where=where)
        first, second = int(link[1]), int(link[3])
        if first >= len(source.split()) or second >= len(target.split()):
            words = f"{len(source.split())} source and {len(target.split())} target words, counted from 0"
            raise DataError("an alignment names a word that is not there", got=word, wanted=words, where=where)
        found["-" if link[2] == "-" else "?"].add((first, second))
    return Gold(frozenset(found["-"]), frozenset(found["?"]))


def word_of(axis: Axis) -> list[int | None]:
    """The word that each token belongs to; None for one without a surface.

    >>> word_of(Axis("source", ("_ab", "c", "_d", "</s>"), ((0, 2), (2, 3), (3, 5), (5, 5)), "abc d"))
    [0, 0, 1, None]
    """
    words = [found.span() for found in re.finditer(r"\S+", axis.text)]
    number = {place: i for i, (start, end) in enumerate(words) for place in range(start, end)}
    spans = ([number[place] for place in range(*span) if place in number] for span in axis.offsets)
    return [found[-1] if found else None for found in spans]


class Head:
    """One head, over all texts so far."""

    def __init__(self, layer: int, head: int, view: View) -> None:
        self.layer, self.head, self.name, self.label, self.kind = layer, head, view.name, label(view), view.kind
        self.values: dict[str, list[float]] = defaultdict(list)
        self.silent = True  # until it gave something
        self.written: set[Link] = set()  # links of the rows that write a word
        self.read: set[Link] = set()  # links of the rows that have just read it

    def means(self) -> dict[str, float | None]:
        """The mean of each score over the texts that have it."""
        return {name: math.fsum(found) / len(found) for name, found in self.values.items()}


class Summary:
    """Gathers text after text; every number is a mean over the texts that have it."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.num_texts = 0
        self.num_cut = 0  # of them, those that were too long to be read to the end
        self.importance: dict[str, list[float]] = {}  # by the name of the layer
        self.card: dict[str, Any] | None = None
        self.aligned = False  # whether there is a gold alignment
        self.sure: set[Link] = set()
        self.possible: set[Link] = set()

    def add(
        self,
        trace: Trace,
        scores: Sequence[Sequence[Mapping[str, float | None]]],
        gold: Gold | None = None,
    ) -> None:
        """One text: its trace, the scores of each head, and the gold alignment where there is one."""
        if not self.heads:
            self.heads = [Head(i, h, view) for i, view in enumerate(trace) for h in range(view.shape[1])]
        for head in self.heads:
            head.silent = head.silent and gives_nothing(trace[head.layer], head.head)
            for name, value in scores[head.layer][head.head].items():
                if value is not None:
                    head.values[name].append(value)
        if gold is not None:
            self._align(trace, gold)
        self.num_texts += 1
        self.num_cut += "cut" in trace.info

    def _align(self, trace: Trace, gold: Gold) -> None:
        text, self.aligned = self.num_texts, True
        self.sure |= {(text, *link) for link in gold.sure}
        self.possible |= {(text, *link) for link in gold.possible}
        source, target = (word_of(trace.axes[name]) for name in ("source", "target"))
        for head in self.heads:
            if head.kind == "cross":
                for row, key in alignment(trace, head.layer, head.head).pairs[0]:
                    # row i writes token i of the target and has just read the one before it
                    for found, token in ((head.written, row), (head.read, row - 1)):
                        word = target[token] if token >= 0 else None
                        if word is not None and source[key] is not None:
                            found.add((text, source[key] or 0, word))

    def rows(self) -> list[dict[str, Any]]:
        """One record a head, the layers in order."""
        return [self._row(head) for head in self.heads]

    def _row(self, head: Head) -> dict[str, Any]:
        means, important = head.means(), self.importance.get(head.name)
        row: dict[str, Any] = {"layer": head.layer, "head": head.head, "label": head.label, "kind": head.kind}
        kinds = [NOTHING] if head.silent else head_kinds(means)
        row |= {"kinds": kinds, "importance": important[head.head] if important else None, "scores": means}
        aligned = self.aligned and head.kind == "cross"
        for name, links in (("alignment_error", head.written), ("alignment_error_read", head.read)):
            row[name] = alignment_error(links, self.sure, self.possible) if aligned else None
        return row

    def document(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"version": 1, "texts": self.num_texts, "cut": self.num_cut, "heads": self.rows(), "card": self.card}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """A header, and a row of cells for each head."""
        rows = self.rows()
        gold = any(row["alignment_error"] is not None for row in rows)
        header = ["head", "layer", *SHOWN, "importance", *(["error", "error, read"] if gold else []), "kinds"]
        return header, [list(_cells(row, gold)) for row in rows]

    def html(self, title: str) -> str:
        """A page with the table, which needs nothing else."""
        header, rows = self.table()
        named = "".join(f'<th>{html.escape(name)}<br><span lang="zh">{CHINESE[name]}</span></th>' for name in header)
        body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        verdict = "" if self.card is None else f"{self.card['verdict']['en']} {self.card['verdict']['zh']}"
        cut = CUT.format(cut=self.num_cut, texts=self.num_texts) if self.num_cut else ""
        texts = {"title": html.escape(title), "verdict": html.escape(verdict), "cut": cut}
        counted = f"{self.num_texts:,} text{'s' * (self.num_texts != 1)}"
        return PAGE.format(texts=self.num_texts, counted=counted, header=named, body=body, **texts)


def _cells(row: Mapping[str, Any], gold: bool) -> Iterator[str]:
    yield f"{row['layer'] + 1}.{row['head'] + 1}"
    yield row["label"]
    for name in SHOWN:
        yield _number(row["scores"].get(name))
    yield _number(row["importance"])
    if gold:
        yield _number(row["alignment_error"])
        yield _number(row["alignment_error_read"])
    yield ", ".join(row["kinds"])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 0.1 else f"{value:.2f}"


CUT = """<p>{cut} of {texts} texts were too long (data.max_length): only their beginning was read.
{texts} 段文本中有 {cut} 段过长（data.max_length），只读了开头。</p>
"""
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif; }}
body {{ margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.2rem 0.8rem; text-align: right; border-bottom: 1px solid #8884; }}
th:nth-child(2), td:nth-child(2), th:last-child, td:last-child {{ text-align: left; }}
</style>
<h1>{title}</h1>
<p>Means over {counted}. Where a head reads is not why the model answered.
各数值为 {texts} 段文本的平均。注意力头读了哪里，不说明模型为何这样回答。</p>
{cut}<p>entropy in nats; confidence: the largest weight; distance in tokens; first: the share on the first token (sink);
importance: how much the loss depends on the head; error: alignment error rate of the rows that write a word, and of
those that have just read it.</p>
<p lang="zh">熵以纳特计；置信度：最大的权重；距离以词元计；首个词元：落在第一个词元上的份额（汇点）；
重要性：损失对该头的依赖程度；对齐错误率：分别按正要写出该词的行与刚读过该词的行计算。
类型：previous 前一词元，next 后一词元，induction 归纳，
positional 固定位置，first 首个词元，broad 分散，nothing 什么也不给出（如已剪去的头）。</p>
<p>{verdict}</p>
<div class="wide"><table>
<thead><tr>{header}</tr></thead>
<tbody>
{body}
</tbody>
</table></div>
</html>
"""
