"""Layers that reorder, copy, clip or merge, matrices of convolutions, timm's first weights; and what layers refuse, in words."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from timm.models.swin_transformer import PatchMerging
from tiny_layers import draw
from torch import nn

from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.lipschitz import lipschitz_constant
from benchmark.layers import convolution_matrices
from benchmark.layers.attention import LipschitzNormAttention, SelfAttention
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_window import DotProductWindowAttention, L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention, MaxMinTokens
from benchmark.layers.convolution_matrices import convolution_matrix
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import SmoothSLLBlock
from benchmark.layers.residual import WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import MergeTokens
from benchmark.layers.vit import timm_vit


def test_each_group_of_channels_moves_by_one_place_its_own_way() -> None:
    x = torch.zeros(1, 9, 10)
    x[0, 4] = 1.0  # the middle of 3x3
    places = ShiftTokens(3, 2)(x)[0].argmax(0)
    assert places.tolist() == [7, 7, 1, 1, 5, 5, 3, 3, 4, 4]


def test_what_leaves_the_grid_comes_in_at_the_other_edge() -> None:
    x = torch.zeros(1, 9, 4)
    x[0, 0] = 1.0
    assert ShiftTokens(3, 1)(x)[0].argmax(0).tolist() == [3, 6, 1, 2]


def test_the_absolute_value_of_half_is_the_sorting_of_pairs_but_for_a_rotation() -> None:
    pairs = torch.randn(100, 2, dtype=torch.float64)
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5  # difference and sum
    folded = Absolute(1)(pairs @ turn.mT) @ turn
    assert torch.allclose(folded, pairs.sort(dim=1, descending=True).values)
    assert torch.allclose(folded.norm(dim=1), pairs.norm(dim=1))


def test_each_pixel_is_copied_factor_by_factor_times() -> None:
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    large = Resize(12)(x)
    assert large.shape == (2, 3, 12, 12)
    assert all(torch.equal(large[:, :, row::3, column::3], x) for row in range(3) for column in range(3))
    assert torch.equal(large[:, :, :3, :3], x[:, :, :1, :1].expand(2, 3, 3, 3))
    assert torch.equal(large, torch.nn.functional.interpolate(x, size=(12, 12), mode="nearest"))
    assert torch.equal(Resize(4)(x), x)


def test_every_move_grows_by_the_factor() -> None:
    move = torch.randn(5, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(Resize(28)(move).flatten(1).norm(dim=1), 7 * move.flatten(1).norm(dim=1), rtol=1e-14)


def with_thresholds(*thresholds: float) -> ClippedReLU:
    layer = ClippedReLU((len(thresholds),))
    layer.theta.data = torch.tensor(thresholds)
    return layer


def test_outputs_stay_between_0_and_each_unit_s_threshold() -> None:
    z = torch.tensor([[-2.0, -0.5, 0.0], [0.3, 0.3, 0.3], [1.0, 1.0, 9.0]])
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.3, 0.25, 0.0], [0.5, 0.25, 0.0]])
    assert torch.equal(with_thresholds(0.5, 0.25, 0.0)(z), expected)


def test_a_threshold_below_0_counts_as_0_and_gets_no_gradient() -> None:
    layer = with_thresholds(-1.0, 0.5)
    z = torch.tensor([[-2.0, -2.0], [0.2, 0.2], [3.0, 3.0]], requires_grad=True)
    out = layer(z)
    assert torch.equal(out, torch.tensor([[0.0, 0.0], [0.0, 0.2], [0.0, 0.5]]))
    out.sum().backward()
    assert torch.equal(layer.theta.grad, torch.tensor([0.0, 1.0]))  # where the output is the threshold
    assert torch.equal(z.grad, torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))


def test_a_threshold_for_each_unit_of_an_image() -> None:
    layer = ClippedReLU((2, 3, 4), initial=0.75)
    assert layer.theta.shape == (2, 3, 4)
    assert torch.equal(layer(torch.full((5, 2, 3, 4), 2.0)), torch.full((5, 2, 3, 4), 0.75))
    layer.theta.data[1, 2, 3] = 0.25
    out = layer(torch.ones(1, 2, 3, 4))
    assert out.amin() == out[0, 1, 2, 3] == 0.25


@pytest.mark.parametrize("side", [2, 4, 6])
def test_with_norm_and_linear_it_is_timms_patch_merging(side) -> None:
    torch.manual_seed(0)
    theirs, x = PatchMerging(3), torch.randn(2, side**2, 3)
    nn.init.normal_(theirs.norm.weight)
    found = nn.Sequential(MergeTokens(side), theirs.norm, theirs.reduction)(x)
    assert found.shape == (2, side**2 // 4, 6)
    assert torch.allclose(found, theirs(x.unflatten(1, (side, side))).flatten(1, 2), atol=1e-6)


def test_four_neighbours_stand_side_by_side_down_first() -> None:
    tokens = torch.arange(16.0).reshape(1, 16, 1)
    assert MergeTokens(4)(tokens)[0].tolist() == [[0, 4, 1, 5], [2, 6, 3, 7], [8, 12, 9, 13], [10, 14, 11, 15]]


def test_it_only_reorders() -> None:
    x = draw(1, 16, 3)
    jacobian = torch.autograd.functional.jacobian(MergeTokens(4), x).reshape(48, 48)
    assert torch.equal(jacobian.sum(0), torch.ones(48).double())
    assert torch.equal(jacobian @ jacobian.mT, torch.eye(48).double())
    assert exact_layer_bound(MergeTokens(4), x).rounding(torch.tensor([0.3]).double()) == 0
    assert lipschitz_constant(MergeTokens(4), x) == 1.0


@pytest.mark.parametrize("shape", [(1, 15, 3), (1, 64, 3), (16, 3), (1, 1, 4, 4)])
def test_other_tokens_are_refused(shape) -> None:
    with pytest.raises(ValueError, match="4x4 tokens"):
        MergeTokens(4)(torch.zeros(shape))


SHAPES = [
    # kernel, stride, padding, height, width
    (3, 1, 1, 6, 5),
    (3, 1, 0, 6, 5),
    (2, 1, 1, 4, 4),
    (4, 2, 1, 8, 8),
    (4, 2, 0, 7, 9),
    (4, 2, 2, 5, 6),
    (3, 2, 1, 7, 6),
    ((2, 5), (1, 3), (1, 2), 4, 8),
    ((5, 3), (2, 2), (4, 1), 3, 5),
    (3, 2, 1, 1, 1),
]


def layer_of(kernel, stride, padding, seed: int = 0) -> nn.Conv2d:
    torch.manual_seed(seed)
    return nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dtype=torch.float64).requires_grad_(False)


@pytest.mark.parametrize(("kernel", "stride", "padding", "height", "width"), SHAPES)
def test_the_matrix_is_the_convolution(kernel, stride, padding, height, width) -> None:
    layer = layer_of(kernel, stride, padding)
    x = torch.randn(4, 2, height, width, dtype=torch.float64)
    matrix = convolution_matrix(layer, layer.weight, height, width)
    moved = layer(x) - layer(torch.zeros_like(x))
    assert torch.allclose(x.flatten(1) @ matrix, moved.flatten(1), atol=1e-12)


def test_large_ones_are_not_formed(monkeypatch) -> None:
    layer = layer_of(3, 1, 1)
    assert convolution_matrix(layer, layer.weight, 6, 6) is not None
    monkeypatch.setattr(convolution_matrices, "SIDE", 71)  # 2 * 6 * 6 inputs, fewer than outputs
    assert convolution_matrix(layer, layer.weight, 6, 6) is None
    monkeypatch.setattr(convolution_matrices, "SIDE", 72)
    monkeypatch.setattr(convolution_matrices, "NUMBERS", 72 * 108 - 1)
    assert convolution_matrix(layer, layer.weight, 6, 6) is None


@pytest.mark.parametrize(
    ("weight_init", "digest", "following"),
    [("skip", "f459d62d5d6e4675", 0.027593612670898438), ("", "7711b04a2f40bda3", 0.36213523149490356)],
)
def test_a_new_network_has_the_weights_of_timm_1_0_9(weight_init, digest, following) -> None:
    torch.manual_seed(0)
    vit = timm_vit(
        img_size=8, patch_size=4, in_chans=1, num_classes=4, embed_dim=8, depth=2, num_heads=2, weight_init=weight_init
    )
    weights = sorted(vit.state_dict().items())
    assert all(torch.isfinite(tensor).all() for _, tensor in weights)
    found = hashlib.sha256(b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in weights)).hexdigest()
    assert found[:16] == digest
    assert float(torch.rand(())) == following, "the generator goes on from the same place"


MADE = [  # a layer, its arguments, and what is said
    (SelfAttention, (12, 0), {}, "divide"),
    (SelfAttention, (12, 5), {}, "divide"),
    (SelfAttention, (12, 2), {"scale": -1.0}, "scale"),
    (SelfAttention, (12, 2), {"scale": math.nan}, "scale"),
    *((GridAttention, (8, heads), {"inner": 2, "side": 3}, "heads") for heads in (3, 0, 26)),
    (GridAttention, (8, 2), {"inner": 0, "side": 3}, "heads"),
    (GridAttention, (8, 2), {"inner": 5, "side": 3}, "heads"),
    (GridAttention, (8, 2), {"inner": 2, "side": 0}, "heads"),
    *(
        (CompetitiveAttention, (20, heads), {"side": 3, "window": 5}, f"{heads} heads do not divide")
        for heads in (0, 3)
    ),
    (
        ConeAttention,
        (20, 2),
        {"side": 3, "window": 4},
        "a window of 4 does not tile 3x3 tokens: the next that does has 5",
    ),
    *((ConeAttention, (20, 1), {"side": 2, "window": window}, "2 or more of 2x2 tokens") for window in (1, 5)),
    (CompetitiveAttention, (20, 4), {"side": 3, "window": 5}, "5 channels a head are fewer"),
    *(
        (CompetitiveAttention, (20, 2), {"side": 3, "window": 5, "budget": budget}, "positive and finite")
        for budget in (0.0, -1.0, math.inf, math.nan)
    ),
    *((MaxMinTokens, arguments, {}, "should be 2 or more") for arguments in ((1, 1), (2, 0))),
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
    (ConeAttention(10, 1, side=3, window=5), (1, 8, 10), "3x3 tokens"),
    (ConeAttention(10, 1, side=3, window=5), (1, 9, 11), "11 channels are given"),
    (MaxMinTokens(2, 3), (1, 4, 5), "too few for 3 pairs"),
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
