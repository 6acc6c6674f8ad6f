"""Bounds of convolutions over tokens and of residuals around them, all linear and without remainder.

A residual around a token convolution, or around one followed by square linear layers, is itself a token convolution: its
kernel is the branch's with the identity added to the middle tap. 1 + ||branch|| may exceed that kernel's norm several times.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmark.layers.lipschitz import BoundedLinear, OrthogonalLinear
from benchmark.layers.residual import Residual
from benchmark.layers.token_convolution import (
    BoundedSliceConvolution,
    BoundedTokenConvolution,
    SliceConvolution,
    TokenConvolution,
    convolve,
)
from benchmark.runtime.errors import BenchmarkError

from .layer_bound import UP, LayerBound, exact_layer_bound, layer_bound, needs_axes, within
from .rounding import UNIT32, WIDEST, Rounding, covered, gamma, size
from .spectral import spectral_norm_upper

FORMED = 640  # the largest side of the matrix of a whole map that is formed: some 40 ms
SHORT = 5  # so many kernels' lengths of tokens: up to there Fourier blocks exceed the norm by 1% and more
CONVOLUTIONS = (TokenConvolution, BoundedTokenConvolution)
PROJECTIONS = (nn.Linear, BoundedLinear, OrthogonalLinear)
Slice = SliceConvolution | BoundedSliceConvolution


def token_convolution_norm_upper(kernel: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return an upper bound of the l2 norm of a convolution over `tokens` tokens, zero padding k // 2, stride 1: () float64.

    Guarantee: never below the true norm. For few tokens the map's matrix is formed, and the bound is its norm to 1e-3 or
    better. Else by Fourier blocks: the map is a circular convolution on tokens + k - 1 places between embedding and
    cropping, both of norm 1, and that is block diagonal, one (outputs, inputs) matrix a frequency. Float64's errors of the
    transform and of LAPACK's singular values, modest polynomials of the size times 1e-16, are covered by 1e-10
    (1 + size / 100).

    Args:
        kernel: (outputs, inputs, k), k odd, real; with NaN or infinity in it the bound is infinite.
    """
    kernel = kernel.detach().double()
    if not torch.isfinite(kernel).all():
        return kernel.new_tensor(torch.inf)
    if tokens <= SHORT * kernel.shape[2] and tokens * max(kernel.shape[:2]) <= FORMED:
        return spectral_norm_upper(_matrix(kernel, tokens))
    blocks = torch.fft.rfft(kernel, n=tokens + kernel.shape[2] - 1).permute(2, 0, 1)  # the rest are their conjugates
    largest = torch.linalg.svdvals(blocks.cpu())[:, 0].max().to(kernel.device)
    return largest * (1 + 1e-10 * (1 + max(kernel.shape[:2]) / 100))


