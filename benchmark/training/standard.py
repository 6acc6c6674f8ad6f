"""Cross-entropy on clean images, with optional label smoothing (Szegedy et al. 2016)."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.training.objective import Objective, Share, TrainingAttack, accuracy


class Standard(Objective):
    selected_by = "validation accuracy"

    def __init__(self, attack: TrainingAttack | None = None, *, label_smoothing: Share = 0.0) -> None:
        self.smoothing = label_smoothing

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
        return nn.functional.cross_entropy(model(images), labels, label_smoothing=self.smoothing)

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        return accuracy(model, images, labels)


objective = Standard
