"""Attention over short texts on one NVIDIA GPU: forward and backward, as one captured graph, by kernel.

    PYTHONPATH=src python benchmarks/short_attention.py

Kernels that are made for long texts are slow for many texts of a dozen letters. For each shape, padded and causal:
PyTorch's own choice, each of its kernels by name, and the plain formula; in microseconds a call, in bf16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.ops.attention import attend
from regard.ops.masks import Mask, causal, padding

SHAPES = (  # texts, length, heads, width, dropout of weights
    (680, 12, 8, 64, 0.0),
    (680, 12, 8, 64, 0.1),
    (340, 12, 8, 64, 0.0),
    (340, 24, 8, 64, 0.0),
    (170, 48, 8, 64, 0.0),
    (128, 64, 8, 64, 0.0),
    (64, 128, 8, 64, 0.0),
    (1024, 4, 8, 40, 0.0),
)
KERNELS = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)
CALLS, REPLAYS = 5, 20


def microseconds(work: Callable[[], None]) -> float:
    """The time of one call, from a graph of several that is replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            work()
    for _ in range(3):
        graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / (CALLS * REPLAYS) * 1000


def main() -> None:
    for texts, length, heads, width, dropout in SHAPES:
        x = torch.randn(texts, length, 3, heads, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        above = torch.randn(texts, heads, length, width, device="cuda", dtype=torch.bfloat16)
        lengths = torch.randint(length // 2, length + 1, (texts,), device="cuda")

        def call(
            mask: Mask, backend: str, x: torch.Tensor = x, above: torch.Tensor = above, p: float = dropout
        ) -> None:
            x.grad = None
            q, k, v = (part.transpose(1, 2) for part in x.unbind(2))
            attend(q, k, v, mask=mask, backend=backend, dropout=p).backward(above)

        for name, mask in (("padding", padding(lengths)), ("causal", causal())):
            found = {"auto": microseconds(lambda: call(mask, "auto"))}  # noqa: B023
            for kernel in KERNELS:
                with sdpa_kernel(kernel):
                    found[kernel.name.lower()] = microseconds(lambda: call(mask, "fused"))  # noqa: B023
            found["reference"] = microseconds(lambda: call(mask, "reference"))  # noqa: B023
            said = ", ".join(f"{way} {time:.0f}" for way, time in found.items())
            print(f"{texts} x {length}, {heads} heads of {width}, dropout {dropout}, {name}: {said}", flush=True)


if __name__ == "__main__":
    main()
