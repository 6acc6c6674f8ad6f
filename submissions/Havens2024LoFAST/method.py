"""LoFAST-style vision transformer (Havens et al. 2024, ICML): dot-product attention with a certified l2 radius.

Tokens are projected onto a ball before the branch splits, so that the residual adds the same X that attention sees;
attention weights are spectrally bounded, feed-forward blocks are SLL residuals (1-Lipschitz as a whole), tokens are
averaged, and the head's rows have norm 1. What differs from the paper stands in README.md.
"""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, Patchify, Positions, TakeToken
from benchmark.specs.data import DataSpec

from . import content, grid


def build(data: DataSpec, *, network: str = "lofast", **options: Any) -> nn.Sequential:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), as a sequence that `certificates/local.py` can read.

    Args:
        network: "lofast", the paper's; "grid", grid.py's; or "content", content.py's.
        options: those of `lofast`, `grid.build` or `content.build`.

    Raises:
        ValueError: as these do, or another network.
    """
    builders = {"lofast": lofast, "grid": grid.build, "content": content.build}
    _one_of(network, "network", *builders)
    return builders[network](data, **options)


def lofast(
    data: DataSpec,
    *,
    patch_size: int,
    width: int,
    depth: int,
    heads: int,
    qk_norm: float,
    vo_norm: float,
    radius: float,
    hidden: int = 0,
    embedding: str = "linear",
    pooling: str = "mean",
    between: bool = False,
    bend: float = 0.0,
    centred: bool = False,
    orthogonal: bool = False,
) -> nn.Sequential:
    """The paper's network, with this project's options.

    Args:
        patch_size: side of the patches; 0 for text, an array (1, tokens, size) of one word's code a row around 1/2.
        qk_norm: bound of ||W_Q|| and ||W_K||.
        vo_norm: bound c < 1 of ||W_V|| and ||W_O||.
        radius: R of the projection before each attention block.
        hidden: neurons of an SLL block; 0 for twice the width.
        embedding: of patches: "linear", of norm at most 1; or "sll", an SLL block after that.
        pooling: "mean" over tokens, or "class_token".
        between: projections with R = sqrt(width) before each feed-forward block too, as in the paper.
        bend: of SmoothSLLBlock in place of ReLUs; 0 for ReLUs.
        centred: whether 0.5 is taken from the pixels first, which keeps norms and float32's rounding small.
        orthogonal: whether the patch embedding has orthonormal rows; else it is shrunk to norm 1 by almost-orthogonal
            rescaling.

    Raises:
        ValueError: patches do not tile the image, heads do not divide the width, or an option is none of those named.
    """
    layers, tokens, size = _cut(data.shape, patch_size)
    _one_of(embedding, "embedding", "linear", "sll")
    _one_of(pooling, "pooling", "mean", "class_token")

    def sll() -> SLLBlock:
        neurons = hidden or 2 * width
        return SmoothSLLBlock(width, neurons, bend=bend) if bend else SLLBlock(width, neurons)

    if centred and patch_size:  # text is centred anyway
        layers.insert(0, Normalise(mean=0.5, std=1.0))
    linear = OrthogonalLinear if orthogonal else BoundedLinear
    layers.append(linear(size, width))
    layers += [sll()] if embedding == "sll" else []
    if pooling == "class_token":
        layers, tokens = [*layers, ClassToken(width)], tokens + 1
    layers.append(Positions(tokens, width))
    for _ in range(depth):
        layers += [LayerProject(radius), ResidualAttention(width, heads, qk_norm=qk_norm, vo_norm=vo_norm)]
        layers += [LayerProject(math.sqrt(width)), sll()] if between else [sll()]
    pool = TakeToken() if pooling == "class_token" else MeanPool()
    return nn.Sequential(*layers, pool, NormalisedHead(width, data.classes))


def _cut(shape: tuple[int, int, int], patch_size: int) -> tuple[list[nn.Module], int, int]:
    """The layers that make tokens of an input, how many, and their size."""
    channels, height, side = shape
    if not patch_size:
        if channels != 1:
            raise ValueError(f"patch_size 0 is for text of shape (1, tokens, size), not {shape}")
        return [Normalise(0.5, 1.0), nn.Flatten(1, 2)], height, side
    if height % patch_size or side % patch_size:
        raise ValueError(f"patch_size {patch_size} does not tile {height}x{side} images")
    return [Patchify(patch_size)], (height // patch_size) * (side // patch_size), channels * patch_size**2


def _one_of(value: str, name: str, *known: str) -> None:
    if value not in known:
        raise ValueError(f"{name} {value!r} should be one of {', '.join(known)}")
