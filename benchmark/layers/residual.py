"""Residual connections: plain, and with a learned weight for each channel."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.kinds import Constant, checked, known, layer_constants, number, side, whole


def _residual_constant(layer: Residual, x: torch.Tensor) -> Constant:
    (body,) = layer_constants([layer.body], x)
    return Constant(body.maps, lambda norms: 1 + body.of(norms))


@known("body", constant=_residual_constant)
class Residual(nn.Module):
    """x + body(x): any shape to the same. (1 + L)-Lipschitz when `body` is L-Lipschitz.

    Raises:
        ValueError: the body changes the shape, so that broadcasting could add other entries.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.body(x)
        if branch.shape != x.shape:
            raise ValueError(f"the residual branch turns {tuple(x.shape)} into {tuple(branch.shape)}")
        return x + branch


@known("body", width=side("alpha", 0))
class WeightedResidual(nn.Module):
    """x + alpha * body(x) with a learned vector alpha over the last axis: (..., width) to the same.

    (1 + max |alpha| L)-Lipschitz when `body` is L-Lipschitz (Qi et al. 2023, weighted residual shortcut).

    Args:
        initial: value of all entries of alpha; 0.1 to 0.2 in the paper.

    Raises:
        ValueError: the width is below 1 or `initial` is not finite; or the body changes the shape or the last axis is not
            `width` long, so that broadcasting could add other entries.
    """

    def __init__(self, body: nn.Module, width: int, *, initial: float = 0.2) -> None:
        super().__init__()
        self.body, start = body, float(checked("initial", number, initial))
        self.alpha = nn.Parameter(torch.full((checked("width", whole(1), width),), start))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.body(x)
        if branch.shape != x.shape or x.shape[-1] != len(self.alpha):
            raise ValueError(
                f"the residual branch turns {tuple(x.shape)} into {tuple(branch.shape)}; its weights are {len(self.alpha)}"
            )
        return x + self.alpha * branch
