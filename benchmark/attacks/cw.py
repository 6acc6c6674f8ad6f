"""Carlini and Wagner's l2 attack (2017) with one constant, as Wang and Ruan 2022 use it; foolbox's implementation.

The attack minimises the distance and takes no radius. Adversarial images beyond `threat.eps` are replaced by the clean ones.
"""

from __future__ import annotations

import foolbox
import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel


def attack(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *,
    seed: int | None, steps: int, step_size: float, c: float, confidence: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Take `steps` Adam steps of `step_size` on |d|^2 + c max(0, logit_y - max other + confidence), never stopped early."""
    if threat.norm != "L2":
        raise BenchmarkError("the cw attack measures l2; give it norm L2")
    attacker = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=1, steps=steps, stepsize=step_size, confidence=confidence, initial_const=c, abort_early=False
    )
    target = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
    adversarial = attacker.run(target, images, foolbox.criteria.Misclassification(labels))
    inside = (adversarial.double() - images.double()).flatten(1).norm(dim=1) <= threat.eps
    return torch.where(inside[:, None, None, None], adversarial, images)
