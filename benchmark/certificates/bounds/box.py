"""Balls and boxes: bounds of how far a network's units move, jointly and one by one (Lee et al. 2020; Huang et al. 2021).

A `Region` holds moves D of all units of n images: ||D|| <= rho, and low_i <= D_i <= high_i for each unit i, low <= 0 <= high.

Linear layer, D' = W D + e with ||e|| <= t (rounding). Let M be the units with low < high: the others do not move, so that
W D = W_M D_M, W_M the columns M of W. Then for each unit j, with c, h the middles and half widths of the intervals,
  |D'_j| <= ||row j of W_M|| rho + t                                       (the ball),
  (W c)_j - (|W| h)_j - t <= D'_j <= (W c)_j + (|W| h)_j + t               (interval arithmetic),
and both hold, so their intersection does. For any set R of units, ||D'_R|| <= ||W_RM|| rho + t, W_RM the rows R of W_M, and
||D'_R|| is at most the norm of the intervals' largest entries.

Clip, f(z) = min(max(z, 0), theta) around y (theta = infinity: a ReLU): f is monotone, so f(y + D) - f(y) lies between its
values at the ends of the interval. Let R be the units where these differ; the others do not move, and f is 1-Lipschitz, so
||f(y + D) - f(y)|| <= ||D_R||. R is computed before ||D'_R||: a unit that is dead on the whole ball costs neither its row
nor, in the next layer, its column. The float32 layer clips exactly, and its dead units are exactly at 0 or theta.

Largest product of v with the moves of a region: for every vector a,
  <v, D> = <a, D> + <v - a, D> <= rho ||a|| + sum_i max((v_i - a_i) low_i, (v_i - a_i) high_i).
With e_i = high_i where v_i > 0 and -low_i elsewhere, and a_i = sign(v_i) min(|v_i|, l e_i) for some l >= 0, v - a has the
signs of v, and the sum is sum_i (|v_i| - |a_i|) e_i. Every l gives a bound. The best has ||a|| = l rho: then D = a / l lies
in the region and reaches it. l = 0 is the box alone, and a = v on M (l = infinity) the ball alone.

D is float32's result less that of the float64 pass; `LayerBound.rounding` covers what both round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from .layer_bound import UP, LayerBound
from .spectral import spectral_norm_upper

FORMED = 2**22  # entries of the largest matrix that is formed
OUT = 1 + 1e-10  # float64 sums of up to 1e5 products, relative to the sum of their sizes
NARROW = 4 * 2.0**-53  # of a sum of two numbers, relative to both
STEPS, OCTAVES = 24, 128  # of the search for l, and how far below the largest it looks


@dataclass(frozen=True)
class Region:
    """The possible changes D of a layer's input, for n images: l2 norm at most rho, and low <= D <= high entry by entry."""

    rho: torch.Tensor  # (n,)
    low: torch.Tensor  # (n, units)
    high: torch.Tensor  # (n, units)

    @property
    def moving(self) -> torch.Tensor:
        return ~(self.low >= self.high)  # an end that is NaN is no end


class Linear:
    """A layer y = W x + b of which only the norm of W is known, because W is too large; subclasses know more.

    Units are flat: (n, units). `shape` is of the layer's input, `units` the number of outputs.
    """

    def __init__(self, layer_bound: LayerBound, shape: torch.Size, units: int) -> None:
        self.layer_bound, self.shape, self.units = layer_bound, shape, units
        self.norm = torch.as_tensor(layer_bound.jacobian_norm, dtype=torch.float64)

    def row_norms(self, moving: torch.Tensor) -> torch.Tensor:
        """Return bounds of the norms of the rows of W_M, M = moving (n, inputs): (n, units)."""
        return self.norm.to(moving.device).expand(len(moving), self.units)

    def intervals(self, region: Region) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the least and the largest W D by interval arithmetic, each (n, units)."""
        infinite = region.rho.new_full((len(region.rho), self.units), torch.inf)
        return -infinite, infinite

    def restricted_norm(self, rows: torch.Tensor, moving: torch.Tensor) -> torch.Tensor:
        """Return bounds of ||W_RM|| for R = rows (n, units) and M = moving (n, inputs): (n,)."""
        return self.norm.to(rows.device).expand(len(rows))

    def images(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, self.shape)


class Copies(Linear):
    """A layer whose outputs are each one input times a number > 0: flattening, patches, normalisation."""

    def row_norms(self, moving: torch.Tensor) -> torch.Tensor:
        return self.layer_bound.linear(self.images(moving.double())).flatten(1) * OUT

    def intervals(self, region: Region) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = (self.layer_bound.linear(self.images(end)).flatten(1) for end in (region.low, region.high))
        return low * OUT, high * OUT


class Weighted(Linear):
    """A layer whose products with W, |W| and W^2 can be computed."""

    weight: torch.Tensor

    def _apply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return `weight` times x (n, inputs), `weight` in place of W: (n, units)."""
        raise NotImplementedError

    @cached_property
    def _absolute(self) -> torch.Tensor:
        return self.weight.abs()

    @cached_property
    def _squares(self) -> torch.Tensor:
        return self.weight**2

    def row_norms(self, moving: torch.Tensor) -> torch.Tensor:
        return self._apply(moving.double(), self._squares).sqrt() * OUT

    def intervals(self, region: Region) -> tuple[torch.Tensor, torch.Tensor]:
        middle, half = (region.low + region.high) / 2, (region.high - region.low) / 2
        shift, spread = self._apply(middle, self.weight), self._apply(half, self._absolute) * OUT
        return shift - spread, shift + spread


