"""The kernels that measure attention: interpreted on a CPU against the float64 matrix, and compiled for a GPU.

The interpreter must be asked for before Triton is imported, and other tests may have imported it: so a process of
its own runs this file as a program. On a GPU, benchmarks/observe_gpu.py compares the same.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from regard.ops import fused, gpu
from regard.ops.call import Call
from regard.ops.masks import Mask, causal, padding, prefix, window
from regard.ops.observe import observe_reference
from regard.ops.terms import Alibi, alibi_slopes

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

# B, H, K, N, M, d, bins, and a mask of (N, M)
SHAPES: dict[str, tuple[tuple[int, ...], Mask | None]] = {
    "causal, grouped": ((1, 2, 1, 100, 100, 16, 8), causal()),
    "padding, an odd width": ((2, 2, 2, 70, 130, 24, 16), padding(torch.tensor([130, 37]))),
    "a bin for each": ((1, 2, 2, 90, 90, 16, 128), None),
    "causal window": ((1, 2, 2, 150, 150, 16, 4), causal() & window(20)),
    "window to both sides": ((1, 2, 2, 150, 150, 16, 8), window(20, 40)),
    "a row of the batch without keys": ((2, 2, 2, 64, 64, 16, 8), causal() & padding(torch.tensor([0, 40]))),
    "one query": ((1, 1, 1, 1, 40, 16, 8), None),
}
TILES = (gpu.Tile(32, 32, 4, 2), gpu.Tile(64, 16, 4, 2), gpu.Tile(16, 64, 4, 2))


def worst_errors(dtype: torch.dtype, tile: gpu.Tile, name: str) -> dict[str, float]:
    """The error of each measure, relative to values over 1; `top` is the weight lost by a wrong first key."""
    (batch, heads, key_heads, rows, keys, width, bins), mask = SHAPES[name]
    torch.manual_seed(rows + keys)
    q = torch.randn(batch, heads, rows, width).mul(2).to(dtype)
    k, v = torch.randn(2, batch, key_heads, keys, width).to(dtype)
    row_lengths = torch.full((batch,), rows - 1) if rows > 1 and batch > 1 else None
    wanted = observe_reference(_call(q.double(), k.double(), v.double(), mask), row_lengths=row_lengths)
    got = gpu.run(_call(q, k, v, mask), lse=None, bins=(bins, bins), row_lengths=row_lengths, received=True, tile=tile)
    assert got.received is not None
    pairs = {
        "lse": (got.lse.nan_to_num(neginf=0), wanted.lse.nan_to_num(neginf=0)),
        "entropy": (got.entropy, wanted.entropy),
        "confidence": (got.confidence, wanted.confidence),
        "distance": (got.distance, wanted.distance),
        "map": (got.map, wanted.map(bins)),
        "received": (got.received, wanted.received),
        "top": (wanted.rows(range(rows)).gather(-1, got.top_keys.clamp(min=0))[..., 0], wanted.confidence),
    }
    for name, (ours, theirs) in pairs.items():
        assert ours.shape == theirs.shape, name
    return {
        name: ((ours.double() - theirs).abs() / theirs.abs().clamp(min=1)).max().item()
        for name, (ours, theirs) in pairs.items()
    }


class OnGpu(torch.Tensor):
    """A tensor that says so."""

    is_cuda = True  # type: ignore[assignment]


def _call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask | None) -> Call:
    return Call(q, k, v, mask, (), q.shape[-1] ** -0.5, 0.0, None)


@needs_triton
def test_interpreted_kernels_equal_the_matrix() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worst" in done.stdout


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "form", "width", "key_width"),
    [
        ("bf16", "full", 64, 256),
        ("bf16", "causal", 128, 64),
        ("fp16", "window", 40, 8),
        ("bf16", "lengths", 256, 1024),
        ("fp32", "full", 64, 16),
    ],
)
def test_kernels_compile_for_hopper_and_fit_it(
    dtype: str, form: str, width: int, key_width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpu, "_is_roomy", lambda call: False)
    from regard.ops import kernel_sums, kernels

    forms = {"has_left": form == "window", "has_right": form in ("causal", "window"), "has_lengths": form == "lengths"}
    like = torch.empty(1, 1, 1, width, dtype={"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype))
    call = _call(like, like, like, None)
    for kernel, tile, pooled in (
        (kernels.row_pass, gpu.row_tile(call), True),
        (kernel_sums.column_pass, gpu.column_tile(call), False),
        (kernel_sums.lse_pass, gpu.lse_tile(call), False),
    ):
        padded = 1 << (width - 1).bit_length()
        constants = {"width": width, "padded": padded, "tile_rows": tile.rows, "tile_keys": tile.keys, **forms}
        constants |= {"q_row": width, "k_row": width}
        if pooled:
            constants |= {"row_width": key_width, "key_width": key_width, "sub": min(16, key_width), "key_bins": 128}
        compiled = _compile(kernel, dtype, constants, tile)
        assert compiled.metadata.shared <= 99 * 1024  # what any GPU since Ampere has
        assert ("wgmma" in compiled.asm["ptx"]) == (dtype != "fp32")  # float32 is exact: no TF32


def _compile(kernel: object, dtype: str, constants: dict[str, object], tile: gpu.Tile) -> object:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {"q_pointer": f"*{dtype}", "k_pointer": f"*{dtype}", "length_pointer": "*i32", "key_pointer": "*i64"}
    names = kernel.arg_names  # type: ignore[attr-defined]
    signature = {
        name: "constexpr"
        if name in constants
        else types.get(name, "*fp32" if name.endswith("pointer") else "fp32" if name == "scale" else "i32")
        for name in names
    }
    places = {(names.index(name),): value for name, value in constants.items()}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name.endswith(("pointer", "_row", "_head", "_batch")) and name not in constants
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=aligned)
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def test_what_kernels_cannot_do_goes_to_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 2, 4, 16)
    assert gpu.why_not(_call(q, q, q, None)) == "no NVIDIA GPU"
    assert gpu.measure(_call(q, q, q, None), bins=(8, 8)) is None

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    x = q.bfloat16().as_subclass(OnGpu)
    assert gpu.why_not(_call(x, x, x, None)) == "a GPU that is older than Ampere"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    cases = {
        "terms in the scores": Call(x, x, x, None, (Alibi(alibi_slopes(2)),), 1.0, 0.0, None),
        "queries at positions of their own": Call(x, x, x, None, (), 1.0, 0.0, torch.arange(4)),
        "a mask that is not a band or lengths": _call(x, x, x, prefix(torch.tensor([2]))),
        "a shape that has no tiles": Call(x[:, :, :0], x, x, None, (), 1.0, 0.0, None),
        "torch.float64": _call(x.double(), x.double(), x.double(), None),
    }
    for reason, call in cases.items():
        assert gpu.why_not(call) == reason
    assert gpu.why_not(_call(x, x, x, causal() & padding(torch.tensor([3])))) is None
    assert gpu.why_not(_call(x.float(), x.float(), x.float(), causal())) is None


@pytest.mark.parametrize(
    ("choice", "op"),
    [
        (SDPBackend.CUDNN_ATTENTION, "_scaled_dot_product_cudnn_attention"),
        (SDPBackend.FLASH_ATTENTION, "_scaled_dot_product_flash_attention"),
    ],
)
def test_a_gpus_own_kernel_gives_the_lse_with_the_output(
    choice: SDPBackend, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arguments of the kernels as their schemas have them, which only a GPU can run."""
    schema = getattr(torch.ops.aten, op).default._schema
    names = [argument.name for argument in schema.arguments]
    wanted = {"compute_log_sumexp": True, "dropout_p": 0.0, "is_causal": True, "return_debug_mask": False}
    given: dict[str, object] = {}

    def kernel(*positional: object, **named: object) -> tuple[torch.Tensor, torch.Tensor]:
        given.update(dict(zip(names, positional, strict=False)), **named)
        return torch.ones(1, 2, 4, 8), torch.zeros(1, 2, 4, 1)

    monkeypatch.setattr(torch.ops.aten, op, kernel)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: choice.value)
    x = torch.randn(1, 2, 4, 8).as_subclass(OnGpu)
    out, lse = fused.attend_and_lse(Call(x, x, x, causal(), (), 0.3, 0.0, None))
    assert torch.equal(out, torch.ones(1, 2, 4, 8))
    assert lse is not None
    assert lse.shape == (1, 2, 4)
    assert {name: given[name] for name in wanted if name in names} == {n: v for n, v in wanted.items() if n in names}
    assert given["scale"] == 0.3
    assert given.get("attn_bias") is None
    assert given["query"] is given["value"] is x


