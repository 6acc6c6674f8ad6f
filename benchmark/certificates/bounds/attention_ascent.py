"""A lower bound of attention's local sensitivity, by gradient ascent; sensitivity.py has the upper bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


def attention(
    x: torch.Tensor, *weights: torch.Tensor, residual: bool = True, query_bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the output of the layer that sensitivity.py bounds, weights w_q to w_o: x (batch, tokens, d) to the same."""
    w_q, w_k, w_v, w_o = weights
    queries = torch.einsum("bic,hcd->bhid", x, w_q)
    if query_bias is not None:
        queries = queries + query_bias[:, None]
    scores = torch.einsum("bhid,hed,bje->bhij", queries, w_k, x) / math.sqrt(w_q.shape[2])
    mixed = torch.einsum("bhij,bjc,hcd,hde->bie", scores.softmax(-1), x, w_v, w_o)
    return x + mixed if residual else mixed


def attention_ascent(
    x: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    w_o: torch.Tensor,
    radius: float,
    *,
    residual: bool = True,
    query_bias: torch.Tensor | None = None,
    steps: int = 60,
    starts: int = 3,
) -> torch.Tensor:
    """Return the largest ||F(X') - F(X)||_F (batch,) that projected gradient ascent finds on ||X' - X||_F = radius.

    Never above the supremum that `AttentionSensitivity.bound` bounds. Arguments as of `attention_sensitivity`; starts are
    random, seeded by their number.
    """

    def layer(z: torch.Tensor) -> torch.Tensor:
        return attention(z, w_q, w_k, w_v, w_o, residual=residual, query_bias=query_bias)

    clean = layer(x)
    return sphere_ascent(lambda z: (layer(z) - clean).flatten(1).norm(dim=1), x, radius, steps=steps, starts=starts)


def sphere_ascent(
    change: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, radius: float, *, steps: int = 60, starts: int = 3
) -> torch.Tensor:
    """Return the largest `change`, (batch, tokens, d) to (batch,), that gradient ascent finds on the sphere around x."""
    best = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for seed in range(starts):
        move = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype).to(x.device)
        for _ in range(steps):
            move = (move / move.flatten(1).norm(dim=1)[:, None, None] * radius).requires_grad_()
            reached = change(x + move)
            best = torch.maximum(best, reached.detach())
            (gradient,) = torch.autograd.grad(reached.sum(), move)
            size = gradient.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-300)
            move = (move + 2 * radius * gradient / size).detach()
    return best
