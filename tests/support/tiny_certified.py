"""A network of two residual attention blocks that can be certified, and moves inside a perturbation set."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmark.certificates.bounds.layer_bound import PerturbationSet
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions


def network(seed: int, heads: int = 2, width: int = 8, qk_norm: float = 2.0, scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        Normalise(),
        Patchify(2),
        BoundedLinear(4, width),
        Positions(4, width),
        LayerProject(1.0),
        ResidualAttention(width, heads, qk_norm=qk_norm, vo_norm=0.5),
        SLLBlock(width, 2 * width),
        LayerProject(0.5),
        ResidualAttention(width, heads, qk_norm=qk_norm, vo_norm=0.5),
        SLLBlock(width, 2 * width),
        MeanPool(),
        NormalisedHead(width, 4),
    )
    for parameter in model.parameters():
        parameter.data += scale * 0.3 * torch.randn(parameter.shape)
    return model.eval().requires_grad_(False)


def random_perturbations(
    x: torch.Tensor, radius: float, rest: float, seed: int
) -> tuple[PerturbationSet, torch.Tensor]:
    """A reach around x (n, *shape) with 6 random directions, and 200 input changes inside it: (200, n, *shape)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    n, ones = len(x), torch.ones(len(x), dtype=torch.float64)
    columns = draw(6, *x.shape) / math.sqrt(x[0].numel())
    xi = draw(200, n, 6)
    xi *= radius / xi.norm(dim=2, keepdim=True)
    other = draw(200, *x.shape)
    other *= rest / other.flatten(2).norm(dim=2).reshape(200, n, *[1] * (x.ndim - 1))
    flat = columns.flatten(2).permute(1, 2, 0)
    delta = torch.linalg.matrix_norm(flat, ord=2) * radius + rest
    moves = torch.einsum("snp,pn...->sn...", xi, columns) + other
    return PerturbationSet(columns, radius * ones, rest * ones, delta), moves
