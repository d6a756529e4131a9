"""Attention that is observed, beside attention that is not, on one NVIDIA GPU: time, memory, errors.

    PYTHONPATH=src python benchmarks/observe_gpu.py [--lengths 8192 32768] [--tiles]

For each shape, in one run and in bf16: PyTorch's cuDNN and flash forwards; the same output through `attend` with its
log-sum-exp kept, and from it entropy, distance, top-1, confidence and a 128 x 128 map; the same with what each key
receives; and, to 8,192, eager attention with the matrix and the same measures taken from it. Times are medians of
several rounds on one stream, in ms, with no other program on the GPU; in a round all have their turn, and `x` is the
median of the ratios to cuDNN's forward of the same round. Memory is what is allocated beyond q, k, v and the output, a
head. Errors are those of `--cases` random shapes. `--tiles` times every tile shape instead of the chosen one.

A kernel is compiled for each form of a call, some seconds each: `--jobs` processes do so at a time, before anything is
timed. `--device cpu --lengths --cases 3` tries the errors' part of the script itself.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.ops import gpu
from regard.ops.attention import attend, observing
from regard.ops.call import Call
from regard.ops.compiling import lacks_for_triton
from regard.ops.masks import Mask, causal, padding, window
from regard.ops.observe import Observed, observe_reference

SHAPES = ((8, 64), (16, 128))  # heads, width
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
TILES = [
    gpu.Tile(rows, keys, warps, stages, registers)
    for (rows, keys, warps), stages, registers in itertools.product(
        ((64, 64, 4), (128, 64, 4), (128, 64, 8), (64, 128, 4), (128, 128, 8)), (2, 3), (128, 168, None)
    )
]


class Keeper:
    """A recorder that keeps the last call."""

    def saw(self, call: Call, projection: Tensor | None, out: Tensor) -> None:
        self.call = call

    def saw_weights(self, *args: object) -> None: ...


def milliseconds(*works: Callable[[], object], window: float = 30.0, rounds: int = 5) -> list[list[float]]:
    """The times of each work, a list a round: in every round all have a window of their own, of at least one repeat.

    In turn, because a GPU that computes for long is slower than one that begins: so all are as warm as each other.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def repeats(work: Callable[[], object], number: int) -> float:
        start.record()
        for _ in range(number):
            work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / number

    for work in works:
        work()
    numbers = [max(1, min(100, int(window / max(repeats(work, 1), 1e-3)))) for work in works]
    return [[repeats(*each) for each in zip(works, numbers, strict=True)] for _ in range(rounds)]


def under(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Callable[[], Tensor]:
    """PyTorch's own call, on one backend."""

    def work() -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)

    return work


def observed(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None, *, received: bool) -> tuple[Tensor, ...]:
    """The output, and everything that one look costs, through the same door as everybody's."""
    keeper = Keeper()
    with observing(keeper):
        out = attend(q, k, v, mask=mask)
    seen = Observed(keeper.call)
    found = (out, seen.entropy, seen.distance, seen.confidence, *seen.top(1), seen.map(128))
    return (*found, seen.received) if received else found


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> tuple[Tensor, ...]:
    """The matrix, and the same measures from it."""
    n = q.shape[2]
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    places = torch.arange(n, device=q.device)
    if mask is not None:
        scores = scores.masked_fill(~mask.block(places, places), -math.inf)
    p = scores.softmax(-1)
    entropy = torch.special.entr(p).sum(-1)
    distance = (p * (places[:, None] - places).abs()).sum(-1)
    confidence, best = p.max(-1)
    pooled = p.unflatten(-1, (128, -1)).sum(-1).unflatten(2, (128, -1)).mean(3)
    return p.to(v.dtype) @ v, entropy, distance, confidence, best, pooled, p.sum(2)


def memory(work: Callable[[], tuple[Tensor, ...]], heads: int) -> float:
    """MiB a head that are held at the same time at most, without the output."""
    kept = work()
    torch.cuda.synchronize()
    del kept
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = work()
    torch.cuda.synchronize()
    output = out[0].numel() * out[0].element_size()
    return float(torch.cuda.max_memory_allocated() - before - output) / heads / 2**20


