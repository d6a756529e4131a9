"""How well `regard ask` finds: every paragraph of a SQuAD file becomes a text of a folder, every question is asked.

    python benchmarks/ask.py xquad.en.json
    python benchmarks/ask.py xquad.en.json --vectors runs/minilm
    python benchmarks/ask.py xquad.en.json --vectors runs/minilm --run runs/xquad-minilm-0 --limit 200

Recall@k is the share of the questions whose own paragraph is among the first k that are found. A paragraph that is cut
into several passages counts once, by the best of them. With --run, the answers themselves are scored, exact match and
F1 as SQuAD has them, once with all paragraphs to look through and once with the right paragraph given.

The questions of SQuAD were written by people who saw the paragraph, so that they share more words with it than a
stranger's question would: BM25 looks better here than it is elsewhere.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from regard.asking import Asker
from regard.asking.finding import Finder, Vectors
from regard.asking.folder import read_folder
from regard.data.marked import units_of
from regard.data.squad import Question, read_squad
from regard.run import Run, load
from regard.tasks._answers import answer_scores

DEPTHS = (1, 5, 20)


def write_paragraphs(questions: Sequence[Question], folder: Path) -> dict[str, Path]:
    """One .txt a paragraph; which file each text is in."""
    places: dict[str, Path] = {}
    for question in questions:
        if question.context not in places:
            places[question.context] = folder / f"{len(places):06}.txt"
            places[question.context].write_bytes(question.context.encode())
    return places


def rank_of(finder: Finder, question: str, wanted: Path) -> int | None:
    """The place of a file among the files that are found, from 1; None where it is not."""
    files = dict.fromkeys(hit.passage.file for hit in finder.find(question, 4 * DEPTHS[-1]))
    return list(files).index(wanted) + 1 if wanted in files else None


def recalls(finder: Finder, questions: Sequence[Question], places: dict[str, Path]) -> list[float]:
    """Recall at each depth, in percent."""
    ranks = [rank_of(finder, question.question, places[question.context]) for question in questions]
    return [100 * sum(rank is not None and rank <= depth for rank in ranks) / len(ranks) for depth in DEPTHS]


def answered(run: Run, folder: Path, questions: Sequence[Question], vectors: Run | None, passages: int) -> list[str]:
    """Exact match and F1 of the whole way, and of the reader alone with the right paragraph before it."""
    units = units_of(question.context for question in questions)
    right = [question.texts for question in questions]
    asker = Asker(run, folder, vectors=vectors)
    found = [asker.ask(question.question, passages=passages).text for question in questions]
    lines = [f"whole way, {passages} passages"] + [f"{s.value:.1f}" for s in answer_scores(found, right, units)[:2]]
    if asker.reading.writes:
        return ["\t".join(lines)]
    given = [each.text for each in run.predict([question.source for question in questions])]
    alone = ["right paragraph given"] + [f"{s.value:.1f}" for s in answer_scores(given, right, units)[:2]]
    return ["\t".join(lines), "\t".join(alone)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="questions as SQuAD has them")
    parser.add_argument("--vectors", metavar="RUN", help="an encoder")
    parser.add_argument("--run", metavar="RUN", help="a run that answers")
    parser.add_argument("--passages", type=int, default=5, help="passages that it reads")
    parser.add_argument("--limit", type=int, default=0, help="questions that are asked; 0: all")
    chosen = parser.parse_args(arguments)
    questions = list(read_squad(chosen.file))
    encoder = load(chosen.vectors) if chosen.vectors else None
    with tempfile.TemporaryDirectory() as name:
        places = write_paragraphs(questions, Path(name))
        questions = questions[: chosen.limit or None]
        library = read_folder(Path(name))
        print(f"{len(questions):,} questions, {len(places):,} paragraphs, {len(library.passages):,} passages")
        print("\t".join(["found by", *(f"recall@{depth}" for depth in DEPTHS)]))
        made = Vectors(encoder, [passage.text for passage in library.passages]) if encoder else None
        if made:
            made.best = functools.cache(made.best)  # type: ignore[method-assign]  # a question is encoded once
        for way in ("bm25", "vectors", "both") if made else ("bm25",):
            found = recalls(Finder(library.passages, way, made), questions, places)
            print("\t".join([way, *(f"{value:.1f}" for value in found)]), flush=True)
        if chosen.run:
            print("answers\texact match\tF1")
            print("\n".join(answered(load(chosen.run), Path(name), questions, encoder, chosen.passages)))


if __name__ == "__main__":
    main()
