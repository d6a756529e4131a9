"""The attention contract on a GPU: every backend against the float64 reference, values and gradients.

    PYTHONPATH=src python benchmarks/gpu_contract.py [--device cuda]

Prints a table and ends with an exit status of 1 if anything is off. Errors are relative to the largest entry of the
tensor (if that is over 1); inputs are rounded to the type first. In bfloat16 the plain reference, computed in that
type, is off by itself: a fast backend may be off by the tolerance, or by twice as much as the reference is, if that is
more. The tests do the same on a CPU, with more cases.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.ops import fused
from regard.ops.attention import attend, backends_used
from regard.ops.call import Call
from regard.ops.losses import token_cross_entropy
from regard.ops.masks import Mask, causal, padding, prefix, same_segment, visible, window
from regard.ops.positions import rotate, sinusoid
from regard.ops.terms import Alibi, Buckets, Dense, RelativeKeys, Term, alibi_slopes

# float32 on a GPU sums in another order than on a CPU; TF32, which must not creep in, would be off by 1e-3.
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 2e-2}
B, H, K, D = 3, 4, 2, 64

failures: list[str] = []


def report(name: str, passed: bool, text: str) -> None:
    print(f"{'ok  ' if passed else 'FAIL'}  {name:<58} {text}", flush=True)
    if not passed:
        failures.append(name)


def guarded(name: str, check: Callable[[], None]) -> None:
    """A check that breaks is a failure, and the others still run."""
    try:
        check()
    except Exception:
        report(name, False, traceback.format_exc(limit=-3).strip().replace("\n", "\n      ")[-1500:])


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Masks and terms, over M positions -----------------------------------------------------------------------------------


def masks(m: int) -> dict[str, Mask | None]:
    """Each has a row of the batch, or queries, that may attend nowhere, where it can."""
    dead = torch.rand(B, H, m, m) > 0.5
    dead[:, :, 3] = False
    dead[1, 0] = False
    segments = torch.randint(0, 3, (B, m))
    return {
        "none": None,
        "causal": causal(),
        "padding, a length of 0": padding(torch.tensor([m, m // 3, 0])),
        "causal & padding": causal() & padding(torch.tensor([m, 0, m // 2])),
        "window & prefix": window(m // 3, m // 4) & prefix(torch.tensor([0, 9, m])),
        "same_segment, a segment without keys": same_segment(segments + (segments == 2), segments),
        "visible to heads": visible(dead),
    }


def terms(m: int) -> dict[str, list[Term]]:
    return {
        "none": [],
        "dense": [Dense(torch.randn(1, H, m, m))],
        "alibi": [Alibi(alibi_slopes(H))],
        "buckets": [Buckets(torch.randn(32, H), True, 128)],
        "shaw": [RelativeKeys(torch.randn(1, 17, D) / 8)],
        "transformer-xl": [RelativeKeys(torch.randn(H, 2 * m + 1, D) / 8, torch.randn(H, D))],
    }


def on(device: torch.device, value: object, dtype: torch.dtype | None = None) -> object:
    """A mask, rule or term with its tensors on the device; those of terms in a type, as leaves."""
    if isinstance(value, Mask):
        return Mask(tuple(on(device, rule) for rule in value.rules))  # type: ignore[misc]
    fields = dict(vars(value))
    for name, x in fields.items():
        if isinstance(x, Tensor):
            fields[name] = x.to(device) if dtype is None else x.detach().to(device, dtype).requires_grad_()
    return type(value)(**fields)


# Values and gradients ------------------------------------------------------------------------------------------------


class Problem:
    """Inputs in one type, and what the float64 reference makes of them."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        rows: int,
        m: int,
        mask: Mask | None,
        terms: list[Term],
        positions: Tensor | None = None,
        key_heads: int = K,
    ) -> None:
        shapes = (B, H, rows, D), (B, key_heads, m, D), (B, key_heads, m, D)
        self.device, self.dtype = device, dtype
        self.qkv = [torch.randn(shape).to(dtype) for shape in shapes]
        self.mask = None if mask is None else on(device, mask)
        # Slopes and other values of terms stay in float32, as autocast has them, but for what meets q in a product.
        self.terms = [(t, dtype if isinstance(t, RelativeKeys) else torch.float32) for t in terms]
        self.positions = None if positions is None else positions.to(device)
        self.direction = torch.randn(shapes[0], dtype=torch.float64).to(device)
        self.wanted = self.run("reference", torch.float64)

    def run(self, backend: str, dtype: torch.dtype | None = None, gradients: bool = True) -> list[Tensor]:
        """Output, and the gradients by q, k, v and what the terms hold."""
        qkv = [x.to(self.device, dtype or self.dtype).requires_grad_(gradients) for x in self.qkv]
        made = [on(self.device, _rounded(t, own), dtype or own) for t, own in self.terms]
        learned = [x for t in made for x in vars(t).values() if isinstance(x, Tensor)]
        with torch.set_grad_enabled(gradients), backends_used() as used:
            out = attend(
                *qkv,
                mask=self.mask,
                terms=made,
                scale=0.1,
                positions=self.positions,
                backend=backend,  # type: ignore
            )
        assert used == [backend] or backend == "auto", used
        if not gradients:
            return [out]
        return [out.detach(), *torch.autograd.grad((out.double() * self.direction).sum(), [*qkv, *learned])]

    def errors(self, got: Iterable[Tensor]) -> list[float]:
        """One number a tensor; a NaN is infinitely wrong."""
        found = []
        for g, w in zip(got, self.wanted, strict=False):
            error = (g.double() - w).abs().max().item() / max(1.0, w.abs().max().item())
            found.append(error if math.isfinite(error) else math.inf)
        return found


