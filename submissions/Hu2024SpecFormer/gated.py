"""Gated positional self-attention (d'Ascoli et al. 2021, "ConViT"), around any attention by heads."""

from __future__ import annotations

import torch
from torch import nn


class GatedAttention(nn.Module):
    """(1 - g) P V + g P_pos V by head, g = sigmoid(gate), through the projection of `content`: (n, tokens, width) to the
    same. P V is what `content` mixes; P_pos = softmax(W (dx, dy, dx^2 + dy^2) + b) of the patches' distances alone.

    With dot-product attention it is timm's `GPSA`. Starts as ConViT does: the heads look at patches one step away, the
    gate is 1 and W_V the identity.

    Args:
        content: an attention with `values`, `mixed` and `output`.
        side: patches along a side of the image; there is no class token in front.
    """

    def __init__(self, content: nn.Module, heads: int, side: int) -> None:
        super().__init__()
        self.content, self.heads = content, heads
        self.gate = nn.Parameter(torch.ones(heads))
        self.position = nn.Linear(3, heads)
        self.register_buffer("distances", _distances(side), persistent=False)
        self._start_local()

    @torch.no_grad()
    def _start_local(self) -> None:
        """Head h1 + k h2 of a k x k kernel begins at its own shift; heads beyond the largest square keep their draw."""
        weight = self.content.value.weight
        weight.copy_(torch.eye(len(weight)))
        kernel = int(self.heads**0.5)
        centre = (kernel - 1) / 2 if kernel % 2 == 0 else kernel // 2
        for row in range(kernel):
            for column in range(kernel):
                shift = torch.tensor([2 * (column - centre), 2 * (row - centre), -1.0])
                self.position.weight[row + kernel * column] = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] != len(self.distances):
            raise ValueError(f"{x.shape[1]} tokens where {len(self.distances)} patches were expected")
        gate = torch.sigmoid(self.gate)[:, None, None]
        places = self.position(self.distances).permute(2, 0, 1).softmax(-1)  # heads, tokens, tokens
        mixed = (1 - gate) * self.content.mixed(x) + gate * (places @ self.content.values(x))
        return self.content.output(mixed.transpose(1, 2).flatten(2))


def _distances(side: int) -> torch.Tensor:
    """dx, dy and their squares' sum from patch to patch, row by row: (patches, patches, 3)."""
    row, column = torch.arange(side**2).div(side, rounding_mode="floor"), torch.arange(side**2) % side
    dx, dy = (places[None] - places[:, None] for places in (column, row))
    return torch.stack([dx, dy, dx**2 + dy**2], dim=-1).float()
