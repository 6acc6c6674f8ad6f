"""Bounds of activations, on arrays of any shape: smooth ones by slope and curvature around each entry, ReLUs by their kink.

An entry z moves by D, |D| <= m. Smooth f: its remainder f(z + D) - f(z) - f'(z) D lies between D^2 / 2 times the least and
the largest f'' on [z - m, z + m], so that with a margin's gradient a it takes at most (a- sup f''+ + a+ sup f''-) D^2 / 2,
g+ = max(g, 0), g- = max(-g, 0): summed entry by entry at D = m, or as one quadratic form (quadratic.py), the lesser.
The extremes on an interval are at its ends or at points where the next derivative is 0, which stand in the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.certificates.bounds.dispatch import layer_bound, within
from benchmark.certificates.bounds.layer_bound import UP, ElementwiseBound, LayerBound, PerturbationSet
from benchmark.certificates.bounds.quadratic import largest_entries, weighted_squares
from benchmark.certificates.bounds.rounding import FLOAT64, LARGEST, TINY, UNIT32, size
from benchmark.runtime.errors import BenchmarkError

Function = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Smooth:
    """f' and f'' of an activation, with all points where f'' and where f''' is 0.

    Where what runs is another function, `jump` is the most that it can differ by more at one point than at another, and
    `tilt` the most that its slope differs. In float32 an entry errs by at most relative |z| + absolute.
    """

    slope: Function
    curvature: Function
    flat_slope: tuple[float, ...]
    flat_curvature: tuple[float, ...]
    jump: float = 0.0
    tilt: float = 0.0
    relative: float = 0.0
    absolute: float = 0.0


SLACK = 1e-9  # of float64, and of table entries: at an extreme their error counts squared


def _extremes(
    function: Function, turns: tuple[float, ...], low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and largest value on [low, high], widened by SLACK."""
    at_ends = function(low), function(high)
    least, most = torch.minimum(*at_ends), torch.maximum(*at_ends)
    for turn in turns:
        inside, value = (low <= turn) & (turn <= high), function(torch.tensor(turn, dtype=low.dtype))
        least = torch.where(inside, torch.minimum(least, value), least)
        most = torch.where(inside, torch.maximum(most, value), most)
    return least - SLACK, most + SLACK


