"""Bounds of scaled cosine similarity attention (layers/scaled_cosine.py): its global constant, after Qi et al. 2023, and
those of its first and second derivative over a ball.

Global. Head h is nu P V^, P = softmax(tau Q^ K^^T) by rows, the rows of Q^, K^, V^ being n(y) = y / sqrt(|y|^2 + eps) of
those of X W_Q,h, X W_K,h, X W_V,h. N tokens; nu and tau stand for their absolute values, since a sign moves into Q^ or W_O.
  n. Dn(y) = (I - n n^T) / s, s = sqrt(|y|^2 + eps): eigenvalues 1/s across y and eps/s^3 <= 1/s along it. So n is
     1/sqrt(eps)-Lipschitz, and |n| < 1.
In a direction (dQ^, dK^, dV^), with m_i = sum_j P_ij v_j, row i of the derivative of P V^ is
  sum_j P_ij dv_j  +  tau C_i dq_i  +  tau sum_j P_ij (v_j - m_i) <q_i, dk_j>,   C_i = sum_j P_ij (v_j - m_i) k_j^T.
  v. The rows of P sum to 1. Scores lie in [-tau, tau], so P_ij <= 1 / (1 + (N - 1) e^(-2 tau)), and columns sum to at most
     c = N / (1 + (N - 1) e^(-2 tau)) <= N. So ||P|| <= sqrt(c), and the first term's norm is at most sqrt(c) ||dV^||_F.
  q. <a, C_i b> is the covariance of <a, v> and <b, k> under row i, at most the root of E<a, v>^2 E<b, k>^2 <= 1 for unit a
     and b. Rows are independent: at most tau ||dQ^||_F.
  k. Along a unit a, the third term is at most tau (E<a, v - m_i>^2 E<q_i, dk_j>^2)^(1/2) <= tau (sum_j P_ij |dk_j|^2)^(1/2).
     Over all rows at most tau sqrt(c) ||dK^||_F.
With one token P = 1, and q and k vanish. Through n, ||dQ^||_F <= eps^(-1/2) ||dX W_Q,h||_F, and so on. So a head has
  L_h = nu eps^(-1/2) (sqrt(c) ||W_V,h|| + tau ||W_Q,h|| + tau sqrt(c) ||W_K,h||),
and the layer, whose heads' outputs stand side by side before W_O, ||W_O|| sqrt(sum_h L_h^2).

(42) of Hu et al. 2024, 2 N nu eps^(-1/2) (||W_V|| + tau (N - 1) ||W_K|| + tau (1 - 1/N) ||W_Q||), is for one head without
W_O. It is sound: each of its terms is at least that of L_h for N >= 2, and for N = 1 two of ours vanish.

Over a ball. Nominal values have a 0. D is the input's change, ||D||_F <= delta, and dq_i, dk_j, dv_j
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
from functools import cached_property

import torch

from benchmark.layers.scaled_cosine import ScaledCosineAttention

from .layer_bound import UP, LayerBound, PerturbationSet, jacobian_norms, layer_bound, needs_axes, unbiased, within
from .rounding import EXPONENTIAL, LARGEST, UNIT32, Rounding, gamma, in_room, linear_rounding, size
from .spectral import psd_norm_upper, spectral_norm_upper

LEAST_EPS = 0.99e-12  # float32's 1e-12; underflowing squares, 1e-45 each, are nothing beside it
FORMED = 1024  # up to this many entries the Jacobian is formed for its norm
CURVATURE = 2 / math.sqrt(3) * UP


def column_sum(tokens: int, tau: float) -> float:
    """Return c of the module's docstring, the largest sum of a column of softmax weights for scores within +-|tau|."""
    return tokens / (1 + (tokens - 1) * math.exp(-2 * abs(tau))) * UP


