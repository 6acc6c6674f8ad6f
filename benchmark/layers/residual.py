"""The residual connection."""

from __future__ import annotations

import torch
from torch import nn


class Residual(nn.Module):
    """x + body(x): any shape to the same. (1 + L)-Lipschitz when `body` is L-Lipschitz.

    Raises:
        ValueError: the body changes the shape; broadcasting would add something else.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.body(x)
        if branch.shape != x.shape:
            raise ValueError(f"the residual branch turns {tuple(x.shape)} into {tuple(branch.shape)}")
        return x + branch
