"""Random small networks of layers that have a Step, ordinary and extreme, with images."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.layers.attention import ResidualAttention
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions

EXTREMES = ("", "uniform", "one-hot", "repeated", "no values", "no feed-forward", "huge tokens", "black", "on the ball")


class Draw:
    """A seeded source of numbers."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def integer(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def scale(self, low: float, high: float) -> float:
        """10 to a power uniform in [low, high]."""
        return 10 ** self.uniform(low, high)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)


def random_network(seed: int) -> tuple[nn.Sequential, torch.Tensor, str]:
    """A network, images (n, 1, h, w) in [0, 1] (32, or fewer where tokens are many), and which extreme it is (or "").

    Depth 1 to 3, 1 to 8 heads, 2 to 65 tokens (few large, then 1 or 2 heads and depth 1), norms 0.1 to 10; blocks in random order with parts left out.
    """
    draw = Draw(seed)
    heads, patch, classes = draw.integer(1, 8), draw.integer(1, 2), draw.integer(2, 6)
    rows = 1 + int(5 * draw.uniform(0, 1) ** 3)
    columns = 2 + int(12 * draw.uniform(0, 1) ** (2 if rows == 1 else 3))
    if rows * columns > 20:  # the certificate's work grows with heads * tokens^4
        heads = 1 + heads % 2
    tokens, width = rows * columns, heads * draw.integer(1, 3) if heads > 1 else draw.integer(2, 4)
    extreme = EXTREMES[draw.integer(1, len(EXTREMES) - 1)] if draw.uniform(0, 1) < 1 / 3 else ""
    std = 1e-3 if extreme == "huge tokens" else draw.scale(-1, 1)
    layers: list[nn.Module] = [Normalise(0.5, std)] if std < 1 else []
    layers += [Patchify(patch), BoundedLinear(patch**2, width, norm=draw.scale(-1, 1)), Positions(tokens, width)]
    for _ in range(draw.integer(1, 3 if tokens <= 20 else 1)):
        layers += _block(draw, width, heads, tokens, extreme)
    model = nn.Sequential(*layers, MeanPool(), NormalisedHead(width, classes))
    for name, parameter in model.named_parameters():
        parameter.data = draw.normal(*parameter.shape) * (1.0 if "weight" in name or "raw" in name else 0.3)
    _go_to_extreme(model, extreme)
    x = torch.rand(
        32 if tokens <= 8 else 8 if tokens <= 20 else 2, 1, rows * patch, columns * patch, generator=draw.generator
    )
    if extreme == "repeated":
        x = x[:, :, :1, :1].expand_as(x).clone()
    if extreme == "on the ball":
        x[: len(x) // 2] = 0.5 if std < 1 else 0.0
    if extreme == "black":
        x = torch.zeros_like(x)
        x[1:] += 1e-4 * torch.rand(x[1:].shape, generator=draw.generator)
    return model.eval().requires_grad_(False), x, extreme


def _block(draw: Draw, width: int, heads: int, tokens: int, extreme: str) -> list[nn.Module]:
    qk = draw.scale(1, 2) if extreme == "one-hot" else draw.scale(-1, 1)
    radius = 1.0 if extreme == "on the ball" else draw.scale(-1, 1)
    parts: list[nn.Module] = [
        LayerProject(radius),
        ResidualAttention(width, heads, qk_norm=qk, vo_norm=draw.scale(-1, 0.5)),
        _feed_forward(width, draw.integer(1, 2 * width)),
        BoundedLinear(width, width, norm=draw.scale(-0.5, 0.5)),
        Positions(tokens, width),
    ]
    order = torch.randperm(len(parts), generator=draw.generator).tolist() if draw.uniform(0, 1) < 0.5 else [0, 1, 2]
    keep = {0: 0.8, 1: 0.9, 2: 0.7, 3: 0.3, 4: 0.3}
    return [parts[i] for i in order if draw.uniform(0, 1) < keep[i]]


def _feed_forward(width: int, hidden: int) -> SLLBlock:
    """A third of them smooth, by their size, so that other draws stay as they are."""
    return SLLBlock(width, hidden) if hidden % 3 else SmoothSLLBlock(width, hidden, bend=(0.03, 0.3, 3.0)[hidden // 3 % 3])


def _go_to_extreme(model: nn.Sequential, extreme: str) -> None:
    for layer in model:
        if extreme == "uniform" and isinstance(layer, ResidualAttention):
            layer.query.raw.data.zero_()
        if extreme == "no values" and isinstance(layer, ResidualAttention):
            layer.value.raw.data.zero_()
        if extreme == "no feed-forward" and isinstance(layer, SLLBlock):
            layer.weight.data.zero_()
        if extreme == "repeated" and isinstance(layer, Positions):
            layer.offset.data.copy_(layer.offset.data[:1].expand_as(layer.offset))
        if extreme in ("black", "on the ball") and isinstance(layer, BoundedLinear) and layer.bias is not None:
            layer.bias.data.zero_()
        if extreme == "on the ball" and isinstance(layer, Positions):  # tokens of norm 1 where the image is black
            layer.offset.data.zero_()
            layer.offset.data[:, 0] = 1
