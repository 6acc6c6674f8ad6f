"""Bounds of PyTorch's own linear layers and of class tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmark.certificates.bounds.dispatch import _needs, layer_bound, whole
from benchmark.certificates.bounds.layer_bound import LayerBound
from benchmark.certificates.bounds.rounding import FLOAT64, TINY, LinearRounding, gamma, size
from benchmark.certificates.bounds.spectral import convolution_norm_upper, spectral_norm_upper
from benchmark.layers.convolution_matrices import convolution_matrix
from benchmark.layers.tokens import ClassToken, TakeToken
from benchmark.runtime.errors import BenchmarkError


@layer_bound.register
def _(layer: nn.Linear, x: torch.Tensor) -> LayerBound:
    weight = layer.weight
    return LayerBound(lambda y: y @ weight.mT, spectral_norm_upper(weight), LinearRounding(x, weight, layer.bias))


@layer_bound.register
def _(layer: nn.Conv2d, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 4)
    weight = layer.weight
    norm = conv2d_norm_upper(layer, weight, x.shape[2], x.shape[3])
    return LayerBound(lambda y: layer._conv_forward(y, weight, None), norm, _conv2d_rounding(layer, x))


def _conv2d_rounding(layer: nn.Conv2d, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """As of a linear layer, entry by entry gamma(products + 3) (|x| * |W| + |b|); sums of products in any order.

    Raises:
        BenchmarkError: an overlapping convolution may run by Winograd's or Fourier transforms, which err otherwise.
    """
    apart = all(s >= k for s, k in zip(layer.stride, layer.kernel_size, strict=True))
    if not apart and (x.is_cuda or not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)):
        raise BenchmarkError("overlapping Conv2d has a float32 bound here for oneDNN on a CPU alone; use patches there")
    weight, bias = layer.weight.abs(), None if layer.bias is None else layer.bias.abs()
    nominal = size(layer._conv_forward(x.abs(), weight, bias))
    norm = conv2d_norm_upper(layer, weight, x.shape[2], x.shape[3])
    count = gamma(weight[0].numel() + 3)
    return lambda delta: count * (nominal + delta * norm) * FLOAT64 + TINY


def conv2d_norm_upper(layer: nn.Conv2d, weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """An upper bound of the l2 norm of `layer` with this weight and no bias, on height x width images: () float64.

    A small one by its matrix (`convolution_matrix`). Else, with zero padding, any groups and stride: the groups act
    apart, so the largest counts. Where the stride is no less than the kernel no pixel is seen twice, and a group's
    norm is at most that of its kernel as an (out, in * h * w) matrix.

    Raises:
        BenchmarkError: a dilation, or another padding than zeros or (odd kernels, same size, no larger than the image)
            circular.
    """
    kernel, stride = layer.kernel_size, layer.stride
    if layer.dilation != (1, 1) or layer.padding_mode not in ("zeros", "circular"):
        raise BenchmarkError("Conv2d with a dilation or a padding mode other than zeros and circular has no bound here")
    groups = weight.detach().double().unflatten(0, (layer.groups, -1))
    circular = layer.padding_mode == "circular"
    if circular and (layer.padding != tuple(k // 2 for k in kernel) or not all(k % 2 for k in kernel)):
        raise BenchmarkError("circular Conv2d has a bound here for odd kernels with padding = kernel // 2 alone")
    if circular and (kernel[0] > height or kernel[1] > width):  # an entry of its matrix would be a rounded sum of taps
        raise BenchmarkError(f"circular Conv2d with a kernel larger than its {height}x{width} images has no bound here")
    if not circular and all(s >= k for s, k in zip(stride, kernel, strict=True)):
        return spectral_norm_upper(groups.flatten(2)).max()
    if (matrix := convolution_matrix(layer, weight.double(), height, width)) is not None:
        return spectral_norm_upper(matrix).to(weight.device)
    bounds = [convolution_norm_upper(g, height, width, padding=layer.padding_mode, stride=stride) for g in groups]
    return torch.stack(bounds).max()


@layer_bound.register
def _(layer: nn.Flatten, x: torch.Tensor) -> LayerBound:
    if layer.start_dim % x.ndim == 0:
        raise BenchmarkError("Flatten from axis 0 mixes images; use start_dim=1")
    return LayerBound(layer, 1.0, torch.zeros_like)


@layer_bound.register
def _(layer: nn.Identity, x: torch.Tensor) -> LayerBound:
    return LayerBound(lambda y: y, 1.0, torch.zeros_like)


@layer_bound.register
def _(layer: ClassToken, x: torch.Tensor) -> LayerBound:
    _needs(layer, x, 3)
    return LayerBound(lambda y: torch.cat([torch.zeros_like(y[:, :1]), y], dim=1), 1.0, torch.zeros_like)


@layer_bound.register
def _(layer: TakeToken, x: torch.Tensor) -> LayerBound:
    """Of one token: a list of several, one of them twice, would repeat what moves."""
    _needs(layer, x, 3)
    whole(layer, -x.shape[1], x.shape[1] - 1, index=layer.index)
    return LayerBound(layer, 1.0, torch.zeros_like)
