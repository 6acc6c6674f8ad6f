"""Local sensitivity of multi-head dot-product attention around one input, after Havens et al. 2024 (LoFAST) and tighter.

F(X) = H X + sum_l P_l(X) X A_l, P_l = softmax(S_l / s) by rows, S_l = X B_l X^T + 1 (X c_l)^T, A_l = V_l O_l = W_V W_O,
B_l = W_Q W_K^T, c_l = W_K b_Q, s = sqrt(d_head), H = I (residual) or 0. Key biases shift whole rows of S, which softmax
ignores; value and output biases add constants. For X' = X + G with ||G||_F <= e the scores change by
dS = (T(G) + G B G^T) / s with T(G) = G B X^T + X B G^T + 1 (G c)^T. Each bound below is a sum of two parts.

Part one is linear in e, in two ways, each an exact norm:
  Z. zeta = ||H (x) I + sum P_l (x) A_l^T||, leaving (P' - P) X' A, or
  D. ||DF(X)||, the whole Jacobian, leaving what DF misses.

Part two, per head. Write C = I - 11^T/n; J_i = diag(p_i) - p_i p_i^T = K_i^T K_i with K_i = (I - q q^T) diag(q),
q = sqrt(p_i) (I - q q^T is a projection); tau = (||T(.) C|| e + ||B|| e^2)/s, so ||dS C||_F <= tau;
tau_J = (||row-wise K_i T|| e + max ||K_i|| ||B|| e^2)/s, so ||(K_i dS_i)_i||_F <= tau_J. Two facts about P' - P:
  global. Softmax is 1/2-Lipschitz: ||P' - P||_F <= tau / 2; and P' - P = J dS + r with ||r||_F <= sqrt(6)/18 tau^2
          (sqrt(6)/9 is the supremum of its second derivative, the largest third central moment). Rows of both sum to 0.
  local.  Self-concordance: along the segment J_i(t) <= e^(t w_i) J_i, w_i bounding the spread of row i's score changes,
          so (P' - P)_i = K_i^T (I + E) K_i dS_i, ||I + E|| <= kappa(w_i) = (e^w - 1)/w, ||E|| <= eta(w_i) = kappa - 1.
Hence, with the lesser of global and local wherever both bound the same quantity,
  move   = ||(P' - P) X A||  <= min(tau/2 ||C X A||,             tau_J max_i kappa_i ||K_i X A||)
  bend   = ||(P' - P - J dS) X A|| <= min(sqrt(6)/18 tau^2 ||C X A||, tau_J max_i eta_i ||K_i X A||)
  cross  = ||(P' - P) G A||  <= e ||A|| min(tau/2,               tau_J max_i kappa_i ||K_i||)
  Z: move + cross.   D: max_i ||J_i X A|| ||B|| e^2 / s + bend + cross.
Heads are summed, or taken jointly: sum_l f_l(V_l) O_l has norm at most ||[O_1; ...; O_h]|| sqrt(sum_l f_l(V_l)^2), with V_l
in place of A_l.

Norms take float64: x (batch, n, d), P (batch, heads, n, n), A and M (heads, d, .), right r_j = B x_j and left
l_i = B^T x_i + c (batch, heads, n, d).

The published Theorem 1, with the right T of its appendix: zeta e + sum tau'(||X A|| + e ||A||), tau' without C and without
the 1/2. Its (12): the same with 1 + sum ||A|| ||P|| for zeta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from benchmark.runtime.errors import BenchmarkError

from .spectral import FORMED_SIDE, product_norm_upper, psd_norm_upper, spectral_norm_upper

SOFTMAX_CURVATURE = math.sqrt(6) / 18 * (1 + 1e-12)
FAR = 60.0  # beyond this spread the local bounds are given up: e^w would amplify the rounding of J
METHODS = ("tight", "paper", "naive")
GRAM_TOKENS = 24  # above it T T^* is too costly to form for every head
GRAM_NUMBERS = 2**24  # of all T T^* formed at a time


@dataclass(frozen=True)
class HeadConstants:
    """Norms per head and row for one choice of value map M (A_l, or V_l for joint heads), float64."""

    a: torch.Tensor  # ||M||: (heads,)
    x: torch.Tensor  # ||X M||: (batch, heads), and so on
    v: torch.Tensor  # ||C X M||
    g: torch.Tensor  # max_i ||J_i X M||
    k: torch.Tensor  # ||K_i X M||: (batch, heads, tokens)


def score_norms(
    right: torch.Tensor, left: torch.Tensor, P: torch.Tensor, K: torch.Tensor, floor: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ||T||, ||T(.) C|| and ||row-wise K_i T||: (batch, heads) each.

    Up to GRAM_TOKENS tokens from the n^2 x n^2 matrix T T^*. Beyond, by T's two summands, R the rows r_j, L the rows l_i:
    ||R|| + ||L||, ||C R|| + ||L||, and max_i ||K_i R|| + max_j ||diag(sqrt p_.j) L||, because
    |K_i G l_i|^2 <= sum_j p_ij <g_j, l_i>^2, which sums over i to sum_j g_j^T (sum_i p_ij l_i l_i^T) g_j.
    """
    n = right.shape[2]
    if n > GRAM_TOKENS:
        own = spectral_norm_upper(left)
        each = spectral_norm_upper(K @ right[:, :, None]).amax(2)
        other = spectral_norm_upper(P.mT.sqrt()[..., None] * left[:, :, None]).amax(2)
        size = spectral_norm_upper(right)
        local = ((each + other) ** 2 + floor * (size + own) ** 2).sqrt()
        return size + own, spectral_norm_upper(right - right.mean(2, keepdim=True)) + own, local
    many = max(1, GRAM_NUMBERS // n**4)
    inputs = zip(*(t.flatten(0, 1).split(many) for t in (right, left, K)), strict=True)
    parts = [_gram_norms(R, L, k, floor) for R, L, k in inputs]
    whole, centred, local = (torch.cat(part).unflatten(0, right.shape[:2]) for part in zip(*parts, strict=True))
    return whole, centred, local


def _gram_norms(
    right: torch.Tensor, left: torch.Tensor, K: torch.Tensor, floor: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `score_norms` from T T^* formed; right, left (many, n, d), K (many, n, n, n)."""
    eye = torch.eye(right.shape[1], dtype=right.dtype, device=right.device)
    rr, ll, rl = right @ right.mT, left @ left.mT, right @ left.mT  # rl: r_j . l_k
    # T T^*, inner products of the functionals T_ij and T_kl: (many, i, j, k, l)
    gram = torch.einsum("ik,mjl->mijkl", eye, rr) + torch.einsum("jl,mik->mijkl", eye, ll)
    gram = gram + torch.einsum("il,mjk->mijkl", eye, rl) + torch.einsum("jk,mli->mijkl", eye, rl)
    whole = psd_norm_upper(gram.flatten(1, 2).flatten(2))
    centred = gram - gram.mean(2, keepdim=True)
    centred = centred - centred.mean(4, keepdim=True)
    weighted = torch.einsum("miaj,mijkl->miakl", K, gram)
    weighted = torch.einsum("miakl,mkcl->miakc", weighted, K)
    local = (psd_norm_upper(weighted.flatten(1, 2).flatten(2)) + floor * whole).sqrt()
    return whole.sqrt(), psd_norm_upper(centred.flatten(1, 2).flatten(2)).sqrt(), local


def score_spread(right: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """Return max over j, k of the norm of G -> T(G)_ij - T(G)_ik, per row i: (batch, heads, tokens)."""
    n = right.shape[2]
    gaps = ((right[:, :, :, None] - right[:, :, None]) ** 2).sum(-1)[:, :, None]  # |r_j - r_k|^2 at (1, j, k)
    own = (left**2).sum(-1)[..., None, None]  # |l_i|^2
    squared = gaps + 2 * own  # i is neither j nor k
    along = 2 * (left @ right.mT)  # 2 l_i . r_j
    difference = along[..., :, None] - along[..., None, :]  # 2 l_i . (r_j - r_k) at (i, j, k)
    eye = torch.eye(n, dtype=torch.bool, device=right.device)
    squared = torch.where(eye[:, :, None], gaps + difference + 2 * own, squared)  # i = j: |r_j - r_k + l_i|^2 + |l_i|^2
    squared = torch.where(eye[:, None, :], gaps - difference + 2 * own, squared)  # i = k
    squared = torch.where(eye[None], 0.0, squared)  # j = k
    return (squared.clamp(min=0).flatten(3).amax(-1) * (1 + 1e-10)).sqrt()


def head_constants(
    x: torch.Tensor, M: torch.Tensor, norm: torch.Tensor, P: torch.Tensor, K: torch.Tensor, floor: float
) -> HeadConstants:
    """Return the constants of value maps M with norms bounded by `norm` (heads,)."""
    XM = torch.einsum("bnc,hcd->bhnd", x, M)
    size = spectral_norm_upper(XM)
    JXM = P[..., None] * (XM[:, :, None] - (P @ XM)[:, :, :, None])  # row i: p_j (xM_j - sum_m p_m xM_m)
    local = spectral_norm_upper(torch.einsum("bhiaj,bhjc->bhiac", K, XM))
    return HeadConstants(
        a=norm,
        x=size,
        v=spectral_norm_upper(XM - XM.mean(2, keepdim=True)),
        g=spectral_norm_upper(JXM).amax(2) + floor * size,
        k=(local**2 + floor * size[..., None] ** 2).sqrt(),
    )


@dataclass
class LinearMaps:
    """The maps of part one around x (batch, n, d). Norms are of formed matrices; a BenchmarkError where n d is above 8192."""

    x: torch.Tensor
    P: torch.Tensor
    A: torch.Tensor
    right: torch.Tensor
    left: torch.Tensor
    scale: float
    residual: bool
    zeta_bound: torch.Tensor | None  # an upper bound to be used in place of the exact zeta

    @cached_property
    def zeta(self) -> torch.Tensor:
        """||H (x) I + sum P_l (x) A_l^T||: (batch,)."""
        if self.zeta_bound is not None:
            return self.zeta_bound
        return spectral_norm_upper(self._mixing().flatten(3).flatten(1, 2))

    @cached_property
    def jacobian(self) -> torch.Tensor:
        """||DF(X)||: (batch,)."""
        return spectral_norm_upper(self.derivative)

    @cached_property
    def derivative(self) -> torch.Tensor:
        """DF(X): (batch, n d, n d)."""
        mixing = self._mixing()
        XA = torch.einsum("bnc,hcd->bhnd", self.x, self.A)
        JXA = self.P[..., None] * (XA[:, :, None] - (self.P @ XA)[:, :, :, None]) / self.scale
        total = mixing + torch.einsum("bhiac,bhik->bicak", JXA, self.left)
        index = torch.arange(self.x.shape[1], device=self.x.device)
        # what G_i adds to row i through r: (batch, i, c, k)
        total[:, index, :, index] += torch.einsum("bhijc,bhjk->bick", JXA, self.right).transpose(0, 1)
        return total.flatten(3).flatten(1, 2)

    def _mixing(self) -> torch.Tensor:
        n, d = self.x.shape[1:]
        if n * d > FORMED_SIDE:
            raise BenchmarkError("attention this wide (tokens * width > 8192) has no formed Jacobian to carry on")
        linear = torch.einsum("bhij,hkc->bicjk", self.P, self.A)
        if self.residual:
            linear = linear + torch.eye(n * d, dtype=self.x.dtype, device=self.x.device).reshape(n, d, n, d)
        return linear


@dataclass(frozen=True)
class AttentionSensitivity:
    """The constants of one attention layer at each nominal input, computed once for all radii."""

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

    def bound(self, radius: torch.Tensor, method: str = "tight") -> torch.Tensor:
        """Return a bound of sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius: (batch,) to (batch,), monotone.

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
        """Return a bound of ||F(X + G) - F(X) - DF(X) G|| for ||G||_F <= radius: (batch,) to (batch,)."""
        return self._least(radius)[1] * (1 + 1e-12)

    def _least(self, radius: torch.Tensor) -> torch.Tensor:
        """Return part two after Z and after D, heads summed or joint, whichever is less: (2, batch)."""
        summed, joint = self._remainders(self.summed, radius), self._remainders(self.joint, radius)
        return torch.minimum(summed.sum(-1), self.outputs * torch.linalg.vector_norm(joint, dim=-1))

    def _remainders(self, head: HeadConstants, radius: torch.Tensor) -> torch.Tensor:
        """Return part two after Z and after D, per head: (2, batch, heads)."""
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
    """Return the constants of the bounds of sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius, per example.

    Args:
        x: (batch, tokens, d) nominal inputs, tokens * d <= 8192.
        w_q, w_k, w_v: (heads, d, d_head), acting on rows: queries are x @ w_q (+ query_bias).
        w_o: (heads, d_head, d).
        query_bias: (heads, d_head). Biases of keys, values and outputs do not matter.
        exact_zeta: whether to compute zeta; else it is bounded by 1 + ||W_O|| max ||P_l|| ||W_V||.

    Raises:
        ValueError: shapes that do not fit, or a value that is not finite.
    """
    x, w_q, w_k, w_v, w_o = (t.detach().double() for t in (x, w_q, w_k, w_v, w_o))
    heads, d, inner = w_q.shape
    fits = x.ndim == 3 and x.shape[2] == d and w_k.shape == w_q.shape and w_v.shape[:2] == (heads, d)
    if not fits or w_o.shape != (heads, w_v.shape[2], d) or not inner:
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, w_q, w_k, w_v, w_o))
        raise ValueError(f"shapes of x, w_q, w_k, w_v, w_o do not fit: {shapes}")
    if not all(torch.isfinite(t).all() for t in (x, w_q, w_k, w_v, w_o)):
        raise ValueError("an input or weight is not finite (NaN or infinity)")
    n, scale = x.shape[1], math.sqrt(w_q.shape[2])
    B, A = w_q @ w_k.mT, w_v @ w_o
    c = torch.zeros_like(w_q[..., 0]) if query_bias is None else (w_k @ query_bias.detach().double()[..., None])[..., 0]
    right = torch.einsum("hkd,bjd->bhjk", B, x)  # r_j = B x_j
    left = torch.einsum("hkd,bik->bhid", B, x) + c[:, None]  # l_i = B^T x_i + c; T_ij = <G, e_i r_j^T + e_j l_i^T>
    P = torch.softmax((torch.einsum("bic,bhjc->bhij", x, right) + torch.einsum("bjc,hc->bhj", x, c)[:, :, None]) / scale, -1)
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
