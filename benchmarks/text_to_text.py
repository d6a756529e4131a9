"""Three tasks in one model by prefix, each beside its twin: the same model trained on that task alone.

    REGARD_DATA=... python benchmarks/text_to_text.py --out runs/twins [train.max_steps=4000 ...]

A twin has the recipe of the joint run with one part, as many updates, and a tokenizer of its own. Keys after the
options change all of them. With `--parallel 4` all are trained at a time. The table has every metric of the test split.
"""

from __future__ import annotations

import argparse
import dataclasses
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from regard.recipe import Recipe, read_recipe
from regard.run import train


def scores(recipe: Recipe) -> dict[str, float]:
    return {score.name: score.value for score in train(recipe).evaluate("test")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="text-to-text")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    args = parser.parse_args()
    joint = read_recipe(args.recipe, args.keys)
    twins = [dataclasses.replace(joint.task, parts=(part,)) for part in joint.task.parts]
    recipes = [dataclasses.replace(joint, run=str(args.out / "together"))]
    recipes += [dataclasses.replace(joint, run=str(args.out / twin.parts[0].name), task=twin) for twin in twins]
    with ProcessPoolExecutor(args.parallel, mp_context=get_context("spawn")) as pool:
        together, *alone = pool.map(scores, recipes)
    print("| metric | together | alone |\n|---|---|---|")
    for name, value in (pair for twin in alone for pair in twin.items()):
        print(f"| {name} | {together[name]:.2f} | {value:.2f} |")


if __name__ == "__main__":
    main()
