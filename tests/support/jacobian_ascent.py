"""Norms of Jacobians, and ascent on them: lower bounds of Lipschitz constants."""

from __future__ import annotations

import torch


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
