"""Which kernels the numerical libraries take: by default those that give the same bits on every x86-64 with AVX2.

Left alone, torch, oneDNN, MKL, numpy and OpenBLAS choose kernels by processor, and their last bits differ; training makes
whole images of a last bit (docs/the-numbers.md). They read these variables once, when they are imported or first used.
What no variable reaches, and matrix products, which MKL makes slow so, stand in kernels.py.
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
    "MKL_CBWR": "COMPATIBLE",  # the one branch that MKL takes on Intel's and AMD's processors alike
    "OPENBLAS_CORETYPE": "Haswell",  # of numpy and scipy, and of torch by kernels.py
    # names of numpy before 2.4 and after; each passes over those that it does not know
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_KNL AVX512_KNM AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL "
    "AVX512_SPR X86_V4",
}
READ_AT_IMPORT = ("torch", "numpy")


def possible(wanted: Arithmetic) -> Arithmetic:
    """What this machine computes in where `wanted` is asked for: portable arithmetic needs an x86-64 with AVX2."""
    return wanted if _has_avx2() else "native"


def fix(wanted: Arithmetic) -> None:
    """Sets what the libraries read. Has to come before any of them is imported, in every process that computes. Raises
    BenchmarkError: they were imported before, with other kernels.
    """
    if possible(wanted) == "native" or in_force() == "portable":
        return
    if early := [name for name in READ_AT_IMPORT if name in sys.modules]:
        raise BenchmarkError(f"portable arithmetic has to be fixed before import of {' and '.join(early)}")
    os.environ.update(VARIABLES)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torch_setup has it for torch; OpenBLAS would take every core


def in_force() -> Arithmetic:
    """What this process computes in."""
    fixed = all(os.environ.get(name) == value for name, value in VARIABLES.items())
    return possible("portable") if fixed else "native"


def _has_avx2() -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    cpuinfo = Path("/proc/cpuinfo")
    return not cpuinfo.exists() or " avx2" in cpuinfo.read_text()