def _matrix(kernel: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the map as a matrix: (tokens * outputs, tokens * inputs), block a, b being tap b - a + k // 2."""
    outputs, inputs, taps = kernel.shape
    places = torch.arange(tokens, device=kernel.device)
    tap = places[None] - places[:, None] + taps // 2
    inside = (tap >= 0) & (tap < taps)
    blocks = kernel.permute(2, 0, 1)[tap.clamp(0, taps - 1)] * inside[:, :, None, None]
    return blocks.permute(0, 2, 1, 3).reshape(tokens * outputs, tokens * inputs)


@layer_bound.register
def _(layer: TokenConvolution | BoundedTokenConvolution, x: torch.Tensor) -> LayerBound:
    """Slices of the channels act apart, so the largest norm counts."""
    slices = _slices(layer, x)
    kernels = [part.weight for part in slices]
    norm = torch.stack([token_convolution_norm_upper(kernel, x.shape[1]) for kernel in kernels]).max()

    def linear(y: torch.Tensor) -> torch.Tensor:
        parts = y.chunk(len(kernels), dim=-1)
        return torch.cat([convolve(part, kernel, None) for part, kernel in zip(parts, kernels, strict=True)], dim=-1)

    return LayerBound(linear, norm, _rounding(slices, x))


def _slices(layer: Any, x: torch.Tensor) -> list[Slice]:
    """Return the layer's slices; raise a BenchmarkError where x does not fit, or a slice is another module."""
    needs_axes(layer, x, 3)
    slices: list[Slice] = list(layer.slices)
    for part in slices:
        if type(part) not in (SliceConvolution, BoundedSliceConvolution):
            raise BenchmarkError(f"no bound is declared for {type(part).__name__} as a slice of {type(layer).__name__}")
        if isinstance(part, BoundedSliceConvolution):
            within(layer, 0, WIDEST, norm=part.norm)
    widths = sum(part.weight.shape[0] for part in slices)
    if x.shape[2] != widths:
        raise BenchmarkError(f"{type(layer).__name__} of width {widths} does not fit tokens of {x.shape[2]} channels")
    return slices


def _rounding(slices: list[Slice], x: torch.Tensor) -> Rounding:
    """Return the rounding, as of linear layers: a slice is one sum of k width products, which errs by g (|w| * |x'| + |b|) at
    most, entry by entry, g = gamma(k width + 3); and |x'| <= |x| + |D|. Slices act apart, so the squares of their nominal
    parts add up, and of their slopes in ||D|| the largest counts. Entries of a Fourier block of |w| are at most those of
    sum_t |w_t|, whose norm therefore bounds theirs.
    """
    nominal, slopes = [], []
    for tokens, part in zip(x.chunk(len(slices), dim=-1), slices, strict=True):
        weight = part.weight.abs()
        count = gamma(weight[0].numel() + 3)
        nominal.append(count * size(convolve(tokens.abs(), weight, part.bias.abs())))
        slopes.append(count * spectral_norm_upper(weight.sum(2)))
    fixed, slope = size(torch.stack(nominal, dim=1)), torch.stack(slopes).max()
    return lambda delta: covered(fixed + delta * slope)


def convolution_residual(layer: Residual, x: torch.Tensor) -> LayerBound | None:
    """Return the bound of a residual around a token convolution, alone or followed by square linear layers; else None.

    float32 runs the branch's layers one after the other, each rounding what the ones before return, and rounds the sum once.
    """
    kernels = _branch_kernels(layer.body, x)
    if kernels is None:
        return None
    norm = torch.stack([_with_identity(kernel, error, x.shape[1]) for kernel, error in kernels]).max()
    parts, activation = [], x
    for part in layer.body if isinstance(layer.body, nn.Sequential) else [layer.body]:
        parts.append(exact_layer_bound(part, activation))
        activation = part(activation)
    output = size(x + activation)

    def linear(y: torch.Tensor) -> torch.Tensor:
        branch = y
        for part in parts:
            branch = part.linear(branch)
        return y + branch

    def rounding(delta: torch.Tensor) -> torch.Tensor:
        moved, missed = delta, torch.zeros_like(delta)
        for part in parts:
            rounded = part.rounding_in_range(moved)
            moved = (part.jacobian_norm * moved + rounded) * UP
            missed = (part.jacobian_norm * missed + rounded) * UP
        return covered(missed + UNIT32 * (output + norm * delta + missed))

    return LayerBound(linear, norm, rounding)


def _with_identity(kernel: torch.Tensor, error: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return an upper bound of the norm of I + the convolution, whose kernel is known to `error`."""
    width, taps = kernel.shape[1:]
    middle = torch.zeros_like(kernel)
    middle[:, :, taps // 2] = torch.eye(width, dtype=kernel.dtype, device=kernel.device)
    return (token_convolution_norm_upper(kernel + middle, tokens) + error) * UP


def _branch_kernels(body: nn.Module, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Return the kernels (width, width, k) of the slices on which a body acts apart, if it is a token convolution.

    With each comes a norm bound of float64's error in making it and in adding the identity, which may cancel most of it: the
    sums' gamma(width) times the product of the factors' Frobenius norms and sqrt(k), below 1e-11 of one plus that product.
    """
    if type(body) in CONVOLUTIONS:
        return [(part.weight, 1e-11 * (1 + torch.linalg.vector_norm(part.weight))) for part in _slices(body, x)]
    if type(body) is not nn.Sequential or not len(body) or type(body[0]) not in CONVOLUTIONS:
        return None
    kernel = _side_by_side([part.weight for part in _slices(body[0], x)])
    sizes = torch.linalg.vector_norm(kernel)
    for layer in body[1:]:
        if not isinstance(layer, PROJECTIONS) or type(layer) not in PROJECTIONS:
            return None
        if layer.weight.shape != kernel.shape[:1] * 2:
            return None
        kernel = torch.einsum("po,oit->pit", layer.weight, kernel)
        sizes = sizes * torch.linalg.vector_norm(layer.weight)
    return [(kernel, 1e-11 * (1 + sizes))]


def _side_by_side(kernels: list[torch.Tensor]) -> torch.Tensor:
    """Return one kernel (width, width, k) that does what slices do."""
    taps = max(kernel.shape[2] for kernel in kernels)
    wide = [nn.functional.pad(kernel, 2 * ((taps - kernel.shape[2]) // 2,)) for kernel in kernels]
    return torch.stack([torch.block_diag(*(kernel[:, :, tap] for kernel in wide)) for tap in range(taps)], dim=2)
