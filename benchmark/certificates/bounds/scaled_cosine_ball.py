"""Scaled cosine attention over a ball of inputs: what bounds its derivative and its second derivative there.

Notation of scaled_cosine_norm.py; nominal values have a 0. D is the input's change, ||D||_F <= delta, and dq_i, dk_j, dv_j
are the changes of the rows *before* n, so that ||dQ_h||_F <= e_q = delta ||W_Q,h||, and e_k, e_v likewise.

Rows. Over the ball |y| >= (|y0| - e)+, so s >= sqrt((|y0| - e)+^2 + eps), and there ||Dn|| <= a = 1/s and
||D^2 n|| <= b = 2 / (sqrt 3 s^2) (LayerNormBound's docstring with d = 1). A row moves by at most min(a e, 2), and
|n| <= theta = n(|y0| + e).

Weights. Scores move by tau (<q - q0, k> + <q0, k - k0>), at most B_ij = tau (theta^k_j a_i |dq_i| + theta^q_i a_j |dk_j|):
for i != j tokens share the budget, and the two parts add as squares; also at most 2 tau. Hence
P_ij <= p_ij = P0_ij e^B_ij / (P0_ij e^B_ij + sum_(l != j) P0_il e^-B_il); and p_ij <= r_i P0_ij, r_i = max_j p_ij / P0_ij.

Spreads. Kappa_i^2 bounds the variance of <b, k_j> under row i for all unit b, by moments about the nominal mean m0_i:
Kappa_i <= sqrt(min(r_i ||C0_i||, sum_j p_ij |k0_j - m0_i|^2)) + e_k max_j sqrt(p_ij) a_j and <= 1, C0 the keys' nominal
covariance; the last part is (E|k - k0|^2)^(1/2). Nu_i likewise for values.

First derivative. With alpha_i = a_i |dq_i|, beta_i^2 = sum_j p_ij (a_j |dk_j|)^2, gamma_i^2 = sum_j p_ij (a_j |dv_j|)^2 and
S' the scores' derivative, sqrt(Var S'_i) <= tau (Kappa_i alpha_i + theta_i beta_i), row i's is E v' + Cov(S', v), at most
gamma_i + tau Nu_i (Kappa_i alpha_i + theta_i beta_i). Over all rows, term by term:
  first_q = tau max_i Nu_i Kappa_i a_i,  first_k = tau max_j a_j (sum_i (Nu_i theta_i)^2 p_ij)^(1/2),
  first_v = max_j a_j (sum_i p_ij)^(1/2).

Second derivative along a line. Row i's is E v'' + 2 Cov(S', v') + Cov(S'', v) + E (S' - E S')^2 (v - m), where
S''_ij = tau (<q'', k_j> + 2 <q', k'_j> + <q, k''_j>). With |v_j - m_i| <= u_ij = |v0_j - m0_i| + (the moves of both) <= 2
and U_i = max_j u_ij its norm is at most, i left out,
  sum_j p_j b_j |dv_j|^2  +  2 tau (Kappa alpha + theta beta) gamma  +  U tau^2 (Kappa alpha + theta beta)^2
  +  tau (Kappa Nu b |dq|^2 + 2 Nu alpha beta + theta sum_j p_j u_j b_j |dk_j|^2).
Over all rows, term by term, by ||(sum_j f_ij z_j)_i|| <= max_j ||f_.j|| sum z (it is convex in z >= 0), by
alpha_i beta_i <= a_i |dq_i| max_j (sqrt(p_ij) a_j) ||dK||, and by beta gamma <= (t beta^2 + gamma^2 / t) / 2, the best t:
  qq = max_i (tau Kappa Nu b + U tau^2 Kappa^2 a^2),          vv = max_j b_j ||p_.j||,
  kk = max_j (tau b_j ||(theta p u)_.j|| + tau^2 a_j^2 ||(U theta^2 p)_.j||),
  qv = 2 tau max_i Kappa_i a_i max_j sqrt(p_ij) a_j,
  qk = 2 tau max_i (Nu_i + U_i tau Kappa_i theta_i) a_i max_j sqrt(p_ij) a_j,
  kv = 2 tau (max_j a_j^2 ||(theta p)_.j|| max_j a_j^2 ||(theta p)_.j||)^(1/2), a of keys and of values,
each times the norms of the two changes that name it, dQ_h, dK_h or dV_h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from benchmark.certificates.bounds.layer_bound import UP
from benchmark.certificates.bounds.spectral import psd_norm_upper

CURVATURE = 2 / math.sqrt(3) * UP


@dataclass(frozen=True)
class Rows:
    """n over the ball, for the rows of Q, K or V: each (n, heads, tokens) but `whole`."""

    slope: torch.Tensor  # a
    curvature: torch.Tensor  # b
    move: torch.Tensor  # min(a e, 2)
    length: torch.Tensor  # theta
    whole: torch.Tensor  # e: (n, heads, 1)


def rows_over_ball(lengths: torch.Tensor, eps: float, e: torch.Tensor) -> Rows:
    """
    Args:
        lengths: |y0|, (n, heads, tokens).
        e: (n, heads, 1).
    """
    least = (lengths * (1 - 1e-12) - e).clamp(min=0)
    slope = UP / (least**2 + eps).sqrt()
    far = lengths * UP + e
    length = torch.nan_to_num(far / (far**2 + eps).sqrt(), nan=1.0) * UP
    move = torch.nan_to_num(slope * e, nan=2.0).clamp(max=2)
    return Rows(slope, CURVATURE * slope**2, move, length.clamp(max=1), e)


@dataclass(frozen=True)
class Nominal:
    """One layer's heads at the nominal inputs; |tau| in place of tau."""

    lengths: tuple[torch.Tensor, ...]  # |y0| of queries, keys, values: (n, heads, tokens)
    p: torch.Tensor  # (n, heads, tokens, tokens)
    apart: tuple[torch.Tensor, ...]  # |k0_j - m0_i| and |v0_j - m0_i|: (n, heads, tokens, tokens)
    covariance: tuple[torch.Tensor, ...]  # ||C0_i|| of keys and of values: (n, heads, tokens)
    tau: float
    eps: float
    slack: float  # what float64 may have done to p, relatively


