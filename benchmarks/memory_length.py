"""What a memory is worth: the perplexity of a trained Transformer-XL as it may remember less or more.

    regard train wikitext-2-transformer-xl
    python benchmarks/memory_length.py runs/wikitext-2-transformer-xl --lengths 0 16 32 64 128 256 512 --out memory.png

The same weights read the whole split, segment after segment, with a memory of each length; 0 is the model without one
(of weights that were trained with it: a model that was trained without is another row of the table in README.md).
"""

from __future__ import annotations

import argparse

from regard import load
from regard.decode.config import DecodeConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--split", default="test")
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--out", help="a picture of the curve")
    args = parser.parse_args()
    run, found = load(args.run), []
    for length in args.lengths:
        run.model.memory = length
        run.task.dress(run.model)  # a memory of 0 is none
        run.task.memory.kept.clear()
        scores = run.task.evaluate(run.model, args.split, DecodeConfig(), device=run.device).scores
        value = next(score.value for score in scores if score.name == "perplexity")
        found.append(value)
        print(f"memory {length:5d}: perplexity {value:.2f}", flush=True)
    if args.out:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
        axes.plot(args.lengths, found, marker="o")
        axes.set(xlabel="states of each layer that are remembered", ylabel=f"perplexity ({args.split})")
        figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
