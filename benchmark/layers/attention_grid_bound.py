"""How far `GridAttention` can move around an input: one formula, differentiable, to train with and to certify with.

Names: head h, token i, P = weights, q, k, v, o = P v as in `Mixing`, t_h the content's weight. The input moves by G with
||G||_F <= e; norms are bounded by those of W_Q, W_K, W_V, W_O, each of all heads together. The scores of row i of head h,
written without h, move by
  dS_j = t (<G_i W_Q, k_j> + <q_i, G_j W_K> + <G_i W_Q, G_j W_K>),
biases being in q and k, and the offsets R not moving at all. With J = diag(p) - p p^T, u^T J u = Var_p(u). Softmax is
self-concordant (certificates/bounds/sensitivity.py): along the segment of scores the Jacobian is at most e^(x w) J after
the part x of it, w at least the spread of dS over j. So with J = K^T K
  p' - p = K^T (I + E) K dS, ||I + E|| <= kappa(w) = (e^w - 1) / w,
  |(p' - p) Y| <= kappa sd_p(dS) s(Y), s(Y)^2 = ||Y^T J Y||,
  s(v)^2 <= sum_j p_j |v_j - o|^2, the trace, and s(I)^2 = ||J|| <= min(max_j 2 p_j (1 - p_j), max_j p_j),
  sd_p(dS) <= t (|G_i W_Q| (rho + ||W_K|| e) + |q_i| (sum_j p_j |G_j W_K|^2)^1/2), rho^2 = sum_j p_j |k_j - sum_l p_l k_l|^2.
Let a_hi = kappa_hi t_h s_hi, s a bound of s(Y_h) in row i. Over all rows and heads, by Minkowski, and since the squares of
the parts of G W_Q that heads see sum to at most ||W_Q||^2 e^2, of G W_K likewise,
  move(s) >= (sum_hi |(p'_hi - p_hi) Y_h|^2)^1/2,
  move(s) = e (||W_Q|| max_hi a_hi (rho_hi + ||W_K|| e) + ||W_K|| max_hj (sum_i p_hij (a_hi |q_hi|)^2)^1/2).
The output moves by W_O applied to (P' - P) X W_V + P G W_V + (P' - P) G W_V (rows of P' - P sum to 0, so a bias of the values
does not matter), that is, by at most
  ||W_O|| (move(s(v)) + ||W_V|| e (max_h ||P_h|| + move(s(I)))):
sum_h ||P_h G V_h||_F^2 <= max_h ||P_h||^2 ||W_V||^2 e^2, and in the third likewise with ||P'_h - P_h||_F for ||P_h||.
Spread: dS_j - dS_l <= t (|G_i W_Q| |k_j - k_l| + |q_i| |(G_j - G_l) W_K| + |G_i W_Q| |(G_j - G_l) W_K|), |G_j - G_l| is
at most sqrt 2 e and |G_i| |G_j - G_l| <= 1.2072 e^2 (worst at i = j: x (x + y) <= (1 + sqrt 2) / 2 for x^2 + y^2 = 1).
With c the mean key
  w = t e (2 ||W_Q|| max_j |k_j - c| + sqrt 2 ||W_K|| |q_i| + 1.2072 ||W_Q|| ||W_K|| e).
||P||^2 is at most the largest column sum, since rows sum to 1 (Schur's test).

Variances are differences of means of squares, which rounding may lower by some of the largest square's last digits, and a
weight may underflow: `floor` times the largest square is added to each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmark.layers.attention_grid import Mixing

FAR = 60.0  # a spread beyond which nothing is said


@dataclass(frozen=True)
class GridNorms:
    """Bounds of the spectral norms of W_Q, W_K, W_V and W_O, all heads together; 1 by construction."""

    query: float | torch.Tensor = 1.0
    key: float | torch.Tensor = 1.0
    value: float | torch.Tensor = 1.0
    output: float | torch.Tensor = 1.0


@dataclass(frozen=True)
class GridSensitivity:
    """What the bound needs of the layer at each nominal input, computed once for all radii."""

    weights: torch.Tensor  # P: (n, heads, tokens, tokens)
    mixing_norm: torch.Tensor  # max_h ||P_h||: (n,)
    content: torch.Tensor  # t: (heads, 1)
    query_sizes: torch.Tensor  # |q_i|: (n, heads, tokens), and so on
    key_spread: torch.Tensor  # rho
    farthest: torch.Tensor  # max_j |k_j - c|: (n, heads, 1)
    value_spread: torch.Tensor  # s(v)
    weight_spread: torch.Tensor  # s(I)
    norms: GridNorms

    def bound(self, radius: torch.Tensor) -> torch.Tensor:
        """sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius is at most this: (n,) to (n,), infinite where unknown."""
        e, norms = radius[:, None, None], self.norms
        w = 2 * norms.query * self.farthest + 2**0.5 * norms.key * self.query_sizes
        w = self.content * e * (w + 1.2072 * norms.query * norms.key * e)
        near = w < 1e-4  # kappa <= 1 + w/2 + w^2 there
        kappa = torch.where(near, 1 + w * (0.5 + w), torch.expm1(w.clamp(max=FAR)) / w.clamp(min=1e-4))
        kappa = torch.where(w > FAR, torch.inf, kappa)
        moved = self._move(kappa * self.value_spread, radius)
        weights = self._move(kappa * self.weight_spread, radius)
        return norms.output * (moved + norms.value * radius * (self.mixing_norm + weights))

    def _move(self, spread: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
        """move(s) for kappa s (n, heads, tokens): (n,)."""
        a, e, norms = spread * self.content, radius[:, None, None], self.norms
        first = (a * (self.key_spread + norms.key * e)).flatten(1).amax(1)
        squares = torch.einsum("nhij,nhi->nhj", self.weights, (a * self.query_sizes) ** 2).flatten(1).amax(1)
        return radius * (norms.query * first + norms.key * (squares + 1e-300).sqrt())


def grid_sensitivity(
    mixing: Mixing,
    content: torch.Tensor,
    *,
    norms: GridNorms = GridNorms(),
    mixing_norm: torch.Tensor | None = None,
    floor: float = 1e-6,
) -> GridSensitivity:
    """
    Args:
        mixing: of the nominal inputs.
        content: t (heads,).
        norms: of the weights.
        mixing_norm: a bound of max_h ||P_h|| (n,); by column sums if None.
        floor: relative, of variances; the certificate has its own.
    """
    P = mixing.weights
    if mixing_norm is None:
        mixing_norm = P.sum(2).flatten(1).amax(1).sqrt()
    keys = mixing.keys - mixing.keys.mean(2, keepdim=True)
    jacobian = torch.minimum(2 * P * (1 - P), P).amax(-1)
    return GridSensitivity(
        weights=P,
        mixing_norm=mixing_norm,
        content=content[:, None],
        query_sizes=(mixing.queries.square().sum(-1) + 1e-30).sqrt(),
        key_spread=_deviation(P, keys, floor),
        farthest=(keys.square().sum(-1) + 1e-30).sqrt().amax(-1, keepdim=True),
        value_spread=_deviation(P, mixing.values, floor),
        weight_spread=(jacobian + floor).sqrt(),
        norms=norms,
    )


def _deviation(P: torch.Tensor, y: torch.Tensor, floor: float) -> torch.Tensor:
    """(sum_j P_ij |y_j - sum_l P_il y_l|^2)^1/2, no less: (n, heads, tokens)."""
    y = y - y.mean(2, keepdim=True)  # less to cancel
    squares = y.square().sum(-1, keepdim=True)
    variance = (P @ squares)[..., 0] - (P @ y).square().sum(-1)
    return (variance.clamp(min=0) + floor * squares.amax(2) + 1e-30).sqrt()
