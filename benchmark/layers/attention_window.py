"""Attention in the windows of Swin (Liu et al. 2021): cutting, shifting, position bias and mask, whatever the attention."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention import SelfAttention
from benchmark.layers.attention_grid import on_grid
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.kinds import Argument, known, side, whole

MASKED = -100.0  # added to the scores across a border, as Swin's code has it


class WindowAttention(nn.Module):
    """Attention inside each window x window square of a side x side grid: (n, side^2, width) to the same, row by row,
    without a residual.

    To the scores of `content`, head h, B_h,ij is added, a learned number for the place of token j relative to token i (Liu
    et al. 2021, equation 4). With a shift the grid is first rolled by as many rows up and columns left, and back at the
    end; where a window then holds tokens of opposite edges, `MASKED` is added across the border. A mask of -100 is no wall:
    it multiplies e^score by e^-100.

    Args:
        content: the attention of a window's tokens.
        side: tokens along a side of the grid; there is no class token.
        window: tokens along a side of a window.
        shift: rows and columns to roll by, below `window`.

    Raises:
        ValueError: windows do not tile the grid, or a shift that is out of range or where one window is the whole grid.
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
        self.register_buffer("places", _relative_places(window), persistent=False)
        self.register_buffer("mask", self._border(), persistent=False)

    def bias(self) -> torch.Tensor:
        """B: (heads, tokens, tokens) of a window."""
        return self.bias_table[self.places].permute(2, 0, 1)

    def offsets(self) -> torch.Tensor:
        """What is added to the scores, B and the mask: (windows or 1, heads, tokens, tokens)."""
        return self.bias() + self.mask[:, None]

    def windows(self, x: torch.Tensor) -> torch.Tensor:
        """(n, side^2, width) to (n * windows, window^2, width), an image's windows one after another; only reorders.

        Raises:
            ValueError: x is not side^2 tokens.
        """
        grid = on_grid(x, self.side).roll((-self.shift, -self.shift), (1, 2))
        cut = grid.unflatten(2, (-1, self.window)).unflatten(1, (-1, self.window))  # n, rows, w, columns, w, width
        return cut.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def together(self, y: torch.Tensor) -> torch.Tensor:
        """The inverse of `windows`: (n * windows, window^2, width) to (n, side^2, width)."""
        across = self.side // self.window
        cut = (
            y.unflatten(0, (len(y) // across**2, across, across))
            .unflatten(3, (self.window, self.window))
            .transpose(2, 3)
        )
        return cut.flatten(3, 4).flatten(1, 2).roll((self.shift, self.shift), (1, 2)).flatten(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cut, offsets = self.windows(x), self.offsets()
        if len(offsets) > 1:
            offsets = offsets.repeat(len(x), 1, 1, 1)
        mixed = self.content.mixed(cut, offsets)
        return self.together(self.content.output(mixed.transpose(1, 2).flatten(2)))

    def _border(self) -> torch.Tensor:
        """`MASKED` between tokens of a window, in the rolled grid, that come from opposite edges."""
        if not self.shift:
            return torch.zeros(1, self.window**2, self.window**2, device="cpu")
        # rows, or columns, that the roll takes to the other edge
        first = (torch.arange(self.side, device="cpu") < self.shift).float()
        parts = self.windows((2 * first[:, None] + first).reshape(1, -1, 1))[..., 0]
        return MASKED * (parts[:, :, None] != parts[:, None]).float()


class DotProductWindowAttention(WindowAttention):
    """Swin's own attention (Liu et al. 2021): in a window, softmax(Q K^T / sqrt(width / heads) + B) V, then the projection.

    It has no global Lipschitz constant, and no bound here: `L2WindowAttention` stands in for it.

    Args:
        qkv_bias: whether Q, K and V have biases; the projection always has one. Others as of `WindowAttention`.
    """

    content: SelfAttention

    def __init__(
        self, width: int, heads: int, *, side: int, window: int, shift: int = 0, qkv_bias: bool = True
    ) -> None:
        super().__init__(SelfAttention(width, heads, qkv_bias=qkv_bias), side=side, window=window, shift=shift)


@known(
    width=side("content.query.weight", 1),
    heads=Argument(whole(1), lambda layer: layer.content.heads),
    side=whole(1, 64),  # its mask, which no tensor of the description pays for, has side^2 window^2 numbers
    window=whole(1, 16),
    shift=whole(0, 16),
)
class L2WindowAttention(WindowAttention):
    """CertViT's stand-in for Swin's attention (Gupta & Verma 2023), after which a window holds L2 attention.

    In a window, P_h = softmax over j of -||x_i W_Q,h - x_j W_Q,h||^2 / s + B_h,ij, and the output is concat over heads of
    P_h X A_h W_V,h, times W_O, as in `L2Attention`, which is the `content`: (n, side^2, width) to the same.

    Weights across a masked border are at most e^(max_j (B_ij - B_ii) - 100). Arguments and errors as of `WindowAttention`.
    """

    content: L2Attention

    def __init__(self, width: int, heads: int, *, side: int, window: int, shift: int = 0) -> None:
        super().__init__(L2Attention(width, heads), side=side, window=window, shift=shift)


def _relative_places(window: int) -> torch.Tensor:
    """(2 window - 1) (row_i - row_j + window - 1) + column_i - column_j + window - 1, timm's order: (tokens, tokens)."""
    place = torch.arange(
        window**2, device="cpu"
    )  # there even where parameters are made without memory (description.py)
    row, column = place.div(window, rounding_mode="floor"), place % window
    down, right = (place[:, None] - place + window - 1 for place in (row, column))
    return (2 * window - 1) * down + right
