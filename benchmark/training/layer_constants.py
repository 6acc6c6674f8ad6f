"""The Lipschitz constant of each kind of layer, made of the norms of linear maps: how training counts it
(layer_norms.py).

By exact type. A layer whose constant is not finite, or not known, is refused with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import islice

import torch
from torch import Tensor, nn

from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.attention_l2_constant import mixing_constant
from benchmark.layers.attention_window import DotProductWindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.convolution_matrices import convolution_matrix, zero_padded_frequencies
from benchmark.layers.gelu_slope import GELU_SLOPE
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual
from benchmark.layers.resize import Resize
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, MergeTokens, Patchify, Positions, TakeToken
from benchmark.runtime.errors import BenchmarkError


@dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear map, or several alike, read from its layer's weights at each use.

    `run` takes vectors of `shape` (maps, *inputs), float32, to their images (maps, *outputs), without a bias; `upper`
    gives bounds of the norms, (maps,) float64.
    """

    run: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    upper: Callable[[], Tensor]


@dataclass(frozen=True)
class Constant:
    """A layer's: `of` makes it, (), from the norms of `maps`, each (maps,), in order."""

    maps: tuple[LinearMap, ...]
    of: Callable[[Sequence[Tensor]], Tensor]


def layer_constants(layers: Iterable[nn.Module], x: Tensor) -> list[Constant]:
    """Of layers in order, the first given inputs of the shape of x (1, *shape)."""
    found = []
    with torch.no_grad():
        for layer in layers:
            exact = type(layer) in layer_constant.registry  # a subclass may compute something else
            found.append(layer_constant(layer, x) if exact else layer_constant.dispatch(object)(layer, x))
            x = layer(x.clone())  # an activation may work in place
    return found


@singledispatch
def layer_constant(layer: nn.Module, x: Tensor) -> Constant:
    """The constant of one layer on inputs of the shape of x (1, *shape).

    Raises:
        BenchmarkError: none is known.
    """
    raise BenchmarkError(f"no global Lipschitz constant is known in training for the layer {type(layer).__name__}")


def matrices(read: Callable[[], Tensor]) -> LinearMap:
    """v -> v M, for matrices M (maps, rows, columns) that are read at each use."""
    return LinearMap(
        lambda v: (v[:, None] @ read().float())[:, 0],
        tuple(read().shape[:2]),
        lambda: torch.linalg.matrix_norm(read().detach().double(), ord=2),
    )


def check_convolution(layer: nn.Conv2d) -> None:
    if layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        raise BenchmarkError("Conv2d with a dilation or a padding mode other than zeros has no norm in training")


def convolution_upper(layer: nn.Conv2d, height: int, width: int) -> Tensor:
    """A bound of the norm of a zero-padded convolution of height x width images, before rounding: () float64."""
    weight = layer.weight.detach().double()
    if (matrix := convolution_matrix(layer, weight, height, width)) is not None:
        return torch.linalg.matrix_norm(matrix, ord=2).to(weight.device)
    groups = weight.unflatten(0, (layer.groups, -1))
    blocks = torch.stack([zero_padded_frequencies(group, height, width, layer.stride) for group in groups])
    return torch.linalg.matrix_norm(blocks, ord=2).max()


@layer_constant.register(nn.Linear)
@layer_constant.register(BoundedLinear)
@layer_constant.register(OrthogonalLinear)
@layer_constant.register(NormalisedHead)
def _(layer: nn.Linear, x: Tensor) -> Constant:
    return _only(matrices(lambda: layer.weight.mT[None]))  # of one token, which is that of all of them


@layer_constant.register
def _(layer: nn.Conv2d, x: Tensor) -> Constant:
    check_convolution(layer)
    height, width = x.shape[2:]
    found = LinearMap(
        lambda v: layer._conv_forward(v, layer.weight.float(), None),
        tuple(x.shape),
        lambda: convolution_upper(layer, height, width)[None],
    )
    return _only(found)


