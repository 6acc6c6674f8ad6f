"""Functions of a tensor's elements that differ by processor even under fixed kernels (arithmetic.py), mended.

torch takes these from MKL's vector mathematics, and MKL the square root and those by it from `rsqrtps` or `rcpps`:
approximations of 12 bits whose tables Intel and AMD chose differently. Its Newton step leaves the last bit open: 17% of
the roots are not the nearest float, and which ones depends on the processor. (Of all that torch 2.15 takes from MKL's
branch COMPATIBLE these alone hold such instructions, besides the Cholesky factor of a small float32 matrix, for which
nothing is done.) numpy has the processor's own root, which IEEE 754 fixes to the bit, and the C library's functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmark.runtime import arithmetic

BOTH = frozenset({torch.float32, torch.float64})
FUNCTIONS: dict[str, tuple[Callable[..., Any], frozenset[torch.dtype]]] = {
    "sqrt": (np.sqrt, BOTH),
    "tan": (np.tan, BOTH),
    "atan": (np.arctan, BOTH),
    "asin": (np.arcsin, BOTH),
    "acos": (np.arccos, BOTH),
    "log2": (np.log2, BOTH),
    "log10": (np.log10, BOTH),
    "log": (np.log, frozenset({torch.float64})),
}


_registered: list[torch.library.Library] = []  # what is registered ends with its library


def mend() -> None:
    """From now on torch computes them by numpy on the CPU, in this process, where its arithmetic is portable."""
    if _registered or arithmetic.in_force() == "native":
        return
    with overriding(_registered) as library:
        for name, (function, dtypes) in FUNCTIONS.items():
            _mend(library, (name, f"{name}_", f"{name}.out"), function, dtypes, ())
        root = ("pow.Tensor_Scalar", "pow_.Scalar", "pow.Tensor_Scalar_out")
        _mend(library, root, np.sqrt, BOTH, (0.5,))  # torch takes its root for this


@contextmanager
def overriding(registered: list[torch.library.Library]) -> Iterator[torch.library.Library]:
    """A library to `override` by, which is put into `registered`."""
    library = torch.library.Library("aten", "IMPL")
    registered.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that kernels are replaced, which is meant
        yield library


def override(
    library: torch.library.Library,
    overload: str,
    concerned: Callable[..., bool],
    kernel: Callable[..., torch.Tensor],
) -> None:
    """Puts `kernel` in the place of an operation of the CPU for arguments that are `concerned`."""
    before = torch.library.get_kernel(f"aten::{overload}", "CPU")

    def called(keys: Any, *arguments: Any, **named: Any) -> Any:
        if concerned(*arguments):
            return kernel(*arguments, **named)
        return before.call_boxed(keys, *arguments, **named)

    library.impl(overload, called, "CPU", with_keyset=True)


def given(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The result, in `out` where that is given."""
    if out is None:
        return result
    return (out if out.shape == result.shape else out.resize_(result.shape)).copy_(result)


def _mend(
    library: torch.library.Library,
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
        return given(result, out)

    plain, in_place, into = overloads
    override(library, plain, concerned, computed)
    override(library, in_place, concerned, lambda x, *_: x.copy_(computed(x)))
    override(library, into, concerned, computed)


def _dtype(x: torch.Tensor) -> torch.dtype:
    """Of the result: whole numbers become floats."""
    return x.dtype if x.is_floating_point() or x.is_complex() else torch.get_default_dtype()
