"""Fast adversarial training (Wong et al. 2020, https://arxiv.org/abs/2001.03994) of a plain vision transformer.

FGSM from a random start in the ball, step 1.25 eps; the training stands in submission.yaml and in
`benchmark/training/adversarial.py`. What differs from the paper stands in README.md.
"""

from __future__ import annotations

from torch import nn

from benchmark.layers.vit import vision_transformer
from benchmark.specs.data import DataSpec


def build(data: DataSpec, *, patch_size: int, width: int, depth: int, heads: int) -> nn.Module:
    """Images (n, c, h, w) in [0, 1] to logits (n, classes)."""
    return vision_transformer(data, patch_size=patch_size, width=width, depth=depth, heads=heads)
