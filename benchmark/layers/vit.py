"""timm's plain vision transformer (Dosovitskiy et al. 2021) for images in [0, 1]."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import nn

from benchmark.layers.normalise import Normalise
from benchmark.specs.data import DataSpec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # timm 1.0.9 decorates with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from timm.layers import PatchEmbed
    from timm.models.vision_transformer import VisionTransformer


def vision_transformer(data: DataSpec, *, patch_size: int, width: int, depth: int, heads: int) -> nn.Sequential:
    """Build Normalise and timm's ViT with class token, learned positions, pre-LayerNorm blocks, GELU and MLP ratio 4.

    It maps images (n, c, h, w) in [0, 1] to logits (n, classes). Initial weights are PyTorch's defaults: timm's normal of
    deviation 0.02 trains slowly at width 32.

    Raises:
        ValueError: the image is not square, patches do not tile it, or the heads do not divide the width.
    """
    channels, height, side = data.shape
    if height != side or side % patch_size:
        raise ValueError(f"patch_size {patch_size} does not tile {height}x{side} images")
    if width % heads:
        raise ValueError(f"{heads} heads do not divide width {width}")
    vit = timm_vit(
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


def timm_vit(**arguments: Any) -> VisionTransformer:
    """Build timm's VisionTransformer with the initial weights that timm 1.0.9 draws, whatever the installed version.

    Timm 1.0.9 draws the positions (deviation 0.02) right after the patch embedding and starts the class token at 0. Newer
    versions leave both uninitialised until `init_weights`, which `weight_init="skip"` skips.
    """
    if _draws_positions():
        return VisionTransformer(**arguments)
    drawn: list[torch.Tensor] = []

    def embedding(**options: Any) -> PatchEmbed:
        patches = PatchEmbed(**options)
        drawn.append(0.02 * torch.randn(1, patches.num_patches + 1, options["embed_dim"]))
        return patches

    vit = VisionTransformer(embed_layer=embedding, **arguments)
    if arguments.get("weight_init") == "skip":
        with torch.no_grad():
            vit.pos_embed.copy_(drawn[0])
            vit.cls_token.zero_()
    return vit


@functools.cache
def _draws_positions() -> bool:
    """Return whether the constructor of timm's ViT draws the positions itself, as in timm 1.0.9."""
    states: list[torch.Tensor] = []

    def embedding(**options: Any) -> PatchEmbed:
        patches = PatchEmbed(**options)
        states.append(torch.get_rng_state())
        return patches

    with torch.random.fork_rng([]):
        VisionTransformer(
            img_size=1, patch_size=1, embed_dim=1, num_heads=1, depth=0, num_classes=0, weight_init="skip",
            embed_layer=embedding,
        )  # fmt: skip
        return not torch.equal(states[0], torch.get_rng_state())
