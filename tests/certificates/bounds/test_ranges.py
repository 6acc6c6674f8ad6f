"""Arguments for which no bound is proven are refused where it is made, and nothing is bounded where float32 overflows."""

from __future__ import annotations

import copy
import math
import re

import pytest
import torch
from tiny_layers import draw, strayed
from torch import nn

from benchmark.certificates import local
from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.bounds.rounding import LARGEST, ROOM
from benchmark.layers.attention import LipschitzNormAttention, ResidualAttention, SelfAttention
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_l2 import L2Attention
from benchmark.layers.attention_window import L2WindowAttention
from benchmark.layers.clipped_relu import ClippedReLU
from benchmark.layers.competitive_attention import CompetitiveAttention, ConeAttention, MaxMinTokens
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import BoundedLinear, SLLBlock, SmoothSLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, SliceConvolution, TokenConvolution
from benchmark.layers.tokens import LayerProject, MeanPool, MergeTokens, Patchify, TakeToken
from benchmark.runtime.errors import BenchmarkError


def altered(layer: nn.Module, value: object, *path: str) -> nn.Module:
    place = layer
    for name in path[:-1]:
        place = getattr(place, name) if not name.isdigit() else place[int(name)]
    setattr(place, path[-1], value)
    return layer


def grid_attention(**filled: float) -> GridAttention:
    layer = GridAttention(4, 2, inner=1, side=2, content=0.5)
    for name, value in filled.items():
        getattr(layer, name).data.fill_(value)
    return layer


def competition(log_budget: float) -> CompetitiveAttention:
    layer = CompetitiveAttention(6, 1, side=2, window=3)
    layer.log_budget.data.fill_(log_budget)
    return layer


class Doubled(SliceConvolution):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def steep_q() -> SLLBlock:
    layer = SLLBlock(4, 3)
    layer.weight.data.fill_(1.0)
    layer.log_q.data[0] = 90.0
    return layer


def with_values(layer, name: str, *values: object) -> list[tuple[nn.Module, str]]:
    """Layers made by `layer(value)`, and what their refusals say."""
    return [(layer(value), f"{type(layer(value)).__name__} with {name} {re.escape(f'{value:g}')}") for value in values]


def set_to(layer, *path: str):
    """A function of a value that returns `layer()` with that value at `path`."""
    return lambda value: altered(layer(), value, *path)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        *with_values(lambda v: nn.Softplus(threshold=v), "threshold", 100, math.nan, -1000),
        *with_values(lambda v: nn.Softplus(beta=v), "beta", math.inf, 1e-30, math.nan, -1.0),
        *with_values(nn.LeakyReLU, "negative_slope", math.nan, -math.inf),
        *with_values(lambda v: nn.LayerNorm(4, eps=v), "eps", -1e-5, 1e-300, math.nan, math.inf, 0.0),
        *with_values(set_to(Normalise, "std"), "std", -1.0, 0.0, math.nan, 1e-40),
        *with_values(set_to(Normalise, "mean"), "mean", math.inf),
        *with_values(set_to(lambda: LayerProject(1.0), "radius"), "radius", -1, math.nan, 1e-30),
        *with_values(set_to(lambda: BoundedLinear(4, 4), "norm"), "norm", 1e19, -1.0),
        *with_values(set_to(lambda: SmoothSLLBlock(4, 4, bend=1.0), "bend"), "bend", 0.0, math.nan),
        *with_values(set_to(lambda: ScaledCosineAttention(4, 2, eps=0.1), "eps"), "eps", 1e-40, 0.0),
        *with_values(set_to(lambda: Absolute(2), "folded"), "folded", 9, 1.5),
        *with_values(lambda v: ResidualAttention(4, 2, qk_norm=v, vo_norm=1e-20), "qk_norm", 1e19),
        *with_values(lambda v: ResidualAttention(4, 2, qk_norm=1.0, vo_norm=v), "vo_norm", 1e30),
        *with_values(set_to(lambda: ResidualAttention(4, 2, qk_norm=1.0, vo_norm=1.0), "key", "norm"), "qk_norm", math.nan),
        *with_values(set_to(lambda: BoundedTokenConvolution(4, (3,)), "slices", "0", "norm"), "norm", 1e30),
        *((TakeToken(index), "TakeToken with index") for index in ([0] * 100, True, 0.0, 4, slice(0, 2))),
        *((altered(Patchify(2), patch, "patch"), "Patchify with patch") for patch in (0, -2, True, 2.0)),
        (altered(nn.GELU(), "quick", "approximate"), "GELU with approximate 'quick'"),
        (altered(Normalise(), torch.ones(()), "std"), "Normalise with std tensor"),
        (steep_q(), "SLLBlock with log_q this uneven"),
        (SelfAttention(4, 2, scale=1e38), "scores are .* times the usual; float32 could overflow"),
        (altered(ShiftTokens(2, 1), 3, "side"), "ShiftTokens needs 3x3 tokens"),
        (altered(ShiftTokens(2, 1), 3, "moved"), "ShiftTokens with moved 3"),
        *((grid_attention(log_content=value), "content") for value in (100.0, math.nan)),
        *((grid_attention(table=value), "table") for value in (1e8, math.nan)),
        (altered(grid_attention(), BoundedLinear(4, 4), "value"), "no OrthogonalLinear"),
        (altered(grid_attention(), 3, "side"), "3x3 tokens"),
        *((competition(value), "budget") for value in (100.0, -100.0, math.nan)),
        (ConeAttention(6, 1, side=2, window=3), "2x2 tokens of 6 channels"),
        (altered(ConeAttention(6, 1, side=2, window=3), 3, "side"), "3x3 tokens"),
        (altered(MaxMinTokens(2, 2), 3, "pairs"), "MaxMinTokens with pairs 3"),
        (ClippedReLU((1,)), r"thresholds .* do not fit"),
        *((altered(ScaledCosineAttention(4, 2, eps=0.1), nn.Linear(4, 4), name), "bias") for name in ("query", "key", "value", "output")),
        (nn.ReLU(inplace=True), "inplace"),
        (nn.LeakyReLU(2.0), "above 1"),
        (nn.Flatten(0), "axis 0"),
        (nn.Sequential(), "empty"),
        (nn.Softmax(-1), "layer Softmax"),
        (Residual(nn.Sequential(nn.Dropout())), "layer Dropout"),
        *((layer, "residual") for layer in (Residual(MeanPool()), WeightedResidual(MeanPool(), 4), WeightedResidual(nn.Identity(), 1))),
        (CenterNorm(3), "width 3"),
        (LipschitzNormAttention(4, 2), "lacks W_V"),
        (TokenConvolution(6, (3,)), "width 6 does not fit tokens of 4"),
        (altered(TokenConvolution(4, (3, 3)), Doubled(2, 3), "slices", "1"), "Doubled as a slice"),
        (Resize(8), "needs 4 axes"),
        (Resize(7), "4x4 images cannot be copied to 7x7"),
        (ScaledCosineAttention(4, 2, eps=0.1), "3 axes"),
        (MergeTokens(4), "MergeTokens needs 4x4 tokens"),
    ],
)  # fmt: skip
def test_an_argument_without_a_proof_is_refused_by_layer_and_name(layer, reason) -> None:
    images = isinstance(layer, Normalise | Patchify) or reason.startswith("4x4 images")
    x = draw(2, 1, 4, 4) if images else draw(*(2, 4) if reason == "3 axes" else (2, 4, 4), seed=1)
    with pytest.raises((BenchmarkError, ValueError), match=reason):
        exact_layer_bound(layer.double().requires_grad_(False), x)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_refused(value) -> None:
    with pytest.raises(BenchmarkError, match="the layer Identity is given NaN or infinity"):
        exact_layer_bound(nn.Identity(), torch.full((2, 3), value, dtype=torch.float64))


