"""Time and peak memory of attention by its length: full, a window, linear, low-rank, and Reformer's hashes.

    python benchmarks/efficient.py --device cuda --out efficient.png
    python benchmarks/efficient.py --lengths 1024 2048 4096 8192 --threads 1

One forward and backward pass of a model of two layers (512 wide, 8 heads, one text of n tokens, no dropout): GPT's
full attention by the fused kernel; windows of 256 tokens before each; linear attention; 256 slots (an encoder: it
cannot be causal); and Reformer's hashes with chunks of 64, in two rounds. Peak memory is what the pass adds to what the
model and its text take. A way ends where the next length would take too long (`--most-seconds`) or too much, going by
how it grew. Exponents are fitted to the longest three lengths of each: 1 is linear, 2 is quadratic.

On a CPU it is float32, and each measurement has a process of its own, as a process never gives its peak back; on a GPU
bfloat16 by autocast, after a pass that compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.config import read_section
from regard.models import Sizes, family
from regard.types import Batch, Sequences

VOCABULARY, WIDTH, HEADS = 256, 512, 8
MOST_BYTES = 16 * 2**30
LONG = 20.0  # seconds of a pass on a CPU after which it is not done again
COMMON = {"model_dim": WIDTH, "num_heads": HEADS, "ffn_dim": 4 * WIDTH, "dropout": 0.0}
GPT_LIKE = {"layers": 2, "attention_dropout": 0.0, **COMMON}
HASHED = {"layers": ["lsh", "lsh"], "head_dim": WIDTH // HEADS, "lsh_chunk": 64, "num_hashes": 2, **COMMON}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("gpt", GPT_LIKE | {"embedding_dropout": 0.0}),
    "window": ("efficient_causal", GPT_LIKE | {"attention": "window", "window": [256]}),
    "linear": ("efficient_causal", GPT_LIKE | {"attention": "linear"}),
    "low-rank": ("efficient", GPT_LIKE | {"attention": "low-rank", "rank": 256}),
    "hashed": ("reformer", HASHED | {"position": "learned"}),
}


@dataclass(frozen=True)
class Point:
    """What one pass took."""

    length: int
    seconds: float
    memory: int


class Run:
    """A model of one way and a text of this length."""

    def __init__(self, way: str, length: int, device: str) -> None:
        name, table = WAYS[way]
        torch.manual_seed(0)
        config = read_section(family(name).Config, table | {"max_length": length}, where="this benchmark")
        with torch.device(device):
            self.model = family(name).build(config, Sizes(VOCABULARY, VOCABULARY, True))
            self.text = Sequences(torch.randint(VOCABULARY, (1, length)), torch.tensor([length]))
        self.device = device
        self.once = contextlib.nullcontext() if device == "cpu" else torch.autocast(device, torch.bfloat16)

    def seconds(self) -> float:
        """One pass, forwards and backwards."""
        self._wait()
        start = time.perf_counter()
        with self.once:
            self.model.hidden(Batch(self.text)).square().mean().backward()
        self._wait()
        self.model.zero_grad()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def on_gpu(way: str, length: int, device: str) -> Point:
    run = Run(way, length, device)
    run.seconds()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    seconds = min(run.seconds() for _ in range(3))
    return Point(length, seconds, torch.cuda.max_memory_allocated() - before)


def on_cpu(way: str, length: int, threads: int) -> Point:
    """In a process of its own."""
    command = [sys.executable, __file__, "--measure", way, "--lengths", str(length), "--threads", str(threads)]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        raise RuntimeError(out.stderr.strip().rpartition("\n")[2] or f"it ended with {out.returncode}")
    seconds, memory = out.stdout.split()
    return Point(length, float(seconds), int(memory))


def print_measure(way: str, length: int) -> None:
    Run(way, 512, "cpu").seconds()  # what is loaded at the first use
    run = Run(way, length, "cpu")
    before = resident("VmRSS")
    seconds = run.seconds()
    if seconds < LONG:
        seconds = min(seconds, run.seconds())
    print(seconds, max(resident("VmHWM") - before, 0))


def resident(name: str) -> int:
    """VmHWM (the peak) or VmRSS of this process, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def exponent(points: list[Point], what: str) -> float:
    """The slope of a straight line through the last three points, both axes logarithmic."""
    last = points[-3:]
    if len(last) < 2:
        return float("nan")
    values = [max(getattr(point, what), 1e-9) for point in last]
    return float(np.polyfit(np.log([point.length for point in last]), np.log(values), 1)[0])


def too_much(points: list[Point], length: int, most_seconds: float) -> bool:
    """Whether the next length would be beyond the limits, if it goes on growing as it did (quadratically, to begin)."""
    if not points:
        return False
    last, growth = points[-1], {}
    for what in ("seconds", "memory"):
        slope = exponent(points, what) if len(points) > 1 else 2.0
        growth[what] = getattr(last, what) * (length / last.length) ** min(max(slope, 1.0), 2.0)
    return growth["seconds"] > most_seconds or growth["memory"] > MOST_BYTES


def measured(way: str, options: argparse.Namespace) -> list[Point]:
    points: list[Point] = []
    for length in options.lengths:
        if too_much(points, length, options.most_seconds):
            break
        try:
            point = on_cpu(way, length, options.threads) if options.device == "cpu" else on_gpu(way, length, "cuda")
        except (RuntimeError, torch.OutOfMemoryError) as error:
            print(f"{way} ended at {length:,}: {error}", file=sys.stderr)
            break
        points.append(point)
        print(f"{way:9} {length:7,} {point.seconds:9.4f} s {point.memory / 2**20:9,.0f} MiB", file=sys.stderr)
    return points


def table(found: dict[str, list[Point]], lengths: list[int]) -> None:
    print("| way | " + " | ".join(f"{length:,}" for length in lengths) + " | exponents: time, memory |")
    print("|---" * (len(lengths) + 2) + "|")
    for way, points in found.items():
        cells = {point.length: f"{point.seconds * 1e3:,.0f} ms, {point.memory / 2**20:,.0f} MiB" for point in points}
        slopes = f"{exponent(points, 'seconds'):.2f}, {exponent(points, 'memory'):.2f}"
        print(f"| {way} | " + " | ".join(cells.get(length, "") for length in lengths) + f" | {slopes} |")


def plot(found: dict[str, list[Point]], path: str, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for panel, what, unit in zip(panels, ("seconds", "memory"), (1.0, 2**30), strict=True):
        for way, points in found.items():
            values = [getattr(point, what) / unit for point in points]
            label = f"{way}: n^{exponent(points, what):.2f}"
            panel.plot([point.length for point in points], values, marker="o", label=label)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("tokens")
        panel.set_ylabel("seconds" if what == "seconds" else "peak memory, GiB")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=[2**power for power in range(10, 17)])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most-seconds", type=float, default=20.0, help="a pass that would take longer is not begun")
    parser.add_argument("--out", default="efficient.png", help="where the plot goes")
    parser.add_argument("--measure", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.measure:
        print_measure(options.measure, options.lengths[0])
        return
    found = {way: points for way in options.ways if (points := measured(way, options))}
    table(found, options.lengths)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} CPU threads"
    plot(found, options.out, f"one forward and backward pass, two layers, {machine}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
