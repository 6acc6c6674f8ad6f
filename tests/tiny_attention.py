"""Attention by its formula, random cases, and the steepest change that gradient ascent finds: a lower bound."""

from __future__ import annotations

import math

import torch

Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def attention_case(
    seed: int, norm: float = 1.0, spread: float = 1.0, *, heads: int = 2, n: int = 4, d: int = 6, batch: int = 3
) -> tuple[torch.Tensor, Weights]:
    """x (batch, n, d) of scale `spread`; W_Q and W_K of scale `norm`, W_V and W_O of scale 0.5."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inner = max(1, d // heads)
    query, key = draw(heads, d, inner) * norm, draw(heads, d, inner) * norm
    weights = (query, key, draw(heads, d, inner) * 0.5, draw(heads, inner, d) * 0.5)
    return draw(batch, n, d) * spread, weights


def attend(
    x: torch.Tensor, weights: Weights, residual: bool = True, query_bias: torch.Tensor | None = None
) -> torch.Tensor:
    w_q, w_k, w_v, w_o = weights
    queries = torch.einsum("bic,hcd->bhid", x, w_q)
    if query_bias is not None:
        queries = queries + query_bias[:, None]
    scores = torch.einsum("bhid,hed,bje->bhij", queries, w_k, x) / math.sqrt(w_q.shape[2])
    mixed = torch.einsum("bhij,bjc,hcd,hde->bie", scores.softmax(-1), x, w_v, w_o)
    return x + mixed if residual else mixed


def steepest(
    x: torch.Tensor,
    weights: Weights,
    radius: float,
    residual: bool = True,
    query_bias: torch.Tensor | None = None,
    steps: int = 60,
    starts: int = 3,
) -> torch.Tensor:
    """Largest ||F(X') - F(X)|| found on the sphere of `radius`: (batch,), a lower bound of the sensitivity."""
    clean, best = attend(x, weights, residual, query_bias), torch.zeros(len(x), dtype=x.dtype)
    for seed in range(starts):
        move = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
        for _ in range(steps):
            move = (move / move.flatten(1).norm(dim=1)[:, None, None] * radius).requires_grad_()
            change = (attend(x + move, weights, residual, query_bias) - clean).flatten(1).norm(dim=1)
            best = torch.maximum(best, change.detach())
            (gradient,) = torch.autograd.grad(change.sum(), move)
            size = gradient.flatten(1).norm(dim=1)[:, None, None].clamp(min=1e-300)
            move = (move + 2 * radius * gradient / size).detach()
    return best
