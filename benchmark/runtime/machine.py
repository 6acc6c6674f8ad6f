"""What results can depend on beside code and settings: versions (`environment`) and the processor (`machine`).

Two machines that agree in both round alike.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmark.runtime import arithmetic
from benchmark.runtime.errors import BenchmarkError

PACKAGES = (
    "torch", "torchvision", "timm", "pyautoattack", "robustbench", "foolbox", "numpy", "scipy", "robust-vit-bench",
)  # fmt: skip


def environment() -> dict[str, str]:
    """Return versions and arithmetic that a result can depend on. No host name, no date, no processor.

    Packages that are not installed are left out: stages need neither DVC nor robustbench.
    """
    versions = {name: installed(name) for name in PACKAGES}
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "arithmetic": arithmetic.in_force(),
        "threads": os.environ.get("OMP_NUM_THREADS", "1"),  # as torch_setup has it
        **{name: version for name, version in versions.items() if version},
    }


def one_environment(environments: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the environment of all parts of a result; a differing value carries the part's name."""
    merged: dict[str, str] = {}
    for part, environment in environments.items():
        for name, value in environment.items():
            if merged.setdefault(name, value) != value:
                merged[f"{name} ({part})"] = value
    return merged


def installed(package: str) -> str:
    """Return the version of a package; "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def machine() -> dict[str, str]:
    """Return the processor, what torch uses of it, and pyarrow's version (it writes the evidence). No host name."""
    import torch

    return {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "blas": _blas(torch.__config__.show()),
        "accelerator": gpu_name() or "none",
        "pyarrow": version("pyarrow"),
    }


def _blas(of_torch: str) -> str:
    """Return the library of matrix products, with the branch of its kernels if one is fixed.

    If products are numpy's (kernels.py), also torch's library, which computes the rest of linear algebra.
    """
    import numpy as np

    mkl = re.search(r"Math Kernel Library Version (\S+)", of_torch)
    own = f"MKL {mkl[1]}, {os.environ.get('MKL_CBWR', 'kernels by processor')}" if mkl else "OpenBLAS or another"
    if arithmetic.in_force() == "native":
        return own
    library = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{library['name']} {library['version']}, {os.environ['OPENBLAS_CORETYPE']}; {own}"


def device_name(device: str) -> str:
    """Return the name of a device of params.yaml: `cpu`, `cuda`, `cuda:<index>` or `auto`."""
    return (device != "cpu" and gpu_name(int(device.partition(":")[2] or 0))) or processor()


@cache
def gpu_name(index: int = 0) -> str:
    """Return the name of a GPU; "" if there is none.

    A new process asks: asking starts CUDA, which later forks of this process could then not use. A fork that asked
    failed on an H200: "initialization error".

    Raises:
        BenchmarkError: the driver does not give the name.
    """
    import torch

    if index >= torch.cuda.device_count():
        return ""
    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name(index)
    command = [sys.executable, "-c", f"import torch; print(torch.cuda.get_device_name({index}))"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        words = (result.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BenchmarkError(f"the GPU does not tell its name ({words}); `nvidia-smi` shows its state")
    return result.stdout.strip()


def processor() -> str:
    """Return the processor's name, with family and model if Linux gives them: virtual machines share names such as
    "AMD EPYC".
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    numbers = [f"{word} {fields[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in fields]
    return f"{fields['model name']} ({', '.join(numbers)})" if numbers else fields["model name"]
