"""Layers that keep lengths: tokens shifted over their grid, and the absolute value.

With orthogonal maps between them they make a 1-Lipschitz convolutional network. A shift of some channels by one place and a
map of channels is a 3x3 convolution (Wu et al. 2018, shift). Up to a rotation, the absolute value of half of the channels is
the sorting of pairs (Anil et al. 2019, GroupSort).
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.kinds import checked, known, whole
from benchmark.layers.tokens import on_grid


@known(side=whole(1, 1024), moved=whole(1))
class ShiftTokens(nn.Module):
    """Roll channels over a side x side grid of tokens: (n, side^2, width) to the same. An isometry (it only reorders).

    `moved` channels move one place down, as many up, right and left, and the rest stay. A channel that leaves the grid
    comes in at the opposite edge.

    Raises:
        ValueError: `side` or `moved` is below 1, or the input has other tokens or fewer than 4 `moved` channels.
    """

    def __init__(self, side: int, moved: int) -> None:
        super().__init__()
        self.side, self.moved = checked("side", whole(1, 1024), side), checked("moved", whole(1), moved)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid, moved = on_grid(x, self.side), self.moved
        if x.shape[2] < 4 * moved:
            raise ValueError(f"{x.shape[2]} channels are too few to move {moved} of them four ways")
        down, up, right, left, rest = grid.split([moved] * 4 + [x.shape[2] - 4 * moved], dim=3)
        parts = (down.roll(1, 1), up.roll(-1, 1), right.roll(1, 2), left.roll(-1, 2), rest)
        return torch.cat(parts, dim=3).flatten(1, 2)


@known(folded=whole(1))
class Absolute(nn.Module):
    """The absolute value of the first `folded` channels: (..., width) to the same. 1-Lipschitz; it keeps all lengths.

    Raises:
        ValueError: `folded` is below 1 or exceeds the input's channels.
    """

    def __init__(self, folded: int) -> None:
        super().__init__()
        self.folded = checked("folded", whole(1), folded)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] < self.folded:
            raise ValueError(f"{x.shape[-1]} channels are fewer than the {self.folded} whose sign is taken")
        return torch.cat([x[..., : self.folded].abs(), x[..., self.folded :]], dim=-1)
