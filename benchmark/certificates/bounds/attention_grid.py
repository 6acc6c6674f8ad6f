"""The bound of `GridAttention`: the formula of layers/attention_grid.py in float64, with proven norms of weights.

No Jacobian is carried on (`has_jvp`), so a network with this layer is certified by composing alone.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch

from benchmark.layers.attention_grid import GridAttention, GridNorms, GridSensitivity
from benchmark.layers.lipschitz import OrthogonalLinear
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import LayerBound, PerturbationSet, layer_bound, needs_grid, whole, within
from .orthogonal import counted_spread
from .rounding import EXPONENTIAL, KERNEL, LARGEST, UNIT32, Rounding, covered, gamma, linear_rounding, size
from .spectral import spectral_norm_upper

# Scores are three sums of at most WIDE products that err by gamma(WIDE) each, relative to sizes before anything cancels, so
# where these make scores of at most SCORES by less than 2e-9 in float64; weights by as much relatively, variances by three
# times that of the largest square, ||P|| by as much as weights.
SCORES, WIDE = 1e3, 4096
FLOOR, RAISED = 1e-8, 1 + 1e-8
BELOW32 = 2.0**-29  # float64's unit roundoff over float32's
SMALL = 1e-6


@layer_bound.register(GridAttention)
class GridAttentionBound(LayerBound):
    """The bound of a GridAttention: its `GridSensitivity` at the nominal inputs, enlarged by float64's rounding."""

    has_jvp = False

    def __init__(self, layer: GridAttention, x: torch.Tensor) -> None:
        _check(layer, x)
        self.layer, self.x, self.mixing = layer, x, layer.mixing(x)
        longest = torch.linalg.vector_norm(x, dim=-1).amax(1)
        # not |q_i| and |k_j|: where a bias cancels most of x W, what is left errs by more than its own last digits
        query = longest * self.norms.query + layer.query.bias.norm()
        key = longest * self.norms.key + layer.key.bias.norm()
        self.precise = layer.content.max() * query * key + layer.table.abs().max() <= SCORES

    @cached_property
    def norms(self) -> GridNorms:
        layer = self.layer
        return GridNorms(*(spectral_norm_upper(p.weight) for p in (layer.query, layer.key, layer.value, layer.output)))

    @cached_property
    def sensitivity(self) -> GridSensitivity:
        mixing_norm = spectral_norm_upper(self.mixing.weights).amax(1)
        return GridSensitivity(self.mixing, self.layer.content, norms=self.norms, mixing_norm=mixing_norm, floor=FLOOR)

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        """Return the bound, infinite where scores are too large for float64, or for an infinite move."""
        precise = self.precise & delta.isfinite()
        bound = self.sensitivity.bound(torch.where(precise, delta, 0.0)) * RAISED
        return torch.where(precise & ~bound.isnan(), bound, torch.inf)

    @cached_property
    def jacobian_norm(self) -> torch.Tensor:  # type: ignore[override]
        """A bound of the limit of quotients: `bound` over the radius does not fall as the radius grows."""
        return self.bound(torch.full_like(self.x[:, 0, 0], SMALL)) / SMALL

    def jvp(self, columns: torch.Tensor) -> torch.Tensor:
        x = self.x.repeat(len(columns), 1, 1)
        return torch.func.jvp(self.layer, (x,), (columns.flatten(0, 1),))[1].unflatten(0, columns.shape[:2])

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        return self.bound(perturbation.delta) + self.jacobian_norm * perturbation.delta

    @cached_property
    def _inside(self) -> Rounding:
        return grid_rounding(self.layer, self.x)

    @cached_property
    def _output_size(self) -> torch.Tensor:
        return size(self.layer(self.x))

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        inside = self._inside(delta)
        return covered(inside + UNIT32 * (self._output_size + self.bound(delta) + inside))


def grid_rounding(layer: GridAttention, x: torch.Tensor) -> Rounding:
    """Return what float64 may err by in the layer: (n,) to (n,), without the one rounding of its result to float32.

    As in `attention_rounding` with units 2^-29 times as large, for the network that runs and for the nominal pass (twice),
    and with what machines may differ by in orthonormal weights (orthogonal.py), ||W x|| by `spread` ||x||. With t for 1 / s
    and offsets R, of which each row of a head has all numbers of its table once, so that ||R||_F = sqrt(tokens) ||table||:
      dS = t (dQ ||K|| + ||Q|| dK + dQ dK + gamma(inner + 6) Q' K') + 2 u ||R||_F, max |S| <= t Q' K' + max |R|.
    """
    inputs = (layer.query, layer.key, layer.value)
    linears = [linear_rounding(x, part.weight, part.bias) for part in inputs]
    sizes, norms = [size(part(x)) for part in inputs], [spectral_norm_upper(part.weight) for part in inputs]
    spreads = [counted_spread(part) for part in (*inputs, layer.output)]
    after, after_absolute = (spectral_norm_upper(weight) for weight in (layer.output.weight, layer.output.weight.abs()))
    n, width = x.shape[1:]
    root, unit, length = math.sqrt(n), 2 * BELOW32, size(x)
    content, farthest = layer.content.max(), layer.table.abs().max()
    offsets, shift = (math.sqrt(n) * torch.linalg.vector_norm(part) for part in (layer.table, layer.output.bias))

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        errors = [linear(delta) * unit for linear in linears]
        dq, dk, dv = (e + s * (length + delta) for e, s in zip(errors, spreads, strict=False))
        q, k, v = (own + delta * norm for own, norm in zip(sizes, norms, strict=True))
        largest = content * (q + dq) * (k + dk)
        ds = content * (dq * k + q * dk + dq * dk) + unit * (
            gamma(KERNEL * (layer.inner + 6)) * largest + 2 * UNIT32 * offsets
        )
        logarithm = unit * (6 * UNIT32 * (largest + farthest) + 2 * EXPONENTIAL)
        sums = unit * gamma(KERNEL * (2 * n + 6))
        dp = (ds + n * math.sqrt(layer.heads) * logarithm) / 2 + sums * math.sqrt(n * layer.heads)
        dm = dp * (v + dv) + root * dv + sums * (root + dp) * (v + dv)
        mixed = root * v + dm
        last = unit * gamma(width + 3) * (mixed * after_absolute + shift) + spreads[3] * mixed
        return dm * after + last

    return rounding


def _check(layer: GridAttention, x: torch.Tensor) -> None:
    if any(type(part) is not OrthogonalLinear for part in (layer.query, layer.key, layer.value, layer.output)):
        raise BenchmarkError("GridAttention has a map that is no OrthogonalLinear; the certificate is refused")
    needs_grid(layer, x, layer.side, layer.value.raw.shape[1])
    whole(layer, 1, WIDE, width=x.shape[2])
    within(layer, 0, SCORES, content=float(layer.content.max()))
    within(layer, 0, LARGEST, table=float(layer.table.abs().max()))
