"""Upper bounds of spectral norms: proven, never a bare power iteration (that is a lower bound), always in float64.

Rounding: each bound is raised by a stated allowance that covers the float64 arithmetic which made it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

UNIT = 2.0**-53  # float64 unit roundoff
EXACT_SIDE = 384  # up to this smaller side a full decomposition is as quick as a proof
FORMED_SIDE = 8192

Product = Callable[[torch.Tensor], torch.Tensor]


def spectral_norm_upper(matrix: torch.Tensor) -> torch.Tensor:
    """An upper bound of the largest singular value of each matrix, within 0.1% of it (1e-9 when neither side is above 384).

    Guarantee: never below the true norm. Up to a smaller side of 384, by singular values: LAPACK's are backward stable,
    so a computed one differs from the true by at most p u ||A|| with p a modest polynomial of the size (LAPACK Users'
    Guide, 4.9); the result is raised by 1e-10 (1 + side / 100), over a thousand times that. Beyond, by `gram_proof`.

    Args:
        matrix: (..., m, n), any float type.

    Returns:
        (...) float64.

    Raises:
        ValueError: the matrix holds a value that is not finite, or is too large to be formed as a Gram matrix.
    """
    matrix = _checked(matrix)
    if 0 in matrix.shape[-2:]:
        return matrix.new_zeros(matrix.shape[:-2])
    if min(matrix.shape[-2:]) > FORMED_SIDE:
        raise ValueError(f"a smaller side of {min(matrix.shape[-2:])} is too large to form; use operator_norm_upper")
    if min(matrix.shape[-2:]) <= EXACT_SIDE:
        slack = 1 + 1e-10 * (1 + max(matrix.shape[-2:]) / 100)
        return torch.linalg.svdvals(matrix.cpu())[..., 0].to(matrix.device) * slack  # LAPACK, whatever the device
    return gram_proof(matrix)


def _checked(matrix: torch.Tensor) -> torch.Tensor:
    matrix = matrix.detach().double()
    if not torch.isfinite(matrix).all():
        raise ValueError("spectral norm of a matrix that is not finite (NaN or infinity)")
    return matrix


def gram_proof(matrix: torch.Tensor) -> torch.Tensor:
    """An upper bound within 0.1%, by power iteration for a trial value mu and then a proof of ||A||^2 <= mu.

    The proof: if the Cholesky factorisation of M = mu I - G succeeds in floating point, then M + D is positive definite
    for some ||D|| <= c trace(M), c = (n + 1) u / (1 - (n + 1) u) (Higham, Accuracy and Stability, theorem 10.3, with
    ||R^T|| ||R|| <= ||R||_F^2). The computed G differs from A^T A by at most c' ||A||_F^2, c' = m u / (1 - m u).
    Hence ||A||^2 <= mu + c trace(M) + c' ||A||_F^2, the value whose root is returned. A trial that fails is raised.
    """
    if matrix.shape[-2] < matrix.shape[-1]:
        matrix = matrix.mT
    shape = matrix.shape[:-2]
    matrix = matrix.reshape(-1, *matrix.shape[-2:])
    scale = matrix.abs().amax((-2, -1)).clamp(min=1e-300)
    return torch.stack([_prove(a / s) * s for a, s in zip(matrix, scale, strict=True)]).reshape(shape)


def _prove(a: torch.Tensor) -> torch.Tensor:
    m, n = a.shape
    gram = a.mT @ a
    if not gram.any():
        return gram.new_zeros(())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, dtype=a.dtype, generator=generator).to(a.device)
    for _ in range(30):
        x = gram @ torch.linalg.qr(x).Q
    trial = torch.linalg.vector_norm(x, dim=0).max() * (1 + 5e-4)
    trace, eye = gram.diagonal().sum(), torch.eye(n, dtype=a.dtype, device=a.device)
    while int(torch.linalg.cholesky_ex(trial * eye - gram).info):
        trial = trial * (1 + 5e-4)  # ends: ||A||^2 <= trace, which x, a start of full rank, cannot miss by 1e300
    cholesky = 2 * (n + 1) * UNIT * (n * trial + trace)
    product = 2 * m * UNIT * trace
    return ((trial + cholesky + product) * (1 + 1e-12)).sqrt()


def operator_norm_upper(
    matvec: Product,
    rmatvec: Product,
    columns: int,
    *,
    batch: tuple[int, ...] = (),
    failure: float = 1e-9,
    degree: int = 128,
    probes: int = 8,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """An upper bound of the norm of a linear operator given by products, within 0.1% up to 1e6 columns.

    Guarantee: with probability at least 1 - `failure` over the random probes, for each operator, not below the norm.

    Let M = A^T A with largest eigenvalue l and unit eigenvector v, and T the Chebyshev polynomial of `degree`. For a unit
    probe x, ||T(2 M / mu - 1) x|| >= |T(2 l / mu - 1)| |<x, v>|, whatever mu is. For x uniform on the sphere of R^N,
    P(|<x, v>| < s) <= s sqrt(2 N / pi); so with s = failure^(1/probes) sqrt(pi / (2 N)) all probes miss with probability
    at most `failure`, and otherwise T(2 l / mu - 1) <= R = max ||T(...) x|| / s, that is
    l <= mu (1 + cosh(arccosh(R) / degree)) / 2. mu comes from a power iteration, which affects tightness alone.

    Args:
        matvec: (*batch, probes, columns) to (*batch, probes, rows), float64, linear in the last axis.
        rmatvec: its adjoint.
        batch: shape of a batch of operators.

    Returns:
        (*batch) float64.
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*batch, probes, columns, dtype=torch.float64, generator=generator).to(device)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)

    def gram(y: torch.Tensor) -> torch.Tensor:
        return rmatvec(matvec(y))

    y = x
    size = torch.ones(*batch, probes, 1, dtype=torch.float64, device=device)
    for _ in range(24):
        y = gram(y)
        size = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        y = y / size.clamp(min=1e-300)
    mu = size.amax(-2, keepdim=True).clamp(min=1e-300) * (1 + 1e-3)
    before, now = x, 2 * gram(x) / mu - x
    for _ in range(degree - 1):
        before, now = now, 2 * (2 * gram(now) / mu - now) - before
    reach = failure ** (1 / probes) * math.sqrt(math.pi / (2 * columns))
    ratio = (torch.linalg.vector_norm(now, dim=-1).amax(-1) * (1 + 1e-9) / reach).clamp(min=1)
    eigenvalue = mu[..., 0, 0] * (1 + torch.cosh(torch.acosh(ratio) / degree)) / 2
    return eigenvalue.sqrt() * (1 + 1e-9)


