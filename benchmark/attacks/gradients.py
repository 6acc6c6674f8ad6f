"""Gradients of the margin: which images have one, and what attacks get in place of a missing one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmark.attacks.prediction import margins
from benchmark.runtime.errors import of_disk_or_gpu, out_of_memory, said


def margin_gradient(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """Return the margin's gradient at images (n, c, h, w), or None and why there is none.

    torch raises a RuntimeError for a conversion to numpy and for operations without a derivative. Any other exception, such
    as a full memory, says nothing about gradients and is raised.
    """
    probe = images.clone().requires_grad_()
    try:
        with torch.enable_grad():
            margin = margins(model(probe.clone()), labels).sum()
            gradient = torch.autograd.grad(margin, probe, allow_unused=True)[0] if margin.requires_grad else None
    except RuntimeError as error:
        if out_of_memory(error) or of_disk_or_gpu(error):
            raise
        return None, said(error)
    return gradient, "" if gradient is not None else "its logits do not depend on the image by any gradient"


def usable_gradients(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return which images (n, c, h, w) have a finite gradient of the margin that is not zero, (n,) bool; and why the model
    has no gradient at all, or "".
    """
    gradient, problem = margin_gradient(model, images, labels)
    if gradient is None:
        return torch.zeros(len(images), dtype=torch.bool, device=images.device), problem
    return torch.isfinite(gradient).flatten(1).all(1) & (gradient.flatten(1) != 0).any(1), problem


def attackable(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[nn.Module, str]:
    """Return the model with gradients that attacks can follow, and why its own has none, or "".

    The logits are the model's own. Gradients that are not finite become 0; without any at images (n, c, h, w) all are 0, and
    an attack moves by its random starts alone.
    """
    gradient, problem = margin_gradient(model, images, labels)
    return FiniteGradients(model, follows=gradient is not None).eval(), problem


class FiniteGradients(nn.Module):
    """The same function with a gradient of 0 where the model's is not finite; 0 everywhere unless `follows`.

    Attributes:
        asked: how many gradients were computed, one an image and pass.
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
        return logits + 0 * followed.flatten(1).sum(1, keepdim=True).to(logits)  # has a gradient, of 0


class _Finite(torch.autograd.Function):
    """The identity, whose gradient has 0 for what is not finite; `counter` counts the images."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, counter: FiniteGradients) -> torch.Tensor:
        ctx.counter = counter
        return images.view_as(images)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.counter.asked += len(gradient)
        ctx.counter.odd += int((~torch.isfinite(gradient).flatten(1).all(1)).sum())
        return torch.nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0), None
