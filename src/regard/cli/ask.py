"""`regard ask`: an answer from a folder of texts, where it stands, and where it was looked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.generate import asked
from regard.cli.jobs import DEVICE, Output, progress, typed
from regard.cli.look import slug
from regard.cli.output import clean, say
from regard.cli.words import is_override, section
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.asking import Answer, Asker, Hit, Reply

MOST_TERMS = 8  # that are shown of those that a passage shares with the question


class Format(StrEnum):
    """What `ask` writes."""

    text = "text"
    jsonl = "jsonl"


class Retrieve(StrEnum):
    """How passages are found."""

    bm25 = "bm25"
    vectors = "vectors"
    both = "both"


def ask(
    run: Path = typer.Argument(metavar="RUN", help="A run of question-answering, or of text-to-text with questions."),
    folder: Path = typer.Argument(metavar="FOLDER", help="Texts, .txt and .md, also in folders in it."),
    words: list[str] = typer.Argument(
        None, metavar="QUESTION|KEY=VALUE", help="A question (each line of stdin without it), and keys of [decode]."
    ),
    retrieve: Retrieve | None = typer.Option(
        None, help="bm25: by words; vectors: by meaning; both. Without it: both with --vectors, else bm25."
    ),
    vectors: Path | None = typer.Option(
        None, metavar="RUN", help="An encoder whose vectors find passages; RUN itself without it."
    ),
    passages: int = typer.Option(5, min=1, metavar="K", help="Passages that are read."),
    n_best: int = typer.Option(1, "--n-best", min=1, metavar="N", help="Answers a question, the best first."),
    format: Format = typer.Option(Format.text, help="text: to be read; jsonl: an object a question."),
    look: bool = typer.Option(False, "--look", help="Also write the page of who reads what: RUN/look/QUESTION.html."),
    device: str = DEVICE,
) -> None:
    """Answer from a folder of texts, and say where.

    The passages that matter are found, the run reads them, and the answer comes with its file, line and characters,
    with the passage around it, and with what found that passage. Without a question, each line of stdin is one.
    """
    question, changes = _question_and_keys(words or [])
    if question is not None and not question.strip():
        raise ConfigError("there is no question", got=repr(question), wanted='"Who built the tower?"')
    if "n_best" in changes:
        raise ConfigError("n_best has an option here", got=f"n_best={changes['n_best']}", wanted="--n-best N")

    from regard.asking import Asker, Reply
    from regard.run import load

    loaded = load(run, device)
    encoder = None if vectors is None else load(vectors, device)
    with progress("vectors of passages") as on_step:
        way = None if retrieve is None else retrieve.value
        asker = Asker(loaded, folder, retrieve=way, vectors=encoder, on_step=on_step)
    _say_what_was_read(asker)
    several = question is None
    with Output(None) as output:
        for text in _questions(question):
            if text.strip():
                reply = asker.ask(text, passages=passages, n_best=n_best, **changes)
            else:
                reply = Reply(text, (), (), "the line is empty")
            output.write(as_jsonl(reply) if format is Format.jsonl else as_text(reply, asker.reading.writes, several))
            if look and reply.passages:
                path = asker.look(reply).save(run / "look" / f"{slug(text)}.html")
                say(f"wrote {path}", stderr=True)


def as_text(reply: Reply, written: bool, several: bool) -> str:
    """An answer with its place, why its passage was found, and the passage with the answer marked."""
    parts = [f"? {reply.question}\n"] if several else []
    if not reply.answers:
        parts.append(f"no answer: {reply.reason}\n")
        parts += ["nearest:\n"] if reply.passages else []
        parts += [f"{_place(hit)}\n{_why(hit)}{_quoted(hit.passage.text)}" for hit in reply.passages]
    for answer in reply.answers:
        parts += [f"{answer.text}\n", _source(answer, written), _why(answer.hit), _quoted(_marked(answer))]
    return clean("".join(parts) + ("\n" if several else ""))


def as_jsonl(reply: Reply) -> str:
    """One object: the answers, each with the number of its passage, and the passages that were read."""
    passages = list(reply.passages)
    record: dict[str, Any] = {"question": reply.question, "answer": reply.text}
    if reply.reason:
        record["reason"] = reply.reason
    record["answers"] = [
        {
            "text": answer.text,
            "score": round(answer.score, 6),
            "passage": passages.index(answer.hit),
            "line": answer.line,
            "span": answer.span,
        }
        for answer in reply.answers
    ]
    record["passages"] = [
        {
            "file": str(hit.passage.file),
            "line": hit.passage.line,
            "span": [hit.passage.start, hit.passage.end],
            "bm25": hit.bm25,
            "vectors": hit.vectors,
            "terms": hit.terms,
            "text": hit.passage.text,
        }
        for hit in passages
    ]
    return json.dumps(record, ensure_ascii=False) + "\n"


def _source(answer: Answer, written: bool) -> str:
    file = answer.hit.passage.file
    stands = "" if answer.span is None else f", characters {answer.span[0]:,} to {answer.span[1]:,}"
    if not written:
        return f"  {file}:{answer.line}{stands}; probability {answer.score:.2f}\n"
    place = stands or ", in words that do not stand there"
    return f"  written from {file}:{answer.line}{place}; mean log-probability {answer.score:.2f} a token\n"


def _place(hit: Hit) -> str:
    return f"  {hit.passage.file}:{hit.passage.line}, characters {hit.passage.start:,} to {hit.passage.end:,}"


def _why(hit: Hit) -> str:
    """The ranks of a passage, and the words that it shares with the question."""
    shown = ", ".join(hit.terms[:MOST_TERMS]) + (", ..." if len(hit.terms) > MOST_TERMS else "")
    ranks = [] if hit.bm25 is None else [f"rank {hit.bm25:,} by BM25 ({shown})"]
    ranks += [] if hit.vectors is None else [f"rank {hit.vectors:,} by vectors"]
    return f"  found: {', '.join(ranks)}\n"


def _marked(answer: Answer) -> str:
    text = answer.hit.passage.text
    if answer.place is None:
        return text
    start, end = answer.place
    return f"{text[:start]}[[{text[start:end]}]]{text[end:]}"


def _quoted(text: str) -> str:
    return "".join(f"  | {line}\n" for line in text.splitlines())


def _say_what_was_read(asker: Asker) -> None:
    library = asker.library
    for path, reason in library.left_out:
        say(f"left out: {path}: {reason}", stderr=True)
    read = library.num_files - len(library.left_out)
    say(f"{len(library.passages):,} passages of {read:,} files in {library.folder}", stderr=True)


def _questions(question: str | None) -> Iterable[str]:
    if question is not None:
        return [question]
    return asked() if sys.stdin.isatty() else typed()


def _question_and_keys(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    texts = [word for word in words if not is_override(word)]
    if len(texts) > 1:
        raise ConfigError("a question is one word of the command", got=" ".join(texts), wanted=f'"{" ".join(texts)}"')
    keys = section("decode", [word for word in words if is_override(word)])
    return texts[0] if texts else None, keys
