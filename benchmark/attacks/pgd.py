"""Projected gradient descent (Madry et al. 2018) on the cross-entropy or the margin, Linf and l2, from a random start.

The steps repeat foolbox operation by operation: from the same generator both visit the same points (a test compares them).
Nothing here reads a number back from the device, so a training step that contains the attack can be captured.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmark.attacks.prediction import margins
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel

CLIMBS = ("cross_entropy", "margin")
Loss = Callable[[torch.Tensor], torch.Tensor]  # logits (n, classes) to the sum that the attack climbs
TINY = 1e-12  # the smallest norm that is divided by


def attack(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, threat: ThreatModel, *,
    seed: int | None, steps: int, step_size: float, random_start: bool = True,
    climb: str = "cross_entropy", loss: Loss | None = None,
) -> torch.Tensor:  # fmt: skip
    """Take `steps` steps of `step_size` pixels along the sign (Linf) or the direction (l2) of the gradient.

    Args:
        seed: None to draw from torch's global generator, as training does.
        climb: "cross_entropy", or "margin", the largest other logit less the true one (objective f6 of Carlini and Wagner
            2017, untargeted, which papers call CW with a number of steps; their own attack is `cw`).
        loss: maximised in place of either; a function of the logits, summed over the batch.

    Raises:
        BenchmarkError: no such `climb`, or "margin" together with `loss`.
    """
    if climb not in CLIMBS or (loss is not None and climb != CLIMBS[0]):
        raise BenchmarkError(f"pgd: climb {climb!r} should be one of {', '.join(CLIMBS)}, and stands alone without a loss")
    if seed is not None:
        torch.manual_seed(seed)

    def objective(logits: torch.Tensor) -> torch.Tensor:
        if loss is not None:
            return loss(logits)
        if climb == "margin":
            return -margins(logits, labels).sum()
        return cross_entropy(logits, labels, reduction="none").sum()

    points = _start(images, threat).clamp(0, 1) if random_start else images
    for _ in range(steps):
        leaf = points.detach().clone().requires_grad_()
        with torch.enable_grad():
            gradient = torch.autograd.grad(objective(model(leaf)), leaf)[0]
        direction = gradient.sign() if threat.norm == "Linf" else gradient * (1 / _norms(gradient))
        moved = points + step_size * direction
        points = (images + _projected(moved - images, threat)).clamp(0, 1)
    return points


def _start(images: torch.Tensor, threat: ThreatModel) -> torch.Tensor:
    """Draw uniformly from the ball; in l2 by n coordinates of a point on the sphere of n + 2 (Voelker et al. 2017)."""
    eps = threat.eps
    if threat.norm == "Linf":
        return images + (torch.rand_like(images) * (2 * eps) - eps)
    rows, pixels = images.flatten(1).shape
    drawn = torch.randn(rows, pixels + 2, dtype=images.dtype, device=images.device)
    sphere = drawn / drawn.square().sum(1, keepdim=True).sqrt()
    return images + eps * sphere[:, :pixels].reshape(images.shape)


def _projected(moves: torch.Tensor, threat: ThreatModel) -> torch.Tensor:
    if threat.norm == "Linf":
        return moves.clamp(-threat.eps, threat.eps)
    return moves * (threat.eps / _norms(moves)).clamp(max=1)


def _norms(vectors: torch.Tensor) -> torch.Tensor:
    """Return the l2 norms of (n, c, h, w), at least TINY: (n, 1, 1, 1)."""
    return vectors.flatten(1).square().sum(1).sqrt().clamp(min=TINY)[:, None, None, None]
