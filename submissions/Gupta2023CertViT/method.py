"""CertViT (Gupta and Verma, "CertViT: Certified Robustness of Pre-Trained Vision Transformers", 2023).

The networks of its Tables 1 and 3. What makes them CertViT is their training: a trained network whose layers the preparation
`proximal_projection` moves to smaller norms, after `l2_distillation` where its attention had dot products. README.md lists
the differences from the paper.
"""

from __future__ import annotations

from torch import nn

from benchmark.layers.cnn import CNNS, convolutional_network
from benchmark.specs.data import DataSpec

from .swin import swin
from .transformer import one_of, vit


def build(
    data: DataSpec,
    *,
    network: str,
    channels: int = 32,
    hidden: int = 512,
    activation: str = "relu",
    orthogonal: bool = False,
    patch_size: int = 4,
    width: int = 192,
    depth: int = 10,
    depths: str = "2,2,6,2",
    heads: int = 3,
    window: int = 7,
    mlp_ratio: float = 4.0,
    attention: str = "l2",
    norm: str = "layernorm",
    radius: float = 1.0,
    pooling: str = "class",
    bounded: bool = False,
    biases: bool = False,
    std: float = 1.0,
) -> nn.Sequential:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes), as a sequence that certificates can read.

    Args:
        network: "4c3f", "6c2f", "8c2f", for which `channels` to `orthogonal` count; "vit" or "swin", for which those of the
            others do that the function of this name has (benchmark/layers/cnn.py, transformer.py and swin.py have them all).
            timm's swin_tiny_patch4_window7_224 is "swin" with patch_size 4, width 96, depths 2, 2, 6, 2, heads 3, window 7,
            biases and dot_product attention.

    Raises:
        ValueError: an unknown option, or one that does not fit the images.
    """
    one_of(network, "network", (*CNNS, "vit", "swin"))
    if network == "vit":
        return vit(
            data, patch_size=patch_size, width=width, depth=depth, heads=heads, mlp_ratio=mlp_ratio, attention=attention,
            norm=norm, radius=radius, pooling=pooling, bounded=bounded, std=std,
        )  # fmt: skip
    if network == "swin":
        return swin(
            data, patch_size=patch_size, width=width, depths=depths, heads=heads, window=window, mlp_ratio=mlp_ratio,
            attention=attention, norm=norm, biases=biases, std=std,
        )  # fmt: skip
    return convolutional_network(
        data, network=network, channels=channels, hidden=hidden, activation=activation, orthogonal=orthogonal
    )
