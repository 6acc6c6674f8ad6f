"""Bounds of attention by competition: constant 1 by the theorem of layers/competitive_attention.py, and float32's rounding.

Guarantee: for all inputs x and y the exact layer moves by at most ||x - y||, and float32 strays from it by `rounding`.
"""

from __future__ import annotations

import math

import torch

from benchmark.layers.competitive_attention import Competition, CompetitiveAttention, ConeAttention, MaxMinTokens

from .layer_bound import LayerBound, PerturbationSet, layer_bound, needs_grid, whole, within
from .rounding import LARGEST, UNIT32, Rounding, covered, gamma, size


class IsometricBound(LayerBound):
    """A 1-Lipschitz layer whose Jacobian keeps lengths. What its Jacobian misses is bounded by 2 delta alone, so that no
    margin gradient is carried through it (`has_jvp`).
    """

    everywhere, jacobian_norm, has_jvp = 1.0, 1.0, False

    def __init__(self, layer: Competition | MaxMinTokens, x: torch.Tensor, rounding: Rounding) -> None:
        self.layer, self.x, self._rounding = layer, x, rounding

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return delta

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        x = self.x.repeat(len(columns), 1, 1)
        return torch.func.jvp(self.layer, (x,), (columns.flatten(0, 1),))[1].unflatten(0, columns.shape[:2])

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        return 2 * perturbation.delta


@layer_bound.register
def _(layer: CompetitiveAttention | ConeAttention, x: torch.Tensor) -> LayerBound:
    if isinstance(layer, CompetitiveAttention):
        budgets = layer.budgets.detach()
        within(layer, 1 / LARGEST, LARGEST, least_budget=float(budgets.min()), largest_budget=float(budgets.max()))
    needs_grid(layer, x, layer.side, layer.width)
    whole(layer, 1, x.shape[2], heads=layer.heads)
    whole(layer, 2, x.shape[1], window=layer.window)
    return IsometricBound(layer, x, competition_rounding(layer, x))


@layer_bound.register
def _(layer: MaxMinTokens, x: torch.Tensor) -> LayerBound:
    """Bound maxima and minima, which round nothing."""
    needs_grid(layer, x, layer.side)
    whole(layer, 1, x.shape[2] // 2, pairs=layer.pairs)
    return IsometricBound(layer, x, torch.zeros_like)


def competition_rounding(layer: CompetitiveAttention | ConeAttention, x: torch.Tensor) -> Rounding:
    """Return a bound on float32's error for ||D|| <= delta: (n,) to (n,). With K = window, N tokens, l = sqrt(N) ||budgets||:

    1. Scores s = (q + k) / sqrt 2: a sum, a product and the constant, gamma(3) |s|, and ||s|| <= n = ||x|| + delta by
       orthonormal rows. Let s' be what float32 computes, S = (1 + gamma(3)) n + l.
    2. The level is max_k f_k(s'), and a maximum errs by no more than the worst of what it is over. So no support need be
       guessed right. f_k: K sums, a budget rounded once from float64 (gamma(2)), a difference, a quotient (4 units), together
       e <= gamma(K + 7) (sum of k |s'| + budget) / k <= gamma(K + 7) (max |s'| + budget).
    3. The excess Pi(s') = (s' - c)_+ of a window errs by at most sqrt(K) e, and by a unit of itself. Over all windows:
       (sqrt(K) gamma(K + 8) + u) S, by ||Pi(s')|| <= S (by l for the simplex, by ||s'|| for the cone).
       A cone's own entry is minus the sum of the K - 1 others: it errs by sqrt(K) times as much and by gamma(K) sqrt(K) of S
       and of that error.
    4. ||Pi(s') - Pi(s)|| <= ||s' - s|| <= gamma(3) n, ties and changes of support included, since Pi is nonexpansive.
       Let E be 3 and 4 together.
    5. The excess times sqrt 2 (gamma(2), the constant included) is taken from a query and a key: 2 E + 2 gamma(2) (S + E).
    6. Both differences are rounded once more.
    """
    cone, places = isinstance(layer, ConeAttention), layer.window
    budgets = 0.0 if isinstance(layer, ConeAttention) else float(torch.linalg.vector_norm(layer.budgets.detach()))
    nominal, output, total = size(x), size(layer(x)), math.sqrt(x.shape[1]) * budgets

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        length = nominal + delta
        most = (1 + gamma(3)) * length + total
        off = (math.sqrt(places) * gamma(places + 8) + UNIT32) * most
        if cone:
            off = math.sqrt(1 + places) * off + gamma(places) * math.sqrt(places) * (most + off)
        off = off + gamma(3) * length
        inside = 2 * off + 2 * gamma(2) * (most + off)
        return covered(inside + UNIT32 * (output + delta + inside))

    return rounding