def nominal(
    rows: tuple[torch.Tensor, ...], lengths: tuple[torch.Tensor, ...], p: torch.Tensor, tau: float, eps: float
) -> Nominal:
    """
    Args:
        rows: Q^, K^ and V^, each (n, heads, tokens, width / heads); lengths: |y0| of each.
        p: (n, heads, tokens, tokens).
    """
    apart, covariance = [], []
    for z in rows[1:]:
        mean = p @ z
        parted = torch.linalg.vector_norm(z[:, :, None] - mean[:, :, :, None], dim=-1)
        apart.append(parted * UP + 1e-13 * (1 + tau))
        products = (z[..., :, None] * z[..., None, :]).flatten(3)  # (n, heads, tokens, inner^2)
        second = (p @ products).unflatten(3, (z.shape[-1],) * 2) - mean[..., :, None] * mean[..., None, :]
        covariance.append(psd_norm_upper((second + second.mT) / 2) + 1e-12)  # entries are below 1
    slack = math.exp(1e-12 * (1 + tau)) * (1 + 1e-9)
    return Nominal(lengths, p, tuple(apart), tuple(covariance), tau, eps, slack)


class Ball:
    """The coefficients of the module's docstring over a ball around each nominal input, per head: (n, heads) each."""

    def __init__(self, at: Nominal, e: list[torch.Tensor]) -> None:
        """
        Args:
            e: e_q, e_k and e_v, each (n, heads).
        """
        self.tau = at.tau
        self.q, self.k, self.v = (
            rows_over_ball(lengths, at.eps, whole[..., None]) for lengths, whole in zip(at.lengths, e, strict=True)
        )
        p, ratio = self._weights(at)
        self.p = p
        root = p.sqrt()
        self.reach_k = (root * self.k.slope[..., None, :]).amax(-1)  # max_j sqrt(p_ij) a_j
        self.reach_v = (root * self.v.slope[..., None, :]).amax(-1)
        self.kappa = self._spread(at.apart[0], at.covariance[0], ratio, self.k.whole * self.reach_k)
        self.nu = self._spread(at.apart[1], at.covariance[1], ratio, self.v.whole * self.reach_v)
        scores = self.tau * (self.kappa * self.q.slope * self.q.whole + self.q.length * self.k.whole * self.reach_k)
        drift = torch.nan_to_num(self.v.whole * self.reach_v + scores * self.nu, nan=2.0)  # of the mean m_i
        self.u = (at.apart[1] + self.v.move[..., None, :] + drift[..., None]).clamp(max=2)

    def _weights(self, at: Nominal) -> tuple[torch.Tensor, torch.Tensor]:
        """p (n, heads, tokens, tokens), and r (n, heads, tokens)."""
        left = (self.q.slope * self.q.whole)[..., :, None] * self.k.length[..., None, :]
        right = self.q.length[..., :, None] * (self.k.slope * self.k.whole)[..., None, :]
        capped = self.q.move[..., :, None] * self.k.length[..., None, :]
        capped = capped + self.q.length[..., :, None] * self.k.move[..., None, :]
        same = torch.eye(left.shape[-1], dtype=torch.bool, device=left.device)
        shared = torch.where(same, left + right, (left**2 + right**2).sqrt())
        shift = at.tau * torch.minimum(torch.nan_to_num(shared, nan=2.0), capped).clamp(max=2) * UP
        p0 = (at.p * at.slack).clamp(max=1.0) + 1e-300
        low = at.p / at.slack * torch.exp(-shift)
        others = (low.sum(-1, keepdim=True) * (1 - 1e-9) - low).clamp(min=0)
        grown = torch.exp(shift)
        ratio = torch.nan_to_num(grown / (p0 * grown + others), nan=math.inf) * (1 + 1e-9)
        weights = torch.nan_to_num(p0 * ratio, nan=1.0, posinf=1.0).clamp(max=1.0)
        return weights, ratio.amax(-1) * at.slack

    def _spread(
        self, apart: torch.Tensor, covariance: torch.Tensor, ratio: torch.Tensor, moved: torch.Tensor
    ) -> torch.Tensor:
        """Kappa or Nu: (n, heads, tokens)."""
        about = torch.minimum(ratio * covariance * (1 + 1e-9), (self.p * apart**2).sum(-1)).sqrt()
        return torch.nan_to_num(about + moved, nan=1.0).clamp(max=1)

    def first(self) -> list[torch.Tensor]:
        """first_q, first_k and first_v, of a derivative's norm: per ||dQ_h||, ||dK_h|| and ||dV_h||."""
        weighted = ((self.nu * self.q.length)[..., None] ** 2 * self.p).sum(-2).sqrt()
        q = self.tau * (self.nu * self.kappa * self.q.slope).amax(-1)
        k = self.tau * (self.k.slope * weighted).amax(-1)
        v = (self.v.slope * self.p.sum(-2).sqrt()).amax(-1)
        return [part * UP for part in (q, k, v)]

    def second(self) -> dict[tuple[int, int], torch.Tensor]:
        """qq, kk, vv, qk, qv and kv, by the places of their letters in "qkv"."""
        tau, kappa, nu, theta = self.tau, self.kappa, self.nu, self.q.length
        widest = self.u.amax(-1)

        def column(rows: torch.Tensor) -> torch.Tensor:
            return torch.linalg.vector_norm(rows, dim=-2)

        shared = column(theta[..., None] * self.p)
        bent = self.k.curvature * column(theta[..., None] * self.p * self.u)
        turned = self.k.slope**2 * column((widest * theta**2)[..., None] * self.p)
        both = nu + widest * tau * kappa * theta
        parts = {
            (0, 0): (tau * kappa * nu * self.q.curvature + widest * (tau * kappa * self.q.slope) ** 2).amax(-1),
            (1, 1): (tau * bent + tau**2 * turned).amax(-1),
            (2, 2): (self.v.curvature * column(self.p)).amax(-1),
            (0, 1): 2 * tau * (both * self.q.slope * self.reach_k).amax(-1),
            (0, 2): 2 * tau * (kappa * self.q.slope * self.reach_v).amax(-1),
            (1, 2): 2 * tau * ((self.k.slope**2 * shared).amax(-1) * (self.v.slope**2 * shared).amax(-1)).sqrt(),
        }
        return {name: part * (1 + 1e-9) for name, part in parts.items()}
