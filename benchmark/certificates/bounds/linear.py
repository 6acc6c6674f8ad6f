"""Bounds of linear layers of images and tokens, and of layers that only reorder, copy, drop or add constants."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from benchmark.layers.convolution_matrices import convolution_matrix, zero_padded_frequencies
from benchmark.layers.isometries import ShiftTokens
from benchmark.layers.lipschitz import BoundedLinear, OrthogonalLinear
from benchmark.layers.normalise import Normalise
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm
from benchmark.layers.tokens import ClassToken, MeanPool, MergeTokens, Patchify, Positions, TakeToken
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import UP, LayerBound, layer_bound, needs_axes, needs_grid, whole, within
from .orthogonal import orthogonal_rounding
from .rounding import LARGEST, UNIT32, WIDEST, Rounding, covered, gamma, linear_rounding, size
from .spectral import spectral_norm_upper


def exact(linear: Callable[[torch.Tensor], torch.Tensor], norm: float = 1.0) -> LayerBound:
    """Return the bound of a linear layer that rounds nothing."""
    return LayerBound(linear, norm, torch.zeros_like)


@layer_bound.register
def _(layer: nn.Linear | BoundedLinear, x: torch.Tensor) -> LayerBound:
    if isinstance(layer, BoundedLinear):
        within(layer, 0, WIDEST, norm=layer.norm)
    weight = layer.weight
    return LayerBound(lambda y: y @ weight.mT, spectral_norm_upper(weight), linear_rounding(x, weight, layer.bias))


@layer_bound.register
def _(layer: OrthogonalLinear, x: torch.Tensor) -> LayerBound:
    weight = layer.weight
    norm = spectral_norm_upper(weight)
    return LayerBound(lambda y: y @ weight.mT, norm, orthogonal_rounding(layer, x, weight, norm))


@layer_bound.register
def _(layer: nn.Conv2d, x: torch.Tensor) -> LayerBound:
    needs_axes(layer, x, 4)
    weight = layer.weight
    norm = conv2d_norm_upper(layer, weight, x.shape[2], x.shape[3])
    return LayerBound(lambda y: layer._conv_forward(y, weight, None), norm, _conv2d_rounding(layer, x))


def _conv2d_rounding(layer: nn.Conv2d, x: torch.Tensor) -> Rounding:
    """Return the rounding of a convolution: gamma(products + 3) (|x| * |W| + |b|) entry by entry, sums in any order.

    Raises:
        BenchmarkError: an overlapping convolution that may run by Winograd's or Fourier transforms, which round differently.
    """
    apart = all(s >= k for s, k in zip(layer.stride, layer.kernel_size, strict=True))
    if not apart and (x.is_cuda or not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)):
        raise BenchmarkError("overlapping Conv2d has a float32 bound here for oneDNN on a CPU alone; use patches there")
    weight, bias = layer.weight.abs(), None if layer.bias is None else layer.bias.abs()
    nominal = size(layer._conv_forward(x.abs(), weight, bias))
    norm = conv2d_norm_upper(layer, weight, x.shape[2], x.shape[3])
    count = gamma(weight[0].numel() + 3)
    return lambda delta: covered(count * (nominal + delta * norm))


def conv2d_norm_upper(layer: nn.Conv2d, weight: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return an upper bound of the l2 norm of `layer` with this weight and no bias, on height x width images: () float64.

    Guarantee: never below the true norm. A small layer's bound is its matrix's norm (`convolution_matrix`). Else groups act
    apart, so the largest counts. With zero padding and a stride no less than the kernel no pixel is seen twice, and a group's
    norm is at most that of its kernel as an (out, in * h * w) matrix; with a smaller stride, `zero_padded_frequencies` has
    the proof. With circular padding the Fourier transform makes the map block diagonal, one (out, in) matrix a frequency
    (Sedghi et al. 2019), and a stride only drops outputs: the bound is the norm itself at stride 1.

    Raises:
        BenchmarkError: a dilation, or a padding other than zeros or (odd kernels, same size, no larger than the image)
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
    if not torch.isfinite(groups).all():
        return groups.new_tensor(torch.inf)
    largest = []
    for group in groups:
        if circular:
            blocks = torch.fft.fft2(group, s=(height, width)).permute(2, 3, 0, 1)
        else:
            blocks = zero_padded_frequencies(group, height, width, stride)
        largest.append(torch.linalg.svdvals(blocks.cpu())[..., 0].max())
    return torch.stack(largest).max().to(weight.device) * (1 + 1e-10)


@layer_bound.register
def _(layer: nn.Flatten, x: torch.Tensor) -> LayerBound:
    if layer.start_dim % x.ndim == 0:
        raise BenchmarkError("Flatten from axis 0 mixes images; use start_dim=1")
    return exact(layer)


layer_bound.register(nn.Identity, lambda _, x: exact(lambda y: y))


@layer_bound.register
def _(layer: Resize, x: torch.Tensor) -> LayerBound:
    needs_axes(layer, x, 4)
    try:
        factor = layer.factor(x.shape[2], x.shape[3])
    except ValueError as error:
        raise BenchmarkError(f"{error}; the certificate is refused") from None
    return exact(layer, float(factor))


@layer_bound.register
def _(layer: Patchify, x: torch.Tensor) -> LayerBound:
    needs_axes(layer, x, 4)
    whole(layer, 1, x.shape[2], patch=layer.patch)
    if x.shape[2] % layer.patch or x.shape[3] % layer.patch:
        raise BenchmarkError(f"patches of {layer.patch} do not tile {x.shape[2]}x{x.shape[3]} images")
    return exact(layer)


@layer_bound.register
def _(layer: MergeTokens | ShiftTokens, x: torch.Tensor) -> LayerBound:
    needs_grid(layer, x, layer.side)
    if isinstance(layer, ShiftTokens):
        whole(layer, 1, x.shape[2] // 4, moved=layer.moved)
    return exact(layer)


@layer_bound.register
def _(layer: ClassToken, x: torch.Tensor) -> LayerBound:
    needs_axes(layer, x, 3)
    return exact(lambda y: torch.cat([torch.zeros_like(y[:, :1]), y], dim=1))


@layer_bound.register
def _(layer: TakeToken, x: torch.Tensor) -> LayerBound:
    """One token alone: a list could hold a token twice and repeat its move."""
    needs_axes(layer, x, 3)
    whole(layer, -x.shape[1], x.shape[1] - 1, index=layer.index)
    return exact(layer)


@layer_bound.register
def _(layer: Positions, x: torch.Tensor) -> LayerBound:
    if x.shape[1:] != layer.offset.shape:  # broadcasting would repeat the input, which is no isometry
        raise BenchmarkError(f"positions {tuple(layer.offset.shape)} do not fit tokens {tuple(x.shape[1:])}")
    offset, nominal = layer.offset.norm(), size(x)
    return LayerBound(lambda y: y, 1.0, lambda d: covered(UNIT32 * (nominal + d + offset)))


@layer_bound.register
def _(layer: Normalise, x: torch.Tensor) -> LayerBound:
    within(layer, -LARGEST, LARGEST, mean=layer.mean)
    within(layer, 1 / LARGEST, LARGEST, std=layer.std)
    nominal = size(x) + abs(layer.mean) * math.sqrt(x[0].numel())
    return LayerBound(lambda y: y / layer.std, UP / layer.std, lambda d: covered(gamma(6) * (nominal + d) / layer.std))


@layer_bound.register
def _(layer: MeanPool, x: torch.Tensor) -> LayerBound:
    needs_axes(layer, x, 3)
    norm, nominal, count = UP / math.sqrt(x.shape[1]), size(x), gamma(x.shape[1] + 2)
    return LayerBound(layer, norm, lambda d: covered(count * norm * (nominal + d)))


@layer_bound.register
def _(layer: CenterNorm, x: torch.Tensor) -> LayerBound:
    """Rounding: an entry's mean errs by gamma(d + 1) |x| / sqrt(d); a difference and four products and sums follow."""
    width, scale = len(layer.gamma), len(layer.gamma) / (len(layer.gamma) - 1)
    if x.shape[-1] != width:
        raise BenchmarkError(f"CenterNorm of width {width} does not fit inputs {tuple(x.shape)}")
    centre = torch.eye(width, dtype=x.dtype, device=x.device) - 1 / width
    norm = spectral_norm_upper(scale * layer.gamma[:, None] * centre)
    most, count = scale * layer.gamma.abs().max() * UP, gamma(width + 10)
    shift, nominal_size = layer.beta.norm() * math.sqrt(x[0].numel() / width), size(x)
    return LayerBound(
        lambda y: layer.gamma * (scale * (y - y.mean(-1, keepdim=True))),
        norm,
        lambda delta: covered(count * (most * (nominal_size + delta) + shift)),
    )
