"""Local sensitivity of multi-head dot-product attention around one input, after Havens et al. 2024 and tighter.

F(X) = H X + sum_l P_l(X) X A_l, P_l = softmax(S_l / s) by rows, S_l = X B_l X^T + 1 (X c_l)^T, A_l = V_l O_l = W_V W_O,
B_l = W_Q W_K^T, c_l = W_K b_Q, s = sqrt(d_head), H = I (residual) or 0. Key biases shift whole rows of S, which softmax
ignores; value and output biases add constants. For X' = X + G with ||G||_F <= e the scores change by
dS = (T(G) + G B G^T) / s with T(G) = G B X^T + X B G^T + 1 (G c)^T. All bounds below are sums of two parts.

Part one, linear in e, either way an exact norm:
  Z. zeta = ||H (x) I + sum P_l (x) A_l^T||, leaving (P' - P) X' A, or
  D. ||DF(X)||, the whole Jacobian, leaving what DF misses.

Part two, per head. Write C = I - 11^T/n; J_i = diag(p_i) - p_i p_i^T = K_i^T K_i with K_i = (I - q q^T) diag(q),
q = sqrt(p_i) (I - q q^T is a projection); tau = (||T(.) C|| e + ||B|| e^2)/s, so ||dS C||_F <= tau;
tau_J = (||row-wise K_i T|| e + max ||K_i|| ||B|| e^2)/s, so ||(K_i dS_i)_i||_F <= tau_J. Two facts about P' - P:
  global. Softmax is 1/2-Lipschitz: ||P' - P||_F <= tau / 2; and P' - P = J dS + r with ||r||_F <= sqrt(6)/18 tau^2
          (sqrt(6)/9 is the supremum of its second derivative, the largest third central moment). Rows of both sum to 0.
  local.  Self-concordance: along the segment J_i(t) <= e^(t w_i) J_i, w_i bounding the spread of row i's score changes,
          so (P' - P)_i = K_i^T (I + E) K_i dS_i, ||I + E|| <= kappa(w_i) = (e^w - 1)/w, ||E|| <= eta(w_i) = kappa - 1.
Hence, taking the lesser of global and local wherever both bound the same thing,
  move   = ||(P' - P) X A||  <= min(tau/2 ||C X A||,             tau_J max_i kappa_i ||K_i X A||)
  bend   = ||(P' - P - J dS) X A|| <= min(sqrt(6)/18 tau^2 ||C X A||, tau_J max_i eta_i ||K_i X A||)
  cross  = ||(P' - P) G A||  <= e ||A|| min(tau/2,               tau_J max_i kappa_i ||K_i||)
  Z: move + cross.   D: max_i ||J_i X A|| ||B|| e^2 / s + bend + cross.
Heads are summed, or taken jointly: sum_l f_l(V_l) O_l has norm at most ||[O_1; ...; O_h]|| sqrt(sum_l f_l(V_l)^2), with V_l
in place of A_l. (METHODS' families 1 to 5 are these combinations; the per-head, per-term least is at most each of them.)

The published Theorem 1, with the right T of its appendix: zeta e + sum tau'(||X A|| + e ||A||), tau' without C and without
the 1/2. Its (12): the same with 1 + sum ||A|| ||P|| for zeta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from benchmark.certificates.bounds.attention_norms import (
    HeadConstants,
    LinearMaps,
    head_constants,
    score_norms,
    score_spread,
)
from benchmark.certificates.bounds.spectral import product_norm_upper, spectral_norm_upper

SOFTMAX_CURVATURE = math.sqrt(6) / 18 * (1 + 1e-12)
FAR = 60.0  # beyond this spread the local bounds are given up: e^w would amplify the rounding of J
METHODS = ("tight", "paper", "naive")


@dataclass(frozen=True)
class AttentionSensitivity:
    """What the bounds need of one attention layer at each nominal input, computed once for all radii."""

    linear: LinearMaps
    naive: torch.Tensor  # (batch,)
    b: torch.Tensor  # (heads,)
    outputs: torch.Tensor  # (), ||[O_1; ...; O_h]||
    m: torch.Tensor  # (batch, heads), ||T||
    m_centred: torch.Tensor  # (batch, heads)
    m_local: torch.Tensor  # (batch, heads)
    spread: torch.Tensor  # (batch, heads, tokens), the norm of row i's score spread, before 1/s
    k: torch.Tensor  # (batch, heads, tokens), ||K_i||
    summed: HeadConstants
    joint: HeadConstants
    scale: float

    def take(self, rows: torch.Tensor) -> AttentionSensitivity:
        """Of the examples `rows`."""
        parts = {name: getattr(self, name)[rows] for name in ("naive", "m", "m_centred", "m_local", "spread", "k")}
        nested = {name: getattr(self, name).take(rows) for name in ("linear", "summed", "joint")}
        return replace(self, **parts, **nested)

    def bound(self, radius: torch.Tensor, method: str = "tight") -> torch.Tensor:
        """sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius is at most this: (batch,) to (batch,), monotone.

        Args:
            radius: l2 in token space.
            method: "tight" (the module's least), "paper" (Theorem 1, right T) or "naive" (eq. 12).
        """
        if method not in METHODS:
            raise ValueError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
        if not (torch.isfinite(radius).all() and (radius >= 0).all()):
            raise ValueError("a radius is negative or not finite")
        if method != "tight":
            e = radius[:, None]
            rest = (self.m * e + self.b * e**2) / self.scale * (self.summed.x + e * self.summed.a)
            return (self.naive if method == "naive" else self.linear.zeta) * radius + rest.sum(1)
        first = torch.stack([self.linear.zeta * radius, self.linear.jacobian * radius])
        return (first + self._least(radius)).amin(0) * (1 + 1e-12)

    def remainder(self, radius: torch.Tensor) -> torch.Tensor:
        """||F(X + G) - F(X) - DF(X) G|| is at most this for ||G||_F <= radius: (batch,) to (batch,)."""
        return self._least(radius)[1] * (1 + 1e-12)

    def _least(self, radius: torch.Tensor) -> torch.Tensor:
        """Part two after Z and after D, heads summed or joint, whichever is less: (2, batch)."""
        summed, joint = self._remainders(self.summed, radius), self._remainders(self.joint, radius)
        return torch.minimum(summed.sum(-1), self.outputs * torch.linalg.vector_norm(joint, dim=-1))

    def _remainders(self, head: HeadConstants, radius: torch.Tensor) -> torch.Tensor:
        """Part two after Z and after D, per head: (2, batch, heads)."""
        e = radius[:, None]
        tau = (self.m_centred * e + self.b * e**2) / self.scale
        tau_local = (self.m_local * e + self.k.amax(-1) * self.b * e**2) / self.scale
        # 1.2072 >= (1 + sqrt 2) / 2: the spread of the quadratic part of one row
        w = (self.spread * e[..., None] + 1.2072 * (self.b * e**2)[..., None]) / self.scale
        kappa = torch.where(w < 1e-8, 1 + w, torch.expm1(w) / w.clamp(min=1e-300))
        eta = torch.where(w < 1e-3, w / 2 * (1 + w / 2), kappa - 1)
        kappa, eta = (torch.where(w > FAR, math.inf, factor * (1 + 1e-12)) for factor in (kappa, eta))

        def local(factor: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
            product = tau_local * (factor * norms).amax(-1)
            return torch.where(torch.isnan(product), math.inf, product)  # 0 times infinity

        move = torch.minimum(tau / 2 * head.v, local(kappa, head.k))
        bend = torch.minimum(SOFTMAX_CURVATURE * tau**2 * head.v, local(eta, head.k))
        cross = e * head.a * torch.minimum(tau / 2, local(kappa, self.k))
        return torch.stack([move + cross, head.g * self.b * e**2 / self.scale + bend + cross])


def attention_sensitivity(
    x: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    w_o: torch.Tensor,
    *,
    residual: bool = True,
    query_bias: torch.Tensor | None = None,
    exact_zeta: bool = True,
) -> AttentionSensitivity:
    """The constants of the bounds of sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius, per example.

    Args:
        x: (batch, tokens, d) nominal inputs, tokens * d <= 8192.
        w_q, w_k, w_v: (heads, d, d_head), acting on rows: queries are x @ w_q (+ query_bias).
        w_o: (heads, d_head, d).
        query_bias: (heads, d_head). Biases of keys, values and outputs do not matter.
        exact_zeta: else it is bounded by 1 + ||W_O|| max ||P_l|| ||W_V||, which part one Z alone feels.

    Raises:
        ValueError: shapes that do not fit, or a value that is not finite.
    """
    x, w_q, w_k, w_v, w_o = (t.detach().double() for t in (x, w_q, w_k, w_v, w_o))
    _check(x, w_q, w_k, w_v, w_o)
    n, scale = x.shape[1], math.sqrt(w_q.shape[2])
    B, A = w_q @ w_k.mT, w_v @ w_o
    c = torch.zeros_like(w_q[..., 0]) if query_bias is None else (w_k @ query_bias.detach().double()[..., None])[..., 0]
    right = torch.einsum("hkd,bjd->bhjk", B, x)  # r_j = B x_j
    left = torch.einsum("hkd,bik->bhid", B, x) + c[:, None]  # l_i = B^T x_i + c; T_ij = <G, e_i r_j^T + e_j l_i^T>
    P = torch.softmax(
        (torch.einsum("bic,bhjc->bhij", x, right) + torch.einsum("bjc,hc->bhj", x, c)[:, :, None]) / scale, -1
    )
    q = P.sqrt()
    K = torch.diag_embed(q) - q[..., None] * P[..., None, :]  # (I - q q^T) diag(q), row i's in [..., i, :, :]
    floor = 1e-15 * n  # what rounding may have lost of J = K^T K
    m, m_centred, m_local = score_norms(right, left, P, K, floor)
    norms, outputs = spectral_norm_upper(P), spectral_norm_upper(w_o.flatten(0, 1))
    loose = residual + outputs * spectral_norm_upper(w_v.transpose(0, 1).flatten(1)) * norms.amax(1)
    linear = LinearMaps(x, P, A, right, left, scale, residual, None if exact_zeta else loose * (1 + 1e-12))
    summed = head_constants(x, A, product_norm_upper(w_v, w_o), P, K, floor)
    joint = head_constants(x, w_v, spectral_norm_upper(w_v), P, K, floor)
    return AttentionSensitivity(
        linear=linear,
        naive=residual + (summed.a * norms).sum(1),
        b=product_norm_upper(w_q, w_k.mT),
        outputs=outputs,
        m=m,
        m_centred=m_centred,
        m_local=m_local,
        spread=score_spread(right, left),
        k=(spectral_norm_upper(K) ** 2 + floor).sqrt(),
        summed=summed,
        joint=joint,
        scale=scale,
    )


def _check(x: torch.Tensor, w_q: torch.Tensor, w_k: torch.Tensor, w_v: torch.Tensor, w_o: torch.Tensor) -> None:
    heads, d, inner = w_q.shape
    fits = x.ndim == 3 and x.shape[2] == d and w_k.shape == w_q.shape and w_v.shape[:2] == (heads, d)
    if not fits or w_o.shape != (heads, w_v.shape[2], d) or not inner:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, w_q, w_k, w_v, w_o))
        raise ValueError(f"shapes of x, w_q, w_k, w_v, w_o do not fit: {shapes}")
    if not all(torch.isfinite(t).all() for t in (x, w_q, w_k, w_v, w_o)):
        raise ValueError("an input or weight is not finite (NaN or infinity)")
