"""Convolutions over a sequence of tokens, the mixer of CoViT (Wang & Ruan 2022): linear maps, also with a bounded norm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from benchmark.layers.derived import DerivedWeight

PLACES = 16  # frequencies looked at, for each token that a kernel reaches to one side


class SliceConvolution(nn.Module):
    """A convolution over tokens, zero padding kernel // 2, stride 1: (n, tokens, width) to the same.

    It is computed as one matrix product of windows of tokens, since kernels for convolutions may sum by transforms that round
    otherwise.
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        reach = 1 / math.sqrt(width * kernel)  # as nn.Conv1d
        self.weight = nn.Parameter(torch.empty(width, width, kernel).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.empty(width).uniform_(-reach, reach))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return convolve(x, self.weight, self.bias)


class BoundedSliceConvolution(DerivedWeight):
    """A `SliceConvolution` whose norm is at most `norm` on any number of tokens.

    The weight is raw norm (1 - s) / B with B >= the norm of raw (`convolution_norm`), computed in float64 and rounded once.
    Rounding changes each entry by at most u = 2^-24 of itself, hence the block of each frequency by at most
    u sum_t ||w_t||_F <= u sqrt(kernel) ||w||_F <= u sqrt(kernel width) norm, ||w||_F^2 being the mean over the frequencies of
    the blocks' squared Frobenius norms; s = 2 u sqrt(kernel width) covers it.
    """

    def __init__(self, width: int, kernel: int, norm: float) -> None:
        super().__init__()
        self.norm = norm
        self.raw = nn.Parameter(torch.empty(width, width, kernel))
        nn.init.orthogonal_(self.raw)
        self.bias = nn.Parameter(torch.zeros(width))

    @property
    def weight(self) -> torch.Tensor:
        """The weight that acts: (width, width, kernel)."""
        return self.derived

    def derive(self) -> torch.Tensor:
        raw = self.raw.double()
        bound = convolution_norm(raw)
        target = self.norm * (1 - 2 * 2.0**-24 * math.sqrt(raw[0].numel()))
        return (raw * torch.where(bound > 0, target / bound.clamp(min=1e-300), 0 * bound)).to(self.raw.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return convolve(x, self.weight, self.bias)


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """y_a = sum_t weight_t x_(a + t - k // 2) + bias, tokens beyond the ends being zeros.

    Args:
        x: (n, tokens, inputs).
        weight: (outputs, inputs, k), k odd.
        bias: (outputs,).
    """
    kernel, tokens = weight.shape[2], x.shape[1]
    padded = nn.functional.pad(x, (0, 0, kernel // 2, kernel // 2))
    windows = torch.cat([padded[:, t : t + tokens] for t in range(kernel)], dim=-1)
    return nn.functional.linear(windows, weight.permute(0, 2, 1).flatten(1), bias)


def convolution_norm(kernel: torch.Tensor) -> torch.Tensor:
    """A differentiable upper bound of the norm of a token convolution on any number of tokens, at most 2% above the largest.

    Such a map is the convolution on all integers between an embedding and a crop of norm 1, so its norm is at most the
    supremum S over all frequencies a of ||K(a)||, K(a) = sum_t w_t e^(-i a (t - p)), p = k // 2. Let S = ||K(a0)|| = u* K(a0)
    v for unit u, v. The real part of u* K(a) v is a real trigonometric polynomial of degree p, nowhere above S in size, so by
    M. Riesz's lemma it is at least S cos(p (a - a0)) where |a - a0| <= pi / p. One of m equidistant frequencies is within pi
    / m of a0; so S <= max_j ||K(2 pi j / m)|| / cos(p pi / m), m = 16 p. The norm at the largest is |K v| with its right
    singular vector v held fixed, whose derivative is that of the norm; float64 errors of both are covered by 1e-9 of the
    result.

    Args:
        kernel: (outputs, inputs, k), float64, k odd.

    Returns:
        () float64; 0 for zeros, NaN for a kernel that is not finite.
    """
    reach = kernel.shape[2] // 2
    places = max(PLACES * reach, 1)
    blocks = torch.fft.rfft(kernel, n=places).permute(2, 0, 1)  # of a real kernel, the other half are their conjugates
    with torch.no_grad():
        gram = (blocks.mH @ blocks).cpu()
        if not torch.isfinite(gram).all():  # the training loop says so of its loss; LAPACK would raise
            return kernel.new_full((), math.nan)
        largest = int(torch.linalg.eigvalsh(gram)[:, -1].argmax())
        vector = torch.linalg.eigh(gram[largest]).eigenvectors[:, -1].to(kernel.device)
    norm = torch.linalg.vector_norm(blocks[largest] @ vector)
    return norm * (1 + 1e-9) / math.cos(math.pi * reach / places)


class _Slices(nn.Module):
    """Convolutions of equal slices of the channels, their outputs side by side."""

    slices: nn.ModuleList

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.slices) == 1:
            return self.slices[0](x)
        parts = x.chunk(len(self.slices), dim=-1)
        return torch.cat([one(part) for one, part in zip(self.slices, parts, strict=True)], dim=-1)


class TokenConvolution(_Slices):
    """One convolution over tokens for each slice of the channels: (n, tokens, width) to the same.

    Args:
        width: channels.
        kernels: the slices' kernel sizes, odd; each slice has width / len(kernels) channels. `(3,)` mixes all channels.

    Raises:
        ValueError: an even kernel, or a list that does not divide the width.
    """

    def __init__(self, width: int, kernels: Sequence[int]) -> None:
        super().__init__()
        share = _share(width, kernels)
        self.slices = nn.ModuleList(SliceConvolution(share, kernel) for kernel in kernels)


class BoundedTokenConvolution(_Slices):
    """A `TokenConvolution` of norm at most `norm` on any number of tokens, by construction.

    Slices act apart, so each may have all of it.

    Args:
        width, kernels: as of `TokenConvolution`.
        norm: positive; of the spectral norm from (n, tokens, width), one image at a time.

    Raises:
        ValueError: as `TokenConvolution`, or a norm that is not positive.
    """

    def __init__(self, width: int, kernels: Sequence[int], *, norm: float = 1.0) -> None:
        super().__init__()
        if not 0 < norm < math.inf:
            raise ValueError(f"norm {norm} should be positive and finite")
        share = _share(width, kernels)
        self.slices = nn.ModuleList(BoundedSliceConvolution(share, kernel, norm) for kernel in kernels)


def _share(width: int, kernels: Sequence[int]) -> int:
    if not kernels or width % len(kernels):
        raise ValueError(f"{len(kernels)} kernels do not divide a width of {width} channels")
    for kernel in kernels:
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel {kernel} should be odd and positive: an even one has no token in its middle")
    return width // len(kernels)
