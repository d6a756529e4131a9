"""The kernel of cross-entropies: interpreted on a CPU against autograd in float64, and compiled for a GPU.

As in test_kernels.py, a process of its own runs this file as a program.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from regard.ops import losses
from regard.ops.compiling import lacks_for_triton

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
ROWS, WIDTH = 5, 8


def worst_error(size: int, smoothing: float, dtype: torch.dtype, *, biased: bool) -> float:
    """Of the loss and its gradients, relative to the largest entry of each; two rows have no label."""
    torch.manual_seed(size)
    labels = torch.randint(0, size, (ROWS,))
    labels[[1, 4]] = -100
    hidden, weight = (torch.randn(n, WIDTH).to(dtype).requires_grad_() for n in (ROWS, size))
    bias = torch.randn(size).to(dtype).requires_grad_() if biased else None
    inputs = [x for x in (hidden, weight, bias) if x is not None]
    loss = losses.token_cross_entropy(hidden, weight, labels, smoothing, bias)
    got = [loss, *torch.autograd.grad(3 * loss, inputs)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    whole = F.cross_entropy(
        F.linear(wide[0], wide[1], wide[2] if biased else None),
        labels,
        ignore_index=-100,
        label_smoothing=smoothing,
        reduction="sum",
    )
    wanted = [whole, *torch.autograd.grad(3 * whole, wide)]
    with torch.no_grad():  # nothing is written over where no gradient is asked for
        got.append(losses.token_cross_entropy(hidden, weight, labels, smoothing, bias))
    pairs = zip(got, [*wanted, whole], strict=True)
    return max(((g.double() - w).abs().max() / w.abs().max()).item() for g, w in pairs)


@needs_triton
def test_interpreted_kernel_equals_autograd() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "weighed by the kernel" in done.stdout


@needs_triton
@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_kernel_compiles_for_hopper_and_reads_sixteen_bytes_at_a_time(
    write: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from regard.ops import kernel_losses

    kernel = kernel_losses.slope_pass
    types = {"logits_pointer": f"*{dtype}", "label_pointer": "*i64", "share": "fp32"}
    constants = {"write": write, "block": kernel_losses.BLOCK}
    signature = {
        name: "constexpr" if name in constants else types.get(name, "*fp32" if name.endswith("pointer") else "i32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    # as Triton sees a vocabulary that is filled up; how many columns count is any number
    aligned = [name for name in kernel.arg_names if name.endswith("pointer") or name in ("stride", "width")]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", losses.FILL]] for name in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert compiled.metadata.shared <= 48 * 1024
    moved = re.findall(r"(ld|st)\.global(?:\.\w+)*?((?:\.v4)?\.b\d+)", compiled.asm["ptx"])
    whole, parts = (sum(width.startswith(".v4") == is_whole for _, width in moved) for is_whole in (True, False))
    assert parts <= 4  # the label, its logit, and the two numbers that are found
    assert whole >= 2


@needs_triton
def test_the_kernel_runs_where_its_logits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on whatever GPU is the current one."""
    from regard.ops import kernel_losses

    here, launched, logits = list[torch.Tensor](), list[bool](), torch.zeros(2, 8)

    @contextlib.contextmanager
    def device_of(x: torch.Tensor) -> Iterator[None]:
        here.append(x)
        yield
        here.clear()

    class Kernel:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            return lambda *_, **__: launched.append(len(here) == 1 and here[0] is logits)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(kernel_losses, "slope_pass", Kernel())
    kernel_losses.weigh_rows(logits, torch.zeros(2, dtype=torch.long), 8, 0.0, write=True)
    assert launched == [True]


def test_only_what_the_kernel_can_goes_to_it() -> None:
    one, two = torch.zeros(3, 1, dtype=torch.long), torch.zeros(3, 2, dtype=torch.long)
    assert not losses._is_fast(torch.zeros(3, 4), one)
    on_gpu = torch.zeros(3, 4).as_subclass(OnGpu)
    assert losses._is_fast(on_gpu, one) == (lacks_for_triton() is None)
    assert not losses._is_fast(on_gpu, two)
    assert not losses._is_fast(on_gpu.double(), one)


class OnGpu(torch.Tensor):
    """A tensor that says so."""

    is_cuda = True  # type: ignore[assignment]


def main() -> None:
    from regard.ops import kernel_losses

    weighed, weigh = list[int](), kernel_losses.weigh_rows
    kernel_losses.weigh_rows = lambda *args, **kwargs: (weighed.append(args[0].shape[1]), weigh(*args, **kwargs))[1]  # type: ignore[assignment]
    losses._is_fast = lambda hidden, labels: True  # type: ignore[assignment]
    for size in (16, 11, 1000, 4088, 4097):  # in one block and in two, with and without columns that only fill up
        for chunk in (2 * size, 10**6):
            losses.CHUNK["cpu"] = chunk
            for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
                for smoothing, biased in ((0.0, False), (0.1, False), (0.1, True)):
                    worst = worst_error(size, smoothing, dtype, biased=biased)
                    assert worst < most, (size, chunk, dtype, smoothing, biased, worst)
    assert not any(width % losses.FILL for width in weighed)
    print(f"{len(weighed)} times weighed by the kernel")


if __name__ == "__main__":
    main()
