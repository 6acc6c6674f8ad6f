"""The interfaces of objectives and penalties, the types of their parameters, and helpers that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Protocol

import torch
from pydantic import Field
from torch import nn

from benchmark.attacks.prediction import batched, margins
from benchmark.runtime.errors import BenchmarkError

if TYPE_CHECKING:  # so that training without penalties does not depend on attention_weights.py
    from benchmark.layers.attention_weights import AttentionWeights

# types of components' parameters, which check the range of a recipe's values (specs/components.py)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]

Attention = Callable[[], "list[AttentionWeights]"]  # the model's attention layers with their current weights
AttackLoss = Callable[[torch.Tensor], torch.Tensor]  # logits (n, classes) to the sum that an attack maximises


class TrainingAttack(Protocol):
    """An attack for integer labels within `eps_factor` times the full radius; `loss` replaces the cross-entropy."""

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
    """A loss to descend, and a score on validation images that selects the epoch."""

    selected_by: str  # the score, in words
    looks_at = 1  # how many of the first training images `attach` is given

    def loss(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float) -> torch.Tensor:
        """Return the mean loss of a batch; `eps_factor` in [0, 1] scales the radius in a warm-up.

        `labels` are whole, (n,) int64, or shares of classes, (n, classes) float32, for mixed images.
        """
        raise NotImplementedError

    def score(self, model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Return the score, larger is better; `model` may be a copy of the one that learns."""
        raise NotImplementedError

    def attach(self, model: nn.Module, images: torch.Tensor) -> nn.Module | None:
        """Prepare for the model that will learn; called once, with at most `looks_at` images, before a run is resumed.

        Returns:
            The objective's state, such as the vectors of a power iteration, in the buffers of a module, which the
            checkpoint keeps; or None.

        Raises:
            BenchmarkError: the objective cannot be applied to the model.
        """
        return None

    def advance(self) -> None:
        """Move the state by one step; called before each optimiser step. `loss` only reads it."""

    def after_step(self, model: nn.Module) -> None:
        """Project the weights onto those that the objective allows; called after each optimiser step, before the EMA."""


class Penalty(nn.Module):
    """A scalar of the model's weights, added once to the loss of each optimiser step, however many batches it gathers.

    Its state lies in buffers, which the checkpoint keeps; the model is no submodule of it. `forward` only reads the state,
    so that both gradients of a SAM step have the same penalty. It runs outside autocast.
    """

    def forward(self) -> torch.Tensor:
        """Return the penalty, () float32, differentiable in the weights."""
        raise NotImplementedError

    def advance(self) -> None:
        """Move the state, such as vectors of a power iteration, by one step; called before each optimiser step."""


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """Divide each of (..., size) by its l2 norm; 0 stays 0."""
    return nn.functional.normalize(vectors, dim=-1)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Inside the block, keep the model in evaluation mode without parameter gradients; then restore both as they were.

    So code in the block leaves no `.grad`, does not update BatchNorm's statistics, and runs without dropout and drop path.
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
        model.train(modes[0][1])  # modules may override `train`; then set the modules that had another mode
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


def perturb(
    attack: TrainingAttack, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, eps_factor: float
) -> torch.Tensor:
    """Return adversarial images against the frozen model; the images themselves for `eps_factor` 0.

    With shares of classes the attack maximises the cross-entropy with those shares.
    """
    if eps_factor <= 0:
        return images
    with frozen(model):
        if labels.is_floating_point():
            mixed = partial(nn.functional.cross_entropy, target=labels, reduction="sum")
            return attack(model, images, labels.argmax(1), eps_factor, mixed).detach()
        return attack(model, images, labels, eps_factor).detach()


def whole_labels(labels: torch.Tensor, objective: str) -> None:
    """Raise a BenchmarkError for shares of classes, which the objective does not take."""
    if labels.is_floating_point():
        raise BenchmarkError(f"the {objective} objective needs whole labels; leave mixup and cutmix out")


def accuracy(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, margin: float = 0.0, batch_size: int = 500
) -> float:
    """Return the share of images whose true logit is above every other by more than `margin`, in evaluation mode."""
    model.eval()
    return share(lambda x, y: margins(model(x), y) > margin, images, labels, batch_size)


@torch.no_grad()
def share(
    right: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], images: torch.Tensor, labels: torch.Tensor, batch_size: int
) -> float:
    """Return the share of images for which `right` holds; it maps images and labels (m,) to (m,) bool."""
    counted = batched(lambda rows: right(images[rows], labels[rows]), len(labels), batch_size, 1)
    return int(torch.cat(counted).sum()) / len(labels)


def robust_accuracy(
    attack: TrainingAttack, model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int = 500
) -> float:
    """Return the accuracy under the attack at its full radius."""
    perturbed = batched(lambda rows: perturb(attack, model, images[rows], labels[rows], 1.0), len(labels), batch_size, 1)
    return accuracy(model, torch.cat(perturbed), labels)
