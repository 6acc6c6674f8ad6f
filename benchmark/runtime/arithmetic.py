"""Portable arithmetic: kernels of the numerical libraries that give the same bits on every x86-64 with AVX2.

By default torch, oneDNN, MKL, numpy and OpenBLAS choose kernels by processor, and their last bits differ. Training
turns a last bit into different verdicts (docs/the-numbers.md). The libraries read these variables once, at import or
first use. kernels.py replaces what no variable reaches, and matrix products, which MKL slows down in this mode.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Literal

from benchmark.runtime.errors import BenchmarkError

Arithmetic = Literal["portable", "native"]

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # MKL's only branch for Intel's and AMD's processors alike
    "OPENBLAS_CORETYPE": "Haswell",  # of numpy and scipy, and of torch by kernels.py
    # names of numpy before 2.4 and after; unknown names are ignored
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL "
    "AVX512_SPR X86_V4",
}
READ_AT_IMPORT = ("torch", "numpy")


def possible(asked: Arithmetic) -> Arithmetic:
    """Return the arithmetic that this machine can use: portable arithmetic needs an x86-64 with AVX2."""
    return asked if _has_avx2() else "native"


def fix(asked: Arithmetic) -> None:
    """Set the variables that the libraries read, before any of them is imported, in every process that computes.

    Raise BenchmarkError if a library was imported before, with other kernels.
    """
    if possible(asked) == "native" or in_force() == "portable":
        return
    if early := [name for name in READ_AT_IMPORT if name in sys.modules]:
        raise BenchmarkError(f"portable arithmetic has to be fixed before import of {' and '.join(early)}")
    os.environ.update(VARIABLES)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torch_setup has it for torch; OpenBLAS would take every core


def in_force() -> Arithmetic:
    """Return the arithmetic of this process."""
    fixed = all(os.environ.get(name) == value for name, value in VARIABLES.items())
    return possible("portable") if fixed else "native"


def _has_avx2() -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    cpuinfo = Path("/proc/cpuinfo")
    return not cpuinfo.exists() or " avx2" in cpuinfo.read_text()
