"""The `LayerBound` of each layer, by the layer's exact type; a layer without one is refused."""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import nn

from benchmark.certificates.bounds.attention import AttentionBound
from benchmark.certificates.bounds.layer_bound import UP, LayerBound
from benchmark.certificates.bounds.orthogonal import OrthogonalRounding
from benchmark.certificates.bounds.projection import ProjectionBound
from benchmark.certificates.bounds.rounding import (
    FLOAT64,
    LARGEST,
    TINY,
    UNIT32,
    WIDEST,
    LinearRounding,
    gamma,
    size,
)
from benchmark.certificates.bounds.sll import SLLBound, SmoothSLLBound
from benchmark.certificates.bounds.spectral import spectral_norm_upper
from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.kinds import shown
from benchmark.layers.lipschitz import BoundedLinear, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, MergeTokens, Patchify, Positions
from benchmark.runtime.errors import BenchmarkError


@singledispatch
def layer_bound(layer: nn.Module, x: torch.Tensor) -> LayerBound:
    """The `LayerBound` of `layer` around nominal inputs x (n, *shape), float64.

    Raises:
        BenchmarkError: the layer has none, or x has a shape for which its bound does not hold.
    """
    raise BenchmarkError(
        f"no bound is declared for the layer {type(layer).__name__}; the certificate is refused rather than guessed"
    )


def exact_layer_bound(layer: nn.Module, x: torch.Tensor) -> LayerBound:
    """`layer_bound`, but refusing subclasses of the known layers, which may compute something else."""
    if type(layer) not in layer_bound.registry:
        return layer_bound.dispatch(object)(layer, x)
    if not torch.isfinite(x).all():
        raise BenchmarkError(f"the layer {type(layer).__name__} is given NaN or infinity; the certificate is refused")
    found = layer_bound(layer, x)
    found.input_size = size(x)
    return found


def _needs(layer: nn.Module, x: torch.Tensor, ndim: int) -> None:
    if x.ndim != ndim:
        raise BenchmarkError(f"the layer {type(layer).__name__} needs {ndim} axes; it is given shape {tuple(x.shape)}")


def unbiased(layer: nn.Module, *linears: nn.Module) -> None:
    """A BenchmarkError where one of a layer's maps has a bias, which its bound leaves out."""
    if any(linear.bias is not None for linear in linears):
        words = f"{type(layer).__name__} has a bias, which its bound leaves out; the certificate is refused"
        raise BenchmarkError(words)


def within(layer: nn.Module, least: float, most: float, **arguments: object) -> None:
    """
    Raises:
        BenchmarkError: an argument is no number from `least` to `most`, where the bound of `layer` is proven; it names both.
    """
    for name, value in arguments.items():
        if type(value) not in (int, float) or not least <= value <= most:  # type: ignore[operator]
            raise BenchmarkError(
                f"{type(layer).__name__} with {name} {shown(value)} has no bound here; it should be a number from "
                f"{least:g} to {most:g}"
            )


def whole(layer: nn.Module, least: int, most: int, **arguments: object) -> None:
    """As `within`, of whole numbers."""
    within(layer, least, most, **arguments)
    for name, value in arguments.items():
        if type(value) is not int:
            raise BenchmarkError(
                f"{type(layer).__name__} with {name} {shown(value)} has no bound here; it should be whole"
            )


@layer_bound.register
def _(layer: Patchify, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 4)
    whole(layer, 1, x.shape[2], patch=layer.patch)
    if x.shape[2] % layer.patch or x.shape[3] % layer.patch:
        raise BenchmarkError(f"patches of {layer.patch} do not tile {x.shape[2]}x{x.shape[3]} images")
    return LayerBound(layer, 1.0, torch.zeros_like)


@layer_bound.register
def _(layer: MergeTokens, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    if x.shape[1] != layer.side**2:
        raise BenchmarkError(f"MergeTokens needs {layer.side}x{layer.side} tokens; it is given shape {tuple(x.shape)}")
    return LayerBound(layer, 1.0, torch.zeros_like)


@layer_bound.register
def _(layer: Positions, x: torch.Tensor) -> LayerBound:
    if x.shape[1:] != layer.offset.shape:  # broadcasting would repeat the input, which is no isometry
        raise BenchmarkError(f"positions {tuple(layer.offset.shape)} do not fit tokens {tuple(x.shape[1:])}")
    offset, nominal = layer.offset.norm(), size(x)
    return LayerBound(lambda y: y, 1.0, lambda d: UNIT32 * (nominal + d + offset) * FLOAT64 + TINY)


@layer_bound.register
def _(layer: Normalise, x: torch.Tensor) -> LayerBound:
    within(layer, -LARGEST, LARGEST, mean=layer.mean)
    within(layer, 1 / LARGEST, LARGEST, std=layer.std)
    nominal = size(x) + abs(layer.mean) * math.sqrt(x[0].numel())
    return LayerBound(
        lambda y: y / layer.std, UP / layer.std, lambda d: gamma(6) * (nominal + d) / layer.std * FLOAT64 + TINY
    )


@layer_bound.register
def _(layer: MeanPool, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    norm, nominal, count = UP / math.sqrt(x.shape[1]), size(x), gamma(x.shape[1] + 2)
    return LayerBound(layer, norm, lambda d: count * norm * (nominal + d) * FLOAT64 + TINY)


@layer_bound.register
def _(layer: BoundedLinear, x: torch.Tensor) -> LayerBound:
    within(layer, 0, WIDEST, norm=layer.norm)
    weight = layer.weight
    return LayerBound(lambda y: y @ weight.mT, spectral_norm_upper(weight), LinearRounding(x, weight, layer.bias))


@layer_bound.register
def _(layer: OrthogonalLinear, x: torch.Tensor) -> LayerBound:
    weight = layer.weight
    norm = spectral_norm_upper(weight)
    return LayerBound(lambda y: y @ weight.mT, norm, OrthogonalRounding(layer, x, weight, norm))


@layer_bound.register
def _(layer: SLLBlock, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    return SLLBound(layer, x)


@layer_bound.register
def _(layer: SmoothSLLBlock, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    within(layer, 0.99e-6, 1e6, bend=layer.bend)
    return SmoothSLLBound(layer, x)


@layer_bound.register
def _(layer: ResidualAttention, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    unbiased(layer, layer.query, layer.key, layer.value, layer.output)
    within(layer, 0, WIDEST, qk_norm=layer.query.norm, vo_norm=layer.value.norm)
    within(layer, 0, WIDEST, qk_norm=layer.key.norm, vo_norm=layer.output.norm)
    return AttentionBound(layer, x)


@layer_bound.register
def _(layer: SelfAttention, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    if not 1 / LARGEST <= layer.factor <= LARGEST:
        raise BenchmarkError(f"SelfAttention's scores are {layer.factor:g} times the usual; float32 could overflow")
    return AttentionBound(layer, x)


@layer_bound.register
def _(layer: LayerProject, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    within(layer, 1 / LARGEST, LARGEST, radius=layer.radius)
    return ProjectionBound(x, layer.radius)
