"""The largest eigenvalue of symmetric maps that are known by their products alone: Lanczos, many maps side by side."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal

STEPS = 300  # products before it gives up
TOLERANCE = 1e-5  # of the residual, against the largest Ritz value
AGAIN = 2  # passes of Gram-Schmidt: one leaves vectors of float32 visibly oblique

Product = Callable[[torch.Tensor], torch.Tensor]  # (n, m) to the same, map i on row i


def largest_eigenvalue(
    product: Product, start: torch.Tensor, *, steps: int = STEPS, tolerance: float = TOLERANCE
) -> torch.Tensor:
    """A measured lower bound of each map's largest eigenvalue, (n,) float64; NaN where it did not converge.

    Lanczos with full reorthogonalisation. The largest Ritz value never exceeds the largest eigenvalue (up to rounding), and
    some eigenvalue lies within the residual of it: it counts as converged where the residual is at most `tolerance` of the
    largest Ritz value in modulus. That it is the *largest* eigenvalue holds unless the start has almost no part along its
    vector, so this is a measurement and no bound from above.

    Args:
        product: n symmetric maps on m entries, each on its own row.
        start: (n, m), no row 0; random ones do.
        steps: products at most.
    """
    n, m = start.shape
    steps = min(steps, m)
    basis = start.new_zeros(n, steps, m)
    diagonal, beside = np.zeros((n, steps)), np.zeros((n, steps))
    found, open_ = np.full(n, math.nan), np.ones(n, dtype=bool)
    vector = start / start.norm(dim=1, keepdim=True)
    for k in range(steps):
        basis[:, k] = vector
        image = product(vector)
        diagonal[:, k] = (image.double() * vector.double()).sum(1).cpu().numpy()
        for _ in range(AGAIN):
            image = image - ((basis[:, : k + 1] @ image[:, :, None]).mT @ basis[:, : k + 1])[:, 0]
        length = image.norm(dim=1, keepdim=True)
        beside[:, k] = length[:, 0].double().cpu().numpy()
        for i in np.flatnonzero(open_):
            value, residual, scale = _ritz(diagonal[i, : k + 1], beside[i, : k + 1])
            if not math.isfinite(value):
                open_[i] = False
            elif residual <= tolerance * scale:
                found[i], open_[i] = value, False
        if not open_.any():
            break
        vector = torch.where(length > 0, image / length, 0.0)
    return torch.from_numpy(found)


def _ritz(diagonal: np.ndarray, beside: np.ndarray) -> tuple[float, float, float]:
    """The largest Ritz value, its residual, and the largest in modulus, after as many steps as `diagonal` is long."""
    if not (np.isfinite(diagonal).all() and np.isfinite(beside).all()):
        return math.nan, math.nan, math.nan
    values, vectors = eigh_tridiagonal(diagonal, beside[:-1])
    return float(values[-1]), float(beside[-1] * abs(vectors[-1, -1])), float(np.abs(values).max())
