"""Bounds of activations on arrays of any shape: smooth ones by slope and curvature around each entry, others by their kinks.

An entry z moves by D, |D| <= m. Smooth f: its remainder f(z + D) - f(z) - f'(z) D lies between D^2 / 2 times the least and
the largest f'' on [z - m, z + m]. From a margin with gradient a it takes at most (a- sup f''+ + a+ sup f''-) D^2 / 2,
g+ = max(g, 0), g- = max(-g, 0): summed entry by entry at D = m, or as one quadratic form (`weighted_squares`), the lesser.
An interval's extremes lie at its ends or where the next derivative is 0; the tables below list these points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.isometries import Absolute
from benchmark.layers.kinds import GELU_SLOPE
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import (
    UP,
    ElementwiseBound,
    LayerBound,
    NonExpansiveBound,
    PerturbationSet,
    layer_bound,
    per_image,
    whole,
    within,
)
from .rounding import FLOAT64, LARGEST, TINY, UNIT32, covered, size

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Smooth:
    """f' and f'' of an activation, with all points where f'' and where f''' is 0.

    If the function that runs differs, `jump` bounds the spread of the difference and `tilt` that of its slope. In float32 an
    entry errs by at most relative |z| + absolute. `steepest` bounds all slopes.
    """

    slope: Function
    curvature: Function
    flat_slope: tuple[float, ...]
    flat_curvature: tuple[float, ...]
    jump: float = 0.0
    tilt: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0
    steepest: float | None = None


SLACK = 1e-9  # of float64, and of table entries: at an extreme their error counts squared


def _extremes(
    function: Function, turns: tuple[float, ...], low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest value on [low, high], widened by SLACK."""
    at_ends = function(low), function(high)
    least, most = torch.minimum(*at_ends), torch.maximum(*at_ends)
    for turn in turns:
        inside, value = (low <= turn) & (turn <= high), function(torch.tensor(turn, dtype=low.dtype))
        least = torch.where(inside, torch.minimum(least, value), least)
        most = torch.where(inside, torch.maximum(most, value), most)
    return least - SLACK, most + SLACK


