"""What the loop needs of an objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

# (model, images, labels, share of the full radius) to adversarial images
TrainingAttack = Callable[[nn.Module, torch.Tensor, torch.Tensor, float], torch.Tensor]


class Objective(Protocol):
    """A loss to descend and a score on validation images to select the epoch by."""

    selected_by: str  # the score, in words

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, strength: float) -> torch.Tensor:
        """Mean loss of one batch; `strength` in [0, 1] is how far a warm-up has come."""
        ...

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Larger is better."""
        ...


def accuracy(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, margin: float = 0.0, batch_size: int = 500
) -> float:
    """Share of images whose true logit is above every other by more than `margin`, in evaluation mode."""
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            hits += int((margins(model(x), y) > margin).sum())
    return hits / len(labels)


def margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """True logit less the largest other: (n, classes) and (n,) to (n,)."""
    true = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return (true - others.amax(1, keepdim=True))[:, 0]
