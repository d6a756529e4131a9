"""A memory network for each kind of question about stories, with several seeds: the figures of docs/memory.md.

python benchmarks/stories.py --runs runs/stories-kinds               # six kinds, three seeds; some minutes each
python benchmarks/stories.py model.hops=2 --runs runs/stories-kinds --seeds 1 --kinds yes-no

What was trained before is not trained again. Keys of the recipe may be changed, first of all.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from regard.data.stories import KINDS
from regard.recipe import read_recipe
from regard.run import train

SMALL = ("model.model_dim=32", "train.max_steps=6000", "train.batch_tokens=3000", "train.learning_rate=1e-2")


def score(kind: str, seed: int, runs: Path, keys: list[str]) -> float:
    """The accuracy on the test questions of a model that learned this kind alone."""
    files = [f'data.{split}=["{kind}_{split}.txt"]' for split in ("train", "val", "test")]
    own = [f"run={runs / f'{kind}-{seed}'}", f"train.seed={seed}", "train.validate_every=1000"]
    run = train(read_recipe("stories", [*files, *own, *SMALL, *keys]))
    scores = {each.name: each.value for each in run.evaluate("test")}
    print(kind, seed, " ".join(f"{name}={value:.1f}" for name, value in scores.items()), flush=True)
    return scores["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("keys", nargs="*", help="keys of the recipe: section.key=value")
    arguments = parser.parse_args()
    found = {
        kind: [score(kind, seed, arguments.runs, arguments.keys) for seed in arguments.seeds]
        for kind in arguments.kinds
    }
    print(f"{'kind':<14}{'mean':>6}{'spread':>8}  each")
    for kind, values in found.items():
        spread = statistics.pstdev(values)
        print(f"{kind:<14}{statistics.mean(values):>6.1f}{spread:>8.2f}  {', '.join(f'{x:.1f}' for x in values)}")


if __name__ == "__main__":
    main()
