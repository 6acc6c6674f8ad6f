"""Global l2 Lipschitz constants of single layers, by exact type: the sound factors of a network's constant.

A linear layer's is the norm that its `LayerBound` holds; a residual's is 1 + its body's; attention's stand in files of their
own. A layer whose constant is not finite, or not known, is refused with the reason.
"""

from __future__ import annotations

import math
from functools import singledispatch

import torch
from torch import nn

from benchmark.certificates.bounds.dispatch import exact_layer_bound, unbiased
from benchmark.certificates.bounds.l2_attention_norm import l2_attention_norm_upper
from benchmark.certificates.bounds.l2_window_norm import checked_window, l2_window_norm_upper
from benchmark.certificates.bounds.layer_bound import UP, LayerBound
from benchmark.certificates.bounds.scaled_cosine_norm import scaled_cosine_norm_upper
from benchmark.certificates.bounds.token_convolution import convolution_residual
from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.attention_l2_window import L2WindowAttention
from benchmark.layers.attention_window import DotProductWindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.gelu_slope import GELU_SLOPE as GELU_SLOPE
from benchmark.layers.lipschitz import SLLBlock, SmoothSLLBlock
from benchmark.layers.lipschitz_norm import LipschitzNormAttention
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.scaled_cosine import ScaledCosineAttention
from benchmark.layers.tokens import LayerProject
from benchmark.runtime.errors import BenchmarkError


def lipschitz_constant(layer: nn.Module, x: torch.Tensor) -> float:
    """An upper bound of the l2 Lipschitz constant of `layer` on all inputs of the shape of x.

    Guarantee: never below the true constant, in real arithmetic.

    Args:
        layer: one layer, or a plain nn.Sequential of them; float64.
        x: one input or more, (n, *shape) float64; its shape alone counts.

    Raises:
        BenchmarkError: no global constant is known for it, with its name.
    """
    if type(layer) in constant.registry:  # a subclass may compute something else
        return constant(layer, x)
    only = exact_layer_bound(layer, x)
    if type(only) is not LayerBound:
        raise BenchmarkError(f"no global Lipschitz constant is known for the layer {type(layer).__name__}")
    return float(torch.as_tensor(only.jacobian_norm, dtype=torch.float64).max())  # a linear layer


@singledispatch
def constant(layer: nn.Module, x: torch.Tensor) -> float:
    """The constant of a layer that is not linear; see `lipschitz_constant`."""
    raise BenchmarkError(f"no global Lipschitz constant is known for the layer {type(layer).__name__}")


@constant.register
def _(layer: nn.Sequential, x: torch.Tensor) -> float:
    total = 1.0
    for part in layer:
        total *= lipschitz_constant(part, x) * UP
        x = part(x)
    return total


@constant.register
def _(layer: Residual, x: torch.Tensor) -> float:
    if (linear := convolution_residual(layer, x)) is not None:
        return float(linear.jacobian_norm)
    return (1 + lipschitz_constant(layer.body, x)) * UP


@constant.register
def _(layer: WeightedResidual, x: torch.Tensor) -> float:
    exact_layer_bound(layer, x)  # refuses weights that do not fit
    return (1 + float(layer.alpha.abs().max()) * lipschitz_constant(layer.body, x)) * UP


@constant.register
def _(layer: ScaledCosineAttention, x: torch.Tensor) -> float:
    exact_layer_bound(layer, x)  # refuses biases and other shapes
    return scaled_cosine_norm_upper(layer, x.shape[1])


@constant.register(LipschitzNormAttention)
def _(layer: nn.Module, x: torch.Tensor) -> float:
    raise BenchmarkError(
        "no sound constant is known for LipschitzNormAttention: the published one lacks W_V (unsound_paper_formula.py)"
    )


@constant.register
def _(layer: L2Attention, x: torch.Tensor) -> float:
    if x.ndim != 3:
        raise BenchmarkError(f"L2Attention needs 3 axes; it is given shape {tuple(x.shape)}")
    unbiased(layer, layer.query, layer.value, layer.output)
    return l2_attention_norm_upper(layer, x.shape[1])


@constant.register
def _(layer: L2WindowAttention, x: torch.Tensor) -> float:
    checked_window(layer, x)
    return l2_window_norm_upper(layer)


@constant.register(ReleasedL2Attention)
def _(layer: nn.Module, x: torch.Tensor) -> float:
    raise BenchmarkError("L2 attention without A_h (CertViT's released code) is not Lipschitz; use L2Attention")


@constant.register(ResidualAttention)
@constant.register(SelfAttention)
@constant.register(DotProductWindowAttention)
@constant.register(nn.MultiheadAttention)
def _(layer: nn.Module, x: torch.Tensor) -> float:
    raise BenchmarkError(
        f"{type(layer).__name__} is dot-product attention, which has no global Lipschitz constant (Kim et al. 2021); "
        "use a local certificate, or L2Attention"
    )


@constant.register
def _(layer: nn.LayerNorm, x: torch.Tensor) -> float:
    """z / sqrt(|z|^2 / d + eps), z centred, has a Jacobian of eigenvalues at most 1 / sqrt(|z|^2 / d + eps)."""
    if not layer.eps > 0:
        raise BenchmarkError(f"LayerNorm with eps {layer.eps} has no global Lipschitz constant; eps should be positive")
    gamma = 1.0 if layer.weight is None else float(layer.weight.abs().max())
    return gamma / math.sqrt(layer.eps) * UP


@constant.register
def _(layer: nn.GELU, x: torch.Tensor) -> float:
    return GELU_SLOPE[layer.approximate]


@constant.register(nn.ReLU)
@constant.register(ClippedReLU)
@constant.register(LayerProject)  # projection onto a convex set
def _(layer: nn.Module, x: torch.Tensor) -> float:
    return 1.0


@constant.register(SLLBlock)
@constant.register(SmoothSLLBlock)
def _(layer: SLLBlock, x: torch.Tensor) -> float:
    return float(exact_layer_bound(layer, x).jacobian_norm)
