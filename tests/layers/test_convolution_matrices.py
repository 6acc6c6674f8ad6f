"""Matrices of convolutions: the small ones' own, and the blocks whose largest norm is no less than the convolution's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmark.layers import convolution_matrices
from benchmark.layers.convolution_matrices import convolution_matrix

SHAPES = [
    # kernel, stride, padding, height, width
    (3, 1, 1, 6, 5),
    (3, 1, 0, 6, 5),
    (2, 1, 1, 4, 4),
    (4, 2, 1, 8, 8),
    (4, 2, 0, 7, 9),
    (4, 2, 2, 5, 6),
    (3, 2, 1, 7, 6),
    ((2, 5), (1, 3), (1, 2), 4, 8),
    ((5, 3), (2, 2), (4, 1), 3, 5),
    (3, 2, 1, 1, 1),
]


def layer_of(kernel, stride, padding, seed: int = 0) -> nn.Conv2d:
    torch.manual_seed(seed)
    return nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dtype=torch.float64).requires_grad_(False)


@pytest.mark.parametrize(("kernel", "stride", "padding", "height", "width"), SHAPES)
def test_the_matrix_is_the_convolution(kernel, stride, padding, height, width) -> None:
    layer = layer_of(kernel, stride, padding)
    x = torch.randn(4, 2, height, width, dtype=torch.float64)
    matrix = convolution_matrix(layer, layer.weight, height, width)
    moved = layer(x) - layer(torch.zeros_like(x))
    assert torch.allclose(x.flatten(1) @ matrix, moved.flatten(1), atol=1e-12)


def test_large_ones_are_not_formed(monkeypatch) -> None:
    layer = layer_of(3, 1, 1)
    assert convolution_matrix(layer, layer.weight, 6, 6) is not None
    monkeypatch.setattr(convolution_matrices, "SIDE", 71)  # 2 * 6 * 6 inputs, fewer than outputs
    assert convolution_matrix(layer, layer.weight, 6, 6) is None
    monkeypatch.setattr(convolution_matrices, "SIDE", 72)
    monkeypatch.setattr(convolution_matrices, "NUMBERS", 72 * 108 - 1)
    assert convolution_matrix(layer, layer.weight, 6, 6) is None
