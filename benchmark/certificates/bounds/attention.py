"""Bounds of dot-product attention, with or without the residual; costly constants are computed on first use.

`QuickAttention` is a cheap bound of its local sensitivity, for the first look at many images: batched products and small
norms. Names as in sensitivity.py. Heads jointly, with W_V and W_O of all heads together, and 1 for a residual:
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
from collections.abc import Callable
from functools import cached_property

import torch
from torch import nn

from benchmark.layers.attention import LipschitzNormAttention, ResidualAttention, SelfAttention
from benchmark.layers.attention_window import DotProductWindowAttention
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import REFUSED, UP, LayerBound, PerturbationSet, layer_bound, needs_axes, unbiased, within
from .rounding import EXPONENTIAL, KERNEL, LARGEST, UNIT32, WIDEST, Rounding, gamma, in_room, linear_rounding, size
from .sensitivity import AttentionSensitivity, attention_sensitivity
from .spectral import FORMED_SIDE, product_norm_upper, spectral_norm_upper

FAR = 60.0
NO_CONSTANT = "is dot-product attention, which has no global Lipschitz constant (Kim et al. 2021)"


class QuickAttention:
    """A cheap bound around nominal inputs x (n, tokens, d); weights w_q to w_o and options as of `attention_sensitivity`."""

    def __init__(
        self, x: torch.Tensor, *weights: torch.Tensor, residual: bool = True, query_bias: torch.Tensor | None = None
    ) -> None:
        w_q, w_k, w_v, w_o = weights
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
        """Return a bound of sup ||F(X') - F(X)||_F over ||X' - X||_F <= radius: (n,) to (n,)."""
        e = radius[:, None]
        w = (self.spread * e[..., None] + 1.2072 * (self.b * e**2)[..., None]) / self.scale
        kappa = torch.where(w < 1e-8, 1 + w, torch.expm1(w) / w.clamp(min=1e-300)) * UP
        slope = torch.where(w > FAR, 0.5, (kappa * self.lam).clamp(max=0.5)).amax(-1)
        moved = (self.m * e + self.b * e**2) / self.scale * slope * (self.values + e * self.v)
        return (self.linear_norm * radius + self.output * torch.linalg.vector_norm(moved, dim=-1)) * UP


@layer_bound.register(ResidualAttention)
@layer_bound.register(SelfAttention)
class AttentionBound(LayerBound):
    """Scores of another scale than 1 / sqrt(d_head) are those of scaled queries. Of the biases only the queries' moves more
    than a constant (sensitivity.py); all count for rounding.
    """

    def __init__(self, layer: ResidualAttention | SelfAttention, x: torch.Tensor) -> None:
        needs_axes(layer, x, 3)
        self.layer, self.x = layer, x
        self.residual = isinstance(layer, ResidualAttention)
        self.factor = 1.0 if isinstance(layer, ResidualAttention) else layer.factor
        if isinstance(layer, ResidualAttention):
            unbiased(layer, layer.query, layer.key, layer.value, layer.output)
            within(layer, 0, WIDEST, qk_norm=layer.query.norm, vo_norm=layer.value.norm)
            within(layer, 0, WIDEST, qk_norm=layer.key.norm, vo_norm=layer.output.norm)
        elif not 1 / LARGEST <= self.factor <= LARGEST:
            raise BenchmarkError(f"SelfAttention's scores are {self.factor:g} times the usual; float32 could overflow")

    @cached_property
    def everywhere(self) -> float:
        raise BenchmarkError(f"{self.name} {NO_CONSTANT}; use a local certificate, or L2Attention")

    @property
    def has_jvp(self) -> bool:  # type: ignore[override]
        """Whether DF(X) is small enough to form. Beyond, only the quick bound is used."""
        return self.x.shape[1] * self.x.shape[2] <= FORMED_SIDE

    @cached_property
    def _weights(self) -> tuple[torch.Tensor, ...]:
        query, *others = self.layer.head_weights()
        return query * self.factor, *others

    @cached_property
    def _query_bias(self) -> torch.Tensor | None:
        bias = self.layer.query.bias
        return None if bias is None else bias.unflatten(0, (self.layer.heads, -1)) * self.factor

    @cached_property
    def sensitivity(self) -> AttentionSensitivity:
        return attention_sensitivity(
            self.x, *self._weights, residual=self.residual, query_bias=self._query_bias, exact_zeta=False
        )

    @cached_property
    def _quick(self) -> QuickAttention:
        return QuickAttention(self.x, *self._weights, residual=self.residual, query_bias=self._query_bias)

    @cached_property
    def _rounding(self) -> Rounding:  # type: ignore[override]
        return attention_rounding(self.layer, self.x, factor=self.factor, residual=self.residual)

    @property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        return self.sensitivity.linear.jacobian

    def quick_bound(self, delta: torch.Tensor) -> torch.Tensor:
        return self._quick.bound(delta)

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        quick = self._quick.bound(delta)
        return torch.minimum(where_finite(self.sensitivity.bound, delta), quick) if self.has_jvp else quick

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        return where_finite(self.sensitivity.remainder, perturbation.delta)

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        flat = columns.flatten(2).permute(1, 2, 0)
        return (self.sensitivity.linear.derivative @ flat).permute(2, 0, 1).reshape(columns.shape)


def where_finite(bound: Callable[[torch.Tensor], torch.Tensor], delta: torch.Tensor) -> torch.Tensor:
    """Return bound(delta), infinite where delta is not finite."""
    finite = torch.isfinite(delta)
    return torch.where(finite, bound(torch.where(finite, delta, 0.0)), torch.inf)


def attention_rounding(
    layer: ResidualAttention | SelfAttention, x: torch.Tensor, *, factor: float, residual: bool
) -> Rounding:
    """Return the rounding of concat_h(softmax(factor Q_h K_h^T / s) V_h) W_O + b_O, and of its sum with x for a residual.

    s = sqrt(d_h), Q = x W_Q + b_Q and so on: x (n, tokens, d), W (d, d).

    Norms over all heads. Products: Q, K, V each move by dQ = gamma (|| |x| |W_Q| + |b_Q| || + delta || |W_Q| ||). Scores move
    by dS = factor / s (dQ ||K|| + ||Q|| dK + dQ dK + gamma(8 (d_h + 4)) (||Q|| + dQ)(||K|| + dK)), all norms over the ball,
    with two roundings more where the factor is not 1, which multiplies Q.
    Subtracting the maximum, a change of base and exp move the logarithm of an unnormalised weight by at most 6 u max |S| +
    2 EXPONENTIAL. Softmax is 1/2-Lipschitz and rows of P have norm at most 1, so
      dP = (dS + tokens sqrt(heads) (6 u max |S| + 2 EXPONENTIAL)) / 2 + gamma(8 (2 tokens + 6)) sqrt(tokens heads).
    Then, with ||P_h||_2 <= sqrt(tokens), the mixed values move by
      dM = dP (||V|| + dV) + sqrt(tokens) dV + gamma(8 (2 tokens + 6)) (sqrt(tokens) + dP)(||V|| + dV),
    and the output by dM ||W_O|| + gamma(d + 3) ((||M|| + dM) || |W_O| || + ||b_O|| sqrt(tokens)), of a residual by
    u (||x'|| + (||M|| + dM) || |W_O| || + ||b_O|| sqrt(tokens)) more.

    Range (rounding.py), with Q' = ||Q|| + dQ, and so on: factor Q' K', which no score exceeds before its division by
    s; m = 2 sqrt(tokens) V', since rows of what is computed of P sum to less than 2; and what the output sums,
    m || |W_O| || + ||b_O|| sqrt(tokens).

    Args:
        factor: the scores' factor beside 1 / sqrt(d / heads).
    """
    pairs = [(part.weight, part.bias) for part in (layer.query, layer.key, layer.value)]
    linears = [linear_rounding(x, weight, bias) for weight, bias in pairs]
    sizes = [size(x @ weight.mT if bias is None else x @ weight.mT + bias) for weight, bias in pairs]
    norms = [spectral_norm_upper(weight) for weight, _ in pairs]
    weight, bias, heads = layer.output.weight, layer.output.bias, layer.heads
    after, after_absolute = spectral_norm_upper(weight), spectral_norm_upper(weight.abs())
    n, width, inner, length = x.shape[1], x.shape[2], weight.shape[1] // heads, size(x)
    root, divisor = math.sqrt(n), math.sqrt(inner) / factor
    count = KERNEL * (inner + 4) + (0 if factor == 1 else 2)
    shift = 0.0 if bias is None else float(torch.linalg.vector_norm(bias)) * math.sqrt(n)

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        dq, dk, dv = (linear(delta) for linear in linears)
        q, k, v = (own + delta * norm for own, norm in zip(sizes, norms, strict=True))
        largest = (q + dq) * (k + dk) / divisor
        ds = (dq * k + q * dk + dq * dk) / divisor + gamma(count) * largest
        logarithm = 6 * UNIT32 * largest + 2 * EXPONENTIAL
        sums = gamma(KERNEL * (2 * n + 6))
        dp = (ds + n * math.sqrt(heads) * logarithm) / 2 + sums * math.sqrt(n * heads)
        dm = dp * (v + dv) + root * dv + sums * (root + dp) * (v + dv)
        mixed = root * v + dm
        out = dm * after + gamma(width + 3) * mixed * after_absolute
        out = out + gamma(width + 3) * shift
        if residual:
            out = out + UNIT32 * (length + delta + mixed * after_absolute + shift)
        scores = torch.stack([(q + dq) * (k + dk), q + dq, k + dk]).amax(0) * max(factor, 1.0)
        values = 2 * root * (v + dv) * (1 + after_absolute) + shift
        return in_room(out, torch.maximum(scores, values))

    return rounding


for _dot_products in (DotProductWindowAttention, nn.MultiheadAttention):
    _advice = "use L2WindowAttention, or SelfAttention and a local certificate"
    REFUSED[_dot_products] = f"{_dot_products.__name__} {NO_CONSTANT} and no bound here; {_advice}"
REFUSED[LipschitzNormAttention] = (
    "no sound constant is known for LipschitzNormAttention: the published one lacks W_V (unsound_paper_formula.py)"
)
