"""Tiny networks that have a Lipschitz constant, and ascent on their logits within a ball."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import Patchify, Positions


def convolutional(seed: int = 0, *, clipped: bool = False, bias: bool = True, theta: float = 0.3) -> nn.Sequential:
    """For 6x6 images of one channel and four classes."""
    torch.manual_seed(seed)

    def clip(*shape: int) -> nn.Module:
        return ClippedReLU(shape, initial=theta) if clipped else nn.ReLU()

    first = (nn.Conv2d(1, 3, 3, padding=1, bias=bias), clip(3, 6, 6))
    second = (nn.Conv2d(3, 4, 4, stride=2, padding=1, bias=bias), clip(4, 3, 3))
    dense = (nn.Flatten(), nn.Linear(36, 8, bias=bias), clip(8), nn.Linear(8, 4, bias=bias))
    return nn.Sequential(*first, *second, *dense)


def climbed(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, rival: int, radius: float) -> torch.Tensor:
    """Images of the l2 ball where logit `rival` stands high above the label's: sign-free gradient steps, projected."""
    moved = images + 0.1 * radius * torch.randn(images.shape, generator=torch.Generator().manual_seed(rival))
    for _ in range(20):
        moved = moved.detach().requires_grad_()
        logits = model(moved)
        gap = logits[:, rival] - logits.gather(1, labels[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(gap.sum(), moved)
        with torch.no_grad():
            step = gradient / gradient.flatten(1).norm(dim=1).clamp(min=1e-12).reshape(-1, 1, 1, 1)
            move = moved + 0.3 * radius * step - images
            size = move.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
            moved = images + move * (radius / size.clamp(min=1e-12)).clamp(max=1)
    return moved.detach()


def grid_network(content: float = 0.5) -> nn.Sequential:
    """Two layers of grid attention among 1-Lipschitz layers, for 6x6 images of one channel and four classes."""
    torch.manual_seed(0)
    layers = [Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), Positions(9, 8), Absolute(4), ShiftTokens(3, 1)]
    layers += [GridAttention(8, 2, inner=2, side=3, content=content), Absolute(4)]
    layers += [GridAttention(8, 2, inner=2, side=3, content=content), nn.Flatten(1)]
    return nn.Sequential(*layers, NormalisedHead(72, 4))
