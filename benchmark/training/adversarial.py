"""Adversarial training (Madry et al. 2018): cross-entropy on the images that the training attack returns.

The attack runs in evaluation mode with the weights frozen, so it leaves no gradient behind. Wong et al. 2020 showed that
one step of the right size from a random start is enough. Growing the radius over the first epochs keeps small networks from
collapsing to a constant (Debenedetti 2022 calls it epsilon warm-up).
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.training.objective import Share, TrainingAttack, perturb, robust_accuracy
from benchmark.training.standard import Standard


class Adversarial(Standard):
    selected_by = "validation accuracy under the training attack"

    def __init__(self, attack: TrainingAttack | None, *, label_smoothing: Share = 0.0) -> None:
        if attack is None:
            name = type(self).__name__.lower()
            raise BenchmarkError(f"the {name} objective needs `training.attack` in submission.yaml")
        super().__init__(label_smoothing=label_smoothing)
        self.attack = attack

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
        return super().loss(model, perturb(self.attack, model, images, labels, eps_factor), labels, eps_factor)

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        return robust_accuracy(self.attack, model, images, labels)


objective = Adversarial
