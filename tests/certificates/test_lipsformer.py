"""A small LipsFormer of certified layers: radii that no attack breaks, beside those of its global constant."""

from __future__ import annotations

import pytest
import torch
from searched import draws
from tiny_certified import assert_no_margin_falls_further, assert_unbroken
from torch import nn

from benchmark.analysis.blocks import default_blocks
from benchmark.certificates import lipschitz
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.bounds.plain_layers import plain
from benchmark.certificates.local import certify, float32_gap
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import WeightedResidual
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.tokens import MeanPool, Patchify, Positions


def lipsformer(seed: int, depth: int = 2, width: int = 8, eps: float = 0.1) -> nn.Sequential:
    """For 4x4 images, in 4 patches: CenterNorm and weighted residuals around attention and a GELU MLP."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [Normalise(), Patchify(2), nn.Linear(4, width), Positions(4, width)]
    for _ in range(depth):
        mlp = nn.Sequential(CenterNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        attention = nn.Sequential(CenterNorm(width), ScaledCosineAttention(width, 2, eps=eps, tau=2.0))
        layers += [WeightedResidual(attention, width), WeightedResidual(mlp, width, initial=0.1)]
    model = nn.Sequential(*layers, CenterNorm(width), MeanPool(), NormalisedHead(width, 4)).eval().requires_grad_(False)
    model[-1].bias -= model(torch.full((1, 1, 4, 4), 0.5))[0]  # several classes near grey
    return model


@pytest.mark.slow
@pytest.mark.parametrize("seed", draws([0], [1, 2]))
def test_no_attack_breaks_a_lipsformer_inside_its_certified_radius(seed) -> None:
    model = lipsformer(seed)
    images = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    labels = model(images).argmax(1)
    assert len(labels.unique()) > 1
    radii = certify(model, images, labels)
    assert (radii > 0).all()
    assert (radii > lipschitz.certify(model, images, labels)).all()
    found, allowed = float32_gap(model, images, labels)
    assert 0 < found <= allowed < 1e-3
    assert_unbroken(model, images, labels, radii)


def test_no_margin_of_a_lipsformer_falls_further_than_its_bound() -> None:
    """In float64, moves along each rival's gradient among them."""
    model = checked_copy(lipsformer(3))
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    bounded = bound_network(model, images, labels, float32=False)
    for radius in (1e-3, 0.03, 0.3):
        assert_no_margin_falls_further(model, bounded, images, labels, radius)


def test_a_lipsformer_in_plain_operations_is_itself() -> None:
    model = checked_copy(lipsformer(0))
    images = torch.rand(3, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    in_plain_operations = plain(model)
    assert torch.allclose(in_plain_operations(images), model(images), rtol=1e-12, atol=1e-12)
    assert not any(type(part) is ScaledCosineAttention for part in in_plain_operations.modules())


def test_the_encoder_blocks_of_a_lipsformer_are_its_residuals() -> None:
    assert [name for name, _ in default_blocks(lipsformer(0))] == [f"residual {index}" for index in range(1, 5)]
