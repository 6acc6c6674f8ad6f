"""Attention in the windows of Swin (Liu et al. 2021): cutting, shifting, position bias and mask, for several attentions."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_grid import steps
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.kinds import Argument, known, side, truth, whole
from benchmark.layers.tokens import on_grid

MASKED = -100.0  # added to the scores across a border, as in Swin's code
WINDOWS: dict[str, Any] = {
    "width": side("content.query.weight", 1),
    "heads": Argument(whole(1), lambda layer: layer.content.heads),
    "side": whole(1, 64),  # the mask has side^2 window^2 numbers, without a tensor of that size in the description
    "window": whole(1, 16),
    "shift": whole(0, 16),
}


class WindowAttention(nn.Module):
    """Attention in each window x window square of a side x side grid, without a residual: (n, side^2, width) to the same.

    B_h,ij, a learned number for the position of token j relative to token i (Liu et al. 2021, equation 4), is added to the
    scores of head h of `content`. With a shift the grid is first rolled up and left by as many rows and columns, and back
    at the end. Then `MASKED` is added to scores between tokens of opposite edges: it multiplies e^score by e^-100, so they
    are not fully separated.

    Args:
        content: the attention of a window's tokens.
        side: tokens along a side of the grid; there is no class token.
        window: tokens along a side of a window.
        shift: rows and columns to roll by, less than `window`.

    Raises:
        ValueError: windows do not tile the grid, or the shift is out of range or not 0 for a window as large as the grid.
    """

    mask: torch.Tensor  # (windows, tokens, tokens), or (1, tokens, tokens) of zeros without a shift
    places: torch.Tensor  # (tokens, tokens) int64, the row of `bias_table` for each pair
    content: SelfAttention | L2Attention

    def __init__(self, content: SelfAttention | L2Attention, *, side: int, window: int, shift: int = 0) -> None:
        super().__init__()
        if window < 1 or side < 1 or side % window:
            raise ValueError(f"windows of {window}x{window} tokens do not tile {side}x{side} tokens")
        if not 0 <= shift < window or (shift and side == window):
            raise ValueError(f"a shift of {shift} does not suit windows of {window} on a side of {side} tokens")
        self.side, self.window, self.shift = side, window, shift
        self.content = content
        self.bias_table = nn.Parameter(torch.empty((2 * window - 1) ** 2, content.heads))
        nn.init.trunc_normal_(self.bias_table, std=0.02)  # as Swin's
        down, right = steps(window)  # from i to j; the table's rows are in timm's order, from j to i
        places = (2 * window - 1) * (window - 1 - down) + window - 1 - right
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("mask", self._border(), persistent=False)

    def bias(self) -> torch.Tensor:
        """Return B of a window: (heads, tokens, tokens)."""
        return self.bias_table[self.places].permute(2, 0, 1)

    def offsets(self) -> torch.Tensor:
        """Return B plus the mask, which is added to the scores: (windows or 1, heads, tokens, tokens)."""
        return self.bias() + self.mask[:, None]

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        """Reorder (n, side^2, width) to (n * windows, window^2, width), an image's windows one after another.

        Raises:
            ValueError: x does not have side^2 tokens.
        """
        grid = on_grid(x, self.side).roll((-self.shift, -self.shift), (1, 2))
        cut = grid.unflatten(2, (-1, self.window)).unflatten(1, (-1, self.window))  # n, rows, w, columns, w, width
        return cut.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def together(self, y: torch.Tensor) -> torch.Tensor:
        """Invert `windows`: (n * windows, window^2, width) to (n, side^2, width)."""
        across = self.side // self.window
        cut = y.unflatten(0, (-1, across, across)).unflatten(3, (self.window, self.window))
        return cut.transpose(2, 3).flatten(3, 4).flatten(1, 2).roll((self.shift, self.shift), (1, 2)).flatten(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cut, offsets = self.windows(x), self.offsets()
        if len(offsets) > 1:
            offsets = offsets.repeat(len(x), 1, 1, 1)
        return self.together(self.content.projected(self.content.mixed(cut, offsets)))

    def _border(self) -> torch.Tensor:
        """Return `MASKED` between tokens of a window, in the rolled grid, that come from opposite edges; else 0."""
        if not self.shift:
            return torch.zeros(1, self.window**2, self.window**2, device="cpu")
        first = (torch.arange(self.side, device="cpu") < self.shift).float()  # rows or columns rolled to the other edge
        parts = self.windows((2 * first[:, None] + first).reshape(1, -1, 1))[..., 0]
        return MASKED * (parts[:, :, None] != parts[:, None]).float()


@known(**WINDOWS, qkv_bias=Argument(truth, lambda layer: layer.content.query.bias is not None))
class DotProductWindowAttention(WindowAttention):
    """Swin's attention (Liu et al. 2021): in a window, softmax(Q K^T / sqrt(width / heads) + B) V, then the projection.

    It has no global Lipschitz constant and no bound here; `L2WindowAttention` replaces it.

    Args:
        qkv_bias: whether Q, K and V have biases; the projection always has one. Others as of `WindowAttention`.
    """

    content: SelfAttention

    def __init__(self, width: int, heads: int, *, side: int, window: int, shift: int = 0, qkv_bias: bool = True) -> None:
        super().__init__(SelfAttention(width, heads, qkv_bias=qkv_bias), side=side, window=window, shift=shift)


@known(**WINDOWS)
class L2WindowAttention(WindowAttention):
    """L2 attention in windows, CertViT's stand-in for Swin's attention (Gupta & Verma 2023): (n, side^2, width) to the same.

    In a window, P_h = softmax over j of -||x_i W_Q,h - x_j W_Q,h||^2 / s + B_h,ij, and the output is concat over heads of
    P_h X A_h W_V,h, times W_O, as in `L2Attention`.

    Weights across a masked border are at most e^(max_j (B_ij - B_ii) - 100). Arguments and errors as of `WindowAttention`.
    """

    content: L2Attention

    def __init__(self, width: int, heads: int, *, side: int, window: int, shift: int = 0) -> None:
        super().__init__(L2Attention(width, heads), side=side, window=window, shift=shift)
