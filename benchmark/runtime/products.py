"""Matrix products under portable arithmetic, by the BLAS library that comes with numpy.

torch's own are MKL's, and the one branch that MKL takes on Intel's and AMD's processors alike, COMPATIBLE, has no AVX.
OpenBLAS has: its kernels for Haswell are the same instructions on every x86-64 with AVX2 and FMA, and the sizes of its
blocks are constants of that set of kernels, where those of older sets go by the caches. They take about half of
COMPATIBLE's time, which is what MKL's own choice takes (measurements/README.md). Convolutions are oneDNN's, as ever.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmark.runtime import arithmetic

FLOATS = frozenset({torch.float32, torch.float64})
PLAIN = ("mm", "bmm")  # and into `out`
ADDED = ("addmm", "baddbmm")  # and in place, and into `out`
_registered: list[torch.library.Library] = []  # what is registered ends with its library


def replace() -> None:
    """From now on torch multiplies float matrices on the CPU by OpenBLAS, in this process, if its arithmetic is portable."""
    if _registered or arithmetic.in_force() == "native":
        return
    library = torch.library.Library("aten", "IMPL")
    _registered.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are replaced, which is meant
        for name in PLAIN:
            _register(library, name, _plain)
            _register(library, f"{name}.out", _plain)
        for name in ADDED:
            _register(library, name, _added)
            _register(library, f"{name}.out", _added)
            _register(library, f"{name}_", _added_in_place)


def _register(library: torch.library.Library, overload: str, kernel: Callable[..., torch.Tensor]) -> None:
    before = torch.library.get_kernel(f"aten::{overload}", "CPU")

    def called(keys: Any, *arguments: Any, **named: Any) -> Any:
        *added, a, b = arguments
        if _concerned(a, b) and all(x.dtype == a.dtype for x in added):
            return kernel(*arguments, **named)
        return before.call_boxed(keys, *arguments, **named)

    library.impl(overload, called, "CPU", with_keyset=True)


def _concerned(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether they are matrices, or batches of them, that fit and hold something; of all else torch says what is wrong."""
    if a.dtype != b.dtype or a.dtype not in FLOATS or a.layout != torch.strided or b.layout != torch.strided:
        return False
    fit = a.dim() == b.dim() and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    return fit and a.numel() > 0 and b.numel() > 0


def _plain(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return _given(_product(a, b), out)


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
    return _given(result if beta == 0 else result.add_(added.detach(), alpha=beta), out)


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


def _given(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    if out is None:
        return result
    return (out if out.shape == result.shape else out.resize_(result.shape)).copy_(result)
