"""Gradients of the margin at the images: where a model has none, and what attacks that follow them get in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmark.runtime.errors import out_of_memory, said
from benchmark.verdicts.prediction import margins


def usable_gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Which images, of (n, c, h, w), have a gradient of the margin that is finite and not zero: (n,) bool.

    The margin does not saturate, as the cross-entropy does.

    Returns:
        Those images, and why the model has no gradient at all; "" where it has.
    """
    gradient, problem = _gradient(model, images, labels)
    if gradient is None:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device), problem
    return torch.isfinite(gradient).flatten(1).all(1) & (gradient.flatten(1) != 0).any(1), problem


def attackable(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[nn.Module, str]:
    """For a model of the open division, the same function with gradients that attacks can follow without failing.

    Where a gradient is not finite it is 0, and where the model gives none at all it is 0 everywhere: an attack then moves by
    its random starts alone. The logits are the model's own.

    Args:
        images: (n, c, h, w), at which it is seen whether there are gradients; labels: (n,).

    Returns:
        The model for attacks, and why it has no gradient; "" where it has.
    """
    gradient, problem = _gradient(model, images, labels)
    return _StandIn(model, follows=gradient is not None).eval(), problem


class FiniteGradients(nn.Module):
    """The same function with a gradient of 0 wherever the model's own is not finite.

    Attributes:
        asked: how many gradients were asked for, one an image and pass.
        odd: how many of them were not finite.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.asked, self.odd = model, 0, 0
        self.training = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(_Finite.apply(images, self._count))

    def _count(self, gradient: torch.Tensor) -> None:
        self.asked += len(gradient)
        self.odd += int((~torch.isfinite(gradient).flatten(1).all(1)).sum())


def odd_gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch_size: int) -> list[int]:
    """Return the numbers of the images (n, c, h, w) at which the gradient of the margin is not finite."""
    numbers: list[int] = []
    for first in range(0, len(images), batch_size):
        rows = slice(first, first + batch_size)
        gradient, _ = _gradient(model, images[rows], labels[rows])
        if gradient is not None:
            odd = ~torch.isfinite(gradient).flatten(1).all(1)
            numbers += (odd.nonzero()[:, 0] + first).tolist()
    return numbers


def _gradient(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """(n, c, h, w), or None and why there is none.

    torch refuses by a RuntimeError to convert what is differentiated to numpy, and to go back through what has no
    derivative. Any other exception, a full memory among them, says nothing of gradients and goes on to who asked.
    """
    probe = images.clone().requires_grad_()
    try:
        with torch.enable_grad():
            margin = margins(model(probe.clone()), labels).sum()
            gradient = torch.autograd.grad(margin, probe, allow_unused=True)[0] if margin.requires_grad else None
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        return None, said(error)
    return gradient, "" if gradient is not None else "its logits do not depend on the image by any gradient"


class _StandIn(nn.Module):
    def __init__(self, model: nn.Module, follows: bool) -> None:
        super().__init__()
        self.model, self.follows = model, follows

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        followed = _Finite.apply(images)
        if self.follows:
            return self.model(followed)
        logits = self.model(images.detach()).detach()
        return logits + 0 * followed.flatten(1).sum(1, keepdim=True).to(logits)  # whose gradient is 0


class _Finite(torch.autograd.Function):
    """The images; backwards, their gradient with 0 for what is not finite, once `count` has seen it."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, count: Callable[[torch.Tensor], None] | None = None) -> torch.Tensor:
        ctx.count = count
        return images.view_as(images)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.count:
            ctx.count(gradient)
        return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0), None