class Convolution(Weighted):
    """A convolution too large to be written as a matrix: each output sees each input once at most."""

    def __init__(self, layer: nn.Conv2d, layer_bound: LayerBound, shape: torch.Size, units: int) -> None:
        super().__init__(layer_bound, shape, units)
        self.layer, self.weight = layer, layer.weight

    def _apply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.layer._conv_forward(self.images(x), weight, None).flatten(1)


class Matrix(Weighted):
    """A layer small enough for its matrix; `part_norms` caches the norms of its parts."""

    def __init__(self, layer_bound: LayerBound, shape: torch.Size, units: int, device: torch.device) -> None:
        super().__init__(layer_bound, shape, units)
        eye = torch.eye(shape.numel(), dtype=torch.float64, device=device).unflatten(1, shape)
        self.weight = layer_bound.linear(eye).flatten(1).mT.contiguous()  # (units, inputs)
        self.part_norms: dict[bytes, torch.Tensor] = {}

    def _apply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.mT

    def restricted_norm(self, rows: torch.Tensor, moving: torch.Tensor) -> torch.Tensor:
        norms = []
        for row, column in zip(rows, moving, strict=True):
            key = torch.cat([row, column]).cpu().numpy().tobytes()
            if key not in self.part_norms:
                self.part_norms[key] = spectral_norm_upper(self.weight[row][:, column])
            norms.append(self.part_norms[key])
        return torch.stack(norms).clamp(max=float(self.norm))


@dataclass(frozen=True)
class Stage:
    """A linear layer and the clip after it, around the layer's nominal outputs y (n, units); theta None: no clip."""

    linear: Linear
    y: torch.Tensor
    rounding: Callable[[torch.Tensor], torch.Tensor]  # in float32, of inputs that move by as much: (n,) to (n,)
    theta: torch.Tensor | None = None  # (units,) or (), infinite for a ReLU

    def through(self, region: Region, t: torch.Tensor, *, restricted: bool) -> Region:
        """Return the region of the outputs for moves in `region`.

        Args:
            t: (n,), the layer's rounding.
            restricted: whether to compute norms of parts of W, which is costly; else ||W|| and Frobenius norms of parts.
        """
        moving, norms = region.moving, self.linear.row_norms(region.moving)
        reach, (low, high) = norms * region.rho[:, None], self.linear.intervals(region)
        low = -(torch.minimum(reach, -low) + t[:, None]) * UP
        high = (torch.minimum(reach, high) + t[:, None]) * UP
        if self.theta is not None:
            low, high = _clip(self.y, low, high, self.theta)
        rows = ~(low >= high)
        frobenius = torch.linalg.vector_norm(norms * rows, dim=1) * OUT
        norm = torch.minimum(frobenius, self.linear.norm.to(frobenius.device))
        if restricted:
            norm = torch.minimum(norm, self.linear.restricted_norm(rows, moving))
        longest = torch.linalg.vector_norm(torch.maximum(-low, high), dim=1) * OUT
        return Region(torch.minimum((norm * region.rho + t) * UP, longest), low, high)


def _clip(y: torch.Tensor, low: torch.Tensor, high: torch.Tensor, theta: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the intervals of f(y + D) - f(y), their ends widened first so that no rounding makes a unit dead."""

    def f(z: torch.Tensor) -> torch.Tensor:
        return torch.minimum(z.clamp(min=0), theta)

    slack = NARROW * (y.abs() + torch.maximum(-low, high))
    return (f(y + low - slack) - f(y)) * UP, (f(y + high + slack) - f(y)) * UP


def largest_product(v: torch.Tensor, region: Region) -> torch.Tensor:
    """Return upper bounds of <v, D> over the moves D of `region`: v (n, rivals, units) to (n, rivals)."""
    ends = torch.where(v > 0, region.high[:, None], -region.low[:, None])
    sizes, rho = torch.where(ends > 0, v.abs(), 0.0), region.rho[:, None, None]
    top = (sizes / ends.clamp(min=1e-300)).amax(2, keepdim=True)  # from here up a = v

    def split(multiplier: torch.Tensor) -> torch.Tensor:
        return torch.minimum(sizes, multiplier * ends)

    def value(a: torch.Tensor) -> torch.Tensor:
        return rho[..., 0] * torch.linalg.vector_norm(a, dim=2) + ((sizes - a) * ends).sum(2)

    near, far = torch.zeros_like(top), torch.full_like(top, OCTAVES)
    for _ in range(STEPS):
        middle = (near + far) / 2
        multiplier = top * torch.exp2(-middle)
        longer = torch.linalg.vector_norm(split(multiplier), dim=2, keepdim=True) > multiplier * rho
        near, far = torch.where(longer, near, middle), torch.where(longer, middle, far)
    best = torch.minimum(value(split(top * torch.exp2(-near))), value(split(top * torch.exp2(-far))))
    return torch.minimum(best, torch.minimum(value(sizes), value(torch.zeros_like(sizes)))) * OUT
