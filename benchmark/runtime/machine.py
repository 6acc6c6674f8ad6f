"""What a machine computes with, beyond the versions of `environment`: two that agree in both round alike."""

from __future__ import annotations

import os
import re
from importlib.metadata import version

import numpy as np
import torch

from benchmark.runtime import arithmetic
from benchmark.runtime.device import gpu_name, processor


def machine() -> dict[str, str]:
    """The processor, what torch uses of it, and pyarrow's version (it writes the evidence). No host name."""
    return {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(),
        "accelerator": gpu_name() or "none",
        "pyarrow": version("pyarrow"),
    }


def _blas() -> str:
    """The library for products of matrices; where they are numpy's (products.py), torch's too, which the rest of linear
    algebra is. With the branch of its kernels where one is fixed.
    """
    said = re.search(r"Math Kernel Library Version (\S+)", torch.__config__.show())
    own = f"MKL {said[1]}, {os.environ.get('MKL_CBWR', 'kernels by processor')}" if said else "OpenBLAS or another"
    if arithmetic.in_force() == "native":
        return own
    library = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{library['name']} {library['version']}, {os.environ['OPENBLAS_CORETYPE']}; {own}"
