"""Matrix products under portable arithmetic, by the BLAS library that comes with numpy.

torch's own are MKL's, and the one branch that MKL takes on Intel's and AMD's processors alike, COMPATIBLE, has no AVX.
OpenBLAS has: its kernels for Haswell are the same instructions on every x86-64 with AVX2 and FMA, and the sizes of its
blocks are constants of that set of kernels, where those of older sets go by the caches. They take about half of
COMPATIBLE's time, which is what MKL's own choice takes (measurements/README.md). Convolutions are oneDNN's, as ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmark.runtime import arithmetic
from benchmark.runtime.vector_functions import given, override, overriding

FLOATS = frozenset({torch.float32, torch.float64})
PLAIN = ("mm", "bmm")  # and into `out`
ADDED = ("addmm", "baddbmm")  # and in place, and into `out`
_registered: list[torch.library.Library] = []  # what is registered ends with its library


def replace() -> None:
    """From now on torch multiplies float matrices on the CPU by OpenBLAS, in this process, if its arithmetic is portable."""
    if _registered or arithmetic.in_force() == "native":
        return
    with overriding(_registered) as library:
        for name in PLAIN:
            override(library, name, _concerned, _plain)
            override(library, f"{name}.out", _concerned, _plain)
        for name in ADDED:
            override(library, name, _concerned, _added)
            override(library, f"{name}.out", _concerned, _added)
            override(library, f"{name}_", _concerned, _added_in_place)


def _concerned(*tensors: torch.Tensor) -> bool:
    """Whether the last two are matrices, or batches of them, that fit and hold something, and all are of one type; of all
    else torch says what is wrong.
    """
    *added, a, b = tensors
    if a.dtype != b.dtype or a.dtype not in FLOATS or a.layout != torch.strided or b.layout != torch.strided:
        return False
    fit = a.dim() == b.dim() and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    return fit and a.numel() > 0 and b.numel() > 0 and all(x.dtype == a.dtype for x in added)


def _plain(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return given(_product(a, b), out)


def _added(
    added: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """beta * added + alpha * a @ b; what is added counts for nothing, not even NaN, where beta is 0."""
    result = _product(a, b)
    if alpha != 1:
        result *= alpha
    return given(result if beta == 0 else result.add_(added.detach(), alpha=beta), out)


def _added_in_place(
    added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    return added.copy_(_added(added, a, b, beta=beta, alpha=alpha))


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
    with np.errstate(all="ignore"):  # torch's multiply infinity and NaN without a word
        np.matmul(_blas(a), _blas(b), out=result.numpy())
    return result


def _blas(x: torch.Tensor) -> np.ndarray:
    """As numpy hands a matrix to BLAS: rows or columns in one piece; others it would multiply by a plain loop."""
    x = x.detach().resolve_neg()
    (rows, columns), (down, right) = x.shape[-2:], x.stride()[-2:]
    whole = (right == 1 and down >= columns) or (down == 1 and right >= rows)
    return (x if whole else x.contiguous()).numpy()
