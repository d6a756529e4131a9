"""Questions about texts: SQuAD's JSON, a .jsonl with a question a line, a .tsv of question, text and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from regard.data.readers import (
    BadLine,
    OnBadLine,
    ReadReport,
    data_suffix,
    read_lines,
    read_whole,
    remedy_of,
    require_file,
)
from regard.errors import DataError

WANTED = 'SQuAD\'s {"data": [{"paragraphs": [{"context": .., "qas": [{"question": .., "answers": [..]}]}]}]}'
FILES_WANTED = "one .json as SQuAD's, one .jsonl (question, context, answers) or one .tsv (question, context, answers)"
TAB = "\t"  # between a question and its text where both are one string


@dataclass(frozen=True, slots=True)
class Question:
    """A question, the text that answers it, and its answers with the places where they begin, if it has any."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    place: str = ""
    article: str = ""  # what the text is a part of

    @property
    def texts(self) -> tuple[str, ...]:
        """The different answers."""
        return tuple(dict.fromkeys(text for text, _ in self.answers))

    @property
    def source(self) -> str:
        """Question and text as one string, with a tab between."""
        return f"{self.question.replace(TAB, ' ')}{TAB}{self.context}"


def as_prompt(question: str, context: str) -> str:
    """What a model that writes its answers is given to read, in training and afterwards.

    >>> as_prompt("Who?", "Ada did.")
    'question: Who? context: Ada did.'
    """
    return f"question: {question} context: {context}"


def read_squad(path: Path) -> Iterator[Question]:
    """Every question of a SQuAD file, in its order."""
    try:
        table = json.loads(read_whole(path))
    except ValueError as error:
        raise DataError("not valid JSON", got=error, wanted=WANTED, where=path) from None
    try:
        articles = [(article, i) for i, article in enumerate(table["data"])]
    except (KeyError, TypeError):
        raise DataError("this JSON holds no questions", got=_shown(table), wanted=WANTED, where=path) from None
    for article, i in articles:
        yield from _questions(article, path, f"data[{i}]")


def read_questions(
    paths: Sequence[Path],
    *,
    on_bad_line: OnBadLine = "error",
    report: ReadReport | None = None,
    need_answers: bool = True,
) -> Iterator[Question]:
    """Every question of a file; an answer stands in the text at the place that is said, or at the first if none is.

    Without `need_answers`, for prediction, answers are taken where they are, and a text file of `question<TAB>text`
    will do.
    """
    if len(paths) != 1:
        raise DataError("questions are one file", got=f"{len(paths)} files", wanted=FILES_WANTED)
    (path,), remedy, report = paths, remedy_of(report), ReadReport() if report is None else report
    report.path, suffix = str(path), data_suffix(path)
    if need_answers and suffix not in (".json", ".jsonl", ".tsv"):
        raise DataError("a file without answers", got=path, wanted=FILES_WANTED)
    require_file(path)
    lines = ((f"{path}:{number}", line) for number, line in enumerate(read_lines(path), 1))
    items = ((question.place, question) for question in read_squad(path)) if suffix == ".json" else lines
    for place, item in items:
        try:
            question = item if isinstance(item, Question) else _parse(item, place, suffix, need_answers)
            if question is None:
                continue
            question = _placed(question) if need_answers else question
        except BadLine as reason:
            if on_bad_line == "error":
                raise DataError("a bad question", got=reason, where=place, remedy=remedy) from None
            report.add_bad(place, str(reason))
        else:
            report.read += 1
            yield question


def _parse(line: bytes, place: str, suffix: str, need_answers: bool) -> Question | None:
    """The question of a line; None where the line names the columns, or is empty where every line is an answer."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}") from None
    if suffix == ".jsonl":
        return _of_json(text, place, need_answers)
    if (suffix == ".tsv" and place.endswith(":1") and _is_header(text)) or (need_answers and not text.strip()):
        return None
    return _of_cells(text, place, need_answers)


def _is_header(line: str) -> bool:
    return [cell.strip().lower() for cell in line.split(TAB)][:2] in (["question", "context"], ["question", "text"])


def _of_cells(line: str, place: str, need_answers: bool) -> Question:
    cells = line.split(TAB)
    if not need_answers and len(cells) < 2:
        return Question(place, line.strip(), "", ())  # the task says what is wrong with it, and answers the others
    if len(cells) < 2:
        raise BadLine("one column; wanted question, tab, text")
    question, context, *answers = cells
    if need_answers and not answers:
        raise BadLine("no answer; wanted question, text, answers, an empty one where the text has none")
    return Question(place, question, context, tuple((text, -1) for text in answers if text), place, context)


def _of_json(line: str, place: str, need_answers: bool) -> Question:
    try:
        record = json.loads(line)
        if "source" in record:  # as `predict` writes it
            question, _, context = str(record["source"]).partition(TAB)
        else:
            question, context = str(record["question"]), str(record["context"])
        given = next((record[name] for name in ("answers", "answer", "target") if name in record), None)
        if given is None and need_answers:
            raise BadLine('no key "answers"; [] where the text has none')
        answers = () if record.get("is_impossible") else tuple(_answers(given))
        name, article = str(record.get("id", place)), str(record.get("title", context))
        return Question(name, question, context, answers, place, article)
    except KeyError as error:
        raise BadLine(f"no key {error}; there are: {', '.join(map(str, record)) or 'none'}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise BadLine(f"not a JSON object with question, context and answers: {error}") from None


def _answers(given: Any) -> Iterator[tuple[str, int]]:
    """Answers as one text, as texts, as SQuAD has them, or as lists of texts and of places."""
    if given is None or given == "":
        return
    if isinstance(given, str):
        yield given, -1
    elif isinstance(given, dict) and isinstance(given["text"], list):
        yield from zip(map(str, given["text"]), map(int, given["answer_start"]), strict=True)
    elif isinstance(given, dict):
        yield str(given["text"]), int(given.get("answer_start", -1))
    else:
        for each in given:
            yield from _answers(each)


def _placed(question: Question) -> Question:
    """The question, its answers seen to stand where they are said to."""
    if not question.question.strip() or not question.context.strip():
        raise BadLine("the question is empty" if not question.question.strip() else "the text is empty")
    found = []
    for text, start in question.answers:
        if start < 0:
            start = question.context.find(text)
        if not text.strip() or start < 0 or question.context[start : start + len(text)] != text:
            raise BadLine(f'the answer "{text[:40]}" does not stand in the text{f" at {start}" if start > 0 else ""}')
        found.append((text, start))
    return replace(question, answers=tuple(found))


def _questions(article: Any, path: Path, place: str) -> Iterator[Question]:
    try:
        title = str(article.get("title", place))
        for j, paragraph in enumerate(article["paragraphs"]):
            where = f"{place}.paragraphs[{j}]"
            for k, entry in enumerate(paragraph["qas"]):
                where = f"{place}.paragraphs[{j}].qas[{k}]"
                given = [] if entry.get("is_impossible") else entry.get("answers", [])
                answers = tuple((str(a["text"]), int(a["answer_start"])) for a in given)
                name, asked, context = str(entry.get("id", where)), str(entry["question"]), str(paragraph["context"])
                yield Question(name, asked, context, answers, f"{path}: {where}", title)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError("a question cannot be read", got=error, wanted=WANTED, where=f"{path}: {place}") from None


def _shown(table: object) -> str:
    return f"an object with {', '.join(map(str, table))}" if isinstance(table, dict) else type(table).__name__
