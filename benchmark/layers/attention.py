"""Dot-product self-attention: that of vision transformers, with bounded weights in a residual, and with normalised scores."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from benchmark.layers.kinds import Argument, known, number, positive, side, truth, whole
from benchmark.layers.lipschitz import BoundedLinear

HEADS: dict[str, Any] = {"width": side("query.weight", 1), "heads": whole(1)}
LEAST = 1e-12  # divisor of normalised scores


def divided(width: int, heads: int) -> int:
    """Return the number of heads. Raise a ValueError if they do not divide the width."""
    if heads < 1 or width % heads:
        raise ValueError(f"{heads} heads do not divide width {width}")
    return heads


def rows_by_head(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return a linear layer's weight (heads * inner, width) by head, acting on rows: (heads, width, inner)."""
    return weight.mT.unflatten(1, (heads, -1)).transpose(0, 1)


class Heads(nn.Module):
    """Heads side by side, then the linear layer `output`: (n, tokens, width) to the same."""

    heads: int
    output: Any

    def split(self, y: torch.Tensor) -> torch.Tensor:
        """Return (n, tokens, heads * inner) as (n, heads, tokens, inner)."""
        return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def projected(self, mixed: torch.Tensor) -> torch.Tensor:
        """Project (n, heads, tokens, width / heads) to (n, tokens, width)."""
        return self.output(mixed.transpose(1, 2).flatten(2))

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the heads' outputs before the projection: (n, heads, tokens, width / heads)."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.projected(self.mixed(x))


class AttentionByHeads(Heads):
    """Attention whose heads stand side by side in the linear layers `query`, `key`, `value` and `output`."""

    query: Any
    key: Any
    value: Any

    def head_weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return W_Q, W_K (heads, width, inner), W_V (heads, width, width / heads), W_O (heads, width / heads, width)."""
        query, key, value = (rows_by_head(part.weight, self.heads) for part in (self.query, self.key, self.value))
        return query, key, value, self.output.weight.mT.unflatten(0, (self.heads, -1))

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """Return V by head: (n, heads, tokens, width / heads)."""
        return self.split(self.value(x))


@known(**HEADS, qkv_bias=Argument(truth, lambda layer: layer.query.bias is not None), scale=number)
class SelfAttention(AttentionByHeads):
    """Heads of softmax(scale Q K^T) V, then a projection, without a residual: (n, tokens, width) to the same.

    Dosovitskiy et al. 2021, appendix A: Q = x W_Q + b_Q, K and V likewise, output concat(heads) W_O + b_O.

    Args:
        qkv_bias: whether Q, K and V have biases; the projection always has one.
        scale: of the scores; 0 means 1 / sqrt(width / heads).

    Raises:
        ValueError: the heads do not divide the width, or the scale is negative or not finite.
    """

    def __init__(self, width: int, heads: int, *, qkv_bias: bool = True, scale: float = 0.0) -> None:
        super().__init__()
        self.heads, self.scale = divided(width, heads), scale
        if not 0 <= scale < math.inf:
            raise ValueError(f"scale {scale} should be positive, or 0 for 1 / sqrt(width / heads)")
        self.factor = scale * math.sqrt(width // heads) if scale else 1.0  # of the scores over 1 / sqrt(width / heads)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=qkv_bias) for _ in range(3))
        self.output = nn.Linear(width, width)

    def mixed(self, x: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """Return softmax(scale Q K^T) V by head: (n, heads, tokens, width / heads).

        `offsets` (n or 1, heads, tokens, tokens) are added to the scores (attention_window.py); bounds are without them.
        """
        query, key = self.split(self.query(x)), self.split(self.key(x))
        if self.factor != 1:  # the function's own argument `scale` would exclude faster kernels
            query = query * self.factor
        return nn.functional.scaled_dot_product_attention(query, key, self.values(x), attn_mask=offsets)


@known(
    width=side("query.raw", 1),
    heads=whole(1),
    qk_norm=Argument(positive, lambda layer: layer.query.norm),
    vo_norm=Argument(positive, lambda layer: layer.value.norm),
)
class ResidualAttention(AttentionByHeads):
    """x + sum over heads of softmax(x W_Q (x W_K)^T / sqrt(d / heads)) x W_V W_O: (n, tokens, width) to the same.

    Havens et al. 2024, eq. (6) with H = I. There are no biases: a query bias would add to the scores a linear term that the
    paper's bound leaves out. `qk_norm` bounds the spectral norm of all heads' W_Q and of W_K, `vo_norm` of W_V and of W_O.
    """

    def __init__(self, width: int, heads: int, *, qk_norm: float, vo_norm: float) -> None:
        super().__init__()
        self.heads = divided(width, heads)
        self.query, self.key, self.value, self.output = (
            BoundedLinear(width, width, norm=norm, bias=False) for norm in (qk_norm, qk_norm, vo_norm, vo_norm)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        return x + self.projected(nn.functional.scaled_dot_product_attention(query, key, value))


@known(**HEADS)
class LipschitzNormAttention(AttentionByHeads):
    """LNFormer's concat over heads of softmax(Q K^T / c) V, times W_O, without a residual: (n, tokens, width) to the same.

    Lipschitz normalisation (Dasoulas et al. 2021, in the form of Hu et al. 2024, appendix D): for each image and head,
    c = max(u v, u w, v w) with u = ||Q||_F and v, w the largest row norms of K and V. c is at least 1e-12, because at
    Q = K = V = 0 the scores are 0 / 0; this matters only if all scores are that small. No biases.

    There is no certificate: the published constant, (41) of Hu et al. 2024, lacks W_V and is exceeded
    (`unsound_paper_formula.py`), and we know no proven one.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = divided(width, heads)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """Return softmax(Q K^T / c) V by head: (n, heads, tokens, width / heads)."""
        query, key, value = (self.split(linear(x)) for linear in (self.query, self.key, self.value))
        u = torch.linalg.vector_norm(query, dim=(-2, -1))  # n, heads
        v, w = (torch.linalg.vector_norm(y, dim=-1).amax(-1) for y in (key, value))
        divisor = torch.maximum(torch.maximum(u * v, u * w), v * w).clamp(min=LEAST)
        return (query @ key.mT / divisor[..., None, None]).softmax(-1) @ value
