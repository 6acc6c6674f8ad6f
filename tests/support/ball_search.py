"""Lower bounds of norms and Lipschitz constants: ascent, and searches in a ball."""

from __future__ import annotations

import torch
from torch import nn

SHARES = (1.0, 0.7, 0.4, 0.2, 0.1, 0.03, 1e-2, 1e-3)


@torch.no_grad()
def breaks(model: nn.Module, gradients: nn.Module, image: torch.Tensor, label: int, radius: float, steps: int = 6) -> bool:
    """Whether an image within `radius` of `image` (c, h, w) is not given `label`, a NaN or a tie included.

    Args:
        model: judged as it runs, in its own type.
        gradients: where to go; float64.
    """
    moves = _moves(image, radius)
    moves = torch.cat([moves, _descended(gradients, image, label, moves[:8], radius, steps)])
    points = (image.double() + moves).float()
    points = points[(points.double() - image.double()).flatten(1).norm(dim=1) <= radius]
    logits = model(torch.cat([image[None], points]))
    rivals = logits.clone()
    rivals[:, label] = -torch.inf
    return not bool((logits[:, label] > rivals.amax(1)).all())


def _moves(image: torch.Tensor, radius: float) -> torch.Tensor:
    """Random, along single pixels, all pixels alike, towards black and white, and none: (many, c, h, w) float64."""
    generator = torch.Generator().manual_seed(0)
    count = image.numel()
    random = torch.randn(16, count, dtype=torch.float64, generator=generator)
    signs = torch.sign(torch.randn(8, count, dtype=torch.float64, generator=generator))
    single = torch.eye(count, dtype=torch.float64)
    flat = image.double().flatten()
    some = torch.stack([torch.ones_like(flat), -torch.ones_like(flat), flat + 1e-12, -flat - 1e-12, 1 - flat, flat - 1])
    ways = torch.cat([random, signs, single, -single, some])
    ways = ways / ways.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return torch.cat([ways * radius * share * (1 - 1e-7) for share in SHARES]).unflatten(1, image.shape)


@torch.enable_grad()
def _descended(
    network: nn.Module, image: torch.Tensor, label: int, start: torch.Tensor, radius: float, steps: int
) -> torch.Tensor:
    """Steps down each rival's margin from some of the moves, on the sphere; whatever is not finite is left out."""
    classes = network(image.double()[None]).shape[1]
    rivals = torch.tensor([other for other in range(classes) if other != label]).repeat_interleave(len(start))
    move, moves = start.repeat(classes - 1, 1, 1, 1), []
    for _ in range(steps):
        move = move.detach().requires_grad_()
        logits = network(image.double() + move)
        margin = logits[:, label] - logits.gather(1, rivals[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(margin.sum(), move)
        size = gradient.flatten(1).norm(dim=1).clamp(min=1e-300)[:, None, None, None]
        move = move.detach() - 2 * radius * gradient / size
        move = move / move.flatten(1).norm(dim=1).clamp(min=1e-300)[:, None, None, None] * radius * (1 - 1e-7)
        moves.append(move)
    every = torch.cat(moves)
    return every[every.flatten(1).isfinite().all(1)]


def jacobian_norm(function, x: torch.Tensor, create_graph: bool = False) -> torch.Tensor:
    jacobian = torch.autograd.functional.jacobian(function, x, vectorize=True, create_graph=create_graph)
    return torch.linalg.matrix_norm(jacobian.reshape(-1, x.numel()), ord=2)


def ascend(function, start: torch.Tensor, steps: int, rate: float) -> float:
    """The largest Jacobian norm met on the way up from `start`: a lower bound of the Lipschitz constant."""
    x, best = start.clone().requires_grad_(), 0.0
    optimizer = torch.optim.Adam([x], lr=rate, maximize=True)
    for _ in range(steps):
        optimizer.zero_grad()
        norm = jacobian_norm(function, x, create_graph=True)
        norm.backward()
        best = max(best, norm.item())
        optimizer.step()
    return best
