"""The name of what computes: of the GPU that is asked for, where there is one, or of the processor."""

from __future__ import annotations

import platform
from pathlib import Path


def device_name(wanted: str) -> str:
    """Of the device by which params.yaml calls it: `cpu`, `cuda`, `cuda:<index>` or `auto`."""
    if wanted != "cpu":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(wanted if ":" in wanted else None)
    return processor()


def processor() -> str:
    """Its name, with family and model where Linux says them: virtual machines share names such as "AMD EPYC"."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in said:
        return platform.processor() or platform.machine()
    numbers = [f"{word} {said[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in said]
    return f"{said['model name']} ({', '.join(numbers)})" if numbers else said["model name"]
