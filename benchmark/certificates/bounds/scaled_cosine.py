"""The `LayerBound`s of LipsFormer's layers: scaled cosine attention around a nominal input, and CenterNorm."""

from __future__ import annotations

import math
from functools import cached_property

import torch

from benchmark.certificates.bounds.dispatch import _needs, layer_bound, unbiased, within
from benchmark.certificates.bounds.layer_bound import UP, LayerBound, PerturbationSet, jacobian_norms
from benchmark.certificates.bounds.rounding import (
    EXPONENTIAL,
    FLOAT64,
    LARGEST,
    ROOM,
    TINY,
    UNIT32,
    LinearRounding,
    gamma,
    size,
)
from benchmark.certificates.bounds.scaled_cosine_ball import Ball, Nominal, nominal
from benchmark.certificates.bounds.scaled_cosine_norm import column_sum, scaled_cosine_norm_upper
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.runtime.errors import BenchmarkError

LEAST_EPS = 0.99e-12  # float32's 1e-12; underflowing squares, 1e-45 each, are nothing beside it
FORMED = 1024  # up to this many entries the Jacobian is formed for its norm


class ScaledCosineBound(LayerBound):
    """Over a ball of radius delta, scaled_cosine_ball.py gives each head's first_x and second xy, x and y of q, k, v. The
    heads' outputs stand side by side before W_O, so that over the ball, w_x,h = ||W_X,h|| and w_x = ||W_X||,
      ||DF||    <= nu ||W_O|| min( (sum_h (sum_x first_x,h w_x,h)^2)^(1/2), sum_x max_h first_x,h w_x ),
      ||D^2 F|| <= nu ||W_O|| min( (sum_h (sum_xy xy_h w_x,h w_y,h)^2)^(1/2), sum_xy max_h xy_h w_x w_y ),
    the latter forms because sum_h ||dX_h||^2 = ||dX||^2 and sum_h ||dX_h||^2 ||dY_h||^2 <= ||dX||^2 ||dY||^2. The remainder
    is at most half the second times delta^2. Rows of P V^ are shorter than 1, so the output lies within
    nu ||W_O|| sqrt(tokens heads) of 0, and moves by at most twice that.
    """

    def __init__(self, layer: ScaledCosineAttention, x: torch.Tensor) -> None:
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
    def _nominal(self) -> Nominal:
        return nominal((self.q, self.k, self.v), tuple(self.lengths), self.p, abs(self.tau), self.layer.eps)

    def _ball(self, delta: torch.Tensor) -> Ball:
        reach = (delta + self.off)[:, None] * UP
        return Ball(self._nominal, [reach * norm for norm in self.by_head])

    def _lipschitz(self, ball: Ball) -> torch.Tensor:
        """||DF|| over the ball: (n,)."""
        parts = ball.first()
        heads = torch.stack([part * norm for part, norm in zip(parts, self.by_head, strict=True)]).sum(0)
        together = torch.stack([part.amax(1) * norm for part, norm in zip(parts, self.whole, strict=True)]).sum(0)
        least = self.after * torch.minimum(torch.linalg.vector_norm(heads, dim=1), together) * UP
        return least.clamp(max=self.everywhere)

    def _bend(self, ball: Ball, delta: torch.Tensor) -> torch.Tensor:
        """||F(x + D) - F(x) - J D|| over the ball: (n,)."""
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
        norms = jacobian_norms(self._derivative, self.x)
        return torch.stack(norms).clamp(max=self.everywhere) if norms else self.off

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        return self._derivative(columns, slice(None))

    def _derivative(self, columns: torch.Tensor, images: slice) -> torch.Tensor:
        """Of columns (directions, n, tokens, width), around the nominal inputs `images`."""
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
    def _rounding(self) -> ScaledCosineRounding:  # type: ignore[override]
        return ScaledCosineRounding(self.layer, self.x, self.lengths)

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