def scaled_cosine_norm_upper(layer: ScaledCosineAttention, tokens: int) -> float:
    """Return an upper bound of the l2 Lipschitz constant of `layer` on `tokens` tokens, over all inputs.

    Guarantee: never below the true constant, in real arithmetic. With L_h of the module's docstring the least of
      a. ||W_O|| sqrt(sum_h L_h^2);
      b. sum_h L_h ||W_O,h||;
      c. ||W_O|| nu eps^(-1/2) (sqrt(c) ||W_V|| + tau ||W_Q|| + tau sqrt(c) ||W_K||), all heads' columns side by side: term by
         term, sum_h ||dX W_Q,h||_F^2 = ||dX W_Q||_F^2.

    Raises:
        TypeError: `layer` is not exactly a ScaledCosineAttention.
        ValueError: no token.
    """
    if type(layer) is not ScaledCosineAttention:
        raise TypeError(f"{type(layer).__name__} is no ScaledCosineAttention; a bound is known for that layer alone")
    if tokens < 1:
        raise ValueError(f"{tokens} tokens; at least one is needed")
    nu, tau = abs(float(layer.nu.detach())), abs(float(layer.tau.detach()))
    query, key, value, output = (weight.detach().double() for weight in layer.head_weights())
    after = float(spectral_norm_upper(output.flatten(0, 1)))
    q, k, v = (spectral_norm_upper(weight) for weight in (query, key, value))
    root, tau = math.sqrt(column_sum(tokens, tau)), tau if tokens > 1 else 0.0
    heads = root * v + tau * (q + root * k)
    # all heads' columns: (width, width)
    whole = [float(spectral_norm_upper(weight.transpose(0, 1).flatten(1))) for weight in (query, key, value)]
    together = root * whole[2] + tau * (whole[0] + root * whole[1])
    least = min(float(heads.norm()) * after, float((heads * spectral_norm_upper(output)).sum()), together * after)
    return nu / math.sqrt(layer.eps) * least * UP


@dataclass(frozen=True)
class Rows:
    """Bounds for the normalised rows of Q, K or V over the ball: (n, heads, tokens) each, except `whole`."""

    slope: torch.Tensor  # a
    curvature: torch.Tensor  # b
    move: torch.Tensor  # min(a e, 2)
    length: torch.Tensor  # theta
    whole: torch.Tensor  # e: (n, heads, 1)


def rows_over_ball(lengths: torch.Tensor, eps: float, e: torch.Tensor) -> Rows:
    """Return the bounds for rows of nominal lengths |y0| (n, heads, tokens) that move by at most e (n, heads, 1)."""
    least = (lengths * (1 - 1e-12) - e).clamp(min=0)
    slope = UP / (least**2 + eps).sqrt()
    far = lengths * UP + e
    length = torch.nan_to_num(far / (far**2 + eps).sqrt(), nan=1.0) * UP
    move = torch.nan_to_num(slope * e, nan=2.0).clamp(max=2)
    return Rows(slope, CURVATURE * slope**2, move, length.clamp(max=1), e)


