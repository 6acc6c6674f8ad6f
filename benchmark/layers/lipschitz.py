"""Layers whose Lipschitz constant holds by construction, in real arithmetic, and differentiably.

Weights are derived from parameters in float64 and rounded once, so a certificate need not cover the rounding of long sums
inside them. Only `OrthogonalLinear` keeps its weight in float64. Machines then derive weights from one raw matrix that
differ by about 1e-13 if it is well conditioned, and by more if its rows are nearly dependent (measured: 1e-6).
certificates/bounds/orthogonal.py bounds the difference.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.derived import DerivedLinear, DerivedWeight
from benchmark.layers.kinds import BIAS, at_least, checked, known, linear_constant, positive, side

SHIFT = 1e-9  # added to a Gram matrix's diagonal, relative to its mean


def almost_orthogonal(weight: torch.Tensor) -> torch.Tensor:
    """Rescale columns so that the spectral norm is at most 1 (Prach & Lampert 2022, theorem 1).

    For M (out, in): M D with D = diag(sum_j |M^T M|_ij)^(-1/2) satisfies (MD)^T(MD) <= I, by diagonal dominance. A
    column of zeros stays zero.
    """
    gram = (weight.mT @ weight).abs().sum(-1)
    return weight * torch.where(gram > 0, gram.clamp(min=1e-30).rsqrt(), 0.0)


@known(inputs=side("raw", 1), outputs=side("raw", 0), norm=positive, bias=BIAS, constant=linear_constant)
class BoundedLinear(DerivedLinear):
    """x W^T + b with the spectral norm of W at most `norm`: (..., in) to (..., out)."""

    def __init__(self, inputs: int, outputs: int, *, norm: float = 1.0, bias: bool = True) -> None:
        super().__init__()
        self.norm = checked("norm", positive, norm)
        self.raw = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.orthogonal_(self.raw)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def derive(self) -> torch.Tensor:
        return (self.norm * almost_orthogonal(self.raw.double())).to(self.raw.dtype)


def orthonormal(weight: torch.Tensor) -> torch.Tensor:
    """Return L^-1 M with L L^T = M M^T + 1e-9 tr(M M^T) / out I, for M (out, in), out <= in.

    Rows are orthonormal up to the shift. The product of L^-1 M with its transpose is I minus a positive matrix, so the
    spectral norm is at most 1.
    """
    gram = weight @ weight.mT
    shift = SHIFT * gram.diagonal().mean() + 1e-300
    shifted = gram + shift * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(shifted)  # it does not wait for the device to report a failure
    factor = torch.where(failed == 0, factor, torch.nan)
    return torch.linalg.solve_triangular(factor, weight, upper=False)


@known(inputs=side("raw", 1), outputs=side("raw", 0), constant=linear_constant)
class OrthogonalLinear(DerivedLinear):
    """x W^T + b with orthonormal rows, or columns if outputs exceed inputs: (..., in) to (..., out). 1-Lipschitz.

    W keeps lengths in every direction outside its null space, so certified radii lose nothing to it; `almost_orthogonal`
    shrinks most directions of a wide matrix several times. In evaluation mode it computes in float64 and rounds once:
    otherwise the rounding of sums as long as a patch costs a fifth of a radius of 0.02.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.empty(outputs, inputs))
        nn.init.orthogonal_(self.raw)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def derive(self) -> torch.Tensor:
        raw = self.raw.double()
        return orthonormal(raw) if raw.shape[0] <= raw.shape[1] else orthonormal(raw.mT).mT

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        if self.training:
            return nn.functional.linear(x, weight.to(x.dtype), bias)
        return nn.functional.linear(x.double(), weight, bias.double()).to(x.dtype)


@known(width=side("weight", 0), hidden=side("weight", 1))
class SLLBlock(DerivedWeight):
    """x - 2 W T^-1 relu(W^T x + b), 1-Lipschitz (Araujo et al. 2023, theorem 3): (..., width) to the same.

    T = diag(sum_j |W^T W|_ij q_j / q_i) with q > 0 satisfies T >= W^T W by diagonal dominance. With u = W^T (x - y) the
    activations differ by S u, S = diag(s), slopes s in [0, 1] by the mean value theorem. So |h(x) - h(y)|^2 = |x - y|^2 -
    4 u^T S T^-1 u + 4 |W T^-1 S u|^2 <= |x - y|^2 - 4 sum (s - s^2) u^2 / T <= |x - y|^2.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, hidden))
        nn.init.orthogonal_(self.weight)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.log_q = nn.Parameter(torch.zeros(hidden))

    @property
    def scale(self) -> torch.Tensor:
        """Return the diagonal of T: (hidden,), positive."""
        return self.derived

    def derive(self) -> torch.Tensor:
        weight, log_q = self.weight.double(), self.log_q.double()
        gram = (weight.mT @ weight).abs()
        return (gram * torch.exp(log_q[None, :] - log_q[:, None])).sum(-1).clamp(min=1e-30).to(self.weight.dtype)

    def active(self, z: torch.Tensor) -> torch.Tensor:
        """Apply the activation, entry by entry."""
        return torch.relu(z)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = self.active(x @ self.weight + self.bias) / self.scale
        return x - 2 * active @ self.weight.mT


@known(width=side("weight", 0), hidden=side("weight", 1), bend=at_least(1e-6, "bend"))
class SmoothSLLBlock(SLLBlock):
    """An SLL block with a smooth ReLU: f(z) = (z + h)^2 / (4 h) for |z| < h, max(z, 0) elsewhere.

    f' rises from 0 at -h to 1 at h as (z + h) / (2 h) and is continuous: slopes lie in [0, 1] and f'' in [0, 1 / (2 h)].
    Still 1-Lipschitz, since SLL's proof needs slopes in [0, 1] alone.

    Args:
        bend: h, in units of the pre-activation, rounded to float32 so that every precision runs the same function.

    Raises:
        ValueError: `bend` is outside [1e-6, 1e6].
    """

    def __init__(self, width: int, hidden: int, *, bend: float) -> None:
        super().__init__(width, hidden)
        if not 1e-6 <= bend <= 1e6:
            raise ValueError(f"bend {bend} should be between 1e-6 and 1e6")
        self.bend = float(torch.tensor(bend, dtype=torch.float32, device="cpu"))

    def active(self, z: torch.Tensor) -> torch.Tensor:
        return torch.where(z.abs() < self.bend, (z + self.bend) ** 2 / (4 * self.bend), torch.relu(z))


@known(width=side("raw", 1), classes=side("raw", 0), constant=linear_constant)
class NormalisedHead(DerivedLinear):
    """A linear classifier with rows of norm 1: (n, width) to (n, classes)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.empty(classes, width))
        nn.init.orthogonal_(self.raw)
        self.bias = nn.Parameter(torch.zeros(classes))

    def derive(self) -> torch.Tensor:
        return nn.functional.normalize(self.raw.double(), dim=-1).to(self.raw.dtype)
