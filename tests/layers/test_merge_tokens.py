"""Merging of 2x2 tokens: timm's order, and nothing but a reordering."""

from __future__ import annotations

import pytest
import torch
from timm.models.swin_transformer import PatchMerging
from tiny_layers import draw
from torch import nn

from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.lipschitz import lipschitz_constant
from benchmark.layers.tokens import MergeTokens
from benchmark.runtime.errors import BenchmarkError


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
    with pytest.raises(BenchmarkError, match="MergeTokens needs"):
        exact_layer_bound(MergeTokens(4), torch.zeros(shape).double())
