"""Which tile is fastest, of every kernel that measures attention: one table a shape, on one NVIDIA GPU.

PYTHONPATH=src python benchmarks/observe_trial.py
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable

import torch
import torch.nn.functional as F
from observe_gpu import milliseconds as with_host
from observe_gpu import observed
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.ops import fused, gpu, strips
from regard.ops.call import Call
from regard.ops.gpu import Tile
from regard.ops.masks import causal

SHAPES = ((8, 64), (16, 128))  # heads, width
LENGTHS = (8192, 32768)
ROWS = {
    64: [
        Tile(64, 64, 4, 3, 128), Tile(64, 64, 4, 4, 128), Tile(64, 64, 4, 3, 104), Tile(64, 64, 4, 3, 96),
        Tile(64, 128, 4, 3, 128), Tile(64, 128, 4, 4, 128), Tile(64, 128, 4, 3, 168),
        Tile(128, 128, 8, 2, 128), Tile(128, 128, 8, 3, 128), Tile(128, 64, 8, 3, 128), Tile(128, 64, 8, 3, 96),
        Tile(128, 64, 4, 3, 168), Tile(256, 64, 8, 3, 168), Tile(64, 32, 4, 4, 80),
    ],
    128: [
        Tile(64, 64, 4, 3, 128), Tile(64, 64, 4, 2, 128), Tile(64, 128, 4, 2, 168), Tile(64, 128, 4, 2, 128),
        Tile(128, 64, 8, 3, 128), Tile(128, 64, 8, 2, 128), Tile(128, 64, 8, 3, 112), Tile(128, 128, 8, 2, 128),
        Tile(128, 128, 8, 3, 128), Tile(128, 64, 4, 2, 168), Tile(128, 64, 4, 3, 168), Tile(64, 64, 4, 3, 168),
    ],
}  # fmt: skip
COLUMNS = [
    Tile(128, 64, 4, 3, 128), Tile(64, 64, 4, 3, 96), Tile(64, 128, 4, 3, 128), Tile(64, 128, 4, 2, 128),
    Tile(64, 128, 4, 3, 168), Tile(64, 64, 4, 3, 128, True), Tile(64, 128, 4, 3, 128, True),
    Tile(64, 128, 4, 2, 168, True), Tile(64, 128, 8, 3, 80), Tile(64, 128, 8, 3, 96, True),
    Tile(128, 128, 8, 3, 128), Tile(128, 128, 8, 2, 128), Tile(64, 256, 8, 3, 128, True),
]  # fmt: skip
Case = tuple[int, int, int, bool]  # heads, width, n, causal
Task = tuple[str, Case, Tile]


def inputs(case: Case) -> Call:
    heads, width, n, is_causal = case
    torch.manual_seed(n + width)
    q, k, v = (torch.randn(1, heads, n, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return Call(q, k, v, causal() if is_causal else None, (), width**-0.5, 0.0, None)


def work(kind: str, call: Call, lse: Tensor, tile: Tile) -> Callable[[], object]:
    if kind == "rows":
        return lambda: gpu.run(call, lse=lse, bins=(128, 128), tile=tile)
    shift = lse * gpu.LOG2E
    return lambda: gpu.received_by(call, shift, tile)


def prepare(task: Task) -> tuple[Task, str]:
    """Compiles what a task needs, into the cache that all share, by running it once; the error if it cannot."""
    kind, case, tile = task
    try:
        call = inputs(case)
        work(kind, call, torch.full(call.q.shape[:3], 9.0, device="cuda"), tile)()
        torch.cuda.synchronize()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        return task, f"{type(error).__name__}: {lines[0]} | {lines[-1]} ({where.name}:{where.lineno})"[:300]
    return task, ""


def milliseconds(run: Callable[[], object], window: float = 40.0) -> float:
    """The median of single runs, queued together so that the host does not count."""

    def times(number: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(number + 1)]
        torch.cuda._sleep(20_000_000)  # while the host queues all of them
        for mark in marks[:-1]:
            mark.record()
            run()
        marks[-1].record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]

    first = statistics.median(times(2))
    return statistics.median(times(max(3, min(60, int(window / max(first, 1e-3))))))


def worst(ours: Tensor, theirs: Tensor) -> float:
    theirs = theirs.double()
    return ((ours.double() - theirs).abs() / theirs.abs().clamp(min=1)).max().item()


def errors(found: strips.Measures, wanted: strips.Measures) -> str:
    pairs = {name: worst(getattr(found, name), getattr(wanted, name)) for name in ("entropy", "confidence", "distance")}
    pairs["map"] = worst(found.map, wanted.map)
    other = int((found.top_keys[..., 0] != wanted.top_keys[..., 0]).sum())
    return f"{max(pairs, key=lambda name: pairs[name])} {max(pairs.values()):.0e}, other first keys {other}"


def show(kind: str, case: Case, call: Call, lse: Tensor, cudnn: float, failed: dict[Task, str]) -> None:
    """Checks and times every tile of one kernel, and prints the fastest first."""
    lines = []
    exact = strips.measure(call, k=1) if case[2] <= 8192 else None
    for tile in ROWS[case[1]] if kind == "rows" else COLUMNS:
        if (kind, case, tile) in failed:
            continue
        try:
            run = work(kind, call, lse, tile)
            found, again = run(), run()
            if isinstance(found, strips.Measures) and isinstance(again, strips.Measures):
                same = all(torch.equal(getattr(found, x), getattr(again, x)) for x in ("entropy", "distance", "map"))
                exact = exact or found
                note = errors(found, exact)
            else:
                assert isinstance(found, Tensor)
                assert isinstance(again, Tensor)
                same = torch.equal(found, again)
                exact = exact or gpu.run(call, lse=lse, bins=(128, 128), received=True)
                assert exact.received is not None
                note = f"received {worst(found, exact.received):.0e}"
            lines.append((milliseconds(run), tile, note + ("" if same else ", NOT REPEATABLE")))
        except Exception as error:
            failed[kind, case, tile] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:300]
    for ms, tile, note in sorted(lines, key=lambda line: line[0]):
        shape = f"{tile.rows:3}x{tile.keys:3} warps {tile.warps} stages {tile.stages} registers {tile.registers}"
        shape += " ahead" if tile.ahead else ""
        print(f"  {kind:8} {ms:8.3f} ms {ms / cudnn:5.2f} x  {shape}  {note}", flush=True)


def main() -> None:
    start = time.time()
    cases = [(*shape, n, mask) for shape, n, mask in itertools.product(SHAPES, LENGTHS, (True, False))]
    tasks: list[Task] = [("rows", case, tile) for case in cases for tile in ROWS[case[1]]]
    tasks += [("received", case, tile) for case in cases if case[2] == LENGTHS[0] for tile in COLUMNS]
    failed: dict[Task, str] = {}
    pool = multiprocessing.get_context("spawn").Pool(14)
    waiting = [(task, pool.apply_async(prepare, (task,))) for task in tasks]
    for task, result in waiting:
        try:
            error = result.get(timeout=max(1.0, start + 70 - time.time()))[1]
        except multiprocessing.TimeoutError:
            error = "not compiled in time"
        if error:
            failed[task] = error
    pool.terminate()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, compiled in {time.time() - start:.0f} s")
    for case in cases:
        call = inputs(case)
        q, k, v = call.q, call.k, call.v
        with torch.inference_mode():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                cudnn = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=case[3]))  # noqa: B023
            with_lse = milliseconds(lambda: fused.attend_and_lse(call))  # noqa: B023
            out, lse = fused.attend_and_lse(call)
            assert lse is not None
            assert torch.equal(out, fused.attend(call))
            print(
                f"{case}: cuDNN {cudnn:.3f} ms, attend with lse {with_lse / cudnn:.2f} x, {time.time() - start:.0f} s"
            )
            for received in (False, True):
                look = lambda: observed(q, k, v, call.mask, received=received)  # noqa: B023, E731
                total, queued = with_host(look, 15.0) / cudnn, milliseconds(look) / cudnn
                print(f"  all, {'with' if received else 'without'} received: {total:.2f} x, if queued {queued:.2f} x")
            for kind in ("rows", "received"):
                show(kind, case, call, lse, cudnn, failed)
            empty = torch.zeros_like(lse).masked_fill_(lse > -math.inf, math.inf)
            assert not gpu.received_by(call, empty).any()
    for task, error in failed.items():
        print(f"failed {task}: {error}")
    print(f"{time.time() - start:.0f} s in total")


if __name__ == "__main__":
    main()
