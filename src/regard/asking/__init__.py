"""Answers from a folder of texts: find the passages that matter, read them, say where the answer stands.

    import regard
    reply = regard.ask("runs/mine", "notes", "Who built the tower?")
    print(reply.text, reply.answers[0].hit.passage.file, reply.answers[0].line)

`Asker` indexes a folder once, for many questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.asking.finding import Finder, Hit, OnStep, Vectors, chosen
from regard.asking.folder import read_folder
from regard.asking.reading import Answer, reading_of
from regard.errors import ConfigError, require
from regard.looking.text import Look
from regard.run import Run, load

__all__ = ["Answer", "Asker", "Hit", "Reply", "ask"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a question: the answers, the best first, the passages that were read, and why there is no answer."""

    question: str
    answers: tuple[Answer, ...]
    passages: tuple[Hit, ...]
    reason: str = ""  # that there is no answer

    @property
    def text(self) -> str:
        """The best answer, "" where there is none."""
        return self.answers[0].text if self.answers else ""


class Asker:
    """A run and a folder of texts, indexed."""

    def __init__(
        self,
        run: Run | str | Path,
        folder: str | Path,
        *,
        retrieve: str | None = None,
        vectors: Run | str | Path | None = None,
        on_step: OnStep | None = None,
    ) -> None:
        """Passages are found by "bm25", by "vectors" (of `vectors`, or else of the run itself) or by "both".

        What is not said is "both" where `vectors` names a run, else "bm25". `on_step` is told how many passages have
        their vectors.
        """
        self.run = run if isinstance(run, Run) else load(run)
        self.reading = reading_of(self.run)
        encoder = vectors if isinstance(vectors, Run) or vectors is None else load(vectors)
        way, encoder = chosen(retrieve, self.run, encoder)
        self.library = read_folder(Path(folder))
        texts = [passage.text for passage in self.library.passages]
        made = Vectors(encoder, texts, on_step) if encoder is not None else None
        self.finder = Finder(self.library.passages, way, made)

    def ask(self, question: str, *, passages: int = 5, n_best: int = 1, **decode: Any) -> Reply:
        """The answers of the best `passages`; decode keys are those of `predict`."""
        require(passages >= 1, "passages is too small", got=passages, wanted="1 or more")
        require(n_best >= 1, "n_best is too small", got=n_best, wanted="1 or more")
        if not isinstance(question, str) or not question.strip():
            raise ConfigError("there is no question", got=repr(question)[:80], wanted='"Who built the tower?"')
        try:
            question.encode()  # a shell can hand on bytes that are no text
        except UnicodeEncodeError:
            raise ConfigError("the question is not UTF-8", got=repr(question)[:80]) from None
        self.run.subject(decode)  # a wrong key is an error also where nothing is found
        hits = self.finder.find(question, passages)
        if not hits:
            number = len(self.library.passages)
            return Reply(question, (), (), f"none of {number:,} passages has a word of the question")
        answers = self.reading.answers(question, hits, n_best, **decode)
        return Reply(question, tuple(answers), tuple(hits), "" if answers else "the passages that were read have none")

    def look(self, reply: Reply, **options: Any) -> Look:
        """Where the run looked for the best answer; without an answer, in the nearest passage."""
        if not reply.passages:
            raise ConfigError("there is no passage to look at", got=reply.reason, wanted="a question that finds one")
        answer = reply.answers[0] if reply.answers else None
        hit = reply.passages[0] if answer is None else answer.hit
        return self.run.look(self.reading.source(reply.question, hit), _target(answer), **options)


def _target(answer: Answer | None) -> str | None:
    """What is looked at; None leaves it to the run: where the same words stand before, its own answer says which."""
    if answer is None or (answer.place and answer.hit.passage.text.find(answer.text) < answer.place[0]):
        return None
    return answer.text


def ask(run: Run | str | Path, folder: str | Path, question: str, **options: Any) -> Reply:
    """One question to a folder: the options are those of `Asker` (retrieve, vectors) and of its `ask`."""
    own = {name: options.pop(name) for name in ("retrieve", "vectors", "on_step") if name in options}
    return Asker(run, folder, **own).ask(question, **options)
