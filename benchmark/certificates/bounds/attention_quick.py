"""A cheap bound of attention's local sensitivity, for the first look at many images: batched products and small norms.

Names as in sensitivity.py. Heads jointly, with W_V and W_O of all heads together, and 1 for the residual where there is one:
  ||F(X') - F(X)|| <= (1 + ||W_O|| max_l ||P_l|| ||W_V||) e + ||W_O|| sqrt(sum_l f_l^2),
  f_l = ||P_l' - P_l||_F (||C X V_l|| + e ||V_l||)          (rows of P' - P sum to 0, so C may stand before X),
  ||P_l' - P_l||_F <= tau_l max_i min(1/2, kappa(w_i) lam_i),
  tau_l = (m_l e + b_l e^2) / s, m_l = ||B_l X^T C|| + ||X B_l + 1 c_l^T|| >= ||T(.) C||, b_l = ||B_l||,
because softmax's Jacobian along the way is at most e^(t w_i) J_i (self-concordance, sensitivity.py) and at most 1/2, and
lam_i = min(max_j 2 p_ij (1 - p_ij), max_j p_ij) >= ||J_i|| (Gershgorin; J_i <= diag(p_i)).
w_i = ((2 max_j |B x_j - mean| + sqrt(2) |B^T x_i + c|) e + 1.2072 b e^2) / s bounds the spread of row i's score changes,
<G_i, B (x_j - x_k)> + <G_j - G_k, B^T x_i + c> <= (2 max_j |B x_j - mean| + sqrt(2) |B^T x_i + c|) e.
"""

from __future__ import annotations

import math

import torch

from benchmark.certificates.bounds.layer_bound import UP
from benchmark.certificates.bounds.spectral import product_norm_upper, spectral_norm_upper

FAR = 60.0


class QuickAttention:
    """x (n, tokens, d) nominal inputs; weights per head, residual and query_bias as in `attention_sensitivity`."""

    def __init__(
        self,
        x: torch.Tensor,
        w_q: torch.Tensor,
        w_k: torch.Tensor,
        w_v: torch.Tensor,
        w_o: torch.Tensor,
        *,
        residual: bool = True,
        query_bias: torch.Tensor | None = None,
    ) -> None:
        self.scale = math.sqrt(w_q.shape[2])
        queries, keys, values = (torch.einsum("bnd,hdk->bhnk", x, w) for w in (w_q, w_k, w_v))
        if query_bias is not None:
            queries = queries + query_bias[:, None]
        P = torch.softmax(queries @ keys.mT / self.scale, -1)
        right = torch.einsum("bhnk,hdk->bhnd", keys, w_q)  # B x_j
        left = torch.einsum("bhnk,hdk->bhnd", queries, w_k)  # B^T x_i + c
        centred = right - right.mean(2, keepdim=True)
        self.m = spectral_norm_upper(centred) + spectral_norm_upper(left)
        self.b = product_norm_upper(w_q, w_k.mT)
        self.values = spectral_norm_upper(values - values.mean(2, keepdim=True))
        self.v = spectral_norm_upper(w_v)
        self.output = spectral_norm_upper(w_o.flatten(0, 1))
        together = spectral_norm_upper(w_v.transpose(0, 1).flatten(1))
        self.linear_norm = (residual + self.output * together * spectral_norm_upper(P).amax(1)) * UP
        self.lam = torch.minimum(2 * P * (1 - P), P.amax(-1, keepdim=True)).amax(-1) + 1e-15 * x.shape[1]
        far = torch.linalg.vector_norm(centred, dim=-1).amax(2)[..., None]
        self.spread = 2 * far + math.sqrt(2) * UP * torch.linalg.vector_norm(left, dim=-1)

    def bound(self, radius: torch.Tensor) -> torch.Tensor:
        """(n,) to (n,): never below sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius."""
        e = radius[:, None]
        w = (self.spread * e[..., None] + 1.2072 * (self.b * e**2)[..., None]) / self.scale
        kappa = torch.where(w < 1e-8, 1 + w, torch.expm1(w) / w.clamp(min=1e-300)) * UP
        slope = torch.where(w > FAR, 0.5, (kappa * self.lam).clamp(max=0.5)).amax(-1)
        moved = (self.m * e + self.b * e**2) / self.scale * slope * (self.values + e * self.v)
        return (self.linear_norm * radius + self.output * torch.linalg.vector_norm(moved, dim=-1)) * UP
