"""Random attention layers, and short names for their formula and for gradient ascent on them."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.certificates.bounds.attention_ascent import attention, attention_ascent
from benchmark.certificates.bounds.sensitivity import attention_sensitivity
from benchmark.layers.attention import SelfAttention
from benchmark.layers.residual import Residual
from benchmark.layers.tokens import MeanPool, Patchify

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