class ScaledCosineRounding:
    """Norms over all tokens and heads; N tokens, H heads, d_h = width / H, nu and tau absolute, y a row before n.

    x W errs by l as a linear layer. n is a-Lipschitz over the ball widened by l, a = 1/sqrt((|y0| - e - l)+^2 + eps); the sum
    of squares, the root and the quotient then err by g = gamma(d_h / 2 + 12) relatively, of rows shorter than 1. So Q^, K^
    and V^ each err by a l + g sqrt(N H), and stay shorter than 1 + g. Exact attention of rows of that length errs from there
    by nu (sqrt(c) dV + tau dQ + tau sqrt(c) dK) (1 + g)^3, by the proof in scaled_cosine_norm.py, c of scores within
    tau (1 + g)^2. In it, scores err by gamma(d_h + 3) tau (1 + g)^2 each, and the logarithm of a weight by that, 6 u of the
    largest score and 2 EXPONENTIAL; call the sum t. Weights then err relatively by h = e^(2 t) (1 + gamma(2 N + 6)) - 1, in
    all by no more than 2 + gamma(2 N + 6), since what is computed sums to 1 + gamma(2 N + 6) at most. Products with V^ and
    nu add gamma(N + 3) (1 + h). Rows of P V^ are thus off by nu (1 + g) (h + gamma(N + 3) (1 + h)), and the output by that
    times ||W_O||, and gamma(width + 3) || |W_O| || of what is mixed.

    Range (rounding.py): squares of a row's entries sum to at most (|y0| + e + l)^2, and the output to || |W_O| || times what
    is mixed. Queries and keys are shorter than 1 + g, so scores stay below 1.1 tau.
    """

    def __init__(self, layer: ScaledCosineAttention, x: torch.Tensor, lengths: list[torch.Tensor]) -> None:
        linears = (layer.query, layer.key, layer.value)
        self.linears = [LinearRounding(x, linear.weight) for linear in linears]
        self.norms = [spectral_norm_upper(weight).amax() for weight in layer.head_weights()[:3]]
        self.least, self.longest = (
            [each.amin((1, 2)) for each in lengths],
            [each.amax((1, 2)) for each in lengths],
        )  # (n,)
        self.eps, self.nu, self.tau = layer.eps, abs(float(layer.nu.detach())), abs(float(layer.tau.detach()))
        self.tokens, self.heads, self.width = x.shape[1], layer.heads, x.shape[2]
        self.output = spectral_norm_upper(layer.output.weight)
        self.output_absolute = spectral_norm_upper(layer.output.weight.abs())

    def __call__(self, delta: torch.Tensor) -> torch.Tensor:
        n, inner, rows = self.tokens, self.width // self.heads, math.sqrt(self.tokens * self.heads)
        g = gamma(inner / 2 + 12)
        moved, widest = [], torch.zeros_like(delta)
        for linear, norm, least, longest in zip(self.linears, self.norms, self.least, self.longest, strict=True):
            lost = linear(delta)
            widest = torch.maximum(widest, longest + delta * norm + lost)
            slope = 1 / ((least * (1 - 1e-9) - delta * norm - lost).clamp(min=0) ** 2 + self.eps).sqrt()
            moved.append(slope * lost + g * rows)
        tau = self.tau * (1 + g) ** 2
        root = math.sqrt(column_sum(n, tau))
        inherited = (root * moved[2] + self.tau * (moved[0] + root * moved[1])) * (1 + g) ** 3
        logarithm = gamma(inner + 3) * tau + 6 * UNIT32 * tau * 1.1 + 2 * EXPONENTIAL
        sums = gamma(2 * n + 6)
        weights = min(math.expm1(min(2 * logarithm, 50.0)) * (1 + sums) + sums, 2 + sums)
        off = self.nu * (inherited + rows * (1 + g) * (weights + gamma(n + 3) * (1 + weights)))
        mixed = self.nu * rows + off
        out = (off * self.output + gamma(self.width + 3) * mixed * self.output_absolute) * FLOAT64 + TINY
        return torch.where(torch.maximum(widest**2, mixed * self.output_absolute) <= ROOM, out, torch.inf)


@layer_bound.register
def _(layer: ScaledCosineAttention, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    unbiased(layer, layer.query, layer.key, layer.value, layer.output)
    within(layer, LEAST_EPS, LARGEST, eps=layer.eps)
    return ScaledCosineBound(layer, x)


@layer_bound.register
def _(layer: CenterNorm, x: torch.Tensor) -> LayerBound:
    """Entry by entry the mean errs by gamma(d + 1) |x| / sqrt(d), and a difference and four products and sums follow."""
    width, scale = len(layer.gamma), len(layer.gamma) / (len(layer.gamma) - 1)
    if x.shape[-1] != width:
        raise BenchmarkError(f"CenterNorm of width {width} does not fit inputs {tuple(x.shape)}")
    centre = torch.eye(width, dtype=x.dtype, device=x.device) - 1 / width
    norm = spectral_norm_upper(scale * layer.gamma[:, None] * centre)
    most, count = scale * layer.gamma.abs().max() * UP, gamma(width + 10)
    shift, nominal_size = layer.beta.norm() * math.sqrt(x[0].numel() / width), size(x)
    return LayerBound(
        lambda y: layer.gamma * (scale * (y - y.mean(-1, keepdim=True))),
        norm,
        lambda delta: count * (most * (nominal_size + delta) + shift) * FLOAT64 + TINY,
    )
