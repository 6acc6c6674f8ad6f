"""Tiny models with known answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Linear(nn.Module):
    """logits = W vec(x) + b: its l2 radius at x is min_j margin_j / ||w_y - w_j||, exactly."""

    def __init__(self, shape: tuple[int, int, int] = (1, 6, 6), classes: int = 4, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = shape[0] * shape[1] * shape[2]
        self.weight = nn.Parameter(torch.randn(classes, size, generator=generator) * 0.2)
        self.bias = nn.Parameter(-0.5 * self.weight.detach().sum(1))  # balanced at grey: labels vary, radii are small

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight.mT + self.bias

    def radius(self, x: torch.Tensor, labels: torch.Tensor, norm: str) -> torch.Tensor:
        """Exact distance to the nearest rival, without the box: l2, or Linf by the dual norm."""
        logits = self(x).detach().double()
        weight = self.weight.detach().double()
        gap = weight[labels][:, None] - weight[None]
        size = gap.norm(dim=-1) if norm == "L2" else gap.abs().sum(-1)
        margin = logits.gather(1, labels[:, None]) - logits
        distance = margin / size
        return distance.scatter(1, labels[:, None], float("inf")).amin(1)


class Through(nn.Module):
    """The model on what `before` makes of the images (None: nothing else), with what `after` makes of its output."""

    def __init__(self, model: nn.Module, before: Callable = lambda x: None, after: Callable = lambda z, x: z) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed = self.before(x)
        given = x if changed is None else changed
        return self.after(self.model(given), given)


def grey_images(n: int = 16, shape: tuple[int, int, int] = (1, 6, 6), seed: int = 1) -> torch.Tensor:
    """Images near 0.5, far enough from the box that small attacks never meet it."""
    return 0.5 + 0.1 * (torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed)) - 0.5)