def table(lengths: Sequence[int]) -> None:
    """One line a shape, and the geometric means that count."""
    print(
        "| heads, width, n | mask | cuDNN | flash | + row measures | x | + received | x | MiB a head | eager, matrix |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {"rows": [], "received": []}
    for (heads, width), n, mask in itertools.product(SHAPES, lengths, (causal(), None)):
        q, k, v = (torch.randn(1, heads, n, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        plain = attend(q, k, v, mask=mask)
        works = [
            under(SDPBackend.CUDNN_ATTENTION, q, k, v, mask),
            under(SDPBackend.FLASH_ATTENTION, q, k, v, mask),
            lambda: observed(q, k, v, mask, received=False),  # noqa: B023
            lambda: observed(q, k, v, mask, received=True),  # noqa: B023
        ]
        assert torch.equal(works[2]()[0], plain), "observation changed the output"
        times = milliseconds(*works)
        cudnn, flash, rows, both = (statistics.median(each) for each in zip(*times, strict=True))
        shares = [statistics.median(each[place] / each[0] for each in times) for place in (2, 3)]
        held = memory(works[3], heads)
        matrix = milliseconds(lambda: eager(q, k, v, mask))[0][0] if n <= 8192 else None  # noqa: B023
        if n >= 8192:
            ratios["rows"].append(shares[0])
            ratios["received"].append(shares[1])
        slow = "" if matrix is None else f"{matrix:.2f} ({matrix / both:.1f} x as long)"
        print(
            f"| {heads}, {width}, {n:,} | {'causal' if mask else 'full'} | {cudnn:.3f} | {flash:.3f} | {rows:.3f} | "
            f"{shares[0]:.2f} | {both:.3f} | {shares[1]:.2f} | {held:.2f} | {slow} |",
            flush=True,
        )
    for name, found in ratios.items():
        if found:
            print(
                f"n >= 8,192, {name}: geometric mean {statistics.geometric_mean(found):.2f} x, worst {max(found):.2f} x"
            )


def errors(pool: Executor, cases: int, device: str) -> None:
    """The worst error of each measure against the float64 matrix, over random shapes, masks and groupings."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = list(pool.map(errors_of, range(cases), itertools.repeat(dtype), itertools.repeat(device)))
        worst = {name: max(case[name] for case in found) for name in found[0]}
        said = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
        print(f"errors, {dtype}, {cases} cases: {said}", flush=True)


def errors_of(case: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    """The error of each measure of one random call."""
    torch.manual_seed(case)
    draw = lambda *choices: choices[int(torch.randint(len(choices), ()))]  # noqa: E731
    batch, groups, keys_heads, width = draw(1, 2), draw(1, 2, 4), draw(1, 2), draw(16, 40, 64, 128)
    n = int(torch.randint(1, 400, ()))
    m = n if draw(True, False) else int(torch.randint(1, 400, ()))
    lengths = torch.randint(0, m + 1, (batch,)).to(device)
    band = window(int(torch.randint(1, 50, ())))
    masks = (None, causal(), padding(lengths), causal() & padding(lengths), band)
    mask = draw(*masks) if n == m else draw(None, padding(lengths))
    shapes = (batch, groups * keys_heads, n, width), (batch, keys_heads, m, width)
    q, k = (torch.randn(shape).to(device, dtype) for shape in shapes)
    call = Call(q, k, k, mask, (), width**-0.5, 0.0, None)
    wide = Call(q.double(), k.double(), k.double(), mask, (), width**-0.5, 0.0, None)
    got, wanted = Observed(call), observe_reference(wide)
    if device == "cuda":  # kernels, also where a look would take strips
        got._measures = gpu.run(call, lse=None, bins=(128, 128), received=True)
        strange = [key for key in got._measures.top_keys.unique().tolist() if not -1 <= key < m]
        if strange:
            kind = f"batch {batch}, heads {groups * keys_heads} of {keys_heads}, width {width}, {n} x {m}, {mask}"
            raise SystemExit(f"case {case}, {dtype}: first keys {strange[:9]} ({kind})")
    pairs = {name: (getattr(got, name), getattr(wanted, name)) for name in ("entropy", "confidence", "distance")}
    pairs |= {"map": (got.map(128), wanted.map(128)), "received": (got.received, wanted.received)}
    pairs["lse"] = (got.lse.nan_to_num(neginf=0.0), wanted.lse.nan_to_num(neginf=0.0))
    chosen = wanted.rows(range(n)).gather(-1, got.top(1)[1].clamp(min=0))[..., 0]
    pairs["top-1 (weight lost)"] = (chosen, wanted.confidence)
    found = {}
    for name, (ours, theirs) in pairs.items():
        error = ((ours.double() - theirs).abs() / theirs.abs().clamp(min=1)).max().item()
        found[name] = error if math.isfinite(error) else math.inf
    return found


def compile_one(sizes: tuple[int, int], n: int, is_causal: bool) -> None:
    """What `table` will need for this shape, into Triton's cache on the disk."""
    q, k, v = (torch.randn(1, sizes[0], n, sizes[1], device="cuda", dtype=torch.bfloat16) for _ in range(3))
    observed(q, k, v, causal() if is_causal else None, received=True)
    torch.cuda.synchronize()


def tiles(lengths: Sequence[int]) -> None:
    """Every tile shape, the fastest first."""
    for (heads, width), n, mask in itertools.product(SHAPES, lengths, (causal(), None)):
        q, k, v = (torch.randn(1, heads, n, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        call = Call(q, k, v, mask, (), width**-0.5, 0.0, None)
        lse = gpu.log_sum_exp(call)
        for name, work in (
            ("rows", lambda tile: gpu.run(call, lse=lse, bins=(128, 128), tile=tile)),  # noqa: B023
            ("received", lambda tile: gpu.received_by(call, lse * gpu.LOG2E, tile)),  # noqa: B023
        ):
            found = []
            for tile in TILES:
                try:
                    found.append((statistics.median(x for (x,) in milliseconds(lambda: work(tile), window=8.0)), tile))  # noqa: B023
                except Exception as error:  # out of shared memory, say
                    print(f"  {tile}: {type(error).__name__}")
            best = ", ".join(f"{ms:.3f} {tile}" for ms, tile in sorted(found, key=lambda pair: pair[0])[:4])
            print(f"{name} {heads}, {width}, {n:,} {'causal' if mask else 'full'}: {best}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--cases", type=int, default=200, help="random shapes whose errors are measured; 0: none")
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that compile at a time")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for the errors alone")
    arguments = parser.parse_args()
    device, lengths = arguments.device, arguments.lengths
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}", flush=True)
    if lacks := lacks_for_triton():
        print(f"there is no {lacks}: without it no kernel runs here, and what is measured is strips", flush=True)
    if arguments.tiles:
        return tiles(lengths)
    pool = partial(ProcessPoolExecutor, arguments.jobs, mp_context=get_context("spawn"))
    if lengths:
        started = time.perf_counter()
        with pool() as processes:  # they end before anything is timed
            list(processes.map(compile_one, *zip(*itertools.product(SHAPES, lengths, (True, False)), strict=True)))
        print(f"compiled in {time.perf_counter() - started:.0f} s", flush=True)
        table(lengths)
    if arguments.cases:
        with pool() as processes:
            errors(processes, arguments.cases, device)
    return None


if __name__ == "__main__":
    main()
