"""Maps from images to tokens and from tokens to a vector, with known Lipschitz constants."""

from __future__ import annotations

import math

import torch
from torch import nn

from benchmark.layers.kinds import checked, known, positive, side, whole


@known(patch=whole(1, 1024), constant=1.0)
class Patchify(nn.Module):
    """Cut an image into patches: (n, c, h, w) to (n, tokens, c * patch * patch). An isometry (it only reorders)."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = checked("patch", whole(1, 1024), patch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = x.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch)  # n c rows columns p p
        return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def on_grid(x: torch.Tensor, side: int) -> torch.Tensor:
    """Return tokens (n, side^2, width) as (n, side, side, width), row by row.

    Raises:
        ValueError: x does not have side^2 tokens.
    """
    if x.ndim != 3 or x.shape[1] != side**2:
        raise ValueError(f"{tuple(x.shape)} are not images of {side}x{side} tokens")
    return x.unflatten(1, (side, side))


@known(side=whole(2, 1024), constant=1.0)
class MergeTokens(nn.Module):
    """Concatenate each 2x2 square of a grid of tokens, down first: (n, side^2, width) to (n, side^2 / 4, 4 width).

    This is Swin's patch merging before its norm and linear layer (Liu et al. 2021). An isometry (it only reorders).

    Raises:
        ValueError: the side is odd, which timm pads with zeros, or the input has other tokens.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        if type(side) is not int or side < 2 or side % 2:
            raise ValueError(f"2x2 tokens do not tile {side}x{side} tokens")
        self.side = side

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = on_grid(x, self.side).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # n, rows, 2, columns, 2, width
        return squares.permute(0, 1, 3, 4, 2, 5).reshape(len(x), self.side**2 // 4, 4 * x.shape[2])


@known(tokens=side("offset", 0), width=side("offset", 1), constant=1.0)
class Positions(nn.Module):
    """Add a learned offset to each token: (n, tokens, width) to the same. An isometry."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(tokens, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.offset


@known(width=side("token", 0), constant=1.0)
class ClassToken(nn.Module):
    """Prepend a learned token: (n, tokens, width) to (n, tokens + 1, width). An isometry."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.token.expand(len(x), 1, -1), x], dim=1)


@known(index=whole(-65536, 65535), constant=1.0)
class TakeToken(nn.Module):
    """Take one token, by default the class token: (n, tokens, width) to (n, width). 1-Lipschitz."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, self.index]


@known(constant=lambda _, x: 1 / math.sqrt(x.shape[1]))
class MeanPool(nn.Module):
    """Average the tokens: (n, tokens, width) to (n, width). 1/sqrt(tokens)-Lipschitz from the Frobenius norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


@known(radius=positive, constant=1.0)
class LayerProject(nn.Module):
    """Project each token onto the l2 ball of `radius`, in place of LayerNorm (Havens et al. 2024, eq. 29).

    (n, tokens, width) to the same. 1-Lipschitz, as every projection onto a convex set.
    """

    def __init__(self, radius: float) -> None:
        super().__init__()
        self.radius = checked("radius", positive, radius)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (self.radius / norms.clamp(min=self.radius))