@layer_constant.register
def _(layer: L2Attention, x: Tensor) -> Constant:
    """L(N) / s times the less of sqrt(sum_h |W_Q,h|^4 |W_V,h|^2) |W_O| and |W_Q| |stacked W_Q,h^T W_V,h W_O,h|
    (certificates/bounds/l2_attention_norm.py, `kim` and b).
    """

    def stacked() -> Tensor:
        query, value, output = layer.head_weights()
        return (query.mT @ value @ output).flatten(0, 1)[None]

    reads = (
        lambda: layer.head_weights()[0],
        lambda: layer.head_weights()[1],
        lambda: layer.output.weight.mT[None],
        lambda: layer.query.weight.mT[None],
        stacked,
    )
    factor = mixing_constant(x.shape[1]) / math.sqrt(layer.query.out_features / layer.heads)

    def constant(norms: Sequence[Tensor]) -> Tensor:
        query, value, output, together, joined = norms
        by_head = (query**4 * value**2).sum().sqrt() * output[0]
        return factor * torch.minimum(by_head, together[0] * joined[0])

    return Constant(tuple(map(matrices, reads)), constant)


@layer_constant.register
def _(layer: nn.Sequential, x: Tensor) -> Constant:
    parts = layer_constants(layer, x)

    def constant(norms: Sequence[Tensor]) -> Tensor:
        given = iter(norms)
        return product([part.of(list(islice(given, len(part.maps)))) for part in parts])

    return Constant(tuple(found for part in parts for found in part.maps), constant)


@layer_constant.register
def _(layer: Residual, x: Tensor) -> Constant:
    (body,) = layer_constants([layer.body], x)
    return Constant(body.maps, lambda norms: 1 + body.of(norms))


@layer_constant.register
def _(layer: Normalise, x: Tensor) -> Constant:
    return _fixed(1 / layer.std)


@layer_constant.register
def _(layer: Resize, x: Tensor) -> Constant:
    return _fixed(layer.factor(x.shape[2], x.shape[3]))


@layer_constant.register
def _(layer: MeanPool, x: Tensor) -> Constant:
    return _fixed(1 / math.sqrt(x.shape[1]))


@layer_constant.register
def _(layer: nn.GELU, x: Tensor) -> Constant:
    return _fixed(GELU_SLOPE[layer.approximate])


@layer_constant.register(nn.ReLU)
@layer_constant.register(ClippedReLU)
@layer_constant.register(nn.Flatten)
@layer_constant.register(nn.Identity)
@layer_constant.register(Patchify)
@layer_constant.register(MergeTokens)
@layer_constant.register(Positions)
@layer_constant.register(ClassToken)
@layer_constant.register(TakeToken)
@layer_constant.register(LayerProject)
def _(layer: nn.Module, x: Tensor) -> Constant:
    return _fixed(1.0)


@layer_constant.register(nn.LayerNorm)
def _(layer: nn.Module, x: Tensor) -> Constant:
    raise BenchmarkError(
        "LayerNorm has a global Lipschitz constant of up to 1/sqrt(eps), too large to train with; use LayerProject"
    )


@layer_constant.register(ReleasedL2Attention)
@layer_constant.register(ResidualAttention)
@layer_constant.register(SelfAttention)
@layer_constant.register(DotProductWindowAttention)
@layer_constant.register(nn.MultiheadAttention)
def _(layer: nn.Module, x: Tensor) -> Constant:
    raise BenchmarkError(f"{type(layer).__name__} has no global Lipschitz constant (Kim et al. 2021); use L2Attention")


def product(constants: Sequence[Tensor]) -> Tensor:
    """() of (), on the device of those that lie on one."""
    return math.prod(constants, start=torch.ones(()))


def _only(found: LinearMap) -> Constant:
    return Constant((found,), lambda norms: norms[0][0])


def _fixed(value: float) -> Constant:
    return Constant((), lambda norms: torch.tensor(value))
