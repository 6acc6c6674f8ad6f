"""torch's CPU kernels that differ by processor even under portable arithmetic (arithmetic.py), replaced by numpy's.

Elementwise functions. torch takes these from MKL's vector mathematics, and MKL computes the square root, and
functions of it, from `rsqrtps` or `rcpps`: 12-bit approximations whose tables Intel and AMD chose differently. Its
Newton step leaves the last bit open: 17% of the roots are not the nearest float, and which ones depends on the
processor. (Of all that torch 2.15 takes from MKL's branch COMPATIBLE only these hold such instructions, besides the
Cholesky factor of a small float32 matrix, which is left as it is.) numpy uses the processor's square root, which IEEE
754 fixes to the bit, and the C library's functions.

Matrix products. torch's are MKL's, and COMPATIBLE, MKL's only branch for Intel and AMD, has no AVX. numpy's OpenBLAS
has: its Haswell kernels are the same instructions on every x86-64 with AVX2 and FMA, and their block sizes are
constants, while those of older kernels depend on the caches. They take about half of COMPATIBLE's time, as MKL's own
choice does (measurements/README.md). Convolutions are oneDNN's.
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
_registered: list[torch.library.Library] = []  # a registration ends with its library


def replace() -> None:
    """Let torch compute these functions by numpy on the CPU in this process, if its arithmetic is portable."""
    if _registered or arithmetic.in_force() == "native":
        return
    _registered.append(torch.library.Library("aten", "IMPL"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are replaced, as intended
        for name, (function, dtypes) in FUNCTIONS.items():
            _replace_function((name, f"{name}_", f"{name}.out"), function, dtypes, ())
        root = ("pow.Tensor_Scalar", "pow_.Scalar", "pow.Tensor_Scalar_out")
        _replace_function(root, np.sqrt, FLOATS, (0.5,))  # torch calls its root for this
        for name in ("mm", "bmm"):
            _override(name, _fit, _plain)
            _override(f"{name}.out", _fit, _plain)
        for name in ("addmm", "baddbmm"):
            _override(name, _fit, _added)
            _override(f"{name}.out", _fit, _added)
            _override(f"{name}_", _fit, lambda added, *pair, **named: added.copy_(_added(added, *pair, **named)))


def _override(overload: str, concerned: Callable[..., bool], kernel: Callable[..., torch.Tensor]) -> None:
    """Replace an operation on the CPU by `kernel`, for arguments that are `concerned`."""
    before = torch.library.get_kernel(f"aten::{overload}", "CPU")

    def called(keys: Any, *arguments: Any, **named: Any) -> Any:
        if concerned(*arguments):
            return kernel(*arguments, **named)
        return before.call_boxed(keys, *arguments, **named)

    _registered[0].impl(overload, called, "CPU", with_keyset=True)


def _given(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Return the result, in `out` if that is given."""
    if out is None:
        return result
    return (out if out.shape == result.shape else out.resize_(result.shape)).copy_(result)


def _replace_function(
    overloads: tuple[str, str, str],
    function: Callable[..., Any],
    dtypes: frozenset[torch.dtype],
    arguments: tuple[float, ...],
) -> None:
    """Replace an operation, also in place and into `out`, for tensors of `dtypes` and these further arguments."""

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
    """Return the dtype of the result: integers become floats."""
    return x.dtype if x.is_floating_point() or x.is_complex() else torch.get_default_dtype()


def _fit(*tensors: torch.Tensor) -> bool:
    """Return whether the last two are non-empty float matrices, or batches of them, that fit, and all have one dtype.
    torch reports other cases.
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
    """Return beta * added + alpha * a @ b; `added` is ignored, even NaN, if beta is 0."""
    result = _product(a, b)
    if alpha != 1:
        result *= alpha
    return _given(result if beta == 0 else result.add_(added.detach(), alpha=beta), out)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype)
    with np.errstate(all="ignore"):  # torch's products of infinity and NaN give no warning
        np.matmul(_blas(a), _blas(b), out=result.numpy())
    return result


def _blas(x: torch.Tensor) -> np.ndarray:
    """Return a matrix whose rows or columns are contiguous, so that numpy calls BLAS and not its plain loop."""
    x = x.detach().resolve_neg()
    (rows, columns), (down, right) = x.shape[-2:], x.stride()[-2:]
    whole = (right == 1 and down >= columns) or (down == 1 and right >= rows)
    return (x if whole else x.contiguous()).numpy()
