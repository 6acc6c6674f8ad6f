"""LoFAST-style vision transformer (Havens et al. 2024, ICML): dot-product attention with a certified l2 radius.

Tokens are projected onto a ball before the branch splits, so that the residual adds the same X that attention sees;
attention weights are spectrally bounded, feed-forward blocks are SLL residuals (1-Lipschitz as a whole), tokens are
averaged, and the head's rows have norm 1. What differs from the paper stands in README.md.
"""

from __future__ import annotations

from torch import nn

from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions
from benchmark.records import DataSpec


def build(
    data: DataSpec,
    *,
    patch_size: int,
    width: int,
    depth: int,
    heads: int,
    qk_norm: float,
    vo_norm: float,
    radius: float,
    centred: bool = False,
    orthogonal: bool = False,
    embedding_blocks: int = 0,
    hidden: int = 0,
) -> nn.Sequential:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), as a sequence that `certificates/local.py` can read.

    Args:
        qk_norm: bound of ||W_Q|| and ||W_K||.
        vo_norm: bound c < 1 of ||W_V|| and ||W_O||.
        radius: R of the projection before each attention block.
        centred: whether 0.5 is taken from the pixels first, which keeps norms and float32's rounding small.
        orthogonal: whether the patch embedding has orthonormal rows, or is shrunk to norm 1 by almost-orthogonal rescaling.
        embedding_blocks: SLL blocks after the linear part of the patch embedding.
        hidden: neurons of an SLL block; twice the width unless given.

    Raises:
        ValueError: patches do not tile the image, or heads do not divide the width.
    """
    channels, height, side = data.shape
    if height % patch_size or side % patch_size:
        raise ValueError(f"patch_size {patch_size} does not tile {height}x{side} images")
    tokens = (height // patch_size) * (side // patch_size)
    embedding = OrthogonalLinear if orthogonal else BoundedLinear
    layers: list[nn.Module] = [Normalise(mean=0.5, std=1.0)] if centred else []
    layers += [Patchify(patch_size), embedding(channels * patch_size**2, width), Positions(tokens, width)]
    layers += [SLLBlock(width, hidden or 2 * width) for _ in range(embedding_blocks)]
    for _ in range(depth):
        layers += [
            LayerProject(radius),
            ResidualAttention(width, heads, qk_norm=qk_norm, vo_norm=vo_norm),
            SLLBlock(width, hidden or 2 * width),
        ]
    return nn.Sequential(*layers, MeanPool(), NormalisedHead(width, data.classes))
