"""Norms of the local maps of one attention layer, as `lofast.py` combines them; its docstring names the symbols.

All take float64: x (batch, n, d), P (batch, heads, n, n), A and M (heads, d, .), right r_j and left l_i (batch, heads, n, d).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from benchmark.certificates.spectral import FORMED_SIDE, operator_norm_upper, spectral_norm_upper


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


def score_gram(right: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """T T^*: inner products of the functionals T_ij and T_kl, (batch, heads, i, j, k, l)."""
    n = right.shape[2]
    eye = torch.eye(n, dtype=right.dtype, device=right.device)
    rr, ll = right @ right.mT, left @ left.mT
    rl = right @ left.mT  # r_j . l_k
    gram = torch.einsum("ik,bhjl->bhijkl", eye, rr) + torch.einsum("jl,bhik->bhijkl", eye, ll)
    return gram + torch.einsum("il,bhjk->bhijkl", eye, rl) + torch.einsum("jk,bhli->bhijkl", eye, rl)


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


def head_constants(x: torch.Tensor, M: torch.Tensor, P: torch.Tensor, K: torch.Tensor, floor: float) -> HeadConstants:
    XM = torch.einsum("bnc,hcd->bhnd", x, M)
    size = spectral_norm_upper(XM)
    JXM = P[..., None] * (XM[:, :, None] - (P @ XM)[:, :, :, None])  # row i: p_j (xM_j - sum_m p_m xM_m)
    local = spectral_norm_upper(torch.einsum("bhiaj,bhjc->bhiac", K, XM))
    return HeadConstants(
        a=spectral_norm_upper(M),
        x=size,
        v=spectral_norm_upper(XM - XM.mean(2, keepdim=True)),
        g=spectral_norm_upper(JXM).amax(2) + floor * size,
        k=(local**2 + floor * size[..., None] ** 2).sqrt(),
    )


def linear_norms(
    x: torch.Tensor,
    P: torch.Tensor,
    A: torch.Tensor,
    right: torch.Tensor,
    left: torch.Tensor,
    scale: float,
    residual: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, float]:
    """zeta, ||DF(X)|| and DF(X) per example, formed where n d allows it, else norms through products; and the failure
    probability of those.
    """
    batch, n, d = x.shape
    XA = torch.einsum("bnc,hcd->bhnd", x, A)
    JXA = P[..., None] * (XA[:, :, None] - (P @ XA)[:, :, :, None])  # b h i j c
    own = torch.einsum("bhijc,bhjk->bhick", JXA, right) / scale  # what G_i adds to row i through r
    if n * d <= FORMED_SIDE:
        linear = torch.einsum("bhij,hkc->bicjk", P, A)
        if residual:
            linear = linear + torch.eye(n * d, dtype=x.dtype, device=x.device).reshape(n, d, n, d)
        total = linear + torch.einsum("bhiac,bhik->bicak", JXA, left) / scale
        index = torch.arange(n, device=x.device)
        total[:, index, :, index] += own.sum(1).transpose(0, 1)
        linear, total = (t.reshape(batch, n * d, n * d) for t in (linear, total))
        return spectral_norm_upper(linear), spectral_norm_upper(total), total, 0.0

    def apply(y: torch.Tensor, *, whole: bool, adjoint: bool) -> torch.Tensor:
        G = y.unflatten(-1, (n, d))
        first, second = ("bhji", "hdc") if adjoint else ("bhij", "hcd")
        out = torch.einsum(f"{first},bpjc,{second}->bpid", P, G, A) + (G if residual else 0)
        if whole and adjoint:
            out = out + torch.einsum("bhick,bpic->bpik", own, G)
            out = out + torch.einsum("bhik,bhiac,bpic->bpak", left, JXA, G) / scale
        elif whole:
            out = out + torch.einsum("bhick,bpik->bpic", own, G)
            out = out + torch.einsum("bhiac,bhik,bpak->bpic", JXA, left, G) / scale
        return out.flatten(-2)

    def norm(whole: bool) -> torch.Tensor:
        forward, back = partial(apply, whole=whole, adjoint=False), partial(apply, whole=whole, adjoint=True)
        return operator_norm_upper(forward, back, n * d, batch=(batch,), device=x.device)

    return norm(False), norm(True), None, 2e-9
