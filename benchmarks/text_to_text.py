"""Three tasks in one model by prefix, each beside its twin: the same model trained on that task alone.

    REGARD_DATA=... python benchmarks/text_to_text.py --out runs/twins [train.max_steps=4000 ...]

A twin has the recipe of the joint run with one part, as many updates, and a tokenizer of its own. Keys after the
options change all of them. The table has every metric of the test split.
"""

from __future__ import annotations

import argparse
import dataclasses
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
    args = parser.parse_args()
    joint = read_recipe(args.recipe, args.keys)
    together = scores(dataclasses.replace(joint, run=str(args.out / "together")))
    print("| metric | together | alone |\n|---|---|---|")
    for part in joint.task.parts:
        alone = dataclasses.replace(joint.task, parts=(part,))
        twin = scores(dataclasses.replace(joint, run=str(args.out / part.name), task=alone))
        for name, value in twin.items():
            print(f"| {name} | {together[name]:.2f} | {value:.2f} |", flush=True)


if __name__ == "__main__":
    main()
