"""The clipped ReLU with learned thresholds (Huang et al. 2021, section 4.3).

It is flat on both sides, so a unit can be constant on a whole ball at its top as well as at its bottom.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.kinds import Argument, checked, known, positive, wholes


@known(shape=Argument(wholes(1), lambda layer: layer.theta.shape), constant=1.0)
class ClippedReLU(nn.Module):
    """min(max(z, 0), theta), with a threshold for each unit: (n, *shape) to the same. 1-Lipschitz.

    Thresholds below 0 count as 0: the unit is then constant.

    Args:
        shape: of one input, such as (channels, height, width); `theta` has this shape.
        initial: value of all thresholds.

    Raises:
        ValueError: `initial` is not positive and finite, or the input has another shape, which would broadcast.
    """

    def __init__(self, shape: tuple[int, ...], *, initial: float = 1.0) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full(tuple(shape), float(checked("initial", positive, initial))))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        if z.shape[1:] != self.theta.shape:
            raise ValueError(f"thresholds of shape {tuple(self.theta.shape)} do not fit inputs {tuple(z.shape[1:])}")
        return torch.minimum(torch.relu(z), self.theta.clamp(min=0))
