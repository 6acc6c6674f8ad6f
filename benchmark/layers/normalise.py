"""Input normalisation as a layer of the model."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.kinds import checked, known, number, positive


@known(mean=number, std=positive, constant=lambda layer, _: 1 / layer.std)
class Normalise(nn.Module):
    """(x - mean) / std inside the model, so that attacks and radii are in pixels of [0, 1]: (n, c, h, w) to the same.

    Mean and std are one number each for all channels.
    """

    def __init__(self, mean: float = 0.5, std: float = 0.5) -> None:
        super().__init__()
        self.mean, self.std = checked("mean", number, mean), checked("std", positive, std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.std
