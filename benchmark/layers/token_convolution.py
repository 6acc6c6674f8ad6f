"""Convolutions over a sequence of tokens, the mixer of CoViT (Wang & Ruan 2022), also with a bounded norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmark.layers.derived import DerivedWeight
from benchmark.layers.kinds import Argument, checked, known, positive, side, whole, wholes

SLICES: dict[str, Any] = {
    "width": Argument(whole(1), lambda layer: sum(part.weight.shape[0] for part in layer.slices)),
    "kernels": Argument(wholes(1, 1024), lambda layer: [part.weight.shape[2] for part in layer.slices]),
}


@known(width=side("weight", 0), kernel=side("weight", 2))
class SliceConvolution(nn.Module):
    """A convolution over tokens with zero padding kernel // 2 and stride 1: (n, tokens, width) to the same.

    It is one matrix product of windows of tokens, because kernels for convolutions may use transforms, which round
    differently.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        reach = 1 / math.sqrt(width * kernel)  # as nn.Conv1d
        self.weight = nn.Parameter(torch.empty(width, width, kernel).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.empty(width).uniform_(-reach, reach))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return convolve(x, self.weight, self.bias)


@known(width=side("raw", 0), kernel=side("raw", 2), norm=positive)
class BoundedSliceConvolution(DerivedWeight):
    """A `SliceConvolution` of spectral norm at most `norm` on any number of tokens.

    The weight is `almost_orthogonal_convolution` of raw times norm (1 - s), computed in float64 and rounded once. Rounding
    changes each entry by at most u = 2^-24 of itself, hence the block of each frequency by at most u sum_t ||w_t||_F <= u
    sqrt(kernel) ||w||_F <= u sqrt(kernel width) norm, ||w||_F^2 being the mean over the frequencies of the blocks' squared
    Frobenius norms; s = 2 u sqrt(kernel width) covers it.
    """

    def __init__(self, width: int, kernel: int, norm: float) -> None:
        super().__init__()
        self.norm = norm
        self.raw = nn.Parameter(torch.empty(width, width, kernel))
        nn.init.orthogonal_(self.raw)
        self.bias = nn.Parameter(torch.zeros(width))

    @property
    def weight(self) -> torch.Tensor:
        """Return the weight that acts: (width, width, kernel)."""
        return self.derived

    def derive(self) -> torch.Tensor:
        norm = self.norm * (1 - 2 * 2.0**-24 * math.sqrt(self.raw[0].numel()))
        return (norm * almost_orthogonal_convolution(self.raw.double())).to(self.raw.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return convolve(x, self.weight, self.bias)


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return y_a = sum_t weight_t x_(a + t - k // 2) + bias; tokens beyond the ends are zeros.

    Args:
        x: (n, tokens, inputs).
        weight: (outputs, inputs, k), k odd.
        bias: (outputs,).
    """
    kernel, tokens = weight.shape[2], x.shape[1]
    padded = nn.functional.pad(x, (0, 0, kernel // 2, kernel // 2))
    windows = torch.cat([padded[:, t : t + tokens] for t in range(kernel)], dim=-1)
    return nn.functional.linear(windows, weight.permute(0, 2, 1).flatten(1), bias)


def almost_orthogonal_convolution(kernel: torch.Tensor) -> torch.Tensor:
    """Rescale input channels so that the norm on any number of tokens is at most 1 (Prach & Lampert 2022, theorem 2).

    Let F be the convolution on all integers. On any number of tokens the convolution is F between an embedding and a crop,
    both of norm 1. F^T F has the entries r_ij(s) = sum_(o,t) w_oit w_oj(t+s) between channels i and j, s places apart. With
    d_i = (sum_j sum_s |r_ij(s)|)^(-1/2) at each place, |F D x|^2 <= sum |r_ij| |d_i x_i| |d_j x_j| <= sum |r_ij| (d_i^2 x_i^2
    + d_j^2 x_j^2) / 2 = |x|^2, by r_ij(s) = r_ji(-s). Channels of zeros stay zero. A kernel that keeps all lengths does not
    change.

    Args:
        kernel: (outputs, inputs, k), float64, as the result.
    """
    taps = kernel.shape[2]
    total = kernel.new_zeros(kernel.shape[1])
    for shift in range(taps):
        products = torch.einsum("oit,ojt->ij", kernel[:, :, : taps - shift], kernel[:, :, shift:]).abs()
        total = total + products.sum(1) + (products.sum(0) if shift else 0.0)
    return kernel * torch.where(total > 0, total.clamp(min=1e-300).rsqrt(), 0.0)[:, None]


class _Slices(nn.Module):
    """Convolutions of equal slices of the channels, with their outputs side by side."""

    slices: Any  # an nn.ModuleList of convolutions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(len(self.slices), dim=-1)
        return torch.cat([convolution(part) for convolution, part in zip(self.slices, parts, strict=True)], dim=-1)


@known(**SLICES)
class TokenConvolution(_Slices):
    """One convolution over tokens for each slice of the channels: (n, tokens, width) to the same.

    Args:
        width: channels.
        kernels: the slices' odd kernel sizes; each slice has width / len(kernels) channels. `(3,)` mixes all channels.

    Raises:
        ValueError: a kernel is even, or the number of kernels does not divide the width.
    """

    def __init__(self, width: int, kernels: Sequence[int]) -> None:
        super().__init__()
        share = _share(width, kernels)
        self.slices = nn.ModuleList(SliceConvolution(share, kernel) for kernel in kernels)


@known(**SLICES, norm=Argument(positive, lambda layer: layer.slices[0].norm))
class BoundedTokenConvolution(_Slices):
    """A `TokenConvolution` of spectral norm at most `norm` on any number of tokens, by construction.

    Slices act on separate channels, so each may have norm `norm`.

    Raises:
        ValueError: as `TokenConvolution`, or the norm is not positive and finite.
    """

    def __init__(self, width: int, kernels: Sequence[int], *, norm: float = 1.0) -> None:
        super().__init__()
        checked("norm", positive, norm)
        share = _share(width, kernels)
        self.slices = nn.ModuleList(BoundedSliceConvolution(share, kernel, norm) for kernel in kernels)


def _share(width: int, kernels: Sequence[int]) -> int:
    if not kernels or width % len(kernels):
        raise ValueError(f"{len(kernels)} kernels do not divide a width of {width} channels")
    for kernel in kernels:
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel {kernel} should be odd and positive: an even one has no token in its middle")
    return width // len(kernels)
