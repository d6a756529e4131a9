"""Whether this machine can build kernels of Triton; the package alone is not enough."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


@functools.cache
def lacks_for_triton() -> str | None:
    """What is missing to run a kernel of Triton on a GPU, or None: it builds what starts its kernels in C."""
    if importlib.util.find_spec("triton") is None:
        return "Triton"
    named = os.environ.get("CC")  # as Triton itself looks
    if not (shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")):
        return "C compiler"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    headers = [sysconfig.get_paths(scheme)["include"]]
    for name in ("CPATH", "C_INCLUDE_PATH"):  # where compilers look besides
        headers += os.environ.get(name, "").split(os.pathsep)
    return None if any(folder and Path(folder, "Python.h").exists() for folder in headers) else "Python.h"
