"""Whether this process computes in the float32 that rounding.py analyses; a certificate is refused where it does not.

Reduced precision can come from autocast, from torch's switches for TF32 and bfloat16, older and newer, and from oneDNN's
environment variable. Flushing denormal numbers to zero is refused too: float64's pass, whose sums of tiny terms the bounds
believe, would flush as well.
"""

from __future__ import annotations

import os

import torch
from torch import nn

from benchmark.certificates.bounds.rounding import LARGEST
from benchmark.runtime.errors import BenchmarkError

ONEDNN = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")  # oneDNN reads both, the second for old times' sake
SHARED_OUT = 2**17  # numbers, so that every thread of torch has some


def full_precision(network: nn.Module) -> None:
    """
    Raises:
        BenchmarkError: `network` would not run in plain float32 in this process, or a parameter is too large for it.
    """
    tensors = [t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()]
    if any(t.dtype != torch.float32 for t in tensors) or any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise BenchmarkError("the certificate speaks of float32 networks; give a float32 model, outside autocast")
    if not all(float(t.detach().abs().max()) <= LARGEST for t in tensors if t.numel()):  # a NaN too
        raise BenchmarkError(
            f"a parameter is NaN or above {LARGEST:g}, where float32 could overflow; the certificate is refused"
        )
    if _reduced(any(t.is_cuda for t in tensors), any(isinstance(m, nn.Conv2d) for m in network.modules())):
        raise BenchmarkError(
            "float32 products may run in TF32 or bfloat16 here; set torch.set_float32_matmul_precision('highest') and "
            "torch.backends.cudnn.allow_tf32 = False"
        )
    for name in ONEDNN:
        if (mode := os.environ.get(name, "strict")).lower() not in ("", "strict"):
            raise BenchmarkError(f"{name}={mode} lets oneDNN round float32 products further; unset it and start again")
    if _flushes():
        raise BenchmarkError("denormal numbers are flushed to zero here; call torch.set_flush_denormal(False)")


def _reduced(cuda: bool, convolves: bool) -> bool:
    backends = torch.backends
    try:
        matrices = torch.get_float32_matmul_precision() != "highest" or backends.cuda.matmul.allow_tf32
        convolutions = cuda and convolves and backends.cudnn.allow_tf32
    except RuntimeError as error:  # so torch answers where its older and newer switches disagree
        raise BenchmarkError(
            "torch cannot say whether float32 products run in TF32 or bfloat16: its newer switches (fp32_precision) "
            "contradict its older ones (allow_tf32); set one kind alone, to full precision, in a new process"
        ) from error
    parts = [(backends.mkldnn, "matmul"), (backends.mkldnn, "conv")]
    if cuda:
        parts.append((backends.cuda, "matmul"))
    if cuda and convolves:
        parts.append((backends.cudnn, "conv"))
    precisions = [getattr(getattr(place, part, None), "fp32_precision", "none") for place, part in parts]
    return matrices or convolutions or any(precision not in ("none", "ieee") for precision in precisions)


def _flushes() -> bool:
    """Whether a product of denormal numbers becomes 0, in either precision, on any of torch's threads."""
    tiny = (
        torch.full((SHARED_OUT,), 2.0**-140, dtype=torch.float32),
        torch.full((SHARED_OUT,), 2.0**-1060, dtype=torch.float64),
    )
    return any(not bool((numbers * 0.5).all()) for numbers in tiny)
