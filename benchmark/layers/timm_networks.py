"""timm's ViT and XCiT as single layers of a description, without a Lipschitz constant: rebuilt, no certificate knows them.

They are read as timm builds them by default, XCiT with any strides in its stem. What a description leaves out, such as
another activation, makes the rebuilt network's logits differ.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from torch import nn

from benchmark.layers.kinds import Argument, known, side, truth, whole, wholes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # timm 1.0.9 decorates with torch.jit, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from timm.models.vision_transformer import Block, VisionTransformer
    from timm.models.xcit import Xcit

DEPTH = whole(1, 64)
SIZES: dict[str, Any] = {
    "num_classes": side("head.weight", 0),
    "embed_dim": side("head.weight", 1),
    "depth": Argument(DEPTH, lambda network: len(network.blocks)),
    "num_heads": Argument(whole(1), lambda network: network.blocks[0].attn.num_heads),
}


def _vit(*, embed_dim: int, depth: int, num_heads: int, **sizes: int) -> VisionTransformer:
    """Build timm's ViT on any device, "meta" too, where timm 1.0.9 cannot compute the blocks' drop rates."""
    network = VisionTransformer(embed_dim=embed_dim, depth=0, num_heads=num_heads, weight_init="skip", **sizes)
    norm = partial(nn.LayerNorm, eps=1e-6)
    network.blocks = nn.Sequential(*(Block(embed_dim, num_heads, qkv_bias=True, norm_layer=norm) for _ in range(depth)))
    return network


def _xcit(*, strides: tuple[int, ...], **sizes: Any) -> Xcit:
    network = Xcit(img_size=sizes["patch_size"], **sizes)  # the size of the images changes nothing
    for convolution, stride in zip(_stem(network), strides, strict=True):
        convolution.stride = (stride, stride)
    return network


def _stem(network: Xcit) -> list[nn.Conv2d]:
    return [layer for layer in network.patch_embed.proj.modules() if isinstance(layer, nn.Conv2d)]


known(
    make=_vit,
    img_size=Argument(whole(1), lambda network: network.patch_embed.img_size[0]),
    patch_size=Argument(whole(1), lambda network: network.patch_embed.patch_size[0]),
    in_chans=side("patch_embed.proj.weight", 1),
    **SIZES,
)(VisionTransformer)
known(
    make=_xcit,
    patch_size=Argument(whole(8, 16), lambda network: network.patch_embed.patch_size),
    in_chans=side("patch_embed.proj.0.0.weight", 1),
    strides=Argument(wholes(1, 2), lambda network: [part.stride[0] for part in _stem(network)]),
    cls_attn_layers=Argument(DEPTH, lambda network: len(network.cls_attn_blocks)),
    tokens_norm=Argument(truth, lambda network: network.cls_attn_blocks[0].tokens_norm),
    **SIZES,
)(Xcit)
