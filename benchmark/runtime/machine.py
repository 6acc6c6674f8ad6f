"""What a machine computes with, beyond the versions of `environment`: two that agree in both round alike."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path

import torch


def machine() -> dict[str, str]:
    """The processor, what torch uses of it, and pyarrow's version (it writes the evidence). No host name."""
    return {
        "processor": _processor(),
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


def _processor() -> str:
    """Its name, with family and model where Linux says them: virtual machines share names such as "AMD EPYC"."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in said:
        return platform.processor() or platform.machine()
    numbers = [f"{word} {said[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in said]
    return f"{said['model name']} ({', '.join(numbers)})" if numbers else said["model name"]
