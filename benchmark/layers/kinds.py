"""The layers that a network's description may name, each with its constructor's arguments: how they are read from a layer,
and what they may be.

Read are attributes that the constructor sets, or shapes of parameters. Arguments that only say where parameters start are
left out, since the parameters come with the description.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch import nn

from benchmark.layers.arguments import Check, either, number, one_of, positive, truth, whole, wholes
from benchmark.layers.attention import ResidualAttention, SelfAttention
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_l2 import L2Attention, ReleasedL2Attention
from benchmark.layers.attention_l2_window import L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.lipschitz_norm import LipschitzNormAttention
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import (
    BoundedSliceConvolution,
    BoundedTokenConvolution,
    SliceConvolution,
    TokenConvolution,
)
from benchmark.layers.tokens import ClassToken, LayerProject, MeanPool, MergeTokens, Patchify, Positions, TakeToken


@dataclass(frozen=True)
class Argument:
    check: Check
    read: Callable[[Any], Any]  # from a layer


@dataclass(frozen=True)
class Kind:
    """A layer that may be described. `parts`: what it contains that is described as layers of their own: "" for nothing,
    "body" for one layer that its constructor takes first, "sequence" for any number.
    """

    layer: type[nn.Module]
    arguments: Mapping[str, Argument]
    parts: str = ""


def _kind(layer: type[nn.Module], parts: str = "", /, **arguments: Check | Argument) -> Kind:
    """A bare check is of the attribute of the argument's name."""
    full = {
        name: given if isinstance(given, Argument) else Argument(given, attrgetter(name))
        for name, given in arguments.items()
    }
    return Kind(layer, full, parts)


def _side(parameter: str, axis: int) -> Argument:
    """A size that is the length of a parameter's axis."""
    return Argument(whole(1), lambda layer: attrgetter(parameter)(layer).shape[axis])


def _shape(parameter: str) -> Argument:
    return Argument(wholes(1), lambda layer: attrgetter(parameter)(layer).shape)


def _at_least(least: float, attribute: str) -> Argument:
    """A number that the layer rounds to float32, which may end below the least that its constructor takes."""
    return Argument(positive, lambda layer: max(attrgetter(attribute)(layer), least))


BIAS = Argument(truth, lambda layer: layer.bias is not None)
HEADS = whole(1)
PAIR = wholes(1, 1024, many=2)
PADDING = either(wholes(0, 64, many=2), one_of("same", "valid"))
SLICES = {
    "width": Argument(whole(1), lambda layer: sum(one.weight.shape[0] for one in layer.slices)),
    "kernels": Argument(wholes(1, 1024), lambda layer: [one.weight.shape[2] for one in layer.slices]),
}
KERNEL = {"width": _side("weight", 0), "kernel": _side("weight", 2)}
ATTENTION: dict[str, Check | Argument] = {"width": _side("query.weight", 1), "heads": HEADS}

KINDS = (
    _kind(nn.Sequential, "sequence"),
    _kind(nn.Linear, in_features=whole(1), out_features=whole(1), bias=BIAS),
    _kind(
        nn.Conv2d,
        in_channels=whole(1),
        out_channels=whole(1),
        kernel_size=PAIR,
        stride=PAIR,
        padding=PADDING,
        dilation=PAIR,
        groups=whole(1),
        bias=BIAS,
        padding_mode=one_of("zeros", "reflect", "replicate", "circular"),
    ),
    _kind(nn.ReLU, inplace=truth),
    _kind(nn.LeakyReLU, negative_slope=number, inplace=truth),
    _kind(nn.GELU, approximate=one_of("none", "tanh")),
    _kind(nn.Tanh),
    _kind(nn.Sigmoid),
    _kind(nn.Softplus, beta=number, threshold=number),
    _kind(nn.LayerNorm, normalized_shape=wholes(1), eps=number, elementwise_affine=truth, bias=BIAS),
    _kind(nn.Flatten, start_dim=whole(-16, 16), end_dim=whole(-16, 16)),
    _kind(nn.Identity),
    _kind(nn.Dropout, p=number, inplace=truth),
    _kind(Normalise, mean=number, std=positive),
    _kind(Resize, size=whole(1, 1024)),
    _kind(Patchify, patch=whole(1, 1024)),
    _kind(MergeTokens, side=whole(2, 1024)),
    _kind(Positions, tokens=_side("offset", 0), width=_side("offset", 1)),
    _kind(ClassToken, width=_side("token", 0)),
    _kind(TakeToken, index=whole(-65536, 65535)),
    _kind(MeanPool),
    _kind(LayerProject, radius=positive),
    _kind(Residual, "body"),
    _kind(WeightedResidual, "body", width=_side("alpha", 0)),
    _kind(BoundedLinear, inputs=_side("raw", 1), outputs=_side("raw", 0), norm=positive, bias=BIAS),
    _kind(OrthogonalLinear, inputs=_side("raw", 1), outputs=_side("raw", 0)),
    _kind(NormalisedHead, width=_side("raw", 1), classes=_side("raw", 0)),
    _kind(SLLBlock, width=_side("weight", 0), hidden=_side("weight", 1)),
    _kind(SmoothSLLBlock, width=_side("weight", 0), hidden=_side("weight", 1), bend=_at_least(1e-6, "bend")),
    _kind(ClippedReLU, shape=_shape("theta")),
    _kind(CenterNorm, width=_side("gamma", 0)),
    _kind(
        SelfAttention,
        **ATTENTION,
        qkv_bias=Argument(truth, lambda layer: layer.query.bias is not None),
        scale=number,
    ),
    _kind(
        ResidualAttention,
        width=_side("query.raw", 1),
        heads=HEADS,
        qk_norm=Argument(positive, attrgetter("query.norm")),
        vo_norm=Argument(positive, attrgetter("value.norm")),
    ),
    _kind(L2Attention, **ATTENTION),
    _kind(ReleasedL2Attention, **ATTENTION),
    _kind(LipschitzNormAttention, **ATTENTION),
    _kind(ScaledCosineAttention, **ATTENTION, eps=_at_least(1e-12, "eps")),
    _kind(
        L2WindowAttention,
        width=_side("content.query.weight", 1),
        heads=Argument(HEADS, attrgetter("content.heads")),
        side=whole(1, 64),  # its mask, which no tensor of the description pays for, has side^2 window^2 numbers
        window=whole(1, 16),
        shift=whole(0, 16),
    ),
    _kind(
        GridAttention,
        width=_side("value.raw", 1),
        heads=HEADS,
        inner=whole(1),
        side=whole(1, 64),  # its places, which no tensor of the description pays for, are side^4 numbers
    ),
    _kind(ShiftTokens, side=whole(1, 1024), moved=whole(1)),
    _kind(Absolute, folded=whole(1)),
    _kind(SliceConvolution, **KERNEL),
    _kind(BoundedSliceConvolution, width=_side("raw", 0), kernel=_side("raw", 2), norm=positive),
    _kind(TokenConvolution, **SLICES),
    _kind(BoundedTokenConvolution, **SLICES, norm=Argument(positive, lambda layer: layer.slices[0].norm)),
)
BY_NAME = {kind.layer.__name__: kind for kind in KINDS}
BY_TYPE = {kind.layer: kind for kind in KINDS}
