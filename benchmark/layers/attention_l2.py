"""L2 self-attention (Kim, Papamakarios & Mnih 2021), a Lipschitz replacement of dot-product attention, and its constant.

L(N) is the constant of g(Z) = P Z, P_ij = softmax_j(-t_ij), t_ij = |u_ij|^2, u_ij = z_j - z_i, on N tokens. In a
direction dZ row i of Dg is, with m_i = sum_j P_ij u_ij and V_i = sum_j P_ij (u_ij - m_i) u_ij^T, a covariance,
  sum_j P_ij dz_j  -  2 sum_j P_ij (u_ij - m_i) <u_ij, dz_j>  +  2 V_i dz_i.
Let phi(x) = x e^(x+1), c = phi^-1(N - 1).
  1. ||V_i|| <= tr V_i <= sum_j P_ij t_ij <= c, that is sum_(j != i) (t_ij - c) e^(-t_ij) <= c: (t - c) e^(-t) is
     at most e^(-c-1) = c / (N - 1), at t = c + 1. So the last term has norm at most 2 c.
  2. The kernel K_ij = e^(-t_ij) is positive semidefinite with K_jj = 1, so that <w, K e_j>^2 <= <w, K w> for every w.
     With row sums D_i >= 1 and w_i = 1 / D_i: (sum_i P_ij)^2 <= sum_ik K_ik / (D_i D_k) <= sum_ik K_ik (D_i^-2 + D_k^-2) / 2
     = sum_i 1 / D_i <= N. Columns of P sum to at most sqrt(N), rows to 1: the first term has norm at most N^(1/4).
  3. For j != i, P_ij <= 1 / (1 + e^t_ij), so P_ij t_ij <= h(P_ij), h(b) = b log(1/b - 1), concave on [0, 1/2]. With 2,
     sum_i P_ij t_ij <= T = (N - 1) max h over [0, sqrt(N) / (N - 1)]; h rises to 0.278465 at b = 0.2178.
  4. |sum_j P_ij (u_ij - m_i) <u_ij, dz_j>|^2 <= ||V_i|| sum_j P_ij t_ij |dz_j|^2: the middle term, all rows, is at most
     2 sqrt(c T).
So L(N) <= N^(1/4) + 2 c + 2 sqrt(c T). Kim et al. 2021 have sqrt(N) (4 c + 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from benchmark.layers.attention import HEADS, Heads, divided, rows_by_head
from benchmark.layers.kinds import Constant, known, matrices

UP = 1 + 1e-12
H_LARGEST = 0.278465  # max of b log(1/b - 1), phi^-1(1) = 0.27846454..., rounded up


def phi_inverse(value: float) -> float:
    """Return an upper bound of the x >= 0 with x e^(x+1) = value, within 1e-12 of it, relatively.

    phi increases, so x is above the root once the true phi(x) >= value. The relative error of the computed phi(x) is at
    most (x + 4) units of rounding (x + 1 and the product by one, exp by one and by x + 1 times its argument's). With
    x < 200 that is below 1e-13, which is subtracted before comparing.

    Raises:
        ValueError: value is negative, not finite, or above 1e80.
    """
    if not 0 <= value <= 1e80:
        raise ValueError(f"phi^-1 is defined here from 0 to 1e80, not for {value}")
    if value == 0:
        return 0.0
    value, low, high = max(value, 1e-300), 0.0, 200.0  # products below 1e-300 have no relative rounding
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle * math.exp(middle + 1) * (1 - 1e-13) >= value:
            high = middle
        else:
            low = middle
    return high


def mixing_constant(tokens: int) -> float:
    """Return an upper bound of the Lipschitz constant of Z -> softmax(-|z_i - z_j|^2) Z on N tokens, L(N) above."""
    if tokens < 1:
        raise ValueError(f"{tokens} tokens; at least one is needed")
    if tokens == 1:
        return 1.0
    c, share = phi_inverse(tokens - 1), math.sqrt(tokens) / (tokens - 1)
    column = (tokens - 1) * (share * math.log(1 / share - 1) if share < 0.2178 else H_LARGEST)
    return (tokens**0.25 + 2 * c + 2 * math.sqrt(c * column)) * UP


def kim_constant(tokens: int) -> float:
    """Return sqrt(N) (4 phi^-1(N - 1) + 1), which Kim et al. 2021, theorem 3.2, have in place of L(N)."""
    return math.sqrt(tokens) * (4 * phi_inverse(tokens - 1) + 1) * UP


def _constant(layer: L2Attention, x: torch.Tensor) -> Constant:
    """Return L(N) / s times the smaller of sqrt(sum_h |W_Q,h|^4 |W_V,h|^2) |W_O| and |W_Q| |stacked W_Q,h^T W_V,h W_O,h|.

    certificates/bounds/l2_attention.py proves both (`kim` and b).
    """

    def stacked() -> torch.Tensor:
        query, value, output = layer.head_weights()
        return (query.mT @ value @ output).flatten(0, 1)[None]

    reads = (
        lambda: layer.head_weights()[0],
        lambda: layer.head_weights()[1],
        lambda: layer.output.weight.mT[None],
        lambda: layer.query.weight.mT[None],
        stacked,
    )
    factor = mixing_constant(x.shape[1]) / math.sqrt(layer.query.out_features / layer.heads)

    def constant(norms: Sequence[torch.Tensor]) -> torch.Tensor:
        query, value, output, together, joined = norms
        by_head = (query**4 * value**2).sum().sqrt() * output[0]
        return factor * torch.minimum(by_head, together[0] * joined[0])

    return Constant(tuple(map(matrices, reads)), constant)


@known(**HEADS, constant=_constant)
class L2Attention(Heads):
    """concat over heads of P_h X A_h W_V,h, times W_O, without a residual: (n, tokens, width) to the same.

    P_h = softmax over j of -||x_i W_Q,h - x_j W_Q,h||^2 / s, A_h = W_Q,h W_Q,h^T / s, s = sqrt(width / heads). Keys and
    queries share a weight (Kim et al. 2021, section 3.2). No biases.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = divided(width, heads)
        self.query, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(3))

    def head_weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return W_Q and W_V (heads, width, width / heads) and W_O (heads, width / heads, width), acting on rows."""
        query, value = (rows_by_head(linear.weight, self.heads) for linear in (self.query, self.value))
        return query, value, self.output.weight.mT.unflatten(0, (self.heads, -1))

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Return X A_h W_V,h by head: (n, heads, tokens, width / heads)."""
        return self._values(x, self.split(self.query(x)))

    def mixed(self, x: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """Return P_h X A_h W_V,h by head: (n, heads, tokens, width / heads).

        `offsets` (n or 1, heads, tokens, tokens) are added to the scores (attention_window.py); bounds are without them.
        """
        y = self.split(self.query(x))
        squares = (y**2).sum(-1)
        # softmax ignores ||y_i||^2, which is the same along a row
        scores = (2 * y @ y.mT - squares[..., None, :]) / math.sqrt(y.shape[-1])
        if offsets is not None:
            scores = scores + offsets
        return scores.softmax(-1) @ self._values(x, y)

    def _values(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return X A_h W_V,h from y = X W_Q,h, both (n, heads, tokens, width / heads)."""
        query, value, _ = self.head_weights()
        return y @ (query.mT @ value / math.sqrt(y.shape[-1]))


@known(**HEADS)
class ReleasedL2Attention(L2Attention):
    """L2 attention without A_h, with values X W_V,h, as in CertViT's released code: *not* Lipschitz.

    Along the null space of W_Q,h^T the tokens grow and the scores do not, so the scores' derivative multiplies values of
    any size. It shows what the published numbers ran; no certificate takes it.
    """

    def _values(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.split(self.value(x))
