"""The fast gradient sign method (Goodfellow et al. 2015): one step of PGD from the clean image or a random start.

For training, Wong et al. 2020 start at random in the ball and step 1.25 eps: `random_start=True, step=1.25`. Debenedetti
2022 takes two steps of 1.5 eps / 2 where the radius is large: `random_start=True, step=1.5, steps=2`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmark.attacks import pgd
from benchmark.specs.threat import ThreatModel


def attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    threat: ThreatModel,
    *,
    seed: int | None,
    step: float = 1.0,
    steps: int = 1,
    random_start: bool = False,
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Take `steps` steps of `step * eps / steps`, each projected onto ball and box; `loss` as in pgd."""
    size = step * threat.eps / steps
    return pgd.attack(
        model, images, labels, threat, seed=seed, steps=steps, step_size=size, random_start=random_start, loss=loss
    )
