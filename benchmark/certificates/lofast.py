"""Local sensitivity of multi-head dot-product attention around one input, after Havens et al. 2024 and tighter.

F(X) = H X + sum_l P_l(X) X A_l, P_l = softmax(X B_l X^T / s) by rows, A_l = W_V,l W_O,l, B_l = W_Q,l W_K,l^T,
s = sqrt(d_head), H = I (residual) or 0. For X' = X + G with ||G||_F <= e the scores change by
dS = (T(G) + G B G^T) / s, T(G) = G B X^T + X B G^T. C = I - 11^T/n removes what softmax ignores, so with
tau = (||T(.) C|| e + ||B|| e^2) / s: ||dS C||_F <= tau and, softmax being 1/2-Lipschitz, ||P' - P||_F <= tau / 2.

Two upper bounds of ||F(X') - F(X)||_F, the least of which is returned:

1. *halved and centred*: F(X') - F(X) = [H G + sum P G A] + sum (P' - P)(C X A + G A), because (P' - P) 1 = 0. Hence
   zeta e + sum_l tau/2 (||C X A|| + e ||A||), zeta = ||H (x) I + sum P_l (x) A_l^T||.
2. *whole Jacobian, global remainder*: with J_i the softmax Jacobian of row i, P' - P = J dS + r and
   |r_i| <= sqrt(6)/18 |C dS_i|^2 (sqrt(6)/9 is the supremum of softmax's second derivative, the largest third central
   moment over unit directions). Collecting the part linear in G into DF(X):
   ||DF(X)|| e + sum_l [max_i ||J_i X A|| ||B|| e^2 / s + sqrt(6)/18 tau^2 ||C X A|| + tau e ||A|| / 2].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from benchmark.certificates.spectral import spectral_norm_upper

SOFTMAX_CURVATURE = math.sqrt(6) / 18 * (1 + 1e-12)


@dataclass(frozen=True)
class AttentionSensitivity:
    """What the bounds need of one attention layer at each nominal input, computed once for all radii.

    Shapes: (batch,) for zeta and jacobian; (heads,) for b and a; (batch, heads) for m, v and g. float64 upper bounds.
    """

    zeta: torch.Tensor
    jacobian: torch.Tensor
    b: torch.Tensor
    a: torch.Tensor
    m: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    scale: float

    def bound(self, radius: torch.Tensor) -> torch.Tensor:
        """sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius is at most this: (batch,) to (batch,), monotone."""
        e = radius[:, None]
        tau = (self.m * e + self.b * e**2) / self.scale
        halved = self.zeta * radius + (tau / 2 * (self.v + e * self.a)).sum(1)
        remainder = self.g * self.b * e**2 / self.scale + SOFTMAX_CURVATURE * tau**2 * self.v + tau * e * self.a / 2
        return torch.minimum(halved, self.jacobian * radius + remainder.sum(1))


def attention_sensitivity(
    x: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    w_o: torch.Tensor,
    *,
    residual: bool = True,
) -> AttentionSensitivity:
    """The constants of the bounds at each nominal input.

    Args:
        x: (batch, tokens, d) nominal inputs.
        w_q, w_k, w_v: (heads, d, d_head), acting on rows: queries are x @ w_q.
        w_o: (heads, d_head, d).
        residual: H = I, else H = 0.

    Raises:
        ValueError: shapes that do not fit, or a value that is not finite.
    """
    x, w_q, w_k, w_v, w_o = (t.detach().double() for t in (x, w_q, w_k, w_v, w_o))
    if x.ndim != 3 or w_q.shape != w_k.shape or w_q.shape[1] != x.shape[2] or w_o.shape[2] != x.shape[2]:
        raise ValueError(f"x {tuple(x.shape)} does not fit weights {tuple(w_q.shape)}, {tuple(w_o.shape)}")
    batch, n, d = x.shape
    scale = math.sqrt(w_q.shape[2])
    B, A = w_q @ w_k.mT, w_v @ w_o
    P = torch.softmax(torch.einsum("bic,hcd,bjd->bhij", x, B, x) / scale, dim=-1)
    XA = torch.einsum("bnc,hcd->bhnd", x, A)
    centred = XA - XA.mean(2, keepdim=True)
    T = _score_jacobian(x, B)  # b h i j a k
    JXA = P[..., None] * (XA[:, :, None] - (P @ XA)[:, :, :, None])  # b h i j c: rows p_j (xA_j - sum_m p_m xA_m)
    linear = torch.einsum("bhij,hkc->bicjk", P, A)
    if residual:
        linear = linear + torch.eye(n * d, dtype=x.dtype, device=x.device).reshape(n, d, n, d)
    total = linear + torch.einsum("bhijak,bhijc->bicak", T, JXA) / scale
    T_centred = T - T.mean(3, keepdim=True)
    return AttentionSensitivity(
        zeta=spectral_norm_upper(linear.reshape(batch, n * d, n * d)),
        jacobian=spectral_norm_upper(total.reshape(batch, n * d, n * d)),
        b=spectral_norm_upper(B),
        a=spectral_norm_upper(A),
        m=spectral_norm_upper(T_centred.flatten(4).flatten(2, 3)),
        v=spectral_norm_upper(centred),
        g=spectral_norm_upper(JXA).amax(2),
        scale=scale,
    )


def _score_jacobian(x: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """T(G)_ij = (G B X^T + X B G^T)_ij as a tensor (batch, heads, i, j, a, k) over G_ak."""
    n = x.shape[1]
    eye = torch.eye(n, dtype=x.dtype, device=x.device)
    right = torch.einsum("hkd,bjd->bhjk", B, x)  # (B X^T)_kj
    left = torch.einsum("bic,hck->bhik", x, B)  # (X B)_ik
    return torch.einsum("ia,bhjk->bhijak", eye, right) + torch.einsum("ja,bhik->bhijak", eye, left)
