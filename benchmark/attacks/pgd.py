"""Projected gradient descent (Madry et al. 2018) on the cross-entropy or the margin, Linf and l2, from a random start; by
foolbox.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import foolbox
import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.margins import margins

if TYPE_CHECKING:
    import eagerpy as ep

CLIMBS = ("cross_entropy", "margin")


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
    climb: str = "cross_entropy",
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """`steps` steps of `step_size` pixels along the sign (Linf) or the direction (l2) of the gradient.

    With `seed` None it draws from torch's global generator, as training does. `climb` is "cross_entropy" with `labels`, or
    "margin", the largest other logit less the true one (objective f6 of Carlini and Wagner 2017, untargeted, which papers
    call CW with a number of steps; their own attack is `cw`). `loss`, a function of the logits summed over the batch, is
    maximised in place of either.

    Raises:
        BenchmarkError: no such `climb`, or both it and `loss`.
    """
    if climb not in CLIMBS or (loss is not None and climb != CLIMBS[0]):
        raise BenchmarkError(
            f"pgd: climb {climb!r} should be one of {', '.join(CLIMBS)}, and stands alone without a loss"
        )
    if climb == "margin":
        loss = functools.partial(_lost_margin, labels)
    kind = foolbox.attacks.LinfPGD if threat.norm == "Linf" else foolbox.attacks.L2PGD
    attacker = kind(abs_stepsize=step_size, steps=steps, random_start=random_start)
    if loss is not None:
        attacker.get_loss_fn = _climbing(loss)  # type: ignore[method-assign]
    if seed is not None:
        torch.manual_seed(seed)
    target = foolbox.PyTorchModel(_Unmoved(model), bounds=(0, 1), device=images.device)
    return attacker.run(target, images, foolbox.criteria.Misclassification(labels), epsilon=threat.eps)


def _lost_margin(labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return -margins(logits, labels).sum()


class _Unmoved(nn.Module):
    """Hides the model's parameters from foolbox, which moves all of them to their device at every call, a tenth of the time
    of a step on a small model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = (model,)  # in a tuple, so that it is not registered as a submodule
        self.training = model.training

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model[0](images)


def _climbing(loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Callable[[ep.Tensor], ep.Tensor]]:
    """foolbox's `get_loss_fn(model, labels)`, which returns the loss as a function of the images."""

    def of_images(target: foolbox.Model, images: ep.Tensor) -> ep.Tensor:
        logits = target(images)
        return type(logits)(loss(logits.raw))

    return lambda target, _labels: functools.partial(of_images, target)
