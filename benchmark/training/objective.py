"""What the loop needs of an objective, and what objectives share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import nn

from benchmark.attacks.prediction import margins
from benchmark.runtime.errors import BenchmarkError

AttackLoss = Callable[[torch.Tensor], torch.Tensor]  # logits (n, classes) to the sum that an attack climbs


class TrainingAttack(Protocol):
    """Adversarial images for integer labels, within `eps_factor` times the full radius; `loss` replaces the cross-entropy."""

    def __call__(
        self,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        eps_factor: float,
        loss: AttackLoss | None = None,
        /,
    ) -> torch.Tensor: ...


class Objective:
    """A loss to descend and a score on validation images to select the epoch by."""

    selected_by: str  # the score, in words
    looks_at = 1  # how many of the first training images `attach` is given

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
        """Mean loss of one batch; `eps_factor` in [0, 1] scales the attack's or the objective's own radius in a warm-up.

        `labels` are whole, (n,) int64, or shares of classes, (n, classes) float32, where images were mixed.
        """
        raise NotImplementedError

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Larger is better. `model` may be a copy of the one that learns."""
        raise NotImplementedError

    def attach(self, model: nn.Module, images: torch.Tensor) -> nn.Module | None:
        """Called once, with the model that will learn and `looks_at` images, before anything is resumed.

        Returns:
            The objective's state, such as the vectors of a power iteration, in the buffers of a module, which the
            checkpoint keeps; None without one.

        Raises:
            BenchmarkError: a model that the objective cannot be applied to.
        """
        return None

    def advance(self) -> None:
        """Moves the state by one step; called before each optimiser step. `loss` only reads it."""

    def after_step(self, model: nn.Module) -> None:
        """Puts the weights back among those that the objective allows; called after each optimiser step, before the EMA."""


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without parameter gradients; then each module's mode and each parameter's flag as they were.

    What runs inside leaves no `.grad`, moves no statistic of BatchNorm and meets neither dropout nor drop path.
    """
    modes = [(module, module.training) for module in model.modules()]
    learned = [p for p in model.parameters() if p.requires_grad]
    model.eval()
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
        model.train(modes[0][1])  # by `train`, which modules may override, then the modules that were in another mode
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


def perturb(
    attack: TrainingAttack, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float
) -> torch.Tensor:
    """Adversarial images against the frozen model; the images themselves for `eps_factor` 0.

    Against shares of classes the attack climbs the cross-entropy with those shares.
    """
    if eps_factor <= 0:
        return images
    with frozen(model):
        if labels.is_floating_point():
            mixed = partial(nn.functional.cross_entropy, target=labels, reduction="sum")
            return attack(model, images, labels.argmax(1), eps_factor, mixed).detach()
        return attack(model, images, labels, eps_factor).detach()


def whole_labels(labels: torch.Tensor, objective: str) -> None:
    """A BenchmarkError for shares of classes, of which the objective makes nothing."""
    if labels.is_floating_point():
        raise BenchmarkError(f"the {objective} objective needs whole labels; leave mixup and cutmix out")


def accuracy(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, margin: float = 0.0, batch_size: int = 500
) -> float:
    """Share of images whose true logit is above every other by more than `margin`, in evaluation mode."""
    model.eval()
    return share(lambda x, y: margins(model(x), y) > margin, images, labels, batch_size)


@torch.no_grad()
def share(
    right: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    images: torch.Tensor,
    labels: torch.Tensor,
    batch_size: int,
) -> float:
    """The share of images that `right`, of some images and their labels (m,), says are: (m,) bool."""
    batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
    return sum(int(right(x, y).sum()) for x, y in batches) / len(labels)


def robust_accuracy(
    attack: TrainingAttack, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int = 500
) -> float:
    """Accuracy on what the attack makes of the images at its full radius."""
    batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
    return accuracy(model, torch.cat([perturb(attack, model, x, y, 1.0) for x, y in batches]), labels)
