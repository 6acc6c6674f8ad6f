"""Proven upper bounds of spectral norms in float64; a power iteration alone would be a lower bound.

Rounding: each bound is raised by a stated allowance that covers its own float64 arithmetic. A matrix that holds NaN or
infinity has the bound infinity, and changes no other bound of its batch.
"""

from __future__ import annotations

import torch

UNIT = 2.0**-53  # float64 unit roundoff
EXACT_SIDE = 384  # up to this side all eigenvalues are about as quick as a proof
FORMED_SIDE = 8192


def spectral_norm_upper(matrix: torch.Tensor) -> torch.Tensor:
    """Return an upper bound of each matrix's largest singular value, within 0.1% of it (1e-9 when neither side is above 384).

    Guarantee: never below the true norm. The square root of `psd_norm_upper` of the smaller Gram matrix G = A^T A. The
    computed G differs from it by at most m u / (1 - m u) ||A||_F^2 in norm, m the longer side, which is added (twice).

    Args:
        matrix: (..., m, n), any float type; the result is (...) float64.

    Raises:
        ValueError: the matrix is too large to be formed as a Gram matrix.
    """
    matrix, infinite = _finite(matrix)
    if 0 in matrix.shape:
        return matrix.new_zeros(matrix.shape[:-2])
    if min(matrix.shape[-2:]) > FORMED_SIDE:
        raise ValueError(f"a smaller side of {min(matrix.shape[-2:])} is too large to form")
    if matrix.shape[-2] < matrix.shape[-1]:
        matrix = matrix.mT
    least, most = matrix.amin((-2, -1), keepdim=True), matrix.amax((-2, -1), keepdim=True)
    scale = torch.maximum(most, -least).clamp(min=1e-300)
    if scale.min() > 1e-100 and scale.max() < 1e100:
        scale, scaled = torch.ones_like(scale), matrix
    else:
        scaled = matrix / scale
    gram = scaled.mT @ scaled
    product = 2 * matrix.shape[-2] * UNIT * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    return _or_infinite(((psd_norm_upper(gram) + product) * (1 + 1e-12)).sqrt() * scale[..., 0, 0], infinite)


def product_norm_upper(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return an upper bound of ||left right||, quick for a short inner side: (..., m, k), (..., k, n) to (...).

    Guarantee: never below the true norm. With right^T = Q R, ||left right|| = ||left R^T||; the factorisation's backward
    error, at most a modest polynomial times u ||right||_F (Higham, theorem 19.4), is covered by 1e-11 ||left||_F ||right||_F.
    """
    left = left.detach().double()
    right, infinite = _finite(right)
    if right.shape[-1] > right.shape[-2]:
        slack = 1e-11 * torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right)
        right = torch.linalg.qr(right.mT, mode="r").R.mT
        return _or_infinite(spectral_norm_upper(left @ right) + slack, infinite)
    return _or_infinite(spectral_norm_upper(left @ right), infinite)


def _finite(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the matrices (..., m, n) in float64, zeros for those not finite, and a mask of these, (...) or None."""
    matrix = matrix.detach().double()
    if torch.isfinite(matrix.sum()):  # quick; it may overflow
        return matrix, None
    finite = torch.isfinite(matrix).all(-1).all(-1)
    return torch.where(finite[..., None, None], matrix, 0.0), ~finite


def _or_infinite(bound: torch.Tensor, infinite: torch.Tensor | None) -> torch.Tensor:
    bound = torch.where(bound.isnan(), torch.inf, bound)
    return bound if infinite is None else torch.where(infinite, torch.inf, bound)


def psd_norm_upper(gram: torch.Tensor) -> torch.Tensor:
    """Return an upper bound of the largest eigenvalue of each symmetric positive semidefinite matrix: (..., n, n) to (...).

    Guarantee: never below it. Up to n = 384 by LAPACK's eigenvalues, which are backward stable: a computed one differs
    from the true by at most p u ||G||, p a modest polynomial of the size (LAPACK Users' Guide, 4.7); the result is
    raised by 1e-10 (1 + n / 100), over a thousand times that. Beyond, the Lanczos method gives a trial value mu, and a proof
    follows: if the Cholesky factorisation of M = mu I - G succeeds in floating point, M + D is positive definite for some
    ||D|| <= c trace(M), c = (n + 1) u / (1 - (n + 1) u) (Higham, Accuracy and Stability, theorem 10.3, with
    ||R^T|| ||R|| <= ||R||_F^2), so mu + c trace(M) is a bound. A trial that fails is raised, first by 0.02%.
    """
    gram, infinite = _finite(gram)
    n = gram.shape[-1]
    if n <= EXACT_SIDE:
        slack = 1 + 1e-10 * (1 + n / 100)
        largest = torch.linalg.eigvalsh(gram.cpu())[..., -1].clamp(min=0).to(gram.device) * slack
    else:
        largest = torch.stack([_prove(g) for g in gram.reshape(-1, n, n)]).reshape(gram.shape[:-2])
    return _or_infinite(largest, infinite)


def _prove(gram: torch.Tensor) -> torch.Tensor:
    n = len(gram)
    if not gram.any():
        return gram.new_zeros(())
    trial, step = _ritz(gram) * (1 + 2e-4), 2e-4
    trace, eye = gram.diagonal().sum(), torch.eye(n, dtype=gram.dtype, device=gram.device)
    while int(torch.linalg.cholesky_ex(trial * eye - gram).info):
        trial, step = trial * (1 + step), 2 * step  # ends: the eigenvalue is at most n times what the start reaches
    return trial + 2 * (n + 1) * UNIT * (n * trial + trace)


def _ritz(gram: torch.Tensor, steps: int = 32) -> torch.Tensor:
    """Return the largest Ritz value after some Lanczos steps: a lower bound of the largest eigenvalue, usually to 1e-3."""
    start = gram @ torch.randn(len(gram), dtype=gram.dtype, generator=torch.Generator().manual_seed(0)).to(gram.device)
    basis, images = gram.new_zeros(steps, len(gram)), gram.new_zeros(steps, len(gram))
    for k in range(steps):
        size = torch.linalg.vector_norm(start)
        if size <= 1e-10 * gram.diagonal().sum():  # the Krylov space is exhausted
            break
        basis[k] = start / size
        images[k] = start = gram @ basis[k]
        for _ in range(2):  # once more for orthogonality
            start = start - basis[: k + 1].mT @ (basis[: k + 1] @ start)
    return torch.linalg.eigvalsh(basis @ images.mT)[-1].clamp(min=1e-300)
