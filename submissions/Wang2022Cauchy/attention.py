"""Dot-product self-attention as ViT has it, with biases."""

from __future__ import annotations

import torch
from torch import nn


class SelfAttention(nn.Module):
    """Heads of softmax(Q K^T / sqrt(width / heads)) V side by side, then a projection: (n, tokens, width) to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"{heads} heads do not divide width {width}")
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # n, heads, tokens, width / heads

        mixed = nn.functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x))
        )
        return self.output(mixed.transpose(1, 2).flatten(2))
