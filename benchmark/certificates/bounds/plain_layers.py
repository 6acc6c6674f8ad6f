"""The layers of benchmark/layers in operations that bound propagation knows: products, sums, relu, softmax, sqrt."""

from __future__ import annotations

import math
from functools import singledispatch
from typing import cast

import torch
from torch import nn

from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, SliceConvolution, TokenConvolution
from benchmark.layers.tokens import ClassToken, LayerProject, Patchify, TakeToken


@singledispatch
def plain(layer: nn.Module) -> nn.Module:
    """The layer in operations that auto_LiRPA knows; itself unless it is one of benchmark/layers. In float64."""
    return layer


@plain.register
def _(layer: nn.Sequential) -> nn.Module:
    return nn.Sequential(*(plain(part) for part in layer)) if type(layer) is nn.Sequential else layer


@plain.register
def _(layer: BoundedLinear | OrthogonalLinear | NormalisedHead) -> nn.Module:
    return _linear(layer.weight, layer.bias)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    made.weight.data = weight.detach().clone()
    if bias is not None:
        made.bias.data = bias.detach().clone()
    return made.to(weight.device).requires_grad_(False)


@plain.register
def _(layer: Residual) -> nn.Module:
    return Residual(plain(layer.body)) if type(layer) is Residual else layer


@plain.register
def _(layer: WeightedResidual) -> nn.Module:
    if type(layer) is not WeightedResidual:
        return layer
    made = WeightedResidual(plain(layer.body), len(layer.alpha))
    made.alpha = layer.alpha
    return made


