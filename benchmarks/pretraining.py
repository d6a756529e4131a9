"""Does pretraining help a small T5? Span corruption on running text, then two classifications as text to text.

    REGARD_DATA=... python benchmarks/pretraining.py --out runs/pretraining --parallel 2

The pretrained model (recipe wikitext-2-t5-cpu, unless --base names a run of span corruption) and the same model from
fresh weights are trained with the same keys on trec and sst2, text in, label out; the validation split chooses the best
weights (of trec it is every tenth question, as the set has none), and the test split is read once a seed. The table has
the mean over seeds and the interval of 95 % (Student's t).
"""

from __future__ import annotations

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from regard.data import catalogue
from regard.recipe import parse, read_recipe
from regard.run import train

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262}
SPLITS = {"train": "train", "val": "dev", "test": "test"}
TRAIN: dict[str, Any] = {"batch_tokens": 2048, "learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 60}
TRAIN |= {"embedding_rate": 16.0}  # as in pretraining


def files(name: str, folder: Path) -> dict[str, list[str]]:
    """The splits of a set, label first; of trec every tenth question of train becomes validation."""
    source = catalogue.get(name)
    if name != "trec":
        return {split: [str(source / f"{file}.tsv")] for split, file in SPLITS.items()}
    folder.mkdir(parents=True, exist_ok=True)
    lines = (source / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "trec-train.tsv").write_text("".join(x for i, x in enumerate(lines) if i % 10), encoding="utf-8")
    (folder / "trec-val.tsv").write_text("".join(lines[::10]), encoding="utf-8")
    names = {"train": folder / "trec-train.tsv", "val": folder / "trec-val.tsv", "test": source / "test.tsv"}
    return {split: [str(path)] for split, path in names.items()}


def accuracy(name: str, base: Path, folder: Path, *, pretrained: bool, seed: int, steps: int) -> float:
    """The accuracy on the test split of one training."""
    run = folder / f"{name}-{'pretrained' if pretrained else 'fresh'}-{seed}"
    part = {"name": name, "prefix": f"{name}: ", "swapped": True, "metrics": ["exact_match"], **files(name, folder)}
    recipe = parse(
        {
            "run": str(run),
            "task": {"name": "text-to-text", "parts": [part]},
            "data": {"max_length": 128, "too_long": "truncate"},
            "finetune": {"base": str(base), "weights": pretrained},
            "train": {**TRAIN, "max_steps": steps, "seed": seed, "best": f"{name}.exact_match"}
            | {"validate_every": max(1, steps // 8), "checkpoint_every": steps},
            "decode": {"method": "greedy", "max_length": 16},
        },
        where="benchmarks/pretraining.py",
        folder=folder,
    )
    return train(recipe).evaluate("test")[0].value


def cell(found: list[float]) -> str:
    """The mean over seeds, its interval, and the seeds."""
    spread = T_95.get(len(found), 2.0) * stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return f"{fmean(found):.2f} +- {spread:.2f} ({', '.join(f'{value:.1f}' for value in found)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--base", type=Path, help="a run of span corruption; without it wikitext-2-t5-cpu is trained")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    args = parser.parse_args()
    base = args.base or train(read_recipe("wikitext-2-t5-cpu", [f"run={args.out / 'base'}"])).folder
    with ProcessPoolExecutor(args.parallel, mp_context=get_context("spawn")) as pool:
        asked = {
            (name, pretrained): [
                pool.submit(accuracy, name, base, args.out, pretrained=pretrained, seed=seed, steps=args.steps)
                for seed in args.seeds
            ]
            for name in ("trec", "sst2")
            for pretrained in (True, False)
        }
        found = {case: [each.result() for each in trainings] for case, trainings in asked.items()}
    print("| set | pretrained | fresh |\n|---|---|---|")
    for name in ("trec", "sst2"):
        print(f"| {name} | {cell(found[name, True])} | {cell(found[name, False])} |")


if __name__ == "__main__":
    main()
