"""Projected gradient descent (Madry et al. 2018) on the cross-entropy, Linf and l2, from a random start; foolbox's."""

from __future__ import annotations

import foolbox
import torch
from torch import nn

from benchmark.records import ThreatModel


def attack(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    threat: ThreatModel,
    *,
    seed: int | None,
    steps: int,
    step_size: float,
    random_start: bool = True,
) -> torch.Tensor:
    """`steps` steps of `step_size` pixels along the sign (Linf) or the direction (l2) of the gradient.

    `seed` None draws from torch's running generator, as training does.
    """
    kind = foolbox.attacks.LinfPGD if threat.norm == "Linf" else foolbox.attacks.L2PGD
    attacker = kind(abs_stepsize=step_size, steps=steps, random_start=random_start)
    if seed is not None:
        torch.manual_seed(seed)
    target = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
    return attacker.run(target, images, foolbox.criteria.Misclassification(labels), epsilon=threat.eps)
