"""A vision transformer of 1-Lipschitz layers in which dot-product attention mixes tokens and matters.

Not the paper's network: what certifies more of CIFAR-10 with attention of the same kind. A stem of shifts and orthogonal maps
(a 1-Lipschitz convolutional network that keeps lengths) makes 16 tokens of an image; blocks of `GridAttention`, whose heads
look at places of their own and are not averaged with a residual, mix them; all tokens together, not their mean, go through
two orthogonal maps to a head with rows of norm 1. Absolute values of half of the channels are the nonlinearities.
"""

from __future__ import annotations

from torch import nn

from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import MergeTokens, Patchify, Positions
from benchmark.specs.data import DataSpec


def build(
    data: DataSpec,
    *,
    patch_size: int,
    width: int,
    stages: int,
    depth: int,
    attention: int,
    heads: int,
    inner: int,
    content: float,
    outputs: int,
    sharpness: float = 4.0,
) -> nn.Sequential:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes).

    Args:
        patch_size: side of the patches that the stem starts from.
        width: channels of the first stage; each next has twice as many, of 2x2 merged tokens.
        stages: how many, with that of attention, the last.
        depth: of the stages before it, blocks of a shift, an orthogonal map and absolute values.
        attention: blocks of attention and absolute values in the last.
        heads, inner, content, sharpness: of `GridAttention`.
        outputs: neurons of the two maps after the tokens.

    Raises:
        ValueError: patches do not tile the image, the grid is too small for the stages, or as of the layers.
    """
    channels, height, side = data.shape
    if height != side or side % (patch_size * 2 ** (stages - 1)):
        raise ValueError(f"patches of {patch_size}, merged {stages - 1} times, do not tile {height}x{side} images")
    side //= patch_size
    layers: list[nn.Module] = [Normalise(mean=0.5, std=1.0), Patchify(patch_size)]
    layers += [OrthogonalLinear(channels * patch_size**2, width), Positions(side**2, width), Absolute(width // 2)]
    for _ in range(stages - 1):
        for _ in range(depth):
            layers += [ShiftTokens(side, width // 8), OrthogonalLinear(width, width), Absolute(width // 2)]
        layers += [MergeTokens(side), OrthogonalLinear(4 * width, 2 * width), Absolute(width)]
        side, width = side // 2, 2 * width
    for _ in range(attention):
        mixer = GridAttention(width, heads, inner=inner, side=side, content=content, sharpness=sharpness)
        layers += [mixer, Absolute(width // 2)]
    layers += [nn.Flatten(1), OrthogonalLinear(side**2 * width, outputs), Absolute(outputs // 2)]
    layers += [OrthogonalLinear(outputs, outputs), Absolute(outputs // 2)]
    return nn.Sequential(*layers, NormalisedHead(outputs, data.classes))
