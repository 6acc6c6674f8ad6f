"""The fast gradient sign method (Goodfellow et al. 2015): one step of PGD from the clean image or a random start.

For training, Wong et al. 2020 start at random in the ball and step 1.25 eps: `random_start=True, step=1.25`.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.records import ThreatModel


def attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    threat: ThreatModel,
    *,
    seed: int | None,
    step: float = 1.0,
    random_start: bool = False,
) -> torch.Tensor:
    """One step of `step * eps`, projected onto the ball and the box."""
    return pgd.attack(
        model, images, labels, threat, seed=seed, steps=1, step_size=step * threat.eps, random_start=random_start
    )
