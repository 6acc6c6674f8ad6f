"""The `LayerBound` of L2 attention: its Jacobian around a nominal input, its softmax means' curvature over a ball."""

from __future__ import annotations

import math
from functools import cached_property

import torch

from benchmark.certificates.bounds.dispatch import _needs, layer_bound, unbiased
from benchmark.certificates.bounds.l2_attention_norm import l2_attention_norm_upper
from benchmark.certificates.bounds.layer_bound import UP, LayerBound, PerturbationSet, jacobian_norms
from benchmark.certificates.bounds.rounding import EXPONENTIAL, FLOAT64, ROOM, TINY, UNIT32, LinearRounding, gamma, size
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.layers.attention_l2 import L2Attention, mixing_constant

FORMED = 1024  # up to this many entries the Jacobian is formed for its norm


class L2AttentionBound(LayerBound):
    """As in l2_attention_norm.py, head h is sqrt(s) g(Z) W_Q^T W_V / s, Z = X W_Q / sqrt(s), and row i of g is z_i + m_i,
    m_i = sum_j P_ij u_ij. Let the z move by at most e together, v_ij = dz_j - dz_i, |v_ij| <= sqrt(2) e. Over that ball
    |u_ij| <= u+ = |u_ij| + sqrt(2) e, exponents move by at most b_ij = 2 sqrt(2) e |u_ij| + 2 e^2, so that
    P_ij <= p_ij = min(1, P_ij e^b_ij / sum_k P_ik e^-b_ik), and |m_i| <= c_i = sum_j p_ij u+_ij.
    With E_j = -|u_j|^2, dE_j = -2 <u_j, v_j> and means under P_i, the second derivative of m_i is
      2 mean((dE - mean dE) v)  -  2 mean((u - m) |v|^2)  +  mean((u - m)(dE - mean dE)^2),
    of norm at most sum_j q_ij |v_ij|^2, q = p (4 u+^2 / k + k + 2 (u+ + c) + 8 u+^2 (u+ + 3 c)) for any k_i > 0: for the
    first, 2 sqrt(mean dE^2 mean |v|^2); for the last, (dE - mean dE)^2 <= 2 dE^2 + 2 mean dE^2 and mean |u - m| <= 2 c.
    Since |v_ij|^2 <= 2 |dz_i|^2 + 2 |dz_j|^2, all rows together are convex in the |dz_k|^2, so that one token's moving is
    worst: at most e^2 max_k ||2 (sum_j q_kj) e_k + 2 q_.k||. The remainder is half of that. `offsets` (n, heads, tokens,
    tokens), added to the scores, do not move and stand in P alone: nothing else of this changes.

    Args:
        everywhere: a global constant of the layer; with offsets that of unbiased attention is none.
    """

    def __init__(
        self,
        layer: L2Attention,
        x: torch.Tensor,
        *,
        offsets: torch.Tensor | None = None,
        everywhere: float | None = None,
    ) -> None:
        self.layer, self.x = layer, x
        query, value, output = (weight.double() for weight in layer.head_weights())
        scale = math.sqrt(query.shape[2])
        assert (offsets is None) == (everywhere is None)
        self.everywhere = l2_attention_norm_upper(layer, x.shape[1]) if everywhere is None else everywhere
        inner = query.mT @ value @ output  # M_h; rounding is far below the 1e-9 added, unless M_h itself is rounding
        floor = 1e-12 * query.flatten(1).norm(dim=1) * value.flatten(1).norm(dim=1) * output.flatten(1).norm(dim=1)
        self.after = (spectral_norm_upper(inner) * (1 + 1e-9) + floor) / math.sqrt(scale)  # sqrt(s) M_h / s: (heads,)
        stacked = spectral_norm_upper(inner.flatten(0, 1)) * (1 + 1e-9) + floor.norm()
        self.after_all = stacked / math.sqrt(scale)
        self.before = spectral_norm_upper(query) / math.sqrt(scale) * UP
        self.query, self.inner, self.scale = query, query.mT @ value / scale, scale
        self.y = torch.einsum("nic,hcd->nhid", x, query)
        z = self.y / math.sqrt(scale)
        squares = ((z[:, :, :, None] - z[:, :, None]) ** 2).sum(-1)
        self.p, self.u = (-squares if offsets is None else offsets - squares).softmax(-1), squares.sqrt()

    @cached_property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        if self.x[0].numel() > FORMED:
            return self.x.new_full((len(self.x),), self.everywhere)
        return torch.stack(jacobian_norms(self._derivative, self.x)).clamp(max=self.everywhere)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return self._derivative(columns, slice(None))

    def _derivative(self, columns: torch.Tensor, images: slice) -> torch.Tensor:
        """Of columns (directions, n, tokens, width), around the nominal inputs `images`."""
        p, y = self.p[images], self.y[images]
        dy = torch.einsum("pnic,hcd->pnhid", columns, self.query)
        scores = 2 * (dy @ y.mT + y @ dy.mT - (y * dy).sum(-1)[..., None, :]) / self.scale
        dp = p * (scores - (p * scores).sum(-1, keepdim=True))
        mixed = (dp @ y + p @ dy) @ self.inner
        return mixed.transpose(2, 3).flatten(3) @ self.layer.output.weight.mT

    def _bend(self, delta: torch.Tensor) -> torch.Tensor:
        """||F(x + D) - F(x) - J D|| for ||D|| <= delta is at most this: (n,)."""
        e = (delta[:, None] * self.before)[..., None, None]  # (n, heads, 1, 1)
        shift = 2 * math.sqrt(2) * e * self.u + 2 * e**2
        shift = shift - torch.diag_embed(shift.diagonal(dim1=-2, dim2=-1))  # a token and itself do not part
        low = (self.p * torch.exp(-shift)).sum(-1, keepdim=True)
        grown = (self.p * (1 + 1e-9) + 1e-300) * torch.exp(shift) / low  # what rounding or underflow may have taken
        p = torch.nan_to_num(grown, nan=1.0).clamp(max=1.0)
        u = (self.u + math.sqrt(2) * e) * (1 + 1e-9)
        apart = 1 - torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
        p = p * apart
        c = (p * u).sum(-1, keepdim=True)
        k = 2 * (p * u**2).sum(-1, keepdim=True).sqrt().clamp(min=1e-6)
        q = p * (4 * u**2 / k + k + 2 * (u + c) + 8 * u**2 * (u + 3 * c))
        worst = 2 * (q + torch.diag_embed(q.sum(-1)))  # column k: what the move of token k alone gives
        half = e[..., 0, 0] ** 2 * torch.linalg.vector_norm(worst, dim=-2).amax(-1) / 2
        least = torch.minimum((half * self.after).sum(1), half.norm(dim=1) * self.after_all) * (1 + 1e-9)
        return torch.nan_to_num(least, nan=math.inf)

    @cached_property
    def _rounding(self) -> L2AttentionRounding:  # type: ignore[override]
        return L2AttentionRounding(self.layer, self.x)

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self.everywhere * delta

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return torch.minimum(self.everywhere * delta, (self.jacobian_norm * delta + self._bend(delta)) * UP)

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        return (
            torch.minimum((self.everywhere + self.jacobian_norm) * perturbation.delta, self._bend(perturbation.delta))
            * UP
        )


