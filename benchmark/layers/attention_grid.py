"""Dot-product attention over a grid of tokens, each head with its own preferred place, and a bound of how far it can move.

The bound is differentiable: one formula serves training and the certificate.

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

Variances are differences of means of squares. Rounding may lower them by some of the largest square's last digits, and a
weight may underflow, so `floor` times the largest square is added to each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmark.layers.attention import AttentionByHeads
from benchmark.layers.kinds import known, side, whole
from benchmark.layers.lipschitz import OrthogonalLinear
from benchmark.layers.tokens import on_grid

FAR = 60.0  # spreads beyond it have no bound
HARDEST = 4  # squared distance, in places, beyond which a head's initial scores fall no further
PLACES = (
    (0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1), (0, 2), (0, -2), (2, 0), (-2, 0),
)  # down, right: where the heads look initially  # fmt: skip


@dataclass(frozen=True)
class Mixing:
    """Queries, keys, values and attention weights of one forward pass, by head."""

    queries: torch.Tensor  # (n, heads, tokens, inner)
    keys: torch.Tensor  # the same
    values: torch.Tensor  # (n, heads, tokens, width / heads)
    weights: torch.Tensor  # (n, heads, tokens, tokens), rows summing to 1

    @property
    def mixed(self) -> torch.Tensor:
        """Return the heads' outputs (n, heads, tokens, width / heads)."""
        return self.weights @ self.values

    def float(self) -> Mixing:
        """Return them in float32, in case mixed precision computed fewer bits."""
        return Mixing(self.queries.float(), self.keys.float(), self.values.float(), self.weights.float())


