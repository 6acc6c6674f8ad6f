"""Arguments and inputs that a layer cannot take are refused in words, where it is made or called."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from benchmark.layers.attention import LipschitzNormAttention, SelfAttention
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import SmoothSLLBlock
from benchmark.layers.residual import WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import MergeTokens

MADE = [  # a layer, its arguments, and what is said
    (SelfAttention, (12, 0), {}, "divide"),
    (SelfAttention, (12, 5), {}, "divide"),
    (SelfAttention, (12, 2), {"scale": -1.0}, "scale"),
    (SelfAttention, (12, 2), {"scale": math.nan}, "scale"),
    *((GridAttention, (8, heads), {"inner": 2, "side": 3}, "heads") for heads in (3, 0, 26)),
    (GridAttention, (8, 2), {"inner": 0, "side": 3}, "heads"),
    (GridAttention, (8, 2), {"inner": 5, "side": 3}, "heads"),
    (GridAttention, (8, 2), {"inner": 2, "side": 0}, "heads"),
    (L2WindowAttention, (8, 2), {"side": 5, "window": 2}, "do not tile 5x5"),
    (L2WindowAttention, (8, 2), {"side": 4, "window": 0}, "do not tile"),
    (L2WindowAttention, (8, 2), {"side": 0, "window": 2}, "do not tile"),
    (L2WindowAttention, (8, 2), {"side": 4, "window": 2, "shift": 2}, "shift of 2"),
    (L2WindowAttention, (8, 2), {"side": 4, "window": 2, "shift": -1}, "shift of -1"),
    (L2WindowAttention, (8, 2), {"side": 4, "window": 4, "shift": 1}, "shift of 1"),
    (DotProductWindowAttention, (6, 4), {"side": 4, "window": 2}, "divide"),
    *(
        (ClippedReLU, ((3,),), {"initial": initial}, "positive and finite")
        for initial in (0.0, -1.0, math.inf, math.nan)
    ),
    (ShiftTokens, (0, 1), {}, "should be"),
    (ShiftTokens, (2, 0), {}, "should be"),
    (Absolute, (0,), {}, "should be"),
    *((SmoothSLLBlock, (4, 4), {"bend": bend}, "bend") for bend in (-1.0, 0.0, math.nan, math.inf)),
    *((MergeTokens, (side,), {}, "do not tile") for side in (0, 1, 3)),
    (Resize, (0,), {}, "positive"),
    (ScaledCosineAttention, (8, 3), {"eps": 0.1}, "3 heads do not divide width 8"),
    (ScaledCosineAttention, (8, 0), {"eps": 0.1}, "0 heads"),
    (LipschitzNormAttention, (8, 3), {}, "3 heads do not divide width 8"),
    (ScaledCosineAttention, (8, 2), {"eps": 0.0}, "eps 0.0 should be between"),
    (ScaledCosineAttention, (8, 2), {"eps": math.nan}, "eps nan"),
    (ScaledCosineAttention, (8, 2), {"eps": 0.1, "nu": math.inf}, "nu inf"),
    (ScaledCosineAttention, (8, 2), {"eps": 0.1, "tau": math.nan}, "tau nan"),
    (CenterNorm, (1,), {}, "width of 2 or more, not 1"),
    (WeightedResidual, (nn.Identity(), 0), {}, "width 0"),
    (WeightedResidual, (nn.Identity(), 3), {"initial": math.inf}, "inf should be finite"),
    *((make, (8, (2,)), {}, "kernel 2") for make in (TokenConvolution, BoundedTokenConvolution)),
    (TokenConvolution, (8, (3, 0)), {}, "kernel 0"),
    (TokenConvolution, (8, (3, 3, 3)), {}, "3 kernels"),
    (TokenConvolution, (8, ()), {}, "0 kernels"),
    *((BoundedTokenConvolution, (4, (3,)), {"norm": norm}, "positive") for norm in (0.0, -1.0, math.inf, math.nan)),
]
CALLED = [  # a layer, the shape of its input, and what is said
    (GridAttention(8, 2, inner=2, side=3), (1, 8, 8), "3x3 tokens"),
    (L2WindowAttention(8, 2, side=4, window=2), (1, 17, 8), "4x4 tokens"),
    *((ClippedReLU((3,)), shape, "do not fit") for shape in ((5, 4), (5, 1), (5, 3, 1), (3,))),
    (ShiftTokens(2, 1), (1, 5, 4), "are"),
    (ShiftTokens(2, 2), (1, 4, 7), "are"),
    (Absolute(3), (1, 2), "are"),
    (Resize(10), (1, 1, 4, 4), "4x4 images cannot be copied to 10x10"),
    (Resize(2), (1, 1, 4, 4), "4x4 images cannot be copied to 2x2"),
    (Resize(8), (1, 1, 4, 2), "4x2 images cannot be copied to 8x8"),
    (Resize(8), (1, 1, 2, 4), "2x4 images cannot be copied to 8x8"),
    (WeightedResidual(nn.Linear(4, 3), 4), (2, 4), r"turns \(2, 4\) into \(2, 3\)"),
    (WeightedResidual(nn.Identity(), 1), (2, 4), "its weights are 1"),
]


@pytest.mark.parametrize(("make", "arguments", "options", "reason"), MADE)
def test_bad_arguments_are_refused_in_words(make, arguments, options, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        make(*arguments, **options)


@pytest.mark.parametrize(("layer", "shape", "reason"), CALLED)
def test_inputs_that_do_not_fit_are_refused_in_words(layer, shape, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        layer(torch.zeros(shape))
