"""Layers that reorder, copy, clip or merge; matrices of convolutions; timm's initial weights; and what layers refuse."""

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


def test_each_group_of_channels_moves_by_one_place_its_own_way_around_the_grid() -> None:
    for side_channels, token, places in ((10, 4, [7, 7, 1, 1, 5, 5, 3, 3, 4, 4]), (4, 0, [3, 6, 1, 2])):
        x = torch.zeros(1, 9, side_channels)
        x[0, token] = 1.0
        assert ShiftTokens(3, side_channels // 4)(x)[0].argmax(0).tolist() == places


def test_the_absolute_value_of_half_is_the_sorting_of_pairs_up_to_a_rotation() -> None:
    pairs = torch.randn(100, 2, dtype=torch.float64)
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5  # difference and sum
    folded = Absolute(1)(pairs @ turn.mT) @ turn
    assert torch.allclose(folded, pairs.sort(dim=1, descending=True).values)


def test_each_pixel_is_copied_and_every_move_grows_by_the_factor() -> None:
    x = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Resize(12)(x), nn.functional.interpolate(x, size=(12, 12), mode="nearest"))
    assert torch.equal(Resize(4)(x), x)
    move = draw(5, 1, 4, 4)
    assert torch.allclose(Resize(28)(move).flatten(1).norm(dim=1), 7 * move.flatten(1).norm(dim=1), rtol=1e-14)


def test_clipped_outputs_stay_between_0_and_each_unit_s_threshold_of_which_negative_ones_count_as_0() -> None:
    layer = ClippedReLU((4,))
    layer.theta.data = torch.tensor([0.5, 0.25, 0.0, -1.0])
    z = torch.tensor([[-2.0, -0.5, 0.0, -2.0], [0.2, 0.2, 0.3, 0.2], [1.0, 1.0, 9.0, 3.0]], requires_grad=True)
    out = layer(z)
    assert torch.equal(out, torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.2, 0.2, 0.0, 0.0], [0.5, 0.25, 0.0, 0.0]]))
    out.sum().backward()
    assert layer.theta.grad[[0, 1, 3]].tolist() == [1.0, 1.0, 0.0]  # where the output is the threshold
    assert z.grad[:, [0, 1, 3]].tolist() == [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    of_images = ClippedReLU((2, 3, 4), initial=0.75)
    assert torch.equal(of_images(torch.full((5, 2, 3, 4), 2.0)), torch.full((5, 2, 3, 4), 0.75))
    of_images.theta.data[1, 2, 3] = 0.25
    out = of_images(torch.ones(1, 2, 3, 4))
    assert out.amin() == out[0, 1, 2, 3] == 0.25


@pytest.mark.parametrize("side", [2, 4, 6])
def test_merged_tokens_with_norm_and_linear_are_timms_patch_merging(side) -> None:
    torch.manual_seed(0)
    theirs, x = PatchMerging(3), torch.randn(2, side**2, 3)
    nn.init.normal_(theirs.norm.weight)
    ours = nn.Sequential(MergeTokens(side), theirs.norm, theirs.reduction)(x)
    assert torch.allclose(ours, theirs(x.unflatten(1, (side, side))).flatten(1, 2), atol=1e-6)


def test_merging_only_reorders_down_first() -> None:
    tokens = torch.arange(16.0).reshape(1, 16, 1)
    assert MergeTokens(4)(tokens)[0].tolist() == [[0, 4, 1, 5], [2, 6, 3, 7], [8, 12, 9, 13], [10, 14, 11, 15]]
    x = draw(1, 16, 3)
    assert exact_layer_bound(MergeTokens(4), x).rounding(torch.tensor([0.3]).double()) == 0
    assert lipschitz_constant(MergeTokens(4), x) == 1.0


SHAPES = [
    (3, 1, 1, 6, 5), (3, 1, 0, 6, 5), (2, 1, 1, 4, 4), (4, 2, 1, 8, 8), (4, 2, 0, 7, 9), (4, 2, 2, 5, 6), (3, 2, 1, 7, 6),
    ((2, 5), (1, 3), (1, 2), 4, 8), ((5, 3), (2, 2), (4, 1), 3, 5), (3, 2, 1, 1, 1),
]  # kernel, stride, padding, height, width  # fmt: skip


@pytest.mark.parametrize(("kernel", "stride", "padding", "height", "width"), SHAPES)
def test_the_matrix_is_the_convolution(kernel, stride, padding, height, width) -> None:
    layer = nn.Conv2d(2, 3, kernel, stride=stride, padding=padding, dtype=torch.float64).requires_grad_(False)
    x = draw(4, 2, height, width)
    matrix = convolution_matrix(layer, layer.weight, height, width)
    moved = layer(x) - layer(torch.zeros_like(x))
    assert torch.allclose(x.flatten(1) @ matrix, moved.flatten(1), atol=1e-12)


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
    content = b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in weights)
    assert hashlib.sha256(content).hexdigest()[:16] == digest
    assert float(torch.rand(())) == following, "the generator goes on from the same place"


