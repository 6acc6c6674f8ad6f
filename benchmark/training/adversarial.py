"""Adversarial training (Madry et al. 2018): cross-entropy on the images that the attack it is handed returns.

The attack runs in evaluation mode with the weights frozen, so it leaves no gradient behind. Wong et al. 2020 showed that
one step from a random start is enough, if its size is right; growing the radius over the first epochs keeps small
networks from collapsing to a constant (Debenedetti 2022 calls it epsilon warm-up).
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.errors import BenchmarkError
from benchmark.training.objective import TrainingAttack, accuracy


class Adversarial:
    selected_by = "validation accuracy under the training attack"

    def __init__(self, attack: TrainingAttack) -> None:
        self.attack = attack

    def perturb(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, strength: float) -> torch.Tensor:
        """Adversarial images against the frozen model; the images themselves at strength 0."""
        if strength <= 0:
            return images
        training, learned = model.training, [p for p in model.parameters() if p.requires_grad]
        model.eval()
        for parameter in learned:
            parameter.requires_grad_(False)
        try:
            return self.attack(model, images, labels, strength).detach()
        finally:
            for parameter in learned:
                parameter.requires_grad_(True)
            model.train(training)

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, strength: float) -> torch.Tensor:
        return nn.functional.cross_entropy(model(self.perturb(model, images, labels, strength)), labels)

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        return accuracy(model, self.perturb(model, images, labels, 1.0), labels)


def objective(attack: TrainingAttack | None) -> Adversarial:
    """
    Raises:
        BenchmarkError: no attack to train against.
    """
    if attack is None:
        raise BenchmarkError("the adversarial objective needs `training.attack` in submission.yaml")
    return Adversarial(attack)
