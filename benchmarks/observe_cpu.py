"""Attention observed on a CPU beside eager attention with the same measures taken from its matrix, in one run.

    python benchmarks/observe_cpu.py                  # 8 heads of 64, n = 8,192, causal and full, 2 threads
    python benchmarks/observe_cpu.py --heads 4 --length 2048 --rounds 5

Both give the output and, of every head, log-sum-exp, entropy, confidence, expected distance, the top 8 keys of each
row, a map of 128 x 128 bins and the weight that each key receives. They take turns, so that whatever else the machine
does slows both; the figure is the median of the rounds' ratios, of time on the clock and of time on the cores, which
other programs disturb less. Memory is what the resident peak (VmHWM) grew by, each in a process of its own. Linux only.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Idle threads sleep, for both: beside other programs spinning costs several times more (see docs/decisions.md).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor

from regard.ops.attention import attend
from regard.ops.call import Call
from regard.ops.masks import causal
from regard.ops.observe import Observed

Answers = dict[str, Tensor]
BINS, TOP = 128, 8


def eager(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Answers:
    """The whole matrix, as one writes it; what is not needed any more is overwritten or freed."""
    n = q.shape[2]
    places = torch.arange(n)
    ahead = places - places[:, None]
    scores = (q * q.shape[3] ** -0.5) @ k.transpose(-1, -2)
    if is_causal:
        scores.masked_fill_(ahead > 0, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = scores.softmax(-1)
    del scores
    top_weights, top_keys = weights.topk(TOP)
    width = n // BINS
    return {
        "output": weights @ v,
        "lse": lse,
        "entropy": torch.special.entr(weights).sum(-1),
        "confidence": weights.amax(-1),
        "distance": (weights * ahead.abs()).sum(-1),
        "top weights": top_weights,
        "top keys": top_keys,
        "map": weights.unflatten(-1, (BINS, width)).sum(-1).unflatten(2, (BINS, width)).mean(3),
        "received": weights.sum(2),
    }


def observed(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Answers:
    """The output as always, and the measures in strips."""
    mask = causal() if is_causal else None
    seen = Observed(Call(q, k, v, mask, (), q.shape[3] ** -0.5, 0.0, None))
    top_weights, top_keys = seen.top(TOP)
    return {
        "output": attend(q, k, v, mask=mask),
        "lse": seen.lse,
        "entropy": seen.entropy,
        "confidence": seen.confidence,
        "distance": seen.distance,
        "top weights": top_weights,
        "top keys": top_keys,
        "map": seen.map(BINS),
        "received": seen.received,
    }


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor, bool], Answers]] = {"eager": eager, "observed": observed}


def inputs(heads: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, heads, length, 64)
    return q, k, v


def resident(name: str) -> int:
    """VmHWM (the peak) or VmRSS of this process, in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def peak_of(way: str, heads: int, length: int, is_causal: bool) -> int:
    """What the resident peak grew by, in a process of its own, which ran a small case before."""
    command = [sys.executable, __file__, "--peak-of", way, "--heads", str(heads), "--length", str(length)]
    out = subprocess.run([*command, *(["--causal"] if is_causal else [])], capture_output=True, text=True, check=True)
    return int(out.stdout)


def print_peak(way: str, heads: int, length: int, is_causal: bool) -> None:
    tensors = inputs(heads, length)
    with torch.no_grad():
        WAYS[way](*inputs(1, 256), is_causal)
        before = resident("VmRSS")
        WAYS[way](*tensors, is_causal)
    print(resident("VmHWM") - before)


def check(one: Answers, other: Answers) -> None:
    """That both give the same; keys where no other key is as good."""
    for name in (name for name in one if name != "top keys"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)
    weights = one["top weights"]
    clear = (weights[..., :-1] - weights[..., 1:]) > 1e-6
    same = (one["top keys"] == other["top keys"])[..., :-1]
    assert same[clear & torch.nn.functional.pad(clear, (1, 0), value=True)[..., :-1]].all()


def compare(heads: int, length: int, is_causal: bool, rounds: int) -> None:
    tensors = inputs(heads, length)
    spent: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with torch.no_grad():
        check(*(run(*tensors, is_causal) for run in WAYS.values()))  # and warms up
        for _ in range(rounds):
            for way, run in WAYS.items():
                start = time.perf_counter(), time.process_time()
                run(*tensors, is_causal)
                spent[way].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    peaks = {way: peak_of(way, heads, length, is_causal) for way in WAYS}
    seconds = {way: statistics.median(on_clock for on_clock, _ in times) for way, times in spent.items()}
    clock, cores = ([b[i] / a[i] for a, b in zip(spent["eager"], spent["observed"], strict=True)] for i in range(2))
    print(
        f"| {heads} heads, d 64, n {length:,}, {'causal' if is_causal else 'full'} "
        f"| {seconds['eager']:.2f} s | {seconds['observed']:.2f} s "
        f"| **{statistics.median(clock):.2f}** ({min(clock):.2f} to {max(clock):.2f}) | {statistics.median(cores):.2f} "
        f"| {peaks['eager'] / 2**20:,.0f} MiB | {peaks['observed'] / 2**20:,.0f} MiB "
        f"| **1/{peaks['eager'] / max(peaks['observed'], 1):.0f}** |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, nargs="+", default=[8192], help="multiples of 128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--causal", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peak-of", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak_of:
        print_peak(options.peak_of, options.heads, options.length[0], options.causal)
        return
    print("| case | eager | observed | clock | cores | eager, peak | observed, peak | memory |")
    print("|---|---|---|---|---|---|---|---|")
    for length in options.length:
        for is_causal in (False, True):
            compare(options.heads, length, is_causal, options.rounds)


if __name__ == "__main__":
    main()
