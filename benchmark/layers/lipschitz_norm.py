"""Attention with Lipschitz normalisation of its scores (Dasoulas, Scaman & Virmaux 2021): LNFormer's."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention import AttentionByHeads

LEAST = 1e-12  # of the scores' divisor


class LipschitzNormAttention(AttentionByHeads):
    """concat over heads of softmax(Q K^T / c) V, times W_O: (n, tokens, width) to the same, without a residual.

    c = max(u v, u w, v w) for each image and head, u = ||Q||_F, v and w the largest row norms of K and V (Dasoulas et al.
    2021, in the form of Hu et al. 2024, appendix D). At Q = K = V = 0 the scores are 0 / 0; c is therefore not let
    below 1e-12, which changes nothing else unless all scores are that small. No biases.

    It has no certificate here: the published constant, (41) of Hu et al. 2024, lacks W_V and is exceeded
    (`unsound_paper_formula.py`), and a proven one is not known to us.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"{heads} heads do not divide width {width}")
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """softmax(Q K^T / c) V by head: (n, heads, tokens, width / heads)."""
        query, key, value = (self.split(linear(x)) for linear in (self.query, self.key, self.value))
        u = torch.linalg.vector_norm(query, dim=(-2, -1))  # n, heads
        v, w = (torch.linalg.vector_norm(y, dim=-1).amax(-1) for y in (key, value))
        divisor = torch.maximum(torch.maximum(u * v, u * w), v * w).clamp(min=LEAST)
        return (query @ key.mT / divisor[..., None, None]).softmax(-1) @ value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.projected(self.mixed(x))
