"""Catastrophic overfitting: the attack trained on held against PGD on validation images, each epoch.

Reported and never mended: what was trained is what is published, with this beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.results.training import Overfitting
from benchmark.specs.threat import AttackSpec
from benchmark.training.objective import TrainingAttack, perturb
from benchmark.verdicts.margins import margins

IMAGES = 100  # enough to tell a collapse; PGD on more would cost small training runs more than their training
GAP = 0.3  # of catastrophic overfitting; the healthy ViT of the digits track stayed at 0.17 or below


def probe(attack: AttackSpec) -> AttackSpec:
    """PGD-10 with step eps / 4 and a random start, in the ball of the training attack."""
    return AttackSpec(
        attack="pgd", norm=attack.norm, eps=attack.eps, parameters={"steps": 10, "step_size": attack.eps / 4}
    )


@dataclass(frozen=True)
class Watch:
    """Both attacks, ready to run, and the record of the second."""

    trained: TrainingAttack
    pgd: TrainingAttack
    spec: AttackSpec

    def __call__(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
        """Accuracy under the attack trained on, and under that and PGD; of images spread evenly over those given."""
        chosen = spread(len(labels), images.device)
        images, labels = images[chosen], labels[chosen]
        standing = self._right(self.trained, model, images, labels)
        left = standing & self._right(self.pgd, model, images, labels)
        return int(standing.sum()) / len(labels), int(left.sum()) / len(labels)

    @staticmethod
    def _right(attack: TrainingAttack, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = perturb(attack, model, images, labels, 1.0)
        model.eval()
        with torch.no_grad():
            return margins(model(found), labels) > 0

    def verdict(
        self, seen: Sequence[tuple[float, float]], selected: int, warmup_epochs: int, validation: int
    ) -> Overfitting:
        """What the epochs showed: `seen` one pair an epoch, `selected` counts from 1, of `validation` images."""
        counted = [e for e, (trained, pgd) in enumerate(seen, 1) if e > warmup_epochs and trained - pgd > GAP]
        trained, pgd = seen[selected - 1]
        return Overfitting(
            found=bool(counted), epochs=tuple(counted), trained=trained, pgd=pgd, gap=GAP,
            images=len(spread(validation)), probe=self.spec,
        )  # fmt: skip


def spread(n: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """At most IMAGES of n indices, evenly spaced."""
    return torch.arange(min(n, IMAGES), device=device) * n // min(n, IMAGES)
