"""The layers of benchmark/layers in operations that bound propagation supports: products, sums, relu, softmax, sqrt."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch

import torch
from torch import nn

from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import ClassToken, LayerProject, Patchify


@singledispatch
def plain(layer: nn.Module) -> nn.Module:
    """Return the layer in operations that auto_LiRPA supports; itself unless benchmark/layers has it. In float64."""
    return layer


class Written(nn.Module):
    """A function as a module; `parts` are the modules it calls."""

    def __init__(self, run: Callable[[torch.Tensor], torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


@plain.register
def _(layer: nn.Sequential) -> nn.Module:
    return nn.Sequential(*(plain(part) for part in layer)) if type(layer) is nn.Sequential else layer


@plain.register
def _(layer: Residual) -> nn.Module:
    return Residual(plain(layer.body)) if type(layer) is Residual else layer


@plain.register
def _(layer: WeightedResidual) -> nn.Module:
    if type(layer) is not WeightedResidual:
        return layer
    residual = WeightedResidual(plain(layer.body), len(layer.alpha))
    residual.alpha = layer.alpha
    return residual


@plain.register
def _(layer: BoundedLinear | OrthogonalLinear | NormalisedHead) -> nn.Module:
    return _linear(layer.weight, layer.bias)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    linear.weight.data = weight.detach().clone()
    if bias is not None:
        linear.bias.data = bias.detach().clone()
    return linear.to(weight.device).requires_grad_(False)


@plain.register
def _(layer: Patchify) -> nn.Module:
    """Patches by reshaping and one permutation."""

    def patches(x: torch.Tensor) -> torch.Tensor:
        (n, c, h, w), p = x.shape, layer.patch
        x = x.reshape(n, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)
        return x.reshape(n, (h // p) * (w // p), c * p * p)

    return Written(patches)


@plain.register
def _(layer: Resize) -> nn.Module:
    """Copies of each pixel side by side, along an axis of their own."""

    def resized(x: torch.Tensor) -> torch.Tensor:
        n, channels, height, width = x.shape
        factor = layer.factor(height, width)
        rows = torch.cat([x.reshape(n, channels, height, 1, width, 1)] * factor, dim=3)
        return torch.cat([rows] * factor, dim=5).reshape(n, channels, factor * height, factor * width)

    return Written(resized)


@plain.register
def _(layer: ClassToken) -> nn.Module:
    """The token prepended without `expand`: added to zeros of each image."""
    token = layer.token.detach().clone()[None, None]
    return Written(lambda x: torch.cat([0 * x[:, :1] + token, x], dim=1))


@plain.register
def _(layer: ClippedReLU) -> nn.Module:
    """min(max(z, 0), theta) = relu(z) - relu(z - theta) for theta >= 0."""
    theta = layer.theta.detach().clamp(min=0)
    return Written(lambda z: torch.relu(z) - torch.relu(z - theta))


@plain.register
def _(layer: LayerProject) -> nn.Module:
    """x R / sqrt(R^2 + relu(|x|^2 - R^2))."""

    def projected(x: torch.Tensor) -> torch.Tensor:
        over = torch.relu((x * x).sum(-1, keepdim=True) - layer.radius**2)
        return x * (layer.radius / torch.sqrt(over + layer.radius**2))

    return Written(projected)


@plain.register
def _(layer: SLLBlock) -> nn.Module:
    """A smooth one's (z + h)^2 / (4 h) for |z| < h, max(z, 0) elsewhere, is (relu(z + h)^2 - relu(z - h)^2) / (4 h)."""
    into, back = _linear(layer.weight.mT, layer.bias), _linear(2 * layer.weight / layer.scale)

    def block(x: torch.Tensor) -> torch.Tensor:
        z = into(x)
        if not isinstance(layer, SmoothSLLBlock):
            return x - back(torch.relu(z))
        over, under = torch.relu(z + layer.bend), torch.relu(z - layer.bend)
        return x - back((over * over - under * under) / (4 * layer.bend))

    return Written(block, into, back)


@plain.register
def _(layer: ResidualAttention | SelfAttention) -> nn.Module:
    """softmax(scale Q K^T) V by matrix products, and the residual where there is one."""
    factor, bias = layer.factor if isinstance(layer, SelfAttention) else 1.0, layer.query.bias
    divisor = math.sqrt(layer.query.weight.shape[0] // layer.heads) / factor
    query = _linear(layer.query.weight / divisor, None if bias is None else bias / divisor)
    key, value, output = (_linear(part.weight, part.bias) for part in (layer.key, layer.value, layer.output))

    def attention(x: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(_by_head(query(x), layer.heads), _by_head(key(x), layer.heads).permute(0, 1, 3, 2))
        mixed = torch.matmul(torch.softmax(scores, -1), _by_head(value(x), layer.heads))
        branch = output(mixed.permute(0, 2, 1, 3).reshape(*x.shape))
        return x + branch if isinstance(layer, ResidualAttention) else branch

    return Written(attention, query, key, value, output)


def _by_head(y: torch.Tensor, heads: int) -> torch.Tensor:
    """Reshape (n, tokens, width) to (n, heads, tokens, width / heads)."""
    n, tokens, width = y.shape
    return y.reshape(n, tokens, heads, width // heads).permute(0, 2, 1, 3)


@plain.register
def _(layer: ScaledCosineAttention) -> nn.Module:
    """nu softmax(tau Q^ K^^T) V^ by matrix products, rows divided by a root."""
    tau, inputs = float(layer.tau.detach()), [_linear(part.weight) for part in (layer.query, layer.key, layer.value)]
    output = _linear(layer.output.weight * layer.nu.detach())

    def rows(y: torch.Tensor) -> torch.Tensor:
        y = _by_head(y, layer.heads)
        return y / torch.sqrt((y * y).sum(-1, keepdim=True) + layer.eps)

    def attention(x: torch.Tensor) -> torch.Tensor:
        query, key, value = (rows(linear(x)) for linear in inputs)
        weights = torch.softmax(tau * torch.matmul(query, key.permute(0, 1, 3, 2)), -1)
        return output(torch.matmul(weights, value).permute(0, 2, 1, 3).reshape(*x.shape))

    return Written(attention, *inputs, output)


@plain.register
def _(layer: TokenConvolution | BoundedTokenConvolution) -> nn.Module:
    """Zeros before and after the tokens, and one matrix for all shifts of a slice."""
    kernels = [(part.weight.shape[2], _linear(part.weight.permute(0, 2, 1).flatten(1), part.bias)) for part in layer.slices]

    def convolution(x: torch.Tensor) -> torch.Tensor:
        outputs, tokens, share = [], x.shape[1], x.shape[2] // len(kernels)
        for index, (kernel, linear) in enumerate(kernels):
            part = x[:, :, index * share : (index + 1) * share]
            zeros = [0 * part[:, :1]] * (kernel // 2)
            padded = torch.cat([*zeros, part, *zeros], dim=1)
            outputs.append(linear(torch.cat([padded[:, tap : tap + tokens] for tap in range(kernel)], dim=2)))
        return torch.cat(outputs, dim=2)

    return Written(convolution, *(linear for _, linear in kernels))
