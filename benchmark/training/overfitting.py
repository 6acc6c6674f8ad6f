"""Catastrophic overfitting (Wong et al. 2020): each epoch's accuracy under the training attack compared with PGD's.

It is measured on validation images and reported; it changes nothing in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.attacks.prediction import batched, margins
from benchmark.records.training import Overfitting
from benchmark.specs.threat import AttackSpec
from benchmark.training.objective import TrainingAttack, perturb

IMAGES = 100  # enough to see a collapse; PGD on more would cost small runs more than their training
GAP = 0.3  # between the accuracies that counts as overfitting; the healthy ViT of the digits track stayed below 0.17


def probe(attack: AttackSpec) -> AttackSpec:
    """Return PGD-10 with step eps / 4 and a random start, in the ball of the training attack."""
    return AttackSpec(attack="pgd", norm=attack.norm, eps=attack.eps, parameters={"steps": 10, "step_size": attack.eps / 4})


@dataclass(frozen=True)
class OverfittingMonitor:
    """A comparison of the training attack with PGD after an epoch; `spec` describes the PGD."""

    trained: TrainingAttack
    pgd: TrainingAttack
    spec: AttackSpec

    def __call__(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
        """Return the accuracy under the training attack, and under both attacks together, on IMAGES evenly spaced images."""
        count = min(len(labels), IMAGES)
        chosen = torch.arange(count, device=images.device) * len(labels) // count
        robust = torch.ones(count, dtype=torch.bool, device=images.device)
        accuracies = []
        for attack in (self.trained, self.pgd):
            robust = robust & _robust(attack, model, images[chosen], labels[chosen])
            accuracies.append(int(robust.sum()) / count)
        return accuracies[0], accuracies[1]

    def verdict(self, seen: Sequence[tuple[float, float]], selected: int, warmup_epochs: int, validation: int) -> Overfitting:
        """Return the result over all epochs.

        Args:
            seen: the result of the call after each epoch.
            selected: the number of the selected epoch, from 1.
            validation: the number of validation images.
        """
        counted = [e for e, (trained, pgd) in enumerate(seen, 1) if e > warmup_epochs and trained - pgd > GAP]
        trained, pgd = seen[selected - 1]
        return Overfitting(
            found=bool(counted), epochs=tuple(counted), trained=trained, pgd=pgd, gap=GAP,
            images=min(validation, IMAGES), probe=self.spec,
        )  # fmt: skip


def _robust(attack: TrainingAttack, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return which images an attack leaves right: (n,) bool."""

    def right(rows: slice) -> torch.Tensor:
        adversarial = perturb(attack, model, images[rows], labels[rows], 1.0)
        model.eval()
        with torch.no_grad():
            return margins(model(adversarial), labels[rows]) > 0

    return torch.cat(batched(right, len(labels), len(labels), 1))