class L2AttentionRounding:
    """Per head, Y = x W_Q, I = W_Q^T W_V / s, scores (2 Y Y^T - squares) / s, values Y I, norms over all tokens.

    Y moves by dY as a linear layer; G is L(N)-Lipschitz, so exact attention of the moved Y is off by L(N) dY ||I||. From
    there scores err by gamma(d_h + 6) (2 + sqrt N) ||Y||^2 / s, the logarithm of a weight by 6 u max |S| + 2 EXPONENTIAL with
    |S| <= 3 ||Y||^2 / s, softmax is 1/2-Lipschitz, values err by gamma(d_h + d + 8) ||Y|| A, where
    A = || |W_Q|^T |W_V| || / s >= ||I||; the mixed values and the output as in `AttentionRounding`. An `offset` of the scores
    enters max |S|, and rounds when it is made and when it is added; what the sum rounds of S is one of d_h + 6.

    Range (rounding.py), Y' being Y + dY: scores sum to at most 3 ||Y'||^2 before their division by s, values to
    ||Y'|| A s, what is mixed to m = 2 sqrt(N) ||Y'|| A, since rows of what is computed of P sum to less than 2, the output
    to m || |W_O| ||.
    """

    offset = 0.0  # the largest number, absolute, that is added to a score
    mixing: float | torch.Tensor  # L(N), or one for each head

    def __init__(self, layer: L2Attention, x: torch.Tensor) -> None:
        query, value, _ = (weight.double() for weight in layer.head_weights())
        self.tokens, self.width, self.inner = x.shape[1], x.shape[2], query.shape[2]
        self.scale, self.mixing = math.sqrt(self.inner), mixing_constant(x.shape[1])
        self.linears = [LinearRounding(x, head.mT) for head in query]
        self.sizes = torch.stack([size(x @ head) for head in query], dim=1)  # (n, heads)
        self.norms = spectral_norm_upper(query)
        self.absolute = spectral_norm_upper(query.abs().mT @ value.abs()) / self.scale * UP
        self.output = spectral_norm_upper(layer.output.weight)
        self.output_absolute = spectral_norm_upper(layer.output.weight.abs())

    def __call__(self, delta: torch.Tensor) -> torch.Tensor:
        n, root = self.tokens, math.sqrt(self.tokens)
        dy = torch.stack([linear(delta) for linear in self.linears], dim=1)
        y = self.sizes + delta[:, None] * self.norms + dy
        ds = gamma(self.inner + 6) * (2 + root) * y**2 / self.scale
        logarithm = 6 * UNIT32 * 3 * y**2 / self.scale + 2 * EXPONENTIAL + 9 * UNIT32 * self.offset
        sums = gamma(2 * n + 6)
        dp = (ds + n * logarithm) / 2 + sums * root
        v = y * self.absolute
        dv = gamma(self.inner + self.width + 8) * v
        dm = dp * (v + dv) + root * dv + sums * (root + dp) * (v + dv) + self.mixing * dy * self.absolute
        moved, mixed = (torch.linalg.vector_norm(part, dim=1) for part in (dm, root * v + dm))
        out = moved * self.output + gamma(self.width + 3) * mixed * self.output_absolute
        values = 2 * root * torch.linalg.vector_norm(v + dv, dim=1) * (self.scale + self.output_absolute)
        widest = torch.maximum(3 * y.amax(1) ** 2 + self.offset, values)
        return torch.where(widest <= ROOM, out * FLOAT64 + TINY, torch.inf)


@layer_bound.register
def _(layer: L2Attention, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    unbiased(layer, layer.query, layer.value, layer.output)
    return L2AttentionBound(layer, x)
