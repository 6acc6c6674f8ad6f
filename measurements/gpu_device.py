"""Part `device` of gpu.py: what computes here, and by which versions; two numbers of the card to compare others with."""

from __future__ import annotations

import os
import sys
import time

from gpu_common import row

from benchmark.runtime import errors


def main() -> None:
    import torch

    from benchmark.runtime.machine import environment, installed, processor

    row("machine", what="processor", found=f"{processor()}, {os.cpu_count()} cores")
    for name, version in environment().items():
        row("machine", what=name, found=version)
    for name in ("dvc", "lightning-fabric", "triton"):
        row("machine", what=name, found=installed(name) or "not installed")
    if not torch.cuda.is_available():
        sys.exit("error: torch finds no GPU here")
    properties = torch.cuda.get_device_properties(0)
    row("machine", what="GPU", found=f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    row("machine", what="GPUs", found=str(torch.cuda.device_count()))
    row("machine", what="CUDA of torch", found=str(torch.version.cuda))
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        row("rates", what=f"matrix product, {name}, TFLOP/s", found=round(product(torch, dtype), 1))
    row("rates", what="copy on the device, TB/s, read and written", found=round(copy(torch), 2))


def product(torch, dtype, size: int = 8192, times: int = 10) -> float:
    a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * size**3 / 1e12 / seconds(torch, lambda: a @ b, times)


def copy(torch, size: int = 2**30, times: int = 10) -> float:
    a = torch.randint(255, (size,), dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * size / 1e12 / seconds(torch, lambda: b.copy_(a), times)


def seconds(torch, work, times: int) -> float:
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


if __name__ == "__main__":
    errors.run(main)
