"""Plain CNNs of the literature on certified robustness: 4C3F, 6C2F and 8C2F, without biases."""

from __future__ import annotations

from torch import nn

from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.specs.data import DataSpec

# By name: (channels as a multiple of the first layer's, kernel, stride, padding) of each convolution, then the number of
# dense layers before the last. 8C2F's strided convolutions have no padding.
CNNS = {
    "4c3f": ([(1, 3, 1, 1), (1, 4, 2, 1), (2, 3, 1, 1), (2, 4, 2, 1)], 2),
    "6c2f": ([(1, 3, 1, 1), (1, 3, 1, 1), (1, 4, 2, 1), (2, 3, 1, 1), (2, 3, 1, 1), (2, 4, 2, 1)], 1),
    "8c2f": (
        [(1, 3, 1, 1), (1, 3, 1, 1), (1, 4, 2, 0), (2, 3, 1, 1), (2, 3, 1, 1), (2, 4, 2, 0), (4, 3, 1, 1), (4, 4, 2, 0)],
        1,
    ),
}  # fmt: skip
ACTIVATIONS = ("relu", "clipped_relu")


def convolutional_network(
    data: DataSpec, *, network: str, channels: int, hidden: int, activation: str = "relu", orthogonal: bool = False
) -> nn.Sequential:
    """Build convolutions and dense layers without biases: images (n, c, h, w) in [0, 1] to logits (n, classes).

    Pixels are not normalised: subtracting 0.5 costs a GloRo network of this kind 16 points of its accuracy certified at
    0.25 on digits.

    Args:
        network: "4c3f", "6c2f" or "8c2f".
        channels: of the first convolution; the others have one, two or four times as many.
        hidden: width of the dense layers before the last.
        activation: "relu", or "clipped_relu" with a learned threshold for each unit.
        orthogonal: whether weights, with kernels as (out, in * h * w) matrices, start orthogonal; else PyTorch's default.

    Raises:
        ValueError: an unknown option, or images too small for the strides.
    """
    for value, name, options in ((network, "network", tuple(CNNS)), (activation, "activation", ACTIVATIONS)):
        if value not in options:
            raise ValueError(f"{name} {value!r} is none of {', '.join(options)}")
    convolutions, dense = CNNS[network]
    depth, height, width = data.shape
    layers: list[nn.Module] = []
    for multiple, kernel, stride, padding in convolutions:
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        if min(height, width) < 1:
            raise ValueError(f"images of {data.shape[1]}x{data.shape[2]} are too small for the strides of {network}")
        layers.append(nn.Conv2d(depth, multiple * channels, kernel, stride, padding, bias=False))
        depth = multiple * channels
        layers.append(_active(activation, (depth, height, width)))
    layers.append(nn.Flatten())
    size = depth * height * width
    for _ in range(dense):
        layers += [nn.Linear(size, hidden, bias=False), _active(activation, (hidden,))]
        size = hidden
    model = nn.Sequential(*layers, nn.Linear(size, data.classes, bias=False))
    for layer in model if orthogonal else ():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight)
    return model


def _active(kind: str, shape: tuple[int, ...]) -> nn.Module:
    return ClippedReLU(shape) if kind == "clipped_relu" else nn.ReLU()