@known(
    width=side("value.raw", 1),
    heads=whole(1),
    inner=whole(1),
    side=whole(1, 64),  # `places` has side^4 numbers, without a tensor of that size in the description
)
class GridAttention(AttentionByHeads):
    """Heads of softmax(t_h Q K^T + R_h) V, then a projection, without a residual: (n, side^2, width) to the same.

    Q, K, V and the projection are orthonormal maps of all heads together. R_h,ij is a learned number for the position of
    token j relative to token i on the torus of side x side places (Shaw et al. 2018, Liu et al. 2021). With t_h = 0 each
    head is a convolution of norm at most 1. t_h > 0 is the learned weight of the content.

    In evaluation mode it computes in float64 and rounds once, for the reasons given at OrthogonalLinear.

    Args:
        inner: channels of a head's queries and keys.
        content: initial t_h.
        sharpness: minus the initial R_h per squared distance from the head's place.

    Raises:
        ValueError: the heads do not divide the width, exceed the 13 places, or have more query channels than the width.
    """

    places: torch.Tensor  # (tokens, tokens) int64, the column of `table` for each pair
    kept: Mixing | None = None  # of the last forward pass in training mode, for objectives

    def __init__(
        self, width: int, heads: int, *, inner: int, side: int, content: float = 0.05, sharpness: float = 4.0
    ) -> None:
        super().__init__()
        if not 1 <= heads <= len(PLACES) or width % heads or not 1 <= inner * heads <= width or side < 1:
            raise ValueError(
                f"{heads} heads (at most {len(PLACES)}) should divide width {width} and have {inner} channels of it each"
            )
        self.heads, self.inner, self.side = heads, inner, side
        self.query, self.key = (OrthogonalLinear(width, heads * inner) for _ in range(2))
        self.value, self.output = (OrthogonalLinear(width, width) for _ in range(2))
        self.log_content = nn.Parameter(torch.full((heads,), math.log(content)))
        self.table = nn.Parameter(-sharpness * _first_distances(side, heads).clamp(max=HARDEST))
        down, right = steps(side)
        self.register_buffer("places", side * (down % side) + right % side, persistent=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"kept": None}  # a copy, such as the one that is scored, has had no forward pass

    @property
    def content(self) -> torch.Tensor:
        """Return t: (heads,)."""
        return self.log_content.exp()

    def mixing(self, x: torch.Tensor) -> Mixing:
        """Return the intermediate results for x (n, side^2, width), in the precision of x."""
        on_grid(x, self.side)
        queries, keys, values = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = queries @ keys.mT * self.log_content.to(x.dtype).exp()[:, None, None]
        offsets = self.table.to(x.dtype)[:, self.places]
        return Mixing(queries, keys, values, (scores + offsets).softmax(-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.kept = self.mixing(x)
            return self.projected(self.kept.mixed)
        return self.projected(self.mixing(x.double()).mixed).to(x.dtype)


def steps(side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row_j - row_i and column_j - column_i for tokens i, j of a side x side grid: (tokens, tokens) int64 each."""
    place = torch.arange(side**2, device="cpu")  # not on the meta device, where description.py makes layers
    row, column = place.div(side, rounding_mode="floor"), place % side
    return row[None] - row[:, None], column[None] - column[:, None]


def _first_distances(side: int, heads: int) -> torch.Tensor:
    """Return squared distances on the torus from each head's initial place: (heads, side^2)."""
    places = torch.tensor(PLACES[:heads])[:, :, None]
    moves = (torch.arange(side) - places) % side  # heads, (down, right), side
    squares = torch.minimum(moves, side - moves) ** 2
    return (squares[:, 0, :, None] + squares[:, 1, None]).flatten(1).float()


@dataclass(frozen=True)
class GridNorms:
    """Bounds of the spectral norms of W_Q, W_K, W_V and W_O, each of all heads together; 1 by construction."""

    query: float | torch.Tensor = 1.0
    key: float | torch.Tensor = 1.0
    value: float | torch.Tensor = 1.0
    output: float | torch.Tensor = 1.0


class GridSensitivity:
    """The quantities of the layer around the nominal inputs of `mixing` that the bound needs, the same for all radii.

    Args:
        content: t (heads,).
        mixing_norm: a bound of max_h ||P_h|| (n,); None means column sums.
        floor: relative, of variances; the certificate passes its own.
    """

    def __init__(
        self,
        mixing: Mixing,
        content: torch.Tensor,
        *,
        norms: GridNorms = GridNorms(),
        mixing_norm: torch.Tensor | None = None,
        floor: float = 1e-6,
    ) -> None:
        self.weights = P = mixing.weights  # (n, heads, tokens, tokens)
        self.norms, self.content = norms, content[:, None]
        self.mixing_norm = P.sum(2).flatten(1).amax(1).sqrt() if mixing_norm is None else mixing_norm
        keys = mixing.keys - mixing.keys.mean(2, keepdim=True)
        self.query_sizes = (mixing.queries.square().sum(-1) + 1e-30).sqrt()  # |q_i|: (n, heads, tokens), and so on
        self.key_spread = _deviation(P, keys, floor)  # rho
        self.farthest = (keys.square().sum(-1) + 1e-30).sqrt().amax(-1, keepdim=True)  # max_j |k_j - c|: (n, heads, 1)
        self.value_spread = _deviation(P, mixing.values, floor)  # s(v)
        self.weight_spread = (torch.minimum(2 * P * (1 - P), P).amax(-1) + floor).sqrt()  # s(I)

    def bound(self, radius: torch.Tensor) -> torch.Tensor:
        """Return an upper bound of sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius: (n,) to (n,), infinite if unknown."""
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
        """Return move(s) (n,) for `spread` = kappa s (n, heads, tokens)."""
        a, e, norms = spread * self.content, radius[:, None, None], self.norms
        first = (a * (self.key_spread + norms.key * e)).flatten(1).amax(1)
        squares = torch.einsum("nhij,nhi->nhj", self.weights, (a * self.query_sizes) ** 2).flatten(1).amax(1)
        return radius * (norms.query * first + norms.key * (squares + 1e-300).sqrt())


def _deviation(P: torch.Tensor, y: torch.Tensor, floor: float) -> torch.Tensor:
    """Return an upper bound of (sum_j P_ij |y_j - sum_l P_il y_l|^2)^1/2: (n, heads, tokens)."""
    y = y - y.mean(2, keepdim=True)  # less to cancel
    squares = y.square().sum(-1, keepdim=True)
    variance = (P @ squares)[..., 0] - (P @ y).square().sum(-1)
    return (variance.clamp(min=0) + floor * squares.amax(2) + 1e-30).sqrt()