class SmoothActivationBound(ElementwiseBound):
    def __init__(self, f: Smooth, x: torch.Tensor) -> None:
        self.f, self.x = f, x
        self.slopes = f.slope(x)
        self.jacobian_norm = self.slopes.abs().flatten(1).amax(1) + SLACK
        self.root = math.sqrt(x[0].numel())
        self.jumped = f.jump * self.root
        self.size = size(x)

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        around = delta.reshape(-1, *[1] * (self.x.ndim - 1))
        least, most = _extremes(self.f.slope, self.f.flat_slope, self.x - around, self.x + around)
        return delta * torch.maximum(-least, most).flatten(1).amax(1) * UP + self.jumped

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return (self.f.relative * (self.size + delta) + self.f.absolute * self.root) * FLOAT64 + TINY + self.jumped

    def _bends(self, largest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """-inf f'' / 2 and sup f'' / 2 around each entry, where positive: (n, *shape)."""
        least, most = _extremes(self.f.curvature, self.f.flat_curvature, self.x - largest, self.x + largest)
        return (-least).clamp(min=0) / 2, most.clamp(min=0) / 2

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        largest = largest_entries(perturbation)
        bend = torch.maximum(*self._bends(largest))
        apart = torch.linalg.vector_norm((bend * largest**2).flatten(1), dim=1)
        together = (bend * largest).flatten(1).amax(1) * perturbation.delta
        return torch.minimum(apart, together) * UP + self.jumped + self.f.tilt * perturbation.delta

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        largest = largest_entries(perturbation)
        down, up = (bend[:, None] for bend in self._bends(largest))
        weight = (a.clamp(min=0) * down + (-a).clamp(min=0) * up).flatten(2)
        apart = (weight * largest.flatten(1)[:, None] ** 2).sum(2)
        sizes = torch.linalg.vector_norm(a.flatten(2), dim=2)
        other = sizes * (self.jumped + self.f.tilt * perturbation.delta)[:, None]
        return torch.minimum(apart, weighted_squares(weight, perturbation)) * (1 + 1e-9) + other


class PiecewiseLinearBound(ElementwiseBound):
    """max(z, 0) + slope min(z, 0), slope <= 1: remainder between 0 and (1 - slope) max(|D| - |z|, 0), which is at most
    (1 - slope)(D^2 / (4 t) + t - |z|) for every t >= |z|; only entries with a < 0 hurt a margin.
    """

    OFFSET_FRACTIONS = (1.0, 0.5)  # of the largest move m: the t that are tried

    def __init__(self, x: torch.Tensor, slope: float = 0.0) -> None:
        self.x, self.kink, self.steepest = x, 1 - slope, max(1.0, abs(slope))
        self.slopes = torch.where(x > 0, x.new_tensor(1.0), x.new_tensor(slope))
        self.jacobian_norm = self.slopes.abs().flatten(1).amax(1)
        self.size, self.unit = size(x), 2 * UNIT32 * abs(slope)  # a ReLU rounds nothing; the slope and the product do

    def rounding(self, delta: torch.Tensor) -> torch.Tensor:
        return self.unit * (self.size + delta) * FLOAT64 + (TINY if self.unit else 0.0)

    def bound(self, delta: torch.Tensor) -> torch.Tensor:
        return delta * self.steepest

    def remainder(self, perturbation: PerturbationSet) -> torch.Tensor:
        over = (largest_entries(perturbation) - self.x.abs()).clamp(min=0).flatten(1)
        return torch.minimum(torch.linalg.vector_norm(over, dim=1), perturbation.delta) * self.kink * UP

    def remainder_along(self, a: torch.Tensor, perturbation: PerturbationSet) -> torch.Tensor:
        largest, bend = largest_entries(perturbation).flatten(1)[:, None], self.x.abs().flatten(1)[:, None]
        alpha = self.kink * (-a).clamp(min=0).flatten(2) * (largest > bend)
        least = (alpha * (largest - bend).clamp(min=0)).sum(2)
        for fraction in self.OFFSET_FRACTIONS:
            t = torch.maximum(bend, fraction * largest).clamp(min=1e-300)
            form = weighted_squares(alpha / (4 * t), perturbation)
            least = torch.minimum(least, form + (alpha * (t - bend)).sum(2))
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
)


def _tanh_form(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """tanh w, w' and w'' of GELU's tanh form z / 2 (1 + tanh w), w = sqrt(2 / pi) (z + 0.044715 z^3)."""
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


@layer_bound.register
def _(layer: nn.Tanh, x: torch.Tensor) -> LayerBound:
    return SmoothActivationBound(TANH, x)


@layer_bound.register
def _(layer: nn.Sigmoid, x: torch.Tensor) -> LayerBound:
    return SmoothActivationBound(SIGMOID, x)


@layer_bound.register
def _(layer: nn.Softplus, x: torch.Tensor) -> LayerBound:
    """log(1 + e^(beta z)) / beta, which PyTorch cuts to z above `threshold` / beta: lower by at most e^-threshold / beta.

    float32's exp overflows at 88.7, and softplus with it, so the cut has to come before. Up to beta 1000 the curvature, which
    changes by beta^2 / 10 a unit where |z| < 40 / beta, is off by less than SLACK for z that float64 rounds.
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
    """A slope above 1 would turn the kink around."""
    _not_inplace(layer)
    within(layer, -LARGEST, LARGEST, negative_slope=layer.negative_slope)
    if layer.negative_slope > 1:
        raise BenchmarkError(f"LeakyReLU with slope {layer.negative_slope} above 1 has no bound here")
    return PiecewiseLinearBound(x, layer.negative_slope)


def _not_inplace(layer: nn.ReLU | nn.LeakyReLU) -> None:
    if layer.inplace:  # it would overwrite the nominal input that the bound stands around
        raise BenchmarkError(f"{type(layer).__name__}(inplace=True) overwrites its input; use inplace=False")
