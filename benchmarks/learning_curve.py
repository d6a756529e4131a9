"""How good a recipe becomes with fewer examples: it is trained on shares of the training split, each with some seeds.

    REGARD_DATA=path/to/archives python benchmarks/learning_curve.py trec --shares 0.1 0.2 0.5 1 --seeds 3 \
        --out trec.md

Shares are chosen by the texts (`data.train_share`): those of a smaller share are among those of a larger one. Further
words are keys of the recipe, as in `train.max_steps=500`. OUT is a table with the mean of the seeds and their standard
deviation; a training that is there already, in RUNS, is not made again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import regard
from regard.recipe import read_recipe
from regard.run import train


def measured(
    recipe: str, share: float, seed: int, runs: Path, split: str, keys: Sequence[str]
) -> tuple[int, dict[str, float]]:
    """How many examples were learned from, and the metrics."""
    folder = runs / f"{Path(recipe).stem}-{share:g}-{seed}"
    run = train(read_recipe(recipe, [*keys, f"run={folder}", f"data.train_share={share}", f"train.seed={seed}"]))
    scores = regard.load(folder, run.recipe.train.device).evaluate(split)
    return len(run.task.examples("train")), {score.name: score.value for score in scores}


def table(found: dict[float, tuple[int, list[dict[str, float]]]]) -> str:
    """One row a share: its examples, and the mean and spread of each metric.

    >>> print(table({0.5: (10, [{"accuracy": 80.0}, {"accuracy": 82.0}])}))
    | share | examples | accuracy |
    |---|---|---|
    | 0.5 | 10 | 81.00 ± 1.41 |
    """
    names = list(next(iter(found.values()))[1][0])
    lines = ["| " + " | ".join(["share", "examples", *names]) + " |", "|---" * (len(names) + 2) + "|"]
    for share, (number, seeds) in sorted(found.items()):
        cells = [spread([seed[name] for seed in seeds]) for name in names]
        lines.append("| " + " | ".join([f"{share:g}", f"{number:,}", *cells]) + " |")
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """The mean, and the standard deviation where there are several."""
    mean = f"{statistics.mean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the recipe")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.2, 0.5, 1.0])
    parser.add_argument("--seeds", type=int, default=3, help="how many: 1, 2, ...")
    parser.add_argument("--split", default="test")
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"), help="folder for the run folders")
    parser.add_argument("--out", type=Path, required=True, help="the table")
    arguments = parser.parse_args()
    found: dict[float, tuple[int, list[dict[str, float]]]] = {}
    for share in arguments.shares:
        for seed in range(1, arguments.seeds + 1):
            number, metrics = measured(arguments.recipe, share, seed, arguments.runs, arguments.split, arguments.keys)
            found.setdefault(share, (number, []))[1].append(metrics)
            arguments.out.write_text(f"{arguments.recipe}, {arguments.split}\n\n{table(found)}\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
