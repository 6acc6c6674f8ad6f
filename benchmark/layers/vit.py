"""The plain vision transformer (Dosovitskiy et al. 2021) as timm builds it, on images in [0, 1]."""

from __future__ import annotations

import warnings

from torch import nn

from benchmark.layers.normalise import Normalise
from benchmark.specs.data import DataSpec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # timm 1.0.9 decorates with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from timm.models.vision_transformer import VisionTransformer


def vision_transformer(data: DataSpec, *, patch_size: int, width: int, depth: int, heads: int) -> nn.Sequential:
    """Normalise, then timm's ViT: class token, learned positions, pre-LayerNorm blocks, GELU, MLP ratio 4.

    Images (n, c, h, w) in [0, 1] to logits (n, classes). The initial weights are PyTorch's defaults, not timm's normal
    of deviation 0.02, which trains slowly at width 32.

    Raises:
        ValueError: the image is not square, or patches do not tile it, or heads do not divide the width.
    """
    channels, height, side = data.shape
    if height != side or side % patch_size:
        raise ValueError(f"patch_size {patch_size} does not tile {height}x{side} images")
    if width % heads:
        raise ValueError(f"{heads} heads do not divide width {width}")
    vit = VisionTransformer(
        img_size=side,
        patch_size=patch_size,
        in_chans=channels,
        num_classes=data.classes,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        weight_init="skip",
    )
    return nn.Sequential(Normalise(), vit)
