"""Cross-entropy on clean images."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.training.objective import TrainingAttack, accuracy


class Standard:
    selected_by = "validation accuracy"

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, strength: float) -> torch.Tensor:
        return nn.functional.cross_entropy(model(images), labels)

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        return accuracy(model, images, labels)


def objective(attack: TrainingAttack | None) -> Standard:
    return Standard()
