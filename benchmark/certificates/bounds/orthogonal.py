"""Rounding of an OrthogonalLinear, and how much the weights may differ that two machines derive for it.

Let M (m, n), m <= n, be `raw` or its transpose, G = M M^T + s I = L L^T, W = L^-1 M, ||W|| <= 1, t = tr G, l the least
eigenvalue of G, u = 2^-53. A machine forms G with an error of at most gamma(n + 2) t in the Frobenius norm, its Cholesky
factor L' is the exact one of a matrix that is off by gamma(m + 2) t more (Higham, theorem 10.3), and each column of W' solves
(L' + D) w = m with |D| <= gamma(m) |L'| (theorem 8.5). Together:
  1. L' L'^T = L (I + F) L^T with ||F||_F <= f = 1.01 (n + m + 8) u t / l. For f <= 1/10 let I + F = C C^T, C = I + T lower
     triangular, so that L' = L C. T is the lower half of F - T T^T, so ||T||_F <= (f + ||T||_F^2) / sqrt 2, and since T
     grows from 0 with F, ||T||_F <= 0.75 f. So ||L'^-1 M - W||_F = ||(C^-1 - I) W||_F <= 0.82 f.
  2. The solution of the triangular system is off by ||L'^-1 D w|| <= gamma(m) ||L'^-1|| ||L'||_F ||w||, over all columns by
     at most 1.3 m u sqrt(t / l) sqrt(m) <= 0.65 f, by m <= t / l.
So W' is within 1.5 f of W, and the weights of two machines within 3 f of each other: some 1e-12 where M is small and well
conditioned, 1e-4 and more where rows of M depend on each other, so that the shift s = 1e-9 t / m alone keeps l from 0.

A certificate speaks of the weight that its own process derives; there the float32 network and the float64 pass have the same
one. Where 3 f exceeds NEGLIGIBLE, a sixth of float32's unit, it is counted besides, and the certificate holds for the weight
that any other machine derives. Below, another machine's network differs by that much at most.
"""

from __future__ import annotations

import torch

from benchmark.layers.lipschitz import SHIFT, OrthogonalLinear
from benchmark.runtime.errors import BenchmarkError

from .rounding import UNIT32, Rounding, covered, linear_rounding, size
from .spectral import UNIT

NEGLIGIBLE = 1e-8


def derived_spread(raw: torch.Tensor) -> float:
    """Return 3 f of the module's docstring, a Frobenius-norm bound of how far the weights that two machines derive from
    `raw` (outputs, inputs) differ.

    Raises:
        BenchmarkError: the rows of `raw` depend on each other so closely that nothing is known of the difference.
    """
    rows = raw.detach().double()
    rows = rows if rows.shape[0] <= rows.shape[1] else rows.mT
    gram = rows @ rows.mT
    trace, count = float(gram.diagonal().sum()) + 1e-300, len(gram)
    shift = SHIFT * trace / count
    least = max(float(torch.linalg.eigvalsh(gram)[0]) - 1e-12 * trace, 0.0) + shift
    off = 1.01 * (sum(rows.shape) + 8) * UNIT * (trace + count * shift) / least
    if not off <= 0.1:
        raise BenchmarkError(
            "OrthogonalLinear's raw matrix has rows so close to dependent that machines would derive different weights from "
            "it; the certificate is refused"
        )
    return 3 * off


def counted_spread(layer: OrthogonalLinear) -> float:
    """Return `derived_spread` of the layer's raw matrix, 0 where it is negligible."""
    spread = derived_spread(layer.raw)
    return spread if spread > NEGLIGIBLE else 0.0


def orthogonal_rounding(layer: OrthogonalLinear, x: torch.Tensor, weight: torch.Tensor, norm: torch.Tensor) -> Rounding:
    """Return the layer's rounding: sums in float64 (2^-29 of float32's unit), as in the nominal pass, then one rounding."""
    sums, spread = linear_rounding(x, weight, layer.bias), counted_spread(layer)
    nominal, length = size(layer(x)), size(x)

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        inside = 2 * 2.0**-29 * sums(delta) + spread * (length + delta)
        return covered(inside + UNIT32 * (nominal + delta * norm + inside))

    return rounding
