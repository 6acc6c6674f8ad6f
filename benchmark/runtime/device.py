"""The name of what computes: of the GPU that is asked for, where there is one, or of the processor."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmark.runtime.errors import BenchmarkError


def device_name(wanted: str) -> str:
    """Of the device by which params.yaml calls it: `cpu`, `cuda`, `cuda:<index>` or `auto`."""
    return (wanted != "cpu" and gpu_name(int(wanted.partition(":")[2] or 0))) or processor()


@cache
def gpu_name(index: int = 0) -> str:
    """Return the name of a GPU; "" where there is none.

    A new process asks. One that asks by itself starts CUDA, which its later forks could not use. A fork that asked failed on
    an H200: "initialization error".

    Raises:
        BenchmarkError: it does not tell.
    """
    import torch

    if index >= torch.cuda.device_count():
        return ""
    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name(index)
    command = [sys.executable, "-c", f"import torch; print(torch.cuda.get_device_name({index}))"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        said = (asked.stderr.strip().splitlines() or ["nothing"])[-1]
        raise BenchmarkError(f"the GPU does not tell its name ({said}); `nvidia-smi` shows its state")
    return asked.stdout.strip()


def processor() -> str:
    """Its name, with family and model where Linux says them: virtual machines share names such as "AMD EPYC"."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in said:
        return platform.processor() or platform.machine()
    numbers = [f"{word} {said[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in said]
    return f"{said['model name']} ({', '.join(numbers)})" if numbers else said["model name"]
