"""Projected gradient ascent on each item of a batch by itself, which finds a lower bound of the supremum."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from benchmark.runtime.errors import BenchmarkError

CHUNK = 256  # images that go through the network at once
Map = Callable[[torch.Tensor], torch.Tensor]


def ascend(
    objective: Map, project: Map, start: torch.Tensor, radius: torch.Tensor, steps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best value met for each item, and where: (batch,) and (batch, *shape).

    Args:
        objective: (batch, *shape) to (batch,), each from its own item alone.
        project: onto the feasible set.
        radius: (batch,) lengths: steps are 2 radius long, then (in the last third) a quarter of it.

    Raises:
        BenchmarkError: the objective is not finite somewhere.
    """
    ones = (-1, *[1] * (start.ndim - 1))
    move = project(start.detach())
    where, best = move, torch.full((len(start),), -torch.inf, dtype=start.dtype, device=start.device)
    for number in range(steps + 1):
        move = move.detach().requires_grad_()
        value = objective(move)
        if not torch.isfinite(value).all():
            raise BenchmarkError("audit: a layer or network returns a value that is not finite near an audited input")
        better = value.detach() > best
        best = torch.where(better, value.detach(), best)
        where = torch.where(better.reshape(ones), move.detach(), where)
        (gradient,) = torch.autograd.grad(value.sum(), move)
        size = gradient.flatten(1).norm(dim=1).clamp(min=1e-300)
        stride = radius * (2.0 if 3 * number < 2 * steps else 0.25) / size
        move = project(move.detach() + gradient * stride.reshape(ones))
    return best, where


def shrink(moves: torch.Tensor, radius: torch.Tensor) -> torch.Tensor:
    """Onto the l2 balls of `radius` (batch,): (batch, *shape) to the same."""
    size = moves.flatten(1).norm(dim=1).clamp(min=1e-300)
    return moves * (radius / size).clamp(max=1).reshape(-1, *[1] * (moves.ndim - 1))


def float64_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double().eval().requires_grad_(False)


def lower_margins(
    network: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    rivals: torch.Tensor,
    radii: torch.Tensor,
    *,
    steps: int,
    seed: int,
    box: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Searches, for each image, the image within its l2 radius (and [0, 1]) with the lowest margin over its rival.

    Args:
        network: in float64.
        images: (n, c, h, w) float64 in [0, 1]; labels, rivals and radii (n,).
        box: whether to stay in [0, 1]; if not, the result only refutes certificates that hold outside [0, 1] too.

    Returns:
        The drop of the margin (n,) and the images (n, c, h, w), float64.
    """
    generator = torch.Generator().manual_seed(seed)

    def lower(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, radius, pair = images[part], radii[part], torch.stack([labels[part], rivals[part]], 1)
        start = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)

        def margin(images: torch.Tensor) -> torch.Tensor:
            both = network(images).gather(1, pair)
            return both[:, 0] - both[:, 1]

        def project(move: torch.Tensor) -> torch.Tensor:
            inside = shrink(move, radius)
            return (x + inside).clamp(0, 1) - x if box else inside

        clean = margin(x)
        fall, move = ascend(lambda move: clean - margin(x + move), project, shrink(start, radius / 4), radius, steps)
        return fall, x + move

    parts = [lower(part) for part in torch.arange(len(images), device=images.device).split(CHUNK)]
    falls, lowest = zip(*parts, strict=True)
    return torch.cat(falls), torch.cat(lowest)
