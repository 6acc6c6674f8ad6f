"""torch as every stage configures it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmark.runtime import kernels
from benchmark.runtime.errors import BenchmarkError, out_of_memory

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # of mallopt
ADVICE = {  # by words of torch or the driver
    "driver": "update NVIDIA's driver, or install a torch built for an older CUDA",
    "304": "the sandbox or the machine refuses what CUDA needs: `wall: weak` or `none` in params.yaml shows which",
    "fork": "the process that made this one has used it; is NVIDIA's management library there (`nvidia-smi`)?",
    "no kernel image": "install a torch built for this GPU",
}


def set_up(device: str) -> torch.device:
    """Make torch deterministic, with one thread unless OMP_NUM_THREADS says more; return the device.

    Small models run fastest on one thread. If the process's arithmetic is portable (arithmetic.py), torch's functions
    and matrix products become portable too. Freed memory stays with the process (glibc), since taking it back and clearing
    it again in every pass is a tenth to a quarter of a small network's time.

    Raises:
        BenchmarkError: the device is unknown or missing.
    """
    kernels.replace()
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and (mallopt(MMAP_THRESHOLD, 2**30) or mallopt(MMAP_THRESHOLD, 2**25)):  # the most that older ones take
        mallopt(TRIM_THRESHOLD, 2**30)  # alone it would make the kernel take more back
    torch.set_num_threads(threads())
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # count devices without starting CUDA, which a fork could then not use
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if device == "cpu":
        torch.set_deterministic_debug_mode("warn")  # without torch's compiler, whose import takes seconds
    else:
        torch.use_deterministic_algorithms(True, warn_only=True)  # also for compiled code
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise BenchmarkError("params.yaml asks for device cuda, but torch finds none; set it to cpu or auto")
    try:
        checked = torch.device(device)
    except RuntimeError:
        raise BenchmarkError(f"params.yaml: unknown device {device!r}; use cpu, cuda, cuda:1 or auto") from None
    if checked.type == "cuda" and (checked.index or 0) >= (count := torch.cuda.device_count()):
        raise BenchmarkError(f"params.yaml asks for device {device}, but torch finds {count}; the first is cuda:0")
    return checked


def start(device: torch.device) -> None:
    """Start CUDA in this process, if the device is a GPU. Raise BenchmarkError with the driver's message, and what to do."""
    if device.type != "cuda":
        return
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        if out_of_memory(error):
            raise
        words = str(error).strip().splitlines()[0]
        advice = next((advice for part, advice in ADVICE.items() if part in words), "`nvidia-smi` shows its state")
        raise BenchmarkError(f"the GPU does not start: {words.rstrip('.')}; {advice}, or set `device: cpu`") from None


@contextmanager
def tensor_float32(allowed: bool) -> Iterator[None]:
    """Let a GPU multiply float32 matrices in TensorFloat-32 inside the block, if that is allowed; afterwards as before."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = allowed
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def stop_filling() -> None:
    """Disable torch's NaN-fill of uninitialised memory. Call this after the weights are loaded.

    Until then NaNs reveal weights that were never written. Without the fill a forward pass takes up to a sixth less
    time (measurements/README.md).
    """
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def threads() -> int:
    """Return the number of threads of a stage."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))
