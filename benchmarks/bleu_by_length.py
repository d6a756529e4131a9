"""The old argument for attention as a picture: BLEU by the length of the source, one line a model.

    python benchmarks/bleu_by_length.py --out docs/bleu-by-length.png \
        "fixed-length vector=runs/multi30k-en-de-fixed" "Bahdanau=runs/multi30k-en-de-bahdanau" \
        "convolution=runs/multi30k-en-de-convolutional" "Transformer=runs/multi30k-en-de"

Each run translates its own test split as its recipe decodes. Sentences are grouped by the number of words of the
source; a point is the corpus BLEU of a group. The table is printed too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import regard
from regard.tasks.metrics import MetricOptions, find_metric
from regard.types import Example, Prediction

EDGES = (1, 9, 11, 13, 16, 20, 100)  # words; about equal shares of Multi30k's test2016, the longest apart


def by_length(
    examples: Sequence[Example], answers: Sequence[Prediction], options: MetricOptions
) -> list[tuple[str, int, float]]:
    """Name, number of sentences and BLEU of each group of lengths that has any."""
    points = []
    for low, high in pairwise(EDGES):
        places = [i for i, example in enumerate(examples) if low <= len(example.source.split()) < high]
        if places:
            texts, references = [answers[i].text for i in places], [examples[i].targets for i in places]
            name = f"{low}-{high - 1}" if high != EDGES[-1] else f"{low}+"
            points.append((name, len(places), find_metric("bleu").measure(texts, references, options).value))
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="LABEL=RUN")
    parser.add_argument("--out", type=Path, required=True, help="the picture, .png or .svg")
    arguments = parser.parse_args()
    lines: list[tuple[str, list[tuple[str, int, float]]]] = []
    for word in arguments.runs:
        label, _, folder = word.partition("=")
        run = regard.load(folder)
        examples = run.task.examples("test")
        answers = run.predict([example.source for example in examples])
        options = MetricOptions(run.recipe.task.tokenize, run.recipe.task.lowercase)
        points = by_length(examples, answers, options)
        print(label, "  ".join(f"{name}: {bleu:.1f} ({number})" for name, number, bleu in points), flush=True)
        lines.append((label, points))
    draw(lines, arguments.out)


def draw(lines: Sequence[tuple[str, Sequence[tuple[str, int, float]]]], path: Path) -> None:
    """The picture of what was printed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (label, points), marker in zip(lines, "osD^vP" * len(lines), strict=False):
        axes.plot([p[0] for p in points], [p[2] for p in points], marker=marker, label=label)
    axes.set_xlabel("words of the source")
    axes.set_ylabel("BLEU")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
