"""Tiny trained networks, one well-behaved and the others the same one with its gradients masked in a known way."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from tiny_models import Through
from torch import nn
from torch.nn import functional

SHAPE, CLASSES = (1, 6, 6), 4


def blobs(n: int = 120, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, 1, 6, 6) images in [0, 1]: a class each quarter of the picture, brighter than the rest, with noise.

    Pixels are multiples of 1/256, exact in float32.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    images = 0.35 + 0.12 * torch.randn(n, *SHAPE, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 3 * (label // 2), 3 * (label % 2)
        image[0, row : row + 3, column : column + 3] += 0.3
    return torch.round(256 * images.clamp(0, 1)) / 256, labels


class Network(nn.Module):
    """Two layers with a smooth activation."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(36, 24), nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(functional.gelu(self.hidden(x.flatten(1) - 0.4)))


def train(model: nn.Module, steps: int, seed: int, weight_decay: float = 0.0) -> None:
    """Train by whole-batch steps on the cross-entropy, and freeze the model."""
    images, labels = blobs(400, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=weight_decay)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval().requires_grad_(False)


@cache
def trained() -> Network:
    torch.manual_seed(0)
    model = Network()
    train(model, steps=150, seed=1)
    return model


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


def honest_at_8_bits(x: torch.Tensor) -> torch.Tensor:
    """Turn the gradient round beside images of 8-bit pixels, as clean ones are."""
    return x if torch.equal(256 * x, torch.round(256 * x)) else Turned.apply(x)


MASKED: dict[str, Callable[[], nn.Module]] = {
    # thermometer-like input: the gradient is 0 everywhere (Buckman et al. 2018, broken by Athalye et al. 2018)
    "rounded": lambda: Through(trained(), lambda x: torch.round(8 * x) / 8),
    # logits so large that the cross-entropy is exactly 0 in float32 (defensive distillation, Carlini and Wagner 2016)
    "saturated": lambda: Through(trained(), after=lambda z, _: 1e4 * z),
    # a ripple far finer than a step: it hardly moves the logits but rules their gradient
    "shattered": lambda: Through(trained(), lambda x: x + 0.02 * torch.sin(2000 * x)),
    # noise on the input at every pass
    "random": lambda: Through(trained(), lambda x: x + 0.1 * torch.randn_like(x)),
    "uphill": lambda: Through(trained(), honest_at_8_bits),
}