@pytest.mark.parametrize("change", ["mask", "terms", "grouped", "cpu"])
def test_where_no_kernel_has_the_lse_the_output_is_the_plain_one(change: str) -> None:
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 1 if change == "grouped" else 2, 4, 8)
    terms = (Alibi(alibi_slopes(2)),) if change == "terms" else ()
    mask = padding(torch.tensor([3])) if change == "mask" else None
    call = Call(q, k, k, mask, terms, 0.3, 0.0, None)
    out, lse = fused.attend_and_lse(call)
    assert lse is None
    assert torch.equal(out, fused.attend(call))


def main() -> int:
    """Prints the worst error of each measure; 1 if one is over 1e-5."""
    worst: dict[str, float] = {}
    # the interpreter has no bfloat16 products; caches for all heads, for one, and for three of four
    ways = zip(TILES, (torch.float32, torch.float16, torch.float16), (2**25, 1, 20_000), strict=True)
    for tile, dtype, gpu.CACHE in ways:
        for name in SHAPES:
            for measure, error in worst_errors(dtype, tile, name).items():
                worst[measure] = max(worst.get(measure, 0.0), error)
    print("worst", {name: f"{error:.1e}" for name, error in worst.items()})
    return int(not max(worst.values()) < 1e-5)


if __name__ == "__main__":
    sys.exit(main())
