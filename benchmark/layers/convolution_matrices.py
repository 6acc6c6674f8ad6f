"""Matrices with the norm of a 2-d convolution, or with one that is no smaller: whose singular values bound it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError

SIDE = 384  # of the matrix of a convolution, the smaller: up to it all eigenvalues are quick
NUMBERS = 2**22  # of the basis that it is formed from, or of the matrix


def convolution_matrix(layer: nn.Conv2d, weight: torch.Tensor, height: int, width: int) -> torch.Tensor | None:
    """`layer` with this weight and no bias, on height x width images, as a matrix (inputs, outputs) that acts on rows;
    None where both sides are above 384, or forming it takes more than 2^22 numbers.

    Each entry is one of the kernel's, or 0, unless a circular kernel is larger than the image: nothing is rounded. On the
    CPU, in the weight's type.
    """
    weight = weight.detach().cpu()
    inputs = layer.in_channels * height * width
    outputs = layer._conv_forward(weight.new_zeros(1, layer.in_channels, height, width), weight, None).numel()
    if min(inputs, outputs) > SIDE or inputs * max(inputs, outputs) > NUMBERS:
        return None
    basis = torch.eye(inputs, dtype=weight.dtype).reshape(inputs, layer.in_channels, height, width)
    return layer._conv_forward(basis, weight, None).flatten(1)


def check_convolution(layer: nn.Conv2d) -> None:
    """Raise a BenchmarkError where `convolution_upper` knows no bound."""
    if layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        raise BenchmarkError("Conv2d with a dilation or a padding mode other than zeros has no norm in training")


def convolution_upper(layer: nn.Conv2d, height: int, width: int) -> torch.Tensor:
    """A bound of the norm of a zero-padded convolution of height x width images, before rounding: () float64."""
    weight = layer.weight.detach().double()
    if (matrix := convolution_matrix(layer, weight, height, width)) is not None:
        return torch.linalg.matrix_norm(matrix, ord=2).to(weight.device)
    groups = weight.unflatten(0, (layer.groups, -1))
    blocks = torch.stack([zero_padded_frequencies(group, height, width, layer.stride) for group in groups])
    return torch.linalg.matrix_norm(blocks, ord=2).max()


def zero_padded_frequencies(
    kernel: torch.Tensor, height: int, width: int, stride: Sequence[int] = (1, 1)
) -> torch.Tensor:
    """Complex matrices (rows, columns, out, channels), the largest of whose norms is no less than that of a zero-padded
    convolution of height x width images, kernel (out, in, h, w), any padding.

    With stride s, output a reads places s a + k. For k = s q + r these are, of the inputs whose place leaves r mod s,
    number a + q: with the inputs parted by remainders, which only reorders them, it is a convolution of stride 1, s
    times as many channels an axis and ceil(h / s) taps. The image, wherever padding puts it, lies in at most (height +
    s - 2) // s + 1 numbers of each remainder. On a canvas longer by the taps less one a circular convolution wraps
    nothing around, so that ours is it between an embedding and a crop, both of norm 1; and it has these blocks (Sedghi
    et al. 2019).
    """
    (tall, wide), (down, right) = kernel.shape[2:], stride
    high, broad = -(-tall // down), -(-wide // right)  # taps
    padded = nn.functional.pad(kernel, (0, broad * right - wide, 0, high * down - tall))
    parted = padded.unflatten(3, (broad, right)).unflatten(2, (high, down))  # out, in, high, down, broad, right
    taps = parted.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    canvas = ((height + down - 2) // down + high, (width + right - 2) // right + broad)
    return torch.fft.fft2(taps, s=canvas).permute(2, 3, 0, 1)