MULTIPLY = {  # layers that multiply sums of products with each other, with weights of `size` and inputs of norm about 1e6
    "self": (SelfAttention(4, 2), 1e7),
    "self, scaled": (SelfAttention(4, 2, scale=1e6), 1e7),
    "residual": (ResidualAttention(4, 2, qk_norm=9e10, vo_norm=1e-3), 1.0),
    "l2": (L2Attention(4, 2), 1e7),
    "window": (L2WindowAttention(4, 2, side=2, window=2), 1e7),
    "cosine": (ScaledCosineAttention(4, 2, eps=0.1), 1e7),
}


@pytest.mark.parametrize("name", MULTIPLY)
@pytest.mark.parametrize("inputs", [1.0, 1e3, 9e5])
def test_where_a_product_leaves_float32_nothing_is_bounded(name, inputs) -> None:
    """Whatever the bound calls finite, float32 computes as such, on inputs of any size up to LARGEST, and within the bound."""
    layer, size = copy.deepcopy(MULTIPLY[name])
    layer.requires_grad_(False).eval()
    for seed, (name, parameter) in enumerate(layer.named_parameters()):
        if parameter.ndim and name != "bias_table":
            parameter.copy_(draw(*parameter.shape, seed=seed).sign() * size)
    x = (draw(6, 4, 4) * inputs).float()
    gap, allowed = next(strayed(layer, x, x))
    assert ((gap <= allowed) | allowed.isinf()).all()
    if not gap.isfinite().all():
        assert allowed.isinf().any()


def test_the_guard_of_products_is_needed_and_no_wider_than_it_says() -> None:
    layer = SelfAttention(256, 1, scale=5e5).requires_grad_(False).eval()
    for parameter in layer.parameters():
        parameter.fill_(LARGEST)
    x = torch.full((1, 4, 256), 2.8e5)  # of norm 9e6
    exact = copy.deepcopy(layer).double()
    assert not layer(x).isfinite().all()  # scores are above float32's largest, weights and inputs below LARGEST
    still = torch.zeros(1).double()
    assert exact_layer_bound(exact, x.double()).rounding_in_range(still).isinf().all()
    smaller = x * 1e-4
    assert (exact.query(smaller.double()).norm() ** 2 * exact.factor) < ROOM
    assert exact_layer_bound(exact, smaller.double()).rounding_in_range(still).isfinite().all()


FALSE_BEFORE = [
    (nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Softplus(threshold=100), nn.Linear(4, 3)), "threshold"),
    (nn.Sequential(Patchify(2), TakeToken([0] * 100), nn.Flatten(), nn.Linear(400, 3)), "index"),
    (nn.Sequential(altered(Normalise(), math.nan, "std"), nn.Flatten(), nn.Linear(16, 3)), "std"),
]


@pytest.mark.parametrize(("model", "argument"), FALSE_BEFORE)
def test_networks_that_once_had_false_certificates_are_refused(model, argument) -> None:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    model.eval().requires_grad_(False)
    for call in (local.certify, local.float32_gap, lambda *given: local.certified_at(*given, 0.1)):
        with pytest.raises(BenchmarkError, match=argument):
            call(model, images, torch.zeros(3, dtype=torch.long))
