"""Tiny models with known answers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmark.certificates.bounds.attention_ascent import attention, attention_ascent
from benchmark.certificates.bounds.sensitivity import attention_sensitivity
from benchmark.layers.attention import SelfAttention
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify


class Linear(nn.Module):
    """logits = W vec(x) + b: its l2 radius at x is min_j margin_j / ||w_y - w_j||, exactly."""

    def __init__(self, shape: tuple[int, int, int] = (1, 6, 6), classes: int = 4, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = shape[0] * shape[1] * shape[2]
        self.weight = nn.Parameter(torch.randn(classes, size, generator=generator) * 0.2)
        self.bias = nn.Parameter(-0.5 * self.weight.detach().sum(1))  # balanced at grey: labels vary, radii are small

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight.mT + self.bias

    def radius(self, x: torch.Tensor, labels: torch.Tensor, norm: str) -> torch.Tensor:
        """Exact distance to the nearest rival, without the box: l2, or Linf by the dual norm."""
        logits = self(x).detach().double()
        weight = self.weight.detach().double()
        gap = weight[labels][:, None] - weight[None]
        size = gap.norm(dim=-1) if norm == "L2" else gap.abs().sum(-1)
        margin = logits.gather(1, labels[:, None]) - logits
        distance = margin / size
        return distance.scatter(1, labels[:, None], float("inf")).amin(1)


class Through(nn.Module):
    """The model on what `before` makes of the images (None: nothing else), with what `after` makes of its output."""

    def __init__(self, model: nn.Module, before: Callable = lambda x: None, after: Callable = lambda z, x: z) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed = self.before(x)
        given = x if changed is None else changed
        return self.after(self.model(given), given)


def grey_images(n: int = 16, shape: tuple[int, int, int] = (1, 6, 6), seed: int = 1) -> torch.Tensor:
    """Images near 0.5, far enough from the box that small attacks never meet it."""
    return 0.5 + 0.1 * (torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed)) - 0.5)


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


def attention_bound(x: torch.Tensor, *weights: torch.Tensor, method: str = "tight", **options: object) -> torch.Tensor:
    """Of weights and then a radius, one for all examples or one for each."""
    *matrices, radius = weights
    sensitivity = attention_sensitivity(x, *matrices, **options)
    return sensitivity.bound(torch.as_tensor(radius, dtype=torch.float64).expand(len(x)), method)


def attend(x: torch.Tensor, weights: Weights, residual: bool = True, bias: torch.Tensor | None = None) -> torch.Tensor:
    return attention(x, *weights, residual=residual, query_bias=bias)


def steepest(x: torch.Tensor, weights: Weights, radius: float, residual=True, bias=None, **effort: int) -> torch.Tensor:
    return attention_ascent(x, *weights, radius, residual=residual, query_bias=bias, **effort)


def attentive(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    body = nn.Sequential(nn.LayerNorm(8), SelfAttention(8, 2))
    return nn.Sequential(Patchify(3), nn.Linear(9, 8), Residual(body), MeanPool(), nn.Linear(8, 4))
