"""Norms of the local maps of one attention layer, as sensitivity.py combines them; its docstring names the symbols.

All take float64: x (batch, n, d), P (batch, heads, n, n), A and M (heads, d, .), right r_j and left l_i (batch, heads, n, d).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from benchmark.certificates.bounds.spectral import FORMED_SIDE, psd_norm_upper, spectral_norm_upper
from benchmark.runtime.errors import BenchmarkError

GRAM_TOKENS = 24  # above it T T^* is too costly to form for every head
GRAM_NUMBERS = 2**24  # of all T T^* formed at a time


@dataclass(frozen=True)
class HeadConstants:
    """For one choice of value map M (A_l, or V_l for joint heads): norms per head and row, float64.

    a ||M|| and x ||X M||, v ||C X M||, g max_i ||J_i X M|| (batch, heads); k ||K_i X M|| (batch, heads, tokens).
    """

    a: torch.Tensor
    x: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    k: torch.Tensor

    def take(self, rows: torch.Tensor) -> HeadConstants:
        """Of the examples `rows`."""
        return HeadConstants(self.a, self.x[rows], self.v[rows], self.g[rows], self.k[rows])


def score_gram(right: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """T T^*: inner products of the functionals T_ij and T_kl, (many, i, j, k, l) from (many, n, d)."""
    eye = torch.eye(right.shape[1], dtype=right.dtype, device=right.device)
    rr, ll, rl = right @ right.mT, left @ left.mT, right @ left.mT  # rl: r_j . l_k
    gram = torch.einsum("ik,mjl->mijkl", eye, rr) + torch.einsum("jl,mik->mijkl", eye, ll)
    return gram + torch.einsum("il,mjk->mijkl", eye, rl) + torch.einsum("jk,mli->mijkl", eye, rl)


def score_norms(
    right: torch.Tensor, left: torch.Tensor, P: torch.Tensor, K: torch.Tensor, floor: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """||T||, ||T(.) C|| and ||row-wise K_i T||: (batch, heads) each.

    Up to GRAM_TOKENS tokens from the n^2 x n^2 matrix T T^*. Beyond by its two summands, R the rows r_j, L the rows l_i:
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
    """As `score_norms`, from T T^* formed; right, left (many, n, d), K (many, n, n, n)."""
    gram = score_gram(right, left)
    whole = psd_norm_upper(gram.flatten(1, 2).flatten(2))
    centred = gram - gram.mean(2, keepdim=True)
    centred = centred - centred.mean(4, keepdim=True)
    weighted = torch.einsum("miaj,mijkl->miakl", K, gram)
    weighted = torch.einsum("miakl,mkcl->miakc", weighted, K)
    local = (psd_norm_upper(weighted.flatten(1, 2).flatten(2)) + floor * whole).sqrt()
    return whole.sqrt(), psd_norm_upper(centred.flatten(1, 2).flatten(2)).sqrt(), local


def score_spread(right: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """max over j, k of the norm of G -> T(G)_ij - T(G)_ik, per row i: (batch, heads, tokens)."""
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
    """For value maps M with norms bounded by `norm` (heads,)."""
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
    """The maps of part one around x (batch, n, d). Norms are computed when first asked for, from the formed matrix.

    Raises:
        BenchmarkError: asked for a norm where n d is above 8192.
    """

    x: torch.Tensor
    P: torch.Tensor
    A: torch.Tensor
    right: torch.Tensor
    left: torch.Tensor
    scale: float
    residual: bool
    zeta_bound: torch.Tensor | None  # an upper bound to be used in place of the exact zeta

    def take(self, rows: torch.Tensor) -> LinearMaps:
        """Of the examples `rows`, with what has been computed of them."""
        bound = None if self.zeta_bound is None else self.zeta_bound[rows]
        x, P, right, left = (t[rows] for t in (self.x, self.P, self.right, self.left))
        taken = LinearMaps(x, P, self.A, right, left, self.scale, self.residual, bound)
        for name in ("zeta", "jacobian", "derivative"):
            if name in vars(self):
                setattr(taken, name, vars(self)[name][rows])
        return taken

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