NEAR, BAD = {"side": 3, "window": 5}, (0.0, -1.0, math.inf, math.nan)
MADE = [  # a layer, its arguments, and the message
    *((SelfAttention, (12, heads), {}, "divide") for heads in (0, 5)),
    *((SelfAttention, (12, 2), {"scale": scale}, "scale") for scale in (-1.0, math.nan)),
    *((GridAttention, (8, heads), {"inner": 2, "side": 3}, "heads") for heads in (3, 0, 26)),
    *((GridAttention, (8, 2), {"inner": inner, "side": side}, "heads") for inner, side in ((0, 3), (5, 3), (2, 0))),
    (CompetitiveAttention, (20, 3), NEAR, "3 heads do not divide"),
    (CompetitiveAttention, (20, 4), NEAR, "5 channels a head are fewer"),
    *((CompetitiveAttention, (20, heads), NEAR, f"heads {heads} should") for heads in (0, 2.0)),
    *((ConeAttention, (20, 2), {"side": 3, "window": n}, f"window {n} should") for n in (1, 5.0)),
    (ConeAttention, (20, 2), {**NEAR, "side": 65}, "side 65 should be a whole number from 1 to 64"),
    (ConeAttention, (20, 2), {"side": 3, "window": 4}, "4 does not tile 3x3 tokens: the next that does has 5"),
    (ConeAttention, (20, 1), {"side": 2, "window": 5}, "more than 2x2 tokens"),
    *((CompetitiveAttention, (20, 2), {**NEAR, "budget": b}, f"budget {b} should") for b in (*BAD, True)),
    *((MaxMinTokens, arguments, {}, "should be a whole") for arguments in ((1, 1), (2, 0))),
    *((L2WindowAttention, (8, 2), {"side": s, "window": w}, "do not tile") for s, w in ((5, 2), (4, 0), (0, 2))),
    *((L2WindowAttention, (8, 2), {"side": 4, "window": 2, "shift": s}, f"shift of {s}") for s in (2, -1)),
    (L2WindowAttention, (8, 2), {"side": 4, "window": 4, "shift": 1}, "shift of 1"),
    (DotProductWindowAttention, (6, 4), {"side": 4, "window": 2}, "divide"),
    *((ClippedReLU, ((3,),), {"initial": value}, "initial .* should be") for value in BAD),
    *((ShiftTokens, sizes, {}, "should be") for sizes in ((0, 1), (2, 0))),
    (Absolute, (0,), {}, "should be"),
    *((SmoothSLLBlock, (4, 4), {"bend": bend}, "bend") for bend in (-1.0, 0.0, math.nan, math.inf)),
    *((MergeTokens, (side,), {}, "do not tile") for side in (0, 1, 3, 4.0)),
    (Resize, (0,), {}, "size 0 should be"),
    *((ScaledCosineAttention, (8, heads), {"eps": 0.1}, f"{heads} heads do not divide width 8") for heads in (0, 3)),
    (LipschitzNormAttention, (8, 3), {}, "3 heads do not divide width 8"),
    *((ScaledCosineAttention, (8, 2), {"eps": eps}, f"eps {eps} should be between") for eps in (0.0, math.nan)),
    (ScaledCosineAttention, (8, 2), {"eps": 0.1, "nu": math.inf}, "nu inf"),
    (ScaledCosineAttention, (8, 2), {"eps": 0.1, "tau": math.nan}, "tau nan"),
    (CenterNorm, (1,), {}, "width of 2 or more, not 1"),
    (WeightedResidual, (nn.Identity(), 0), {}, "width 0"),
    (WeightedResidual, (nn.Identity(), 3), {"initial": math.inf}, "initial inf should be a finite"),
    *((make, (8, (2,)), {}, "kernel 2") for make in (TokenConvolution, BoundedTokenConvolution)),
    (TokenConvolution, (8, (3, 0)), {}, "kernel 0"),
    *((TokenConvolution, (8, kernels), {}, f"{len(kernels)} kernels") for kernels in ((3,) * 3, ())),
    *((BoundedTokenConvolution, (4, (3,)), {"norm": norm}, "norm .* should be") for norm in BAD),
]
CALLED = [  # a layer, the shape of its input, and the message
    (GridAttention(8, 2, inner=2, side=3), (1, 8, 8), "3x3 tokens"),
    (L2WindowAttention(8, 2, side=4, window=2), (1, 17, 8), "4x4 tokens"),
    (ConeAttention(10, 1, side=3, window=5), (1, 8, 10), "3x3 tokens"),
    (ConeAttention(10, 1, side=3, window=5), (1, 9, 11), "11 channels are given"),
    (MaxMinTokens(2, 3), (1, 4, 5), "too few for 3 pairs"),
    *((ClippedReLU((3,)), shape, "do not fit") for shape in ((5, 4), (5, 1), (5, 3, 1), (3,))),
    *((ShiftTokens(2, moved), shape, "are") for moved, shape in ((1, (1, 5, 4)), (2, (1, 4, 7)))),
    (Absolute(3), (1, 2), "are"),
    *((MergeTokens(4), shape, "4x4 tokens") for shape in ((1, 15, 3), (1, 64, 3), (16, 3), (1, 1, 4, 4))),
    *((Resize(size), (1, 1, 4, 4), f"4x4 images cannot be copied to {size}x{size}") for size in (10, 2)),
    *((Resize(8), (1, 1, h, w), f"{h}x{w} images cannot be copied to 8x8") for h, w in ((4, 2), (2, 4))),
    (WeightedResidual(nn.Linear(4, 3), 4), (2, 4), r"turns \(2, 4\) into \(2, 3\)"),
    (WeightedResidual(nn.Identity(), 1), (2, 4), "its weights are 1"),
]


@pytest.mark.parametrize(("make", "arguments", "options", "reason"), MADE)
def test_bad_arguments_are_refused(make, arguments, options, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        make(*arguments, **options)


@pytest.mark.parametrize(("layer", "shape", "reason"), CALLED)
def test_inputs_that_do_not_fit_are_refused(layer, shape, reason) -> None:
    with pytest.raises(ValueError, match=reason):
        layer(torch.zeros(shape))


def test_large_convolution_matrices_are_not_formed(monkeypatch) -> None:
    layer = nn.Conv2d(2, 3, 3, padding=1)
    assert convolution_matrix(layer, layer.weight, 6, 6) is not None
    monkeypatch.setattr(convolution_matrices, "SIDE", 71)  # 2 * 6 * 6 inputs, fewer than outputs
    assert convolution_matrix(layer, layer.weight, 6, 6) is None
    monkeypatch.setattr(convolution_matrices, "SIDE", 72)
    monkeypatch.setattr(convolution_matrices, "NUMBERS", 72 * 108 - 1)
    assert convolution_matrix(layer, layer.weight, 6, 6) is None
