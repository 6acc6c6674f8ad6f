"""Enlarging of small images inside the model, for networks that need a larger input."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.kinds import checked, known, whole


@known(size=whole(1, 1024), constant=lambda layer, x: layer.factor(x.shape[2], x.shape[3]))
class Resize(nn.Module):
    """Nearest-neighbour scaling by a whole factor f: (n, c, h, w) to (n, c, f h, f w), f h = f w = `size`.

    Each pixel is copied f * f times, so the l2 norm of every perturbation grows by f exactly: f-Lipschitz, without rounding.
    Attacks and radii stay in pixels of the native image. A ball of radius eps there is one of radius f eps, of repeated
    pixels alone, at the next layer.

    Raises:
        ValueError: the image is not square, or `size` is no whole multiple of its side.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = checked("size", whole(1), size)

    def factor(self, height: int, width: int) -> int:
        """Return f for images of this height and width."""
        if height != width or self.size % height:
            raise ValueError(f"{height}x{width} images cannot be copied to {self.size}x{self.size} by one whole factor")
        return self.size // height

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.factor(x.shape[2], x.shape[3])
        return x.repeat_interleave(factor, dim=2).repeat_interleave(factor, dim=3)