class Ball:
    """The module's coefficients over a ball around each nominal input, (n, heads) each, for e_q, e_k and e_v (n, heads)."""

    def __init__(self, at: ScaledCosineBound, e: list[torch.Tensor]) -> None:
        self.tau = abs(at.tau)
        self.q, self.k, self.v = (
            rows_over_ball(lengths, at.layer.eps, whole[..., None]) for lengths, whole in zip(at.lengths, e, strict=True)
        )
        (key_apart, key_covariance), (value_apart, value_covariance) = at.spreads
        self.p, ratio = self._weights(at.p)
        root = self.p.sqrt()
        self.reach_k = (root * self.k.slope[..., None, :]).amax(-1)  # max_j sqrt(p_ij) a_j
        self.reach_v = (root * self.v.slope[..., None, :]).amax(-1)
        self.kappa = self._spread(key_apart, key_covariance, ratio, self.k.whole * self.reach_k)
        self.nu = self._spread(value_apart, value_covariance, ratio, self.v.whole * self.reach_v)
        scores = self.tau * (self.kappa * self.q.slope * self.q.whole + self.q.length * self.k.whole * self.reach_k)
        drift = torch.nan_to_num(self.v.whole * self.reach_v + scores * self.nu, nan=2.0)  # of the mean m_i
        self.u = (value_apart + self.v.move[..., None, :] + drift[..., None]).clamp(max=2)

    def _weights(self, nominal: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return p (n, heads, tokens, tokens), and r (n, heads, tokens)."""
        slack = math.exp(1e-12 * (1 + self.tau)) * (1 + 1e-9)  # what float64 may have done to `nominal`, relatively
        left = (self.q.slope * self.q.whole)[..., :, None] * self.k.length[..., None, :]
        right = self.q.length[..., :, None] * (self.k.slope * self.k.whole)[..., None, :]
        capped = self.q.move[..., :, None] * self.k.length[..., None, :]
        capped = capped + self.q.length[..., :, None] * self.k.move[..., None, :]
        same = torch.eye(left.shape[-1], dtype=torch.bool, device=left.device)
        shared = torch.where(same, left + right, (left**2 + right**2).sqrt())
        shift = self.tau * torch.minimum(torch.nan_to_num(shared, nan=2.0), capped).clamp(max=2) * UP
        p0 = (nominal * slack).clamp(max=1.0) + 1e-300
        low = nominal / slack * torch.exp(-shift)
        others = (low.sum(-1, keepdim=True) * (1 - 1e-9) - low).clamp(min=0)
        grown = torch.exp(shift)
        ratio = torch.nan_to_num(grown / (p0 * grown + others), nan=math.inf) * (1 + 1e-9)
        weights = torch.nan_to_num(p0 * ratio, nan=1.0, posinf=1.0).clamp(max=1.0)
        return weights, ratio.amax(-1) * slack

    def _spread(
        self, apart: torch.Tensor, covariance: torch.Tensor, ratio: torch.Tensor, moved: torch.Tensor
    ) -> torch.Tensor:
        """Return Kappa or Nu: (n, heads, tokens)."""
        about = torch.minimum(ratio * covariance * (1 + 1e-9), (self.p * apart**2).sum(-1)).sqrt()
        return torch.nan_to_num(about + moved, nan=1.0).clamp(max=1)

    def first(self) -> list[torch.Tensor]:
        """Return first_q, first_k and first_v: the derivative's norm per ||dQ_h||, ||dK_h|| and ||dV_h||."""
        weighted = ((self.nu * self.q.length)[..., None] ** 2 * self.p).sum(-2).sqrt()
        q = self.tau * (self.nu * self.kappa * self.q.slope).amax(-1)
        k = self.tau * (self.k.slope * weighted).amax(-1)
        v = (self.v.slope * self.p.sum(-2).sqrt()).amax(-1)
        return [part * UP for part in (q, k, v)]

    def second(self) -> dict[tuple[int, int], torch.Tensor]:
        """Return qq, kk, vv, qk, qv and kv, by the places of their letters in "qkv"."""
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


@layer_bound.register(ScaledCosineAttention)
class ScaledCosineBound(LayerBound):
    """Over a ball of radius delta, the module's docstring gives each head's first_x and second xy, x and y of q, k, v. The
    heads' outputs stand side by side before W_O, so that over the ball, w_x,h = ||W_X,h|| and w_x = ||W_X||,
      ||DF||    <= nu ||W_O|| min( (sum_h (sum_x first_x,h w_x,h)^2)^(1/2), sum_x max_h first_x,h w_x ),
      ||D^2 F|| <= nu ||W_O|| min( (sum_h (sum_xy xy_h w_x,h w_y,h)^2)^(1/2), sum_xy max_h xy_h w_x w_y ),
    the latter forms because sum_h ||dX_h||^2 = ||dX||^2 and sum_h ||dX_h||^2 ||dY_h||^2 <= ||dX||^2 ||dY||^2. The remainder
    is at most half the second times delta^2. Rows of P V^ are shorter than 1, so the output lies within
    nu ||W_O|| sqrt(tokens heads) of 0, and moves by at most twice that.
    """

    def __init__(self, layer: ScaledCosineAttention, x: torch.Tensor) -> None:
        needs_axes(layer, x, 3)
        unbiased(layer, layer.query, layer.key, layer.value, layer.output)
        within(layer, LEAST_EPS, LARGEST, eps=layer.eps)
        self.layer, self.x = layer, x
        self.heads, self.nu, self.tau = layer.heads, float(layer.nu.detach()), float(layer.tau.detach())
        self.weights = [weight.double() for weight in layer.head_weights()[:3]]
        self.everywhere = scaled_cosine_norm_upper(layer, x.shape[1])
        self.after = abs(self.nu) * spectral_norm_upper(layer.output.weight) * UP
        self.farthest = 2 * self.after * math.sqrt(x.shape[1] * self.heads) * UP
        self.by_head = [spectral_norm_upper(weight) for weight in self.weights]  # each (heads,)
        self.whole = [spectral_norm_upper(linear.weight) for linear in (layer.query, layer.key, layer.value)]
        rows = [torch.einsum("nic,hcd->nhid", x, weight) for weight in self.weights]
        self.s = [((y**2).sum(-1) + layer.eps).sqrt() for y in rows]
        self.lengths = [torch.linalg.vector_norm(y, dim=-1) for y in rows]
        self.q, self.k, self.v = (y / s[..., None] for y, s in zip(rows, self.s, strict=True))
        self.p = (self.tau * (self.q @ self.k.mT)).softmax(-1)
        self.off = 1e-13 * size(x)  # float64's own error in x W, as a move of x

    @cached_property
    def spreads(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """|z0_j - m0_i| (n, heads, tokens, tokens) and ||C0_i|| (n, heads, tokens), z of the keys and of the values."""
        spreads = []
        for z in (self.k, self.v):
            mean = self.p @ z
            parted = torch.linalg.vector_norm(z[:, :, None] - mean[:, :, :, None], dim=-1)
            products = (z[..., :, None] * z[..., None, :]).flatten(3)  # (n, heads, tokens, inner^2)
            second = (self.p @ products).unflatten(3, (z.shape[-1],) * 2) - mean[..., :, None] * mean[..., None, :]
            covariance = psd_norm_upper((second + second.mT) / 2) + 1e-12  # entries are below 1
            spreads.append((parted * UP + 1e-13 * (1 + abs(self.tau)), covariance))
        return spreads

    def _ball(self, delta: torch.Tensor) -> Ball:
        reach = (delta + self.off)[:, None] * UP
        return Ball(self, [reach * norm for norm in self.by_head])

    def _lipschitz(self, ball: Ball) -> torch.Tensor:
        """Return a bound of ||DF|| over the ball: (n,)."""
        parts = ball.first()
        heads = torch.stack([part * norm for part, norm in zip(parts, self.by_head, strict=True)]).sum(0)
        together = torch.stack([part.amax(1) * norm for part, norm in zip(parts, self.whole, strict=True)]).sum(0)
        least = self.after * torch.minimum(torch.linalg.vector_norm(heads, dim=1), together) * UP
        return least.clamp(max=self.everywhere)

    def _bend(self, ball: Ball, delta: torch.Tensor) -> torch.Tensor:
        """Return a bound of ||F(x + D) - F(x) - J D|| over the ball: (n,)."""
        heads, together = torch.zeros_like(delta[:, None]), torch.zeros_like(delta)
        for (x, y), part in ball.second().items():
            heads = heads + part * self.by_head[x] * self.by_head[y]
            together = together + part.amax(1) * self.whole[x] * self.whole[y]
        least = torch.minimum(torch.linalg.vector_norm(heads, dim=1), together)
        return torch.nan_to_num(self.after * least * delta**2 / 2 * UP, nan=math.inf)

    @cached_property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        if self.x[0].numel() > FORMED:
            return self._lipschitz(self._ball(torch.zeros_like(self.off)))
        return jacobian_norms(self._derivative, self.x, self.everywhere)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return self._derivative(columns, slice(None))

    def _derivative(self, columns: torch.Tensor, images: slice) -> torch.Tensor:
        """Return J columns (directions, n, tokens, width) around the nominal inputs `images`."""
        moved = []
        for weight, rows, s in zip(self.weights, (self.q, self.k, self.v), self.s, strict=True):
            z, dy = rows[images], torch.einsum("pnic,hcd->pnhid", columns, weight)
            moved.append((dy - z * (z * dy).sum(-1, keepdim=True)) / s[images][..., None])
        q, k, v, p = (part[images] for part in (self.q, self.k, self.v, self.p))
        scores = self.tau * (moved[0] @ k.mT + q @ moved[1].mT)
        dp = p * (scores - (p * scores).sum(-1, keepdim=True))
        mixed = self.nu * (dp @ v + p @ moved[2])
        return mixed.transpose(2, 3).flatten(3) @ self.layer.output.weight.mT

    @cached_property
    def _rounding(self) -> Rounding:  # type: ignore[override]
        return scaled_cosine_rounding(self.layer, self.x, self.lengths)

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return torch.fmin(self.everywhere * delta, self.farthest)  # no NaN from 0 times infinity

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        ball = self._ball(delta)
        bent = self.jacobian_norm * delta + self._bend(ball, delta)
        least = torch.minimum(torch.minimum(self._lipschitz(ball) * delta, bent) * UP, self.quick_bound(delta))
        return torch.where(torch.isfinite(delta), least, self.farthest)

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        delta = perturbation.delta
        ball = self._ball(delta)
        moved = torch.minimum(self._lipschitz(ball) * delta, self.quick_bound(delta)) + self.jacobian_norm * delta
        return torch.nan_to_num(torch.minimum(moved, self._bend(ball, delta)) * UP, nan=math.inf)


def scaled_cosine_rounding(layer: ScaledCosineAttention, x: torch.Tensor, lengths: list[torch.Tensor]) -> Rounding:
    """Return the rounding. Norms are over all tokens and heads: N tokens, H heads, d_h = width / H; nu and tau are absolute,
    y is a row before n.

    x W errs by l as a linear layer. n is a-Lipschitz over the ball widened by l, a = 1/sqrt((|y0| - e - l)+^2 + eps); the sum
    of squares, the root and the quotient then err by g = gamma(d_h / 2 + 12) relatively, of rows shorter than 1. So Q^, K^
    and V^ each err by a l + g sqrt(N H), and stay shorter than 1 + g. Exact attention of rows of that length errs from there
    by nu (sqrt(c) dV + tau dQ + tau sqrt(c) dK) (1 + g)^3, by the module's proof, c of scores within
    tau (1 + g)^2. In it, scores err by gamma(d_h + 3) tau (1 + g)^2 each, and the logarithm of a weight by that, 6 u of the
    largest score and 2 EXPONENTIAL; call the sum t. Weights then err relatively by h = e^(2 t) (1 + gamma(2 N + 6)) - 1, in
    all by no more than 2 + gamma(2 N + 6), since what is computed sums to 1 + gamma(2 N + 6) at most. Products with V^ and
    nu add gamma(N + 3) (1 + h). Rows of P V^ are thus off by nu (1 + g) (h + gamma(N + 3) (1 + h)), and the output by that
    times ||W_O||, and gamma(width + 3) || |W_O| || of what is mixed.

    Range (rounding.py): squares of a row's entries sum to at most (|y0| + e + l)^2, and the output to || |W_O| || times what
    is mixed. Queries and keys are shorter than 1 + g, so scores stay below 1.1 tau.
    """
    inputs = (layer.query, layer.key, layer.value)
    linears = [linear_rounding(x, linear.weight) for linear in inputs]
    norms = [spectral_norm_upper(weight).amax() for weight in layer.head_weights()[:3]]
    ends = [(each.amin((1, 2)), each.amax((1, 2))) for each in lengths]  # the least and the longest, (n,)
    nu, tau0 = abs(float(layer.nu.detach())), abs(float(layer.tau.detach()))
    n, width, inner = x.shape[1], x.shape[2], x.shape[2] // layer.heads
    rows, eps = math.sqrt(n * layer.heads), layer.eps
    after, after_absolute = (spectral_norm_upper(weight) for weight in (layer.output.weight, layer.output.weight.abs()))

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        g = gamma(inner / 2 + 12)
        moved, widest = [], torch.zeros_like(delta)
        for linear, norm, (least, longest) in zip(linears, norms, ends, strict=True):
            lost = linear(delta)
            widest = torch.maximum(widest, longest + delta * norm + lost)
            slope = 1 / ((least * (1 - 1e-9) - delta * norm - lost).clamp(min=0) ** 2 + eps).sqrt()
            moved.append(slope * lost + g * rows)
        tau = tau0 * (1 + g) ** 2
        root = math.sqrt(column_sum(n, tau))
        inherited = (root * moved[2] + tau0 * (moved[0] + root * moved[1])) * (1 + g) ** 3
        logarithm = gamma(inner + 3) * tau + 6 * UNIT32 * tau * 1.1 + 2 * EXPONENTIAL
        sums = gamma(2 * n + 6)
        weights = min(math.expm1(min(2 * logarithm, 50.0)) * (1 + sums) + sums, 2 + sums)
        off = nu * (inherited + rows * (1 + g) * (weights + gamma(n + 3) * (1 + weights)))
        mixed = nu * rows + off
        out = off * after + gamma(width + 3) * mixed * after_absolute
        return in_room(out, torch.maximum(widest**2, mixed * after_absolute))

    return rounding