class _Patches(nn.Module):
    """Patchify by reshaping and one permutation."""

    def __init__(self, layer: Patchify) -> None:
        super().__init__()
        self.patch = layer.patch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        p = self.patch
        x = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(n, (h // p) * (w // p), c * p * p)


class _SLL(nn.Module):
    def __init__(self, layer: SLLBlock) -> None:
        super().__init__()
        self.into, self.back = _linear(layer.weight.mT, layer.bias), _linear(2 * layer.weight / layer.scale, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.back(torch.relu(self.into(x)))


class _SmoothSLL(_SLL):
    """(z + h)^2 / (4 h) for |z| < h, max(z, 0) elsewhere, is (relu(z + h)^2 - relu(z - h)^2) / (4 h)."""

    def __init__(self, layer: SmoothSLLBlock) -> None:
        super().__init__(layer)
        self.bend = layer.bend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.into(x)
        over, under = torch.relu(z + self.bend), torch.relu(z - self.bend)
        return x - self.back((over * over - under * under) / (4 * self.bend))


class _Project(nn.Module):
    """x R / sqrt(R^2 + relu(|x|^2 - R^2))."""

    def __init__(self, layer: LayerProject) -> None:
        super().__init__()
        self.radius = layer.radius

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        over = torch.relu((x * x).sum(-1, keepdim=True) - self.radius**2)
        return x * (self.radius / torch.sqrt(over + self.radius**2))


class _Token(nn.Module):
    """ClassToken without `expand`: the token times zeros plus one of each image."""

    def __init__(self, layer: ClassToken) -> None:
        super().__init__()
        self.token = layer.token.detach().clone()[None, None]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([0 * x[:, :1] + self.token, x], dim=1)


class _Take(nn.Module):
    def __init__(self, layer: TakeToken) -> None:
        super().__init__()
        self.index = layer.index

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, self.index]


class _Attention(nn.Module):
    """softmax(scale Q K^T) V by matrix products, and the residual where there is one."""

    def __init__(self, layer: ResidualAttention | SelfAttention) -> None:
        super().__init__()
        self.heads, width = layer.heads, layer.query.weight.shape[0]
        self.residual = isinstance(layer, ResidualAttention)
        divisor = math.sqrt(width // layer.heads) / (layer.factor if isinstance(layer, SelfAttention) else 1.0)
        bias = layer.query.bias
        self.query = _linear(layer.query.weight / divisor, None if bias is None else bias / divisor)
        self.key, self.value = (_linear(part.weight, part.bias) for part in (layer.key, layer.value))
        self.output = _linear(layer.output.weight, layer.output.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape

        def split(y: torch.Tensor) -> torch.Tensor:
            return y.reshape(n, tokens, self.heads, width // self.heads).permute(0, 2, 1, 3)

        scores = torch.matmul(split(self.query(x)), split(self.key(x)).permute(0, 1, 3, 2))
        mixed = torch.matmul(torch.softmax(scores, -1), split(self.value(x)))
        branch = self.output(mixed.permute(0, 2, 1, 3).reshape(n, tokens, width))
        return x + branch if self.residual else branch


class _ScaledCosine(nn.Module):
    """nu softmax(tau Q^ K^^T) V^ by matrix products, rows divided by a root."""

    def __init__(self, layer: ScaledCosineAttention) -> None:
        super().__init__()
        self.heads, self.eps, self.tau = layer.heads, layer.eps, float(layer.tau.detach())
        linears = (layer.query, layer.key, layer.value)
        self.query, self.key, self.value = (_linear(linear.weight, None) for linear in linears)
        self.output = _linear(layer.output.weight * layer.nu.detach(), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape

        def rows(y: torch.Tensor) -> torch.Tensor:
            y = y.reshape(n, tokens, self.heads, width // self.heads).permute(0, 2, 1, 3)
            return y / torch.sqrt((y * y).sum(-1, keepdim=True) + self.eps)

        query, key, value = rows(self.query(x)), rows(self.key(x)), rows(self.value(x))
        weights = torch.softmax(self.tau * torch.matmul(query, key.permute(0, 1, 3, 2)), -1)
        return self.output(torch.matmul(weights, value).permute(0, 2, 1, 3).reshape(n, tokens, width))


class _Convolution(nn.Module):
    """A token convolution by zeros put before and after the tokens, and one matrix for all shifts of a slice."""

    def __init__(self, layer: TokenConvolution | BoundedTokenConvolution) -> None:
        super().__init__()
        slices = cast("list[SliceConvolution]", list(layer.slices))
        self.linears = nn.ModuleList(_linear(one.weight.permute(0, 2, 1).flatten(1), one.bias) for one in slices)
        self.kernels = [one.weight.shape[2] for one in slices]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, tokens, share = [], x.shape[1], x.shape[2] // len(self.kernels)
        for index, (linear, kernel) in enumerate(zip(self.linears, self.kernels, strict=True)):
            part = x[:, :, index * share : (index + 1) * share]
            zeros = [0 * part[:, :1]] * (kernel // 2)
            padded = torch.cat([*zeros, part, *zeros], dim=1)
            found.append(linear(torch.cat([padded[:, tap : tap + tokens] for tap in range(kernel)], dim=2)))
        return torch.cat(found, dim=2)


class _Resize(nn.Module):
    """Copies of each pixel side by side, along an axis of their own."""

    def __init__(self, layer: Resize) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, channels, height, width = x.shape
        factor = self.layer.factor(height, width)
        rows = torch.cat([x.reshape(n, channels, height, 1, width, 1)] * factor, dim=3)
        return torch.cat([rows] * factor, dim=5).reshape(n, channels, factor * height, factor * width)


class _Clip(nn.Module):
    """min(max(z, 0), theta) = relu(z) - relu(z - theta) for theta >= 0."""

    def __init__(self, layer: ClippedReLU) -> None:
        super().__init__()
        self.theta = layer.theta.detach().clamp(min=0)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.relu(z) - torch.relu(z - self.theta)


plain.register(Patchify, _Patches)
plain.register(SLLBlock, _SLL)
plain.register(SmoothSLLBlock, _SmoothSLL)
plain.register(LayerProject, _Project)
plain.register(ClassToken, _Token)
plain.register(TakeToken, _Take)
plain.register(TokenConvolution, _Convolution)
plain.register(BoundedTokenConvolution, _Convolution)
plain.register(ClippedReLU, _Clip)
plain.register(Resize, _Resize)
plain.register(ResidualAttention, _Attention)
plain.register(SelfAttention, _Attention)
plain.register(ScaledCosineAttention, _ScaledCosine)
