"""What a machine computes with, beyond the versions of `environment`: two that agree in both round alike."""

from __future__ import annotations

import os
import re
from importlib.metadata import version

import torch

from benchmark.runtime.device import processor


def machine() -> dict[str, str]:
    """The processor, what torch uses of it, and pyarrow's version (it writes the evidence). No host name."""
    return {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "pyarrow": version("pyarrow"),
    }


def _blas() -> str:
    """torch's library for products of matrices, with the branch of its kernels where one is fixed."""
    said = re.search(r"Math Kernel Library Version (\S+)", torch.__config__.show())
    if not said:
        return "OpenBLAS or another"
    return f"MKL {said[1]}, {os.environ.get('MKL_CBWR', 'kernels by processor')}"
