"""L2 self-attention (Kim, Papamakarios & Mnih 2021): the Lipschitz stand-in for dot-product attention."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmark.layers.attention import rows_by_head


class L2Attention(nn.Module):
    """concat over heads of P_h X A_h W_V,h, times W_O: (n, tokens, width) to the same, without a residual.

    P_h = softmax over j of -||x_i W_Q,h - x_j W_Q,h||^2 / s, A_h = W_Q,h W_Q,h^T / s, s = sqrt(width / heads): keys share
    the queries' weight (Kim et al. 2021, section 3.2). No biases.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"{heads} heads do not divide width {width}")
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def head_weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """W_Q and W_V (heads, width, width / heads) and W_O (heads, width / heads, width), acting on rows."""
        query, value = (rows_by_head(linear.weight, self.heads) for linear in (self.query, self.value))
        return query, value, self.output.weight.mT.unflatten(0, (self.heads, -1))

    def values(self, x: torch.Tensor) -> torch.Tensor:
        """X A_h W_V,h by head: (n, heads, tokens, width / heads)."""
        return self._values(x, self._queries(x))

    def mixed(self, x: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """P_h X A_h W_V,h by head: (n, heads, tokens, width / heads).

        Args:
            offsets: (n or 1, heads, tokens, tokens), added to the scores, as attention_window.py does. This layer's bounds
                are without them.
        """
        y = self._queries(x)
        squares = (y**2).sum(-1)
        # softmax ignores ||y_i||^2, which is the same along a row
        scores = (2 * y @ y.mT - squares[..., None, :]) / math.sqrt(y.shape[-1])
        if offsets is not None:
            scores = scores + offsets
        return scores.softmax(-1) @ self._values(x, y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.mixed(x).transpose(1, 2).flatten(2))

    def _queries(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # n, heads, tokens, width / heads

    def _values(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """X A_h W_V,h, from y = X W_Q,h: (n, heads, tokens, width / heads)."""
        query, value, _ = self.head_weights()
        return y @ (query.mT @ value / math.sqrt(y.shape[-1]))


class ReleasedL2Attention(L2Attention):
    """The same without A_h, values X W_V,h, as CertViT's released code has it: *not* Lipschitz.

    Along the null space of W_Q,h^T the tokens grow and the scores do not, so the scores' derivative meets values of any
    size. Only to show what the published numbers ran; no certificate takes it.
    """

    def _values(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