def _rounded(term: Term, dtype: torch.dtype) -> Term:
    fields = {name: x.to(dtype) if isinstance(x, Tensor) else x for name, x in vars(term).items()}
    return type(term)(**fields)


def check_fused(device: torch.device, dtype: torch.dtype, quick: bool) -> None:
    """All masks with all terms; a square text (whole tiles), and a ragged one at its own positions in each row."""
    sizes = [(64, 64), (37, 75)] if quick else [(256, 256), (100, 250)]
    for rows, m in sizes:
        ragged = rows != m
        positions = torch.randint(0, m, (B, rows)) if ragged else None
        for name, mask in masks(m).items():
            worst: tuple[float, float, float, str] = (0.0, 0.0, 0.0, "none")
            for term_name, term in terms(m).items():
                for key_heads in (K, H):
                    problem = Problem(device, dtype, rows, m, mask, term, positions, key_heads)
                    plain = problem.errors(problem.run("reference")) if dtype == torch.bfloat16 else []
                    errors = problem.errors(problem.run("fused"))
                    bounds = [max(TOLERANCE[dtype], 2 * own) for own in plain] or [TOLERANCE[dtype]] * len(errors)
                    share, error = max((e / b, e) for e, b in zip(errors, bounds, strict=True))
                    worst = max(worst, (share, error, errors[0], f"{term_name}, {H}:{key_heads} heads"))
            title = f"fused {short(dtype)} {rows}x{m} {name}"
            text = f"worst {worst[1]:.1e}, {worst[0]:.2f} of what is allowed (output {worst[2]:.1e}) at {worst[3]}"
            report(title, worst[0] <= 1, text)


def check_flex(device: torch.device, dtype: torch.dtype, gradients: bool, form: str) -> None:
    """Two forms hold every kind of rule and term that flex supports; each compiles a mask, a forward and a backward."""
    if form == "bands":
        m = rows = 256
        mask = causal() & window(100) & padding(torch.tensor([m, 0, 150]))
        term: list[Term] = [Buckets(torch.randn(32, H), False, 128), Alibi(alibi_slopes(H))]
        positions = None
    else:
        rows, m = 200, 300
        segments = torch.randint(0, 2, (B, m))
        matrix = torch.rand(1, H, m, m) > 0.3
        matrix[:, 0], matrix[:, 1], matrix[:, 2, :50] = False, True, False
        mask = visible(matrix) & prefix(torch.tensor([40, 0, m])) & same_segment(segments)
        term = [Dense(torch.randn(B, H, m, m))]
        positions = torch.stack([torch.arange(rows), torch.arange(rows) + 100, torch.randperm(m)[:rows]])
    started = time.perf_counter()
    problem = Problem(device, dtype, rows, m, mask, term, positions)
    errors = problem.errors(problem.run("flex", gradients=gradients))
    names = ["out", "q", "k", "v", *(n for t, _ in problem.terms for n, x in vars(t).items() if isinstance(x, Tensor))]
    text = ", ".join(f"{name} {error:.1e}" for name, error in zip(names, errors, strict=False))
    took = time.perf_counter() - started
    report(f"flex {short(dtype)} {form} {rows}x{m}", max(errors) <= TOLERANCE[dtype], f"{text}; {took:.0f} s")