class SmoothActivationBound(ElementwiseBound):
    """A smooth activation, by the extremes of f' and f'' around each entry."""

    def __init__(self, f: Smooth, x: torch.Tensor) -> None:
        self.f, self.x = f, x
        self.slopes = f.slope(x)
        self.jacobian_norm = self.slopes.abs().flatten(1).amax(1) + SLACK
        self.root = math.sqrt(x[0].numel())
        self.jumped = f.jump * self.root
        self.size = size(x)
        if f.steepest is not None:
            self.everywhere = f.steepest

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        around = per_image(delta, self.x)
        least, most = _extremes(self.f.slope, self.f.flat_slope, self.x - around, self.x + around)
        return delta * torch.maximum(-least, most).flatten(1).amax(1) * UP + self.jumped

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return covered(self.f.relative * (self.size + delta) + self.f.absolute * self.root) + self.jumped

    def _bends(self, largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return -inf f'' / 2 and sup f'' / 2 around each entry, where positive: (n, *shape)."""
        least, most = _extremes(self.f.curvature, self.f.flat_curvature, self.x - largest, self.x + largest)
        return (-least).clamp(min=0) / 2, most.clamp(min=0) / 2

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        largest = perturbation.largest_entries()
        bend = torch.maximum(*self._bends(largest))
        apart = torch.linalg.vector_norm((bend * largest**2).flatten(1), dim=1)
        together = (bend * largest).flatten(1).amax(1) * perturbation.delta
        return torch.minimum(apart, together) * UP + self.jumped + self.f.tilt * perturbation.delta

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        largest = perturbation.largest_entries()
        down, up = (bend[:, None] for bend in self._bends(largest))
        weight = (a.clamp(min=0) * down + (-a).clamp(min=0) * up).flatten(2)
        apart = (weight * largest.flatten(1)[:, None] ** 2).sum(2)
        sizes = torch.linalg.vector_norm(a.flatten(2), dim=2)
        other = sizes * (self.jumped + self.f.tilt * perturbation.delta)[:, None]
        return torch.minimum(apart, perturbation.weighted_squares(weight)) * (1 + 1e-9) + other


class PiecewiseLinearBound(ElementwiseBound):
    """max(z, 0) + slope min(z, 0), slope <= 1: remainder between 0 and (1 - slope) max(|D| - |z|, 0), which is at most
    (1 - slope)(D^2 / (4 t) + t - |z|) for every t >= |z|; only entries with a < 0 hurt a margin.
    """

    def __init__(self, x: torch.Tensor, slope: float = 0.0) -> None:
        self.x, self.kink, self.everywhere = x, 1 - slope, max(1.0, abs(slope))
        self.slopes = torch.where(x > 0, x.new_tensor(1.0), x.new_tensor(slope))
        self.jacobian_norm = self.slopes.abs().flatten(1).amax(1)
        self.size, self.unit = size(x), 2 * UNIT32 * abs(slope)  # a ReLU rounds nothing; the slope and the product do

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return self.unit * (self.size + delta) * FLOAT64 + (TINY if self.unit else 0.0)

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return delta * self.everywhere

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        over = (perturbation.largest_entries() - self.x.abs()).clamp(min=0).flatten(1)
        return torch.minimum(torch.linalg.vector_norm(over, dim=1), perturbation.delta) * self.kink * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        largest, bend = perturbation.largest_entries().flatten(1)[:, None], self.x.abs().flatten(1)[:, None]
        alpha = self.kink * (-a).clamp(min=0).flatten(2) * (largest > bend)
        least = (alpha * (largest - bend).clamp(min=0)).sum(2)
        return _least_by_parabolas(least, alpha, bend, largest, perturbation, (1.0, 0.5))


def _least_by_parabolas(
    least: torch.Tensor,
    alpha: torch.Tensor,
    kink: torch.Tensor,
    largest: torch.Tensor,
    perturbation: PerturbationSet,
    fractions: tuple[float, ...],
) -> torch.Tensor:
    """Return `least` (n, rivals) or, if less, sum alpha (D^2 / (4 t) + t - kink), t >= kink a share of `largest`."""
    for fraction in fractions:
        t = torch.maximum(kink, fraction * largest).clamp(min=1e-300)
        form = perturbation.weighted_squares(alpha / (4 * t))
        least = torch.minimum(least, form + (alpha * (t - kink)).sum(2))
    return least * (1 + 1e-9)


def _density(z: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


# In float32: z / 2 (1 + erf(z / sqrt 2)), erf (or tanh) within 32 u; tanh, sigmoid, exp and log1p within 16 u, relatively.
GELU = Smooth(
    slope=lambda z: torch.special.ndtr(z) + z * _density(z),
    curvature=lambda z: (2 - z**2) * _density(z),
    flat_slope=(-math.sqrt(2), math.sqrt(2)),
    flat_curvature=(-2.0, 0.0, 2.0),
    relative=24 * UNIT32,
    steepest=GELU_SLOPE["none"],
)


def _tanh_form(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tanh w, w' and w'' of GELU's tanh form z / 2 (1 + tanh w), w = sqrt(2 / pi) (z + 0.044715 z^3)."""
    root = math.sqrt(2 / math.pi)
    return torch.tanh(root * (z + 0.044715 * z**3)), root * (1 + 0.134145 * z**2), root * 0.26829 * z


def _tanh_form_slope(z: torch.Tensor) -> torch.Tensor:
    t, first, _ = _tanh_form(z)
    return (1 + t) / 2 + z * (1 - t**2) * first / 2


def _tanh_form_curvature(z: torch.Tensor) -> torch.Tensor:
    t, first, second = _tanh_form(z)
    return (1 - t**2) * (first + z * (second / 2 - t * first**2))


TANH_GELU = Smooth(
    slope=_tanh_form_slope,
    curvature=_tanh_form_curvature,
    flat_slope=(-1.41850400879082836, 1.41850400879082836),
    flat_curvature=(-2.01348072462425793, 0.0, 2.01348072462425793),
    relative=24 * UNIT32,
    steepest=GELU_SLOPE["tanh"],
)
TANH = Smooth(
    slope=lambda z: 1 - torch.tanh(z) ** 2,
    curvature=lambda z: -2 * torch.tanh(z) * (1 - torch.tanh(z) ** 2),
    flat_slope=(0.0,),
    flat_curvature=(-math.atanh(1 / math.sqrt(3)), math.atanh(1 / math.sqrt(3))),
    relative=16 * UNIT32,
)
SIGMOID = Smooth(
    slope=lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
    curvature=lambda z: torch.sigmoid(z) * torch.sigmoid(-z) * (torch.sigmoid(-z) - torch.sigmoid(z)),
    flat_slope=(0.0,),
    flat_curvature=(-math.log(2 + math.sqrt(3)), math.log(2 + math.sqrt(3))),
    absolute=32 * UNIT32,
)


@layer_bound.register
def _(layer: nn.GELU, x: torch.Tensor) -> LayerBound:
    if layer.approximate not in ("none", "tanh"):
        raise BenchmarkError(f"GELU with approximate {layer.approximate!r} has no bound here; use none or tanh")
    return SmoothActivationBound(GELU if layer.approximate == "none" else TANH_GELU, x)


layer_bound.register(nn.Tanh, lambda _, x: SmoothActivationBound(TANH, x))
layer_bound.register(nn.Sigmoid, lambda _, x: SmoothActivationBound(SIGMOID, x))


@layer_bound.register
def _(layer: nn.Softplus, x: torch.Tensor) -> LayerBound:
    """log(1 + e^(beta z)) / beta, which PyTorch replaces by z above `threshold` / beta: lower by at most e^-threshold / beta.

    float32's exp, and softplus with it, overflows at 88.7, so the threshold must be below. Up to beta 1000 the curvature,
    which changes by beta^2 / 10 a unit where |z| < 40 / beta, is off by less than SLACK for z that float64 rounds.
    """
    beta = layer.beta
    within(layer, 1e-3, 1e3, beta=beta)
    within(layer, 0, 80, threshold=layer.threshold)
    softplus = Smooth(
        slope=lambda z: torch.sigmoid(beta * z),
        curvature=lambda z: beta * torch.sigmoid(beta * z) * torch.sigmoid(-beta * z),
        flat_slope=(),
        flat_curvature=(0.0,),
        jump=math.exp(-layer.threshold) / beta * UP,
        tilt=math.exp(-layer.threshold) * UP,
        relative=32 * UNIT32,
        absolute=64 * UNIT32 / beta,
    )
    return SmoothActivationBound(softplus, x)


@layer_bound.register
def _(layer: nn.ReLU, x: torch.Tensor) -> LayerBound:
    _not_inplace(layer)
    return PiecewiseLinearBound(x)


@layer_bound.register
def _(layer: nn.LeakyReLU, x: torch.Tensor) -> LayerBound:
    """Slopes up to 1: a larger one would turn the kink around."""
    _not_inplace(layer)
    within(layer, -LARGEST, LARGEST, negative_slope=layer.negative_slope)
    if layer.negative_slope > 1:
        raise BenchmarkError(f"LeakyReLU with slope {layer.negative_slope} above 1 has no bound here")
    return PiecewiseLinearBound(x, layer.negative_slope)


def _not_inplace(layer: nn.ReLU | nn.LeakyReLU) -> None:
    if layer.inplace:  # it would overwrite the nominal input that the bound stands around
        raise BenchmarkError(f"{type(layer).__name__}(inplace=True) overwrites its input; use inplace=False")


@layer_bound.register(ClippedReLU)
class ClippedReLUBound(NonExpansiveBound):
    """f(z) = min(max(z, 0), theta), theta >= 0, unit by unit, by its two kinks.

    A unit z moves by D, |D| <= m; R = f(z + D) - f(z) - s D, s the nominal slope. Where theta = 0, f is constant and R = 0.
    Else, with (.)+ = max(., 0):
      0 <= z <= theta: -(m - (theta - z))+ <= R <= (m - z)+, whatever s in [0, 1] stands at the kinks and s = 1 between them
                       (at z = theta, D >= 0 gives -s D >= -m; -theta <= D <= 0 gives (1 - s) D >= -m and <= 0; and D < -theta
                       gives -theta - s D, between -theta and m - theta; z = 0 mirrors it);
      z < 0 (s = 0):   0 <= R <= min((m - |z|)+, theta), since f(z) = 0 and f(z + D) <= (D - |z|)+;
      z > theta:       the mirror image, -min((m - (z - theta))+, theta) <= R <= 0.
    So the kink at 0 can only raise the output above its linear part, and the kink at theta only lower it. Of a margin with
    gradient a, R takes at most a+ (what theta's kink lowers) + (-a)+ (what 0's kink raises). Both are (|D| - b)+ at most, b
    the distance of the kink, and so at most D^2 / (4 t) + t - b for every t >= b: one quadratic form over all units.
    """

    def __init__(self, layer: ClippedReLU, x: torch.Tensor) -> None:
        if x.shape[1:] != layer.theta.shape:
            raise BenchmarkError(f"thresholds {tuple(layer.theta.shape)} do not fit inputs {tuple(x.shape[1:])}")
        theta = layer.theta.detach().clamp(min=0)
        inside, at_top = (x > 0) & (x < theta), (x == theta) & (theta > 0)
        self.slopes = inside.to(x.dtype) + at_top.to(x.dtype) / 2  # torch halves the derivative of a tie
        self.jacobian_norm = self.slopes.abs().flatten(1).amax(1)
        flat = theta == 0
        self.to_bottom = torch.where((x <= theta) & ~flat, x.abs(), torch.inf)  # distance of the kink that raises,
        self.to_top = torch.where((x >= 0) & ~flat, (theta - x).abs(), torch.inf)  # and of the kink that lowers
        # between the kinks the linear part goes on for ever, beside them the output stays within [0, theta]
        self.most_raised = torch.where(x < 0, theta, torch.inf)
        self.most_lowered = torch.where(x > theta, theta, torch.inf)

    def _bends(self, largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how far the remainder of each unit can lie below 0, and above: (n, *shape)."""
        lowered = torch.minimum((largest - self.to_top).clamp(min=0), self.most_lowered)
        raised = torch.minimum((largest - self.to_bottom).clamp(min=0), self.most_raised)
        return lowered, raised

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        """Slopes of f and s lie in [0, 1], so |R| <= |D| as well."""
        bend = torch.maximum(*self._bends(perturbation.largest_entries()))
        return torch.minimum(torch.linalg.vector_norm(bend.flatten(1), dim=1), perturbation.delta) * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        largest = perturbation.largest_entries()
        lowered, raised = self._bends(largest)
        a, loses = a.flatten(2), a.flatten(2) > 0
        most = torch.where(loses, lowered.flatten(1)[:, None], raised.flatten(1)[:, None])
        least = (a.abs() * most).sum(2)
        kink = torch.where(loses, self.to_top.flatten(1)[:, None], self.to_bottom.flatten(1)[:, None])
        alpha = torch.where(most > 0, a.abs(), 0.0)
        kink, largest = torch.where(most > 0, kink, 0.0), largest.flatten(1)[:, None]
        return _least_by_parabolas(least, alpha, kink, largest, perturbation, (0.5, 0.1))


@layer_bound.register(Absolute)
class AbsoluteBound(NonExpansiveBound):
    """|z| of some entries: | |z + D| - |z| | <= |D|. With the slope sign(z) the remainder is 0 <= |z + D| - |z| - sign(z) D:
    2 (|D| - |z|) where the sign changes and 0 elsewhere, so at most 2 (|D| - |z|)+, and |D| for z = 0.
    """

    def __init__(self, layer: Absolute, x: torch.Tensor) -> None:
        whole(layer, 1, x.shape[-1], folded=layer.folded)
        self.folded, self.sizes = layer.folded, x[..., : layer.folded].abs()
        self.slopes = torch.cat([x[..., : layer.folded].sign(), torch.ones_like(x[..., layer.folded :])], dim=-1)
        self.jacobian_norm = 1.0

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        most = replace(perturbation, columns=perturbation.columns[..., : self.folded]).largest_entries()
        missed = 2 * torch.linalg.vector_norm((most - self.sizes).clamp(min=0).flatten(1), dim=1)
        return torch.minimum(missed, 2 * perturbation.delta) * UP
