"""Vision transformer (Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929), trained on clean images.

Differs from the paper in size alone: see README.md.
"""

from __future__ import annotations

from torch import nn

from benchmark.layers.vit import vision_transformer
from benchmark.specs.data import DataSpec


def build(data: DataSpec, *, patch_size: int, width: int, depth: int, heads: int) -> nn.Module:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes)."""
    return vision_transformer(data, patch_size=patch_size, width=width, depth=depth, heads=heads)