def convolution_norm_upper(kernel: torch.Tensor, height: int, width: int, *, padding: str = "zeros") -> torch.Tensor:
    """An upper bound of the l2 norm of a 2-d convolution (stride 1 or more, dilation 1) on height x width images.

    Guarantee: never below the true norm; equal to it, but for rounding, with circular padding and stride 1.

    Circular: the Fourier transform makes the map block diagonal, one (out, in) matrix a frequency (Sedghi et al. 2019).
    Zeros: such a convolution is a circular one on a canvas larger by the kernel's size less one, between embedding the
    image and cropping the result, both of norm 1; so the canvas's norm bounds it. A stride only drops outputs.

    Args:
        kernel: (out, in, kernel height, kernel width).
        padding: "zeros" or "circular".

    Raises:
        ValueError: another padding, or a kernel larger than a circular image.
    """
    kernel = _checked(kernel)
    tall, wide = kernel.shape[-2:]
    if padding == "zeros":
        height, width = height + tall - 1, width + wide - 1
    elif padding != "circular":
        raise ValueError(f"padding {padding!r}: a bound is known for 'zeros' and 'circular'")
    if tall > height or wide > width:
        raise ValueError(f"a {tall}x{wide} kernel does not fit a circular {height}x{width} image")
    blocks = torch.fft.fft2(kernel, s=(height, width)).permute(2, 3, 0, 1)
    return torch.linalg.svdvals(blocks.cpu())[..., 0].max().to(kernel.device) * (1 + 1e-10)
