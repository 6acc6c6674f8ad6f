"""Sound bounds of one dot-product attention head's Jacobian, at a point and over a ball: what theorem 4.3 of Hu et al. 2024
(SpecFormer) states wrongly (`unsound_paper_formula.specformer_constant`).

F(X) = P X W_V, P = softmax(X A X^T) by rows, A = W_Q W_K^T / s, s = sqrt(d_head). X is (N, d); C = I - 11^T / N takes the
mean token off; r is the largest norm of a token, t of a row of C X, and R = min(r, t). Norms are spectral unless said.
  DF[D] = (P D + dP X) W_V,  (dP)_i = J_i dS_i,  J_i = diag(p_i) - p_i p_i^T,  dS = D A X^T + X A D^T.
  1. ||P D||_F <= ||P|| ||D||_F, and ||P|| <= sqrt(c) <= sqrt(N), c the largest column sum, as rows sum to 1.
  2. Rows of dP sum to 0, so dP X = dP C X; J_i 1 = 0, so only dS C counts; ||J_i|| <= 1/2. Hence
     ||dP X||_F <= ||dS C||_F ||C X|| / 2, dS C = D A (C X)^T + X A (C D)^T: at most ||A|| ||D||_F ||C X||^2 / 2 from the
     queries' part, and ||A|| ||D||_F ||X|| ||C X|| / 2 from the keys'.
  3. Or row by row, with m_i = sum_j p_ij x_j. The queries' part is Cov_i(x) A^T d_i, of norm at most R^2 ||A|| |d_i|: a
     variance is at most the mean square about any point, such as 0 or the mean token. The keys' part is
     sum_j p_ij (x_j - m_i) <A^T x_i, d_j>, at most R r ||A|| (sum_j p_ij |d_j|^2)^(1/2), over all rows R r ||A|| sqrt(c)
     ||D||_F.
So with q = min(||C X||^2 / 2, R^2) and k = min(||X|| ||C X|| / 2, R r sqrt(c)),
  ||DF(X)|| <= ||W_V|| (||P|| + ||A|| (q + k)).
Over a ball of radius e in the Frobenius norm, ||X||, ||C X||, r and t grow by e at most, while c <= N and ||P|| <= sqrt(N).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from benchmark.certificates.bounds.layer_bound import UP
from benchmark.certificates.bounds.spectral import UNIT, product_norm_upper, spectral_norm_upper


@dataclass(frozen=True)
class _Sizes:
    """||X||, ||C X||, r and t of each X: (batch,)."""

    whole: torch.Tensor
    centred: torch.Tensor
    longest: torch.Tensor
    apart: torch.Tensor

    def grown(self, radius: torch.Tensor) -> _Sizes:
        return _Sizes(*(part + radius for part in (self.whole, self.centred, self.longest, self.apart)))

    def score_part(self, columns: torch.Tensor) -> torch.Tensor:
        """q + k for column sums up to `columns`."""
        least = torch.minimum(self.longest, self.apart)
        queries = torch.minimum(self.centred**2 / 2, least**2)
        keys = torch.minimum(self.whole * self.centred / 2, least * self.longest * columns.sqrt())
        return (queries + keys) * UP


def point_norm_upper(x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    """An upper bound of ||DF(X)||, F one attention head as in the module's docstring.

    Guarantee: never below the norm. Attained where all tokens are equal: then C X = 0 and ||DF|| = ||P|| ||W_V|| at A = 0.

    Args:
        x: (batch, tokens, d).
        w_q, w_k, w_v: (d, d_head), acting on rows.

    Returns:
        (batch,) float64.

    Raises:
        ValueError: shapes that do not fit, or a value that is not finite.
    """
    x, w_q, w_k, w_v = _checked(x, w_q, w_k, w_v)
    tokens, scale = x.shape[1], math.sqrt(w_q.shape[1])
    p = ((x @ w_q) @ (x @ w_k).mT / scale).softmax(-1)
    sizes = _sizes(x)
    # float64's error of a score, both products counted by their largest terms, and what it makes of a weight
    terms = sizes.longest**2 * torch.linalg.matrix_norm(w_q) * torch.linalg.matrix_norm(w_k) / scale
    loose = torch.exp((8 * (x.shape[2] + w_q.shape[1] + 4) * UNIT * terms).clamp(max=700)) * (1 + 1e-9)
    columns = (p.sum(-2).amax(-1) * loose).clamp(max=tokens * UP)
    mixing = torch.minimum(spectral_norm_upper(p) * loose, columns.sqrt() * UP)
    return _combined(w_q, w_k, w_v, mixing, sizes.score_part(columns))


def ball_norm_upper(
    x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, radius: float | torch.Tensor
) -> torch.Tensor:
    """An upper bound of the Lipschitz constant of F on the ball ||X' - X||_F <= radius, the sup of ||DF|| there.

    Guarantee: never below it.

    Args:
        x, w_q, w_k, w_v: as in `point_norm_upper`.
        radius: one number or (batch,), l2 in token space.

    Returns:
        (batch,) float64.

    Raises:
        ValueError: as `point_norm_upper`, or a radius that is negative or not finite.
    """
    x, w_q, w_k, w_v = _checked(x, w_q, w_k, w_v)
    radii = torch.as_tensor(radius, dtype=torch.float64, device=x.device).expand(len(x))
    if not (torch.isfinite(radii).all() and (radii >= 0).all()):
        raise ValueError("a radius is negative or not finite")
    columns = torch.full_like(radii, x.shape[1])
    return _combined(w_q, w_k, w_v, columns.sqrt(), _sizes(x).grown(radii).score_part(columns))


def _combined(
    w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, mixing: torch.Tensor, score_part: torch.Tensor
) -> torch.Tensor:
    scores = product_norm_upper(w_q, w_k.mT) / math.sqrt(w_q.shape[1])
    return spectral_norm_upper(w_v) * (mixing + scores * score_part) * UP


def _sizes(x: torch.Tensor) -> _Sizes:
    centred = x - x.mean(1, keepdim=True)
    longest = torch.linalg.vector_norm(x, dim=2).amax(1) * UP
    lost = 4 * x.shape[1] * UNIT * longest  # of a mean's entries, as a token's norm
    apart = torch.linalg.vector_norm(centred, dim=2).amax(1) * UP + lost
    off = math.sqrt(x.shape[1]) * lost
    return _Sizes(spectral_norm_upper(x), spectral_norm_upper(centred) + off, longest, apart)


def _checked(
    x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x, w_q, w_k, w_v = (t.detach().double() for t in (x, w_q, w_k, w_v))
    if x.ndim != 3 or 0 in x.shape[1:] or not (w_q.shape == w_k.shape and len(w_v) == len(w_q) == x.shape[2]):
        raise ValueError(f"shapes of x, w_q, w_k, w_v do not fit: {[tuple(t.shape) for t in (x, w_q, w_k, w_v)]}")
    if not all(torch.isfinite(t).all() for t in (x, w_q, w_k, w_v)):
        raise ValueError("an input or weight is not finite (NaN or infinity)")
    return x, w_q, w_k, w_v