def check_memory(device: torch.device) -> None:
    """A long text with a mask goes to flex by itself, and nothing of the size of the matrix is ever in memory."""
    n = 16384
    q, k, v = (torch.randn(1, H, n, D, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    mask = causal() & window(256) & padding(torch.tensor([n - 100], device=device))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with backends_used() as used:
        out = attend(q, k, v, mask=mask)
    out.float().square().sum().backward()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    matrix = n * n / 2**20
    rows = torch.tensor([0, 255, 256, 5000, n - 101, n - 50], device=device)
    wide = [x.detach().double() for x in (q[:, :, rows], k, v)]
    wanted = attend(*wide, mask=mask, positions=rows, backend="reference")
    error = (out[:, :, rows].double() - wanted).abs().max().item()
    passed = used == ["flex"] and peak < matrix and error < TOLERANCE[torch.bfloat16]
    report(f"auto bfloat16 {n}x{n}", passed, f"{used}, peak {peak:.0f} MiB (matrix {matrix:.0f}), error {error:.1e}")


# Rows that may attend nowhere ----------------------------------------------------------------------------------------

KERNELS = {
    "chosen": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def unguarded(call: Call) -> Tensor:
    """What fused.attend would be without its guard: the mask goes to the kernel as it is."""
    rows, columns = call.query_positions, call.key_positions
    assert call.mask is not None
    allowed = call.mask.block(rows, columns)
    shape = (call.q.shape[0], -1, call.q.shape[2], call.k.shape[2])
    mask = allowed
    if call.terms:
        bias = sum(term.block(call.q, rows, columns, call.scale) for term in call.terms)
        mask = bias.masked_fill(~allowed, -math.inf).to(call.q.dtype)  # type: ignore[union-attr]
    return F.scaled_dot_product_attention(
        call.q, call.k, call.v, mask.expand(shape), scale=call.scale, enable_gqa=call.q.shape[1] != call.k.shape[1]
    )


def dead_rows(way: Callable[[Call], Tensor], call: Call, learned: list[Tensor], kernel: SDPBackend | None) -> str:
    """ "0" where dead rows are zeros and all gradients finite, "-" where the kernel does not take the call."""
    assert call.mask is not None
    nowhere = ~call.mask.block(call.query_positions, call.key_positions).any(-1).expand(call.q.shape[:3])
    try:
        with sdpa_kernel(kernel) if kernel is not None else nullcontext(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = way(call)
            grads = torch.autograd.grad(out.float().square().sum() + out.float().sum(), learned)
    except RuntimeError as error:
        refused = "No available kernel" in str(error) or "No viable backend" in str(error)
        return "-" if refused else f"{type(error).__name__}: {error}"[:80]
    if out.isnan().any():
        return "NaN"
    if not all(g.isfinite().all() for g in grads):
        return "gradient NaN"
    return "0" if not out[nowhere].any() else "not 0"


def check_dead_rows(device: torch.device) -> None:
    """For each kernel: what comes without the guard of fused.attend, and with it, which must be "0" or "-"."""
    n = 64
    matrix = torch.rand(B, 1, n, n, device=device) > 0.5
    matrix[0, :, 5], matrix[1], matrix[2, :, :, n // 2 :] = False, False, False
    for dtype, key_heads, biased in itertools.product(TOLERANCE, (H, K), (False, True)):
        qkv = [torch.randn(B, h, n, D, device=device).to(dtype).requires_grad_() for h in (H, key_heads, key_heads)]
        slopes = alibi_slopes(H).to(device).requires_grad_()
        call = Call(*qkv, visible(matrix), (Alibi(slopes),) if biased else (), D**-0.5, 0.0, None)
        learned = [*qkv, slopes] if biased else qkv
        said = {
            name: (dead_rows(unguarded, call, learned, kernel), dead_rows(fused.attend, call, learned, kernel))
            for name, kernel in KERNELS.items()
        }
        passed = said["chosen"][1] == "0" and all(with_guard in ("0", "-") for _, with_guard in said.values())
        title = f"dead rows {short(dtype)} {'additive' if biased else 'boolean'} mask, {H}:{key_heads} heads"
        report(title, passed, "; ".join(f"{name} {a} -> {b}" for name, (a, b) in said.items()))


# Beside attention ----------------------------------------------------------------------------------------------------


def check_positions(device: torch.device) -> None:
    positions = torch.arange(100_000, 100_050)
    x = torch.randn(2, 3, 50, 64)
    pairs = {
        "sinusoid": (sinusoid(positions.to(device), 512).cpu().double(), sinusoid(positions, 512).double(), 1e-7),
        "rotate float32": (
            rotate(x.to(device), positions.to(device)).cpu().double(),
            rotate(x.double(), positions),
            1e-6,
        ),
    }
    for name, (got, wanted, tolerance) in pairs.items():
        error = (got - wanted).abs().max().item()
        report(f"{name} at position 100,000", error <= tolerance, f"{error:.1e}")


def check_loss(device: torch.device, dtype: torch.dtype, rows: int, size: int) -> None:
    """Cross-entropies of a vocabulary that is no multiple of eight; the larger ones are several chunks of logits."""
    hidden, weight = torch.randn(rows, 64).to(dtype), (torch.randn(size, 64) / 8).to(dtype)
    labels = torch.randint(0, size, (rows,)).to(device)
    labels[::7] = -100
    wide = [x.to(device).double().requires_grad_() for x in (hidden, weight)]
    whole = F.cross_entropy(wide[0] @ wide[1].T, labels, label_smoothing=0.1, reduction="sum")
    wanted = [whole.detach(), *torch.autograd.grad(whole, wide)]
    own = [x.to(device).requires_grad_() for x in (hidden, weight)]
    ways = {"": lambda: _loss_and_gradients(own, labels)}
    if device.type == "cuda":
        ways[" captured"] = lambda: captured(lambda: _loss_and_gradients(own, labels))
    for name, way in ways.items():
        got = way()
        errors = [((g.double() - w).abs().max() / w.abs().max()).item() for g, w in zip(got, wanted, strict=True)]
        parts = zip(("loss", "hidden", "weight"), errors, strict=True)
        text = ", ".join(f"{part} {error:.1e}" for part, error in parts)
        report(f"token_cross_entropy {short(dtype)} {rows}x{size}{name}", max(errors) <= TOLERANCE[dtype], text)


def _loss_and_gradients(leaves: list[Tensor], labels: Tensor) -> list[Tensor]:
    loss = token_cross_entropy(leaves[0], leaves[1], labels, 0.1)
    return [loss.detach(), *torch.autograd.grad(loss, leaves)]


def captured(work: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What a replay of the work as a CUDA graph gives, after it ran once; it begins with other numbers."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            found = work()
        for x in found:
            x.fill_(torch.nan)
        graph.replay()
    torch.cuda.synchronize()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="fused, flex or memory: just these checks")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script itself (flex: forward only)")
    arguments = parser.parse_args()
    device, only = torch.device(arguments.device), arguments.only
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    on_gpu = device.type == "cuda"
    started = time.perf_counter()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if on_gpu else 'CPU'}")
    for dtype in TOLERANCE if only in ("", "fused") else ():
        guarded(f"positions {short(dtype)}", lambda: check_positions(device))
        for sizes in ((300, 1000), (9000, 33278) if on_gpu else (30, 50)):
            guarded(f"loss {short(dtype)}", lambda dtype=dtype, sizes=sizes: check_loss(device, dtype, *sizes))
        guarded(f"fused {short(dtype)}", lambda dtype=dtype: check_fused(device, dtype, quick=not on_gpu))
    print(f"{time.perf_counter() - started:.0f} s")
    if only in ("", "fused"):
        guarded("dead rows", lambda: check_dead_rows(device))
    print(f"{time.perf_counter() - started:.0f} s")
    for dtype in TOLERANCE if only in ("", "flex") else ():
        for form in ("bands", "heads"):
            guarded(
                f"flex {short(dtype)} {form}",
                lambda dtype=dtype, form=form: check_flex(device, dtype, gradients=on_gpu, form=form),
            )
    if on_gpu and only in ("", "memory"):
        guarded("memory", lambda: check_memory(device))
    print(f"{time.perf_counter() - started:.0f} s; {len(failures)} failures {failures or ''}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
