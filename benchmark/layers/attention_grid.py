"""Dot-product attention over a grid of tokens whose heads look at places of their own, and how far it can move."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from benchmark.layers.attention import AttentionByHeads
from benchmark.layers.lipschitz import OrthogonalLinear

HARDEST = 4  # squared distance, in places, beyond which a head's first scores fall no further
PLACES = (
    (0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1), (0, 2), (0, -2), (2, 0), (-2, 0),
)  # down, right: where the heads look first  # fmt: skip


def on_grid(x: torch.Tensor, side: int) -> torch.Tensor:
    """(n, side^2, width) to (n, side, side, width), row by row.

    Raises:
        ValueError: x is not side^2 tokens.
    """
    if x.ndim != 3 or x.shape[1] != side**2:
        raise ValueError(f"{tuple(x.shape)} are not images of {side}x{side} tokens")
    return x.unflatten(1, (side, side))


@dataclass(frozen=True)
class Mixing:
    """What attention computes of its input, head by head."""

    queries: torch.Tensor  # (n, heads, tokens, inner)
    keys: torch.Tensor  # the same
    values: torch.Tensor  # (n, heads, tokens, width / heads)
    weights: torch.Tensor  # (n, heads, tokens, tokens), rows summing to 1

    @property
    def mixed(self) -> torch.Tensor:
        """(n, heads, tokens, width / heads)."""
        return self.weights @ self.values

    def float(self) -> Mixing:
        """The same in float32, where mixed precision computed it in fewer bits."""
        return Mixing(self.queries.float(), self.keys.float(), self.values.float(), self.weights.float())


class GridAttention(AttentionByHeads):
    """Heads of softmax(t_h Q K^T + R_h) V side by side, then a projection: (n, side^2, width) to the same, no residual.

    Q, K, V and the projection are orthonormal maps, of all heads together. R_h,ij is a learned number for where token j lies
    relative to token i on the torus of side x side places (relative positions as of Shaw et al. 2018 and Liu et al. 2021):
    with t_h = 0 each head is a convolution of norm at most 1. t_h > 0 is the learned weight of the content.

    In evaluation mode it computes in float64 and rounds once, as OrthogonalLinear does and for its reasons.

    Args:
        inner: channels of a head's queries and keys.
        content: t_h at first.
        sharpness: R_h at first, per squared distance from the place that the head looks at.

    Raises:
        ValueError: heads do not divide the width, are more than the places known, or their queries more than the width.
    """

    places: torch.Tensor  # (tokens, tokens) int64: the column of `table` for each pair
    kept: Mixing | None = None  # of the last forward pass in training mode, for objectives that bound it

    def __init__(
        self, width: int, heads: int, *, inner: int, side: int, content: float = 0.05, sharpness: float = 4.0
    ) -> None:
        super().__init__()
        if not 1 <= heads <= len(PLACES) or width % heads or not 1 <= inner * heads <= width or side < 1:
            raise ValueError(
                f"{heads} heads (at most {len(PLACES)}) should divide width {width} and have {inner} channels of it each"
            )
        self.heads, self.inner, self.side = heads, inner, side
        self.query, self.key = (OrthogonalLinear(width, heads * inner) for _ in range(2))
        self.value, self.output = (OrthogonalLinear(width, width) for _ in range(2))
        self.log_content = nn.Parameter(torch.full((heads,), math.log(content)))
        self.table = nn.Parameter(-sharpness * _first_distances(side, heads).clamp(max=HARDEST))
        self.register_buffer("places", _relative_places(side), persistent=False)

    @property
    def content(self) -> torch.Tensor:
        """t: (heads,)."""
        return self.log_content.exp()

    def mixing(self, x: torch.Tensor) -> Mixing:
        """Of x (n, side^2, width), in its own precision."""
        on_grid(x, self.side)
        queries, keys, values = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = queries @ keys.mT * self.log_content.to(x.dtype).exp()[:, None, None]
        offsets = self.table.to(x.dtype)[:, self.places]
        return Mixing(queries, keys, values, (scores + offsets).softmax(-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.kept = self.mixing(x)
            return self.projected(self.kept.mixed)
        return self.projected(self.mixing(x.double()).mixed).to(x.dtype)


def _relative_places(side: int) -> torch.Tensor:
    """side (row_j - row_i mod side) + (column_j - column_i mod side): (tokens, tokens)."""
    place = torch.arange(side**2, device="cpu")  # there even where parameters are made without memory (description.py)
    row, column = place.div(side, rounding_mode="floor"), place % side
    down, right = ((part[None] - part[:, None]) % side for part in (row, column))
    return side * down + right


def _first_distances(side: int, heads: int) -> torch.Tensor:
    """Squared distances on the torus from each head's first place: (heads, side^2)."""
    steps = torch.arange(side)
    found = []
    for down, right in PLACES[:heads]:
        rows, columns = ((steps - by) % side for by in (down, right))
        rows, columns = torch.minimum(rows, side - rows), torch.minimum(columns, side - columns)
        found.append((rows[:, None] ** 2 + columns[None] ** 2).flatten())
    return torch.stack(found).float()
