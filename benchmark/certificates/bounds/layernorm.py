"""The bound of LayerNorm, whose local constant is max|gamma| / standard deviation, not max|gamma| / sqrt(eps)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError

from .layer_bound import UP, LayerBound, PerturbationSet, layer_bound, within
from .rounding import LARGEST, UNIT32, covered, gamma

LEAST_EPS = 1e-20  # what float32 squares of differences may lose by underflow, 1e-45 each, is nothing beside it


@layer_bound.register(nn.LayerNorm)
class LayerNormBound(LayerBound):
    """gamma n(C x) + beta, token by token: C takes the mean off, n(z) = z / s, s = sqrt(|z|^2 / d + eps).

    Dn = (I - z z^T / (d s^2)) / s has norm at most 1 / s, and |n| < sqrt(d). With z = |z| e, w = c e + (its rest), |w| = 1:
    D^2 n[w, w] = |z| / (d s^3) (-(1 + (2 - 3 q) c^2) e - 2 c (rest)), q = |z|^2 / (d s^2) < 1. Its square,
    q / (d s^4) (1 + (8 - 6 q) y - 3 q (4 - 3 q) y^2) with y = c^2, is largest at y = min(1, 1 / (3 q)): 4 / (3 d s^4) for
    q >= 1/3, and 9 q (1 - q)^2 / (d s^4), which is less, below. So ||D^2 n|| <= 2 / (sqrt(3 d) s^2). Over a ball of radius
    r, s >= sqrt(max(|z| - r, 0)^2 / d + eps): the remainder is at most |w|^2 / (sqrt(3 d) s^2), w = C D.

    Rounding of a token: the mean errs by gamma(d + 2) |x| / sqrt(d); the variance, by whatever formula (the textbook one is
    the worst), by gamma(4 d + 16) |x|^2 / d, and so 1 / s relatively by p = gamma(4 d + 20) (|x|^2 / d + s^2) / s^2 while
    p <= 1/2; beyond, what is computed is still at most 1 / sqrt(eps), its variance not being negative. A few roundings of
    terms of size |x| / s follow, and those of gamma and beta.
    """

    def __init__(self, layer: nn.LayerNorm, x: torch.Tensor) -> None:
        if tuple(x.shape[1:][-len(layer.normalized_shape) :]) != tuple(layer.normalized_shape):
            raise BenchmarkError(f"LayerNorm over {layer.normalized_shape} does not fit inputs {tuple(x.shape)}")
        within(layer, LEAST_EPS, LARGEST, eps=layer.eps)
        self.eps = layer.eps
        self.d = math.prod(layer.normalized_shape)
        self.gamma = x.new_ones(self.d) if layer.weight is None else layer.weight.flatten()
        self.most = self.gamma.abs().max() * UP
        self.everywhere = float(self.gamma.abs().max()) / math.sqrt(self.eps) * UP  # s is at least sqrt(eps)
        self.shift = 0.0 if layer.bias is None else float(layer.bias.norm())
        self.lengths = torch.linalg.vector_norm(x.reshape(len(x), -1, self.d), dim=2)
        self.z = self._centred(x)  # (n, tokens, d)
        self.norms = torch.linalg.vector_norm(self.z, dim=2)
        self.s = (self.norms**2 / self.d + self.eps).sqrt()
        self.jacobian_norm = self.most / self.s.amin(1).clamp(min=1e-300) * UP

    def _centred(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(*x.shape[:1], -1, self.d)
        return tokens - tokens.mean(-1, keepdim=True)

    def _least(self, delta: torch.Tensor) -> torch.Tensor:
        """Return the least s over the ball: (n, tokens)."""
        return (((self.norms * (1 - 1e-12) - delta[:, None]).clamp(min=0) ** 2) / self.d + self.eps).sqrt() / UP

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        s, length = self._least(delta), self.lengths + delta[:, None]
        p = gamma(4 * self.d + 20) * (length**2 / self.d + s**2) / s**2
        each = self.most * (math.sqrt(self.d) * (p + 8 * UNIT32) + 2 * gamma(self.d + 32) * length / s)
        lost = self.most * (4 * length / math.sqrt(self.eps) + 2 * math.sqrt(self.d)) + self.shift
        each = torch.where(p > 0.5, lost, each) + 2 * UNIT32 * self.shift
        return covered(torch.linalg.vector_norm(each, dim=1))

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        far = 2 * math.sqrt(self.z.shape[1] * self.d)
        return self.most * torch.clamp(delta / self._least(delta).amin(1).clamp(min=1e-300), max=far) * UP

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        w = self._centred(columns.flatten(0, 1)).unflatten(0, columns.shape[:2])
        along = (w * self.z).sum(-1, keepdim=True) / (self.d * self.s[..., None] ** 2)
        return ((w - along * self.z) / self.s[..., None] * self.gamma).reshape(columns.shape)

    def _square(self, delta: torch.Tensor) -> torch.Tensor:
        """Return the coefficient of |w_t|^2: (n, tokens)."""
        return UP / (math.sqrt(3 * self.d) * self._least(delta).clamp(min=1e-150) ** 2)

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        bent = self.most * self._square(perturbation.delta).amax(1) * perturbation.delta**2
        return torch.minimum(bent, self.bound(perturbation.delta) + self.jacobian_norm * perturbation.delta) * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        each = a.flatten(2).unflatten(2, self.z.shape[1:]) * self.gamma  # (n, rivals, tokens, d)
        sizes = torch.linalg.vector_norm(each - each.mean(-1, keepdim=True), dim=3)
        weight = sizes * self._square(perturbation.delta)[:, None]
        columns = self._centred(perturbation.columns.flatten(0, 1)).unflatten(0, perturbation.columns.shape[:2])
        centred = replace(perturbation, columns=columns)
        square = centred.weighted_squares(weight[..., None].expand(*weight.shape, self.d).flatten(2))
        plain = torch.linalg.vector_norm(a.flatten(2), dim=2) * self.remainder(perturbation)[:, None]
        return torch.minimum(square, plain) * (1 + 1e-9)
