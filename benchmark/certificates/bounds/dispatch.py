"""Which `Step` speaks for which layer, by exact type; a layer without one is refused."""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import nn

from benchmark.certificates.bounds.attention import AttentionStep
from benchmark.certificates.bounds.layer_bound import UP, Step
from benchmark.certificates.bounds.projection import ProjectStep
from benchmark.certificates.bounds.rounding import FLOAT64, TINY, UNIT32, LinearRounding, gamma, size
from benchmark.certificates.bounds.sll import SLLStep, SmoothSLLStep
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


@singledispatch
def step(layer: nn.Module, x: torch.Tensor) -> Step:
    """The Step of `layer` around nominal inputs x (n, *shape), float64.

    Raises:
        BenchmarkError: the layer has none, or x has a shape for which its bound does not hold.
    """
    raise BenchmarkError(
        f"no bound is declared for the layer {type(layer).__name__}; the certificate is refused rather than guessed"
    )


def exact_step(layer: nn.Module, x: torch.Tensor) -> Step:
    """`step`, refusing subclasses, which may compute something else."""
    if type(layer) not in step.registry:
        return step.dispatch(object)(layer, x)
    found = step(layer, x)
    found.input_size = size(x)
    return found


def _needs(layer: nn.Module, x: torch.Tensor, ndim: int) -> None:
    if x.ndim != ndim:
        raise BenchmarkError(f"the layer {type(layer).__name__} needs {ndim} axes; it is given shape {tuple(x.shape)}")


@step.register
def _(layer: Patchify, x: torch.Tensor) -> Step:
    _needs(layer, x, 4)
    if x.shape[2] % layer.patch or x.shape[3] % layer.patch:
        raise BenchmarkError(f"patches of {layer.patch} do not tile {x.shape[2]}x{x.shape[3]} images")
    return Step(layer, 1.0, torch.zeros_like)


@step.register
def _(layer: Positions, x: torch.Tensor) -> Step:
    if x.shape[1:] != layer.offset.shape:  # broadcasting would repeat the input, which is no isometry
        raise BenchmarkError(f"positions {tuple(layer.offset.shape)} do not fit tokens {tuple(x.shape[1:])}")
    offset, nominal = layer.offset.norm(), size(x)
    return Step(lambda y: y, 1.0, lambda d: UNIT32 * (nominal + d + offset) * FLOAT64 + TINY)


@step.register
def _(layer: Normalise, x: torch.Tensor) -> Step:
    nominal = size(x) + abs(layer.mean) * math.sqrt(x[0].numel())
    return Step(
        lambda y: y / layer.std, UP / layer.std, lambda d: gamma(6) * (nominal + d) / layer.std * FLOAT64 + TINY
    )


@step.register
def _(layer: MeanPool, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    gain, nominal, count = UP / math.sqrt(x.shape[1]), size(x), gamma(x.shape[1] + 2)
    return Step(layer, gain, lambda d: count * gain * (nominal + d) * FLOAT64 + TINY)


@step.register
def _(layer: BoundedLinear, x: torch.Tensor) -> Step:
    weight = layer.weight
    return Step(lambda y: y @ weight.mT, spectral_norm_upper(weight), LinearRounding(x, weight, layer.bias))


@step.register
def _(layer: OrthogonalLinear, x: torch.Tensor) -> Step:
    """In float32 it sums in float64, whose unit is 2^-29 of float32's, as the nominal pass does, and rounds once."""
    weight = layer.weight
    gain, sums, nominal = spectral_norm_upper(weight), LinearRounding(x, weight, layer.bias), size(layer(x))

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        inside = 2 * 2.0**-29 * sums(delta)
        return (inside + UNIT32 * (nominal + delta * gain + inside)) * FLOAT64 + TINY

    return Step(lambda y: y @ weight.mT, gain, rounding)


@step.register
def _(layer: SLLBlock, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    return SLLStep(layer, x)


@step.register
def _(layer: SmoothSLLBlock, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    return SmoothSLLStep(layer, x)


@step.register
def _(layer: ResidualAttention, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    if any(linear.bias is not None for linear in (layer.query, layer.key, layer.value, layer.output)):
        raise BenchmarkError("ResidualAttention has a bias, which its bound leaves out; the certificate is refused")
    return AttentionStep(layer, x)


@step.register
def _(layer: LayerProject, x: torch.Tensor) -> Step:
    _needs(layer, x, 3)
    return ProjectStep(x, layer.radius)
