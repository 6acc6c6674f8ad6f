"""Standard dot-product self-attention with bounded weights."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.lipschitz import BoundedLinear


class ResidualAttention(nn.Module):
    """x + sum over heads of softmax(x W_Q (x W_K)^T / sqrt(d / heads)) x W_V W_O: (n, tokens, width) to the same.

    Havens et al. 2024, eq. (6) with H = I. No biases: a query bias would add a linear term to the scores that the
    paper's bound leaves out. `qk_norm` bounds the spectral norm of all heads' W_Q and W_K, `vo_norm` of W_V and W_O.
    """

    def __init__(self, width: int, heads: int, *, qk_norm: float, vo_norm: float) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide width {width}")
        self.heads = heads
        self.query = BoundedLinear(width, width, norm=qk_norm, bias=False)
        self.key = BoundedLinear(width, width, norm=qk_norm, bias=False)
        self.value = BoundedLinear(width, width, norm=vo_norm, bias=False)
        self.output = BoundedLinear(width, width, norm=vo_norm, bias=False)

    def head_weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """W_Q, W_K, W_V (heads, width, width / heads) and W_O (heads, width / heads, width), acting on rows."""

        def split(weight: torch.Tensor) -> torch.Tensor:
            return weight.mT.unflatten(1, (self.heads, -1)).transpose(0, 1)

        output = self.output.weight.mT.unflatten(0, (self.heads, -1))
        return split(self.query.weight), split(self.key.weight), split(self.value.weight), output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # n, heads, tokens, width / heads

        mixed = nn.functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x))
        )
        return x + self.output(mixed.transpose(1, 2).flatten(2))
