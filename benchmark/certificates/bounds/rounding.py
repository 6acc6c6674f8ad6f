"""A-priori bounds of float32's rounding errors, of which each layer's `LayerBound.rounding` is made.

Model (Higham, Accuracy and Stability, 2.2 and 3.1), u = 2^-24. An operation returns its exact result times (1 + t), |t| <= u.
A sum of n products, in any order, blocked or fused, returns sum a_i b_i (1 + t_i), |t_i| <= gamma(n) = n u / (1 - n u).
k such factors together are within gamma(k). Division, square root and the like are within 4 u. exp with all rescalings of a
row is within EXPONENTIAL (torch's vectorised exp is within 20 units in the last place). Weights that a layer derives from its
parameters are computed in float64 and rounded once, within gamma(2). Underflow adds less than TINY.
Products in TF32, half precision or autocast lie outside this model; checked_copy.py refuses them. Attention's kernels may
split a float32 product into three TF32 products on a GPU, so each of their counts is taken KERNEL times.

With x' = x + D, ||D|| <= delta, a bound |fl(f)(x') - f(x')| <= gamma(k) |x'| |W| gives, by |x'| <= |x| + |D|, the norm
gamma(k) (|| |x| |W| ||_F + delta || |W| ||_2).

Range. float32 holds numbers up to 3.4e38. Whatever real arithmetic keeps below ROOM = 1e36, partial sums in any order
included, float32 computes without overflow, because the errors above are smaller than the values. Norms of inputs over the
ball, and parameters, are at most LARGEST = 1e7; else the layer's rounding is infinite, or the network is refused. Derived
weights are at most WIDEST = 1e11; their layers' bounds ask for it. A sum of products is at most ||x|| ||w||, so at most
1e18 sqrt(inputs), and below ROOM for any network that fits a memory. So are scalings and quotients by numbers within
[1e-7, 1e7]. Where a layer multiplies such sums with each other (scores, values times weights, squares of rows), its rounding
is infinite unless its bounds of them stay below ROOM. exp is of numbers at most 0 in softmax, at most 80 in Softplus.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmark.runtime.errors import BenchmarkError

from .spectral import spectral_norm_upper

UNIT32 = 2.0**-24
EXPONENTIAL = 256 * UNIT32
TINY = 1e-20
LARGEST = 1e7
WIDEST = 1e11
ROOM = 1e36
KERNEL = 8
FLOAT64 = 1 + 1e-8  # the float64 pass around the nominal input obeys the same bounds with a unit 2^29 times smaller


def gamma(count: float) -> float:
    """Return gamma(n) for n rounding errors in sequence; raise a BenchmarkError where float32 gives no bound."""
    if count * UNIT32 >= 0.5:
        raise BenchmarkError(f"{count:g} roundings in sequence: float32 gives no bound; the certificate is refused")
    return count * UNIT32 / (1 - count * UNIT32)


def size(x: torch.Tensor) -> torch.Tensor:
    """Return the Frobenius norm of each input: (n, *shape) to (n,)."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def covered(error: torch.Tensor) -> torch.Tensor:
    """Return a layer's error in float32 plus what float64's pass and underflow add."""
    return error * FLOAT64 + TINY


def in_room(error: torch.Tensor, widest: torch.Tensor) -> torch.Tensor:
    """Return `covered(error)`, or infinity where `widest`, a bound of all products and sums, leaves float32's range."""
    return torch.where(widest <= ROOM, covered(error), torch.inf)


Rounding = Callable[[torch.Tensor], torch.Tensor]  # how far inputs move, (n,), to the norm of the rounding, (n,)


def linear_rounding(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Rounding:
    """Return the norm of the rounding of all of y = x W^T + b, W (out, in), for inputs (n, ..., in) within delta (n,).

    gamma(in + 3) counts the sum of products, the bias and the weight's own rounding.
    """
    nominal = x.abs() @ weight.abs().mT
    length = size(nominal if bias is None else nominal + bias.abs())
    absolute, count = spectral_norm_upper(weight.abs()), gamma(weight.shape[1] + 3)
    return lambda delta: covered(count * (length + delta * absolute))
