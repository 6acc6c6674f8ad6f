"""Gradients of the margin at the images: where a model has none, and what attacks that follow them get in their place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmark.attacks.prediction import margins
from benchmark.runtime.errors import out_of_memory, said


def margin_gradient(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """Return the margin's gradient at images (n, c, h, w), or None and why there is none.

    torch refuses by a RuntimeError to convert what is differentiated to numpy, and to go back through what has no
    derivative. Any other exception, a full memory among them, says nothing of gradients and is raised.
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


def usable_gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return which images (n, c, h, w) have a gradient of the margin that is finite and not zero, (n,) bool; and why the
    model has none at all, "" where it has.
    """
    gradient, problem = margin_gradient(model, images, labels)
    if gradient is None:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device), problem
    return torch.isfinite(gradient).flatten(1).all(1) & (gradient.flatten(1) != 0).any(1), problem


def attackable(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[nn.Module, str]:
    """Return a model of the open division with gradients that attacks can follow, and why it has none; "" where it has.

    The logits are the model's own. A gradient that is not finite becomes 0, and so does all of it where the model gives none
    at images (n, c, h, w): an attack then moves by its random starts alone.
    """
    gradient, problem = margin_gradient(model, images, labels)
    return FiniteGradients(model, follows=gradient is not None).eval(), problem


class FiniteGradients(nn.Module):
    """The same function with a gradient of 0 wherever the model's own is not finite; 0 everywhere unless it `follows` it.

    Attributes:
        asked: how many gradients were asked for, one an image and pass.
        odd: how many of them were not finite.
    """

    def __init__(self, model: nn.Module, follows: bool = True) -> None:
        super().__init__()
        self.model, self.follows, self.asked, self.odd = model, follows, 0, 0
        self.training = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        followed = _Finite.apply(images, self)
        if self.follows:
            return self.model(followed)
        logits = self.model(images.detach()).detach()
        return logits + 0 * followed.flatten(1).sum(1, keepdim=True).to(logits)  # whose gradient is 0


class _Finite(torch.autograd.Function):
    """The images; backwards, their gradient with 0 for what is not finite, which `counter` counts."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, counter: FiniteGradients) -> torch.Tensor:
        ctx.counter = counter
        return images.view_as(images)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.counter.asked += len(gradient)
        ctx.counter.odd += int((~torch.isfinite(gradient).flatten(1).all(1)).sum())
        return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0), None
