"""Torch's kernels on the CPU that differ by processor even where arithmetic is fixed (arithmetic.py), replaced by numpy's.

Functions of a tensor's elements. Torch takes these from MKL's vector mathematics, and MKL the square root and those by it
from `rsqrtps` or `rcpps`: approximations of 12 bits whose tables Intel and AMD chose differently. Its Newton step leaves the
last bit open: 17% of the roots are not the nearest float, and which ones depends on the processor. (Of all that torch 2.15
takes from MKL's branch COMPATIBLE these alone hold such instructions, besides the Cholesky factor of a small float32 matrix,
for which nothing is done.) Numpy has the processor's root, which IEEE 754 fixes to the bit, and the C library's functions.

Matrix products. Torch's are MKL's, and the one branch that MKL takes on Intel's and AMD's processors, COMPATIBLE, has no
AVX. The OpenBLAS that comes with numpy has: its kernels for Haswell are the same instructions on every x86-64 with AVX2 and
FMA, and the sizes of its blocks are constants of that set of kernels, where those of older sets go by the caches. They take
about half of COMPATIBLE's time, which is what MKL's own choice takes (measurements/README.md). Convolutions are oneDNN's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmark.runtime import arithmetic

FLOATS = frozenset({torch.float32, torch.float64})
FUNCTIONS: dict[str, tuple[Callable[..., Any], frozenset[torch.dtype]]] = {
    "sqrt": (np.sqrt, FLOATS),
    "tan": (np.tan, FLOATS),
    "atan": (np.arctan, FLOATS),
    "asin": (np.arcsin, FLOATS),
    "acos": (np.arccos, FLOATS),
    "log2": (np.log2, FLOATS),
    "log10": (np.log10, FLOATS),
    "log": (np.log, frozenset({torch.float64})),
}
_registered: list[torch.library.Library] = []  # what is registered ends with its library


def replace() -> None:
    """From now on torch computes these by numpy on the CPU, in this process, if its arithmetic is portable."""
    if _registered or arithmetic.in_force() == "native":
        return
    _registered.append(torch.library.Library("aten", "IMPL"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are replaced, which is meant
        for name, (function, dtypes) in FUNCTIONS.items():
            _replace_function((name, f"{name}_", f"{name}.out"), function, dtypes, ())
        root = ("pow.Tensor_Scalar", "pow_.Scalar", "pow.Tensor_Scalar_out")
        _replace_function(root, np.sqrt, FLOATS, (0.5,))  # torch takes its root for this
        for name in ("mm", "bmm"):
            _override(name, _fit, _plain)
            _override(f"{name}.out", _fit, _plain)
        for name in ("addmm", "baddbmm"):
            _override(name, _fit, _added)
            _override(f"{name}.out", _fit, _added)
            _override(f"{name}_", _fit, lambda added, *pair, **named: added.copy_(_added(added, *pair, **named)))


def _override(overload: str, concerned: Callable[..., bool], kernel: Callable[..., torch.Tensor]) -> None:
    """Puts `kernel` in the place of an operation of the CPU for arguments that are `concerned`."""
    before = torch.library.get_kernel(f"aten::{overload}", "CPU")

    def called(keys: Any, *arguments: Any, **named: Any) -> Any:
        if concerned(*arguments):
            return kernel(*arguments, **named)
        return before.call_boxed(keys, *arguments, **named)

    _registered[0].impl(overload, called, "CPU", with_keyset=True)


def _given(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The result, in `out` where that is given."""
    if out is None:
        return result
    return (out if out.shape == result.shape else out.resize_(result.shape)).copy_(result)


def _replace_function(
    overloads: tuple[str, str, str],
    function: Callable[..., Any],
    dtypes: frozenset[torch.dtype],
    arguments: tuple[float, ...],
) -> None:
    """Replaces an operation, in place and into `out` too, for tensors of `dtypes` and these further arguments."""

    def concerned(x: torch.Tensor, *others: Any) -> bool:
        return _dtype(x) in dtypes and others == arguments

    def computed(x: torch.Tensor, *_: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        x = x.detach().to(_dtype(x))
        result = torch.empty_like(x)
        with np.errstate(all="ignore"):
            function(x.numpy(), out=result.numpy())
        return _given(result, out)

    plain, in_place, into = overloads
    _override(plain, concerned, computed)
    _override(in_place, concerned, lambda x, *_: x.copy_(computed(x)))
    _override(into, concerned, computed)


def _dtype(x: torch.Tensor) -> torch.dtype:
    """Of the result: whole numbers become floats."""
    return x.dtype if x.is_floating_point() or x.is_complex() else torch.get_default_dtype()


def _fit(*tensors: torch.Tensor) -> bool:
    """Whether the last two are matrices, or batches of them, that fit and hold something, and all are of one type; of all
    else torch says what is wrong.
    """
    *added, a, b = tensors
    if a.dtype != b.dtype or a.dtype not in FLOATS or a.layout != torch.strided or b.layout != torch.strided:
        return False
    fit = a.dim() == b.dim() and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    return fit and a.numel() > 0 and b.numel() > 0 and all(x.dtype == a.dtype for x in added)


def _plain(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    return _given(_product(a, b), out)


def _added(
    added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *,
    beta: Any = 1, alpha: Any = 1, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """beta * added + alpha * a @ b; what is added counts for nothing, not even NaN, where beta is 0."""
    result = _product(a, b)
    if alpha != 1:
        result *= alpha
    return _given(result if beta == 0 else result.add_(added.detach(), alpha=beta), out)


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
