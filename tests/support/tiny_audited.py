"""A small certified network, grey images and a small effort for the audit's tests."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.evaluation.audit_layers import Effort
from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions

GREY = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3


SMALL = Effort(radii=(0.1,), starts=3, steps=3)


def network(seed: int = 0, vo_norm: float = 1.0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        Normalise(),
        Patchify(2),
        BoundedLinear(4, 6),
        Positions(4, 6),
        LayerProject(1.0),
        ResidualAttention(6, 2, qk_norm=2.0, vo_norm=vo_norm),
        SLLBlock(6, 8),
        MeanPool(),
        NormalisedHead(6, 5),
    )
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape)
    return model.eval().requires_grad_(False)
