"""Matrices whose spectral norm equals that of a 2-d convolution or bounds it from above."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError

SIDE = 384  # largest smaller side of a convolution's matrix: up to it all eigenvalues are quick
NUMBERS = 2**22  # entries of the matrix, or of the basis that it is formed from


def convolution_matrix(layer: nn.Conv2d, weight: torch.Tensor, height: int, width: int) -> torch.Tensor | None:
    """Return `layer` with this weight, without bias, on height x width images as a matrix (inputs, outputs) on rows.

    Return None if both sides are above 384 or it would take more than 2^22 numbers. Each entry is one of the kernel's or 0,
    unless a circular kernel is larger than the image, so nothing is rounded. On the CPU, in the weight's type.
    """
    weight = weight.detach().cpu()
    inputs = layer.in_channels * height * width
    outputs = layer._conv_forward(weight.new_zeros(1, layer.in_channels, height, width), weight, None).numel()
    if min(inputs, outputs) > SIDE or inputs * max(inputs, outputs) > NUMBERS:
        return None
    basis = torch.eye(inputs, dtype=weight.dtype).reshape(inputs, layer.in_channels, height, width)
    return layer._conv_forward(basis, weight, None).flatten(1)


def check_convolution(layer: nn.Conv2d) -> None:
    """Raise a BenchmarkError if `convolution_upper` has no bound for the layer."""
    if layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        raise BenchmarkError("Conv2d with a dilation or a padding mode other than zeros has no norm in training")


def convolution_upper(layer: nn.Conv2d, height: int, width: int) -> torch.Tensor:
    """Return an upper bound of a zero-padded convolution's norm on height x width images, before rounding: () float64."""
    weight = layer.weight.detach().double()
    if (matrix := convolution_matrix(layer, weight, height, width)) is not None:
        return torch.linalg.matrix_norm(matrix, ord=2).to(weight.device)
    groups = weight.unflatten(0, (layer.groups, -1))
    blocks = torch.stack([zero_padded_frequencies(group, height, width, layer.stride) for group in groups])
    return torch.linalg.matrix_norm(blocks, ord=2).max()


def zero_padded_frequencies(kernel: torch.Tensor, height: int, width: int, stride: Sequence[int] = (1, 1)) -> torch.Tensor:
    """Return complex matrices (rows, columns, out, channels) whose largest norm bounds that of a zero-padded convolution.

    Guarantee: it bounds the convolution of height x width images by kernel (out, in, h, w), for any padding.

    With stride s, output a reads places s a + k. For k = s q + r that is entry a + q of the inputs whose place is r mod s.
    Grouping the inputs by remainder only reorders them, and gives a convolution of stride 1 with s times as many channels
    an axis and ceil(h / s) taps. Whatever the padding, the image covers at most (height + s - 2) // s + 1 entries of each
    remainder. On a canvas longer by the taps minus one a circular convolution wraps nothing around. So ours is the circular
    one between an embedding and a crop, both of norm 1, and the circular one has these blocks (Sedghi et al. 2019).
    """
    (tall, wide), (down, right) = kernel.shape[2:], stride
    high, broad = -(-tall // down), -(-wide // right)  # taps
    padded = nn.functional.pad(kernel, (0, broad * right - wide, 0, high * down - tall))
    parted = padded.unflatten(3, (broad, right)).unflatten(2, (high, down))  # out, in, high, down, broad, right
    taps = parted.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    canvas = ((height + down - 2) // down + high, (width + right - 2) // right + broad)
    return torch.fft.fft2(taps, s=canvas).permute(2, 3, 0, 1)
