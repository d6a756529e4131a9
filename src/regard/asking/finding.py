"""Which passages matter to a question: by shared words, by vectors, or by both rankings as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from regard import tasks
from regard.asking.bm25 import BM25, fused
from regard.asking.folder import Passage
from regard.config import to_table
from regard.data.cache import Arrays, cache_folder, kept, opened
from regard.errors import ConfigError, require
from regard.run import Run
from regard.tasks.classification import KNOWLEDGE
from regard.train.checkpoint import MODEL

Retrieve = Literal["bm25", "vectors", "both"]
OnStep = Callable[[int, int], None]  # told how many are done, of how many
Vector = npt.NDArray[np.float32]
AT_ONCE = 256  # passages that are encoded between two reports


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found, and why: its ranks from 1, None where a ranking does not have it, and shared words."""

    passage: Passage
    bm25: int | None
    vectors: int | None
    terms: tuple[str, ...]


class Vectors:
    """The vectors of passages by the encoder of a run.

    They are kept in the cache folder, by the run and by each text: only passages that were never met are encoded.
    """

    def __init__(self, run: Run, texts: Sequence[str], on_step: OnStep | None = None) -> None:
        self.run = run
        folder, sums = cache_folder().with_name("vectors") / _name(run), [_sum(text) for text in texts]
        known: dict[str, Vector] = {}
        for part in sorted(folder.glob("[!.]*")):  # what was new, each time that something was
            if (found := opened(part)) is not None:
                known |= zip(found[1]["texts"], found[0]["vectors"], strict=True)
        new = {key: text for key, text in zip(sums, texts, strict=True) if key not in known}
        if new:
            name = hashlib.sha256("".join(new).encode()).hexdigest()
            arrays, _ = kept(folder / name, lambda: (self._encoded(list(new.values()), on_step), {"texts": list(new)}))
            known |= zip(new, arrays["vectors"], strict=True)
        self.matrix = torch.from_numpy(np.stack([known[key] for key in sums]))

    def _encoded(self, texts: Sequence[str], on_step: OnStep | None) -> Arrays:
        parts = []
        for first in range(0, len(texts), AT_ONCE):
            parts.append(self.run.vectors(texts[first : first + AT_ONCE], normalize=True))
            if on_step is not None:
                on_step(min(first + AT_ONCE, len(texts)), len(texts))
        return {"vectors": torch.cat(parts).numpy()}

    def best(self, question: str) -> list[int]:
        """All passages, the one that points most as the question does first."""
        asked = self.run.vectors([question], normalize=True)[0]
        return (self.matrix @ asked).argsort(descending=True, stable=True).tolist()


class Finder:
    """Passages with the indexes that find them."""

    def __init__(self, passages: Sequence[Passage], retrieve: Retrieve, vectors: Vectors | None) -> None:
        self.passages, self.retrieve, self.vectors = passages, retrieve, vectors
        self.index = BM25([passage.text for passage in passages])

    def find(self, question: str, number: int) -> list[Hit]:
        """The best passages, the best first; by what words each could be found is told however it was."""
        words = [place for place, _ in self.index.best(question)]
        meanings = self.vectors.best(question) if self.vectors is not None else []
        rankings = {"bm25": [words], "vectors": [meanings], "both": [words, meanings]}[self.retrieve]
        ranks = [{place: rank for rank, place in enumerate(ranking, 1)} for ranking in (words, meanings)]
        found = []
        for place, _ in fused(rankings)[:number]:
            passage = self.passages[place]
            shared = self.index.shared(question, passage.text)
            found.append(Hit(passage, ranks[0].get(place), ranks[1].get(place), shared))
        return found


def chosen(retrieve: str | None, run: Run, vectors: Run | None) -> tuple[Retrieve, Run | None]:
    """How passages are found, and by whose vectors: what was asked for, or what this run and that of vectors allow."""
    known = get_args(Retrieve)
    way: Retrieve = "bm25" if vectors is None else "both"
    if retrieve is not None:
        require(retrieve in known, "unknown way to retrieve", got=retrieve, wanted=", ".join(known))
        way = retrieve  # type: ignore[assignment]
    if way == "bm25":
        require(vectors is None, "vectors have no use here", got="retrieve = bm25", wanted="vectors, or both")
        return way, None
    encoder = vectors or run
    if tasks.task(encoder.recipe.task_name).KIND != "encoder":
        raise ConfigError(
            "this run has no vectors to retrieve by",
            got=f"{encoder.recipe.family} for {encoder.recipe.task_name}",
            wanted="a run of an encoder",
            where=encoder.folder,
            remedy="--vectors RUN of a sentence encoder that `regard convert` made, or --retrieve bm25",
        )
    return way, encoder


def _name(run: Run) -> str:
    """A sum over all that decides what the vector of a text is: the run's weights, and how it reads a text."""
    found = hashlib.sha256()
    beside = [path.name for pattern in ("tokenizer*.json", KNOWLEDGE) for path in run.folder.glob(pattern)]
    for name in (MODEL, *sorted(beside)):
        found.update((run.folder / name).read_bytes())
    read = {"task": to_table(run.recipe.task), "max_length": run.recipe.data.max_length}
    found.update(json.dumps(read, sort_keys=True).encode())
    return found.hexdigest()


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
