"""Whole networks of every kind of layer: certified, audited, not broken by attacks, and no margin falls further than its bound."""

from __future__ import annotations

import pytest
import torch
from searched import few
from tiny_certified import assert_no_margin_falls_further, assert_unbroken, network
from tiny_layers import vit
from torch import nn

from benchmark.certificates import lipschitz
from benchmark.certificates.bounds.checked_copy import checked_copy
from benchmark.certificates.bounds.network_bound import bound_network
from benchmark.certificates.local import certified_at, certify, float32_gap
from benchmark.evaluation.audit_layers import Effort, audit_layers
from benchmark.layers.attention_grid import GridAttention
from benchmark.layers.attention_l2_window import L2WindowAttention
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import BoundedLinear, NormalisedHead, OrthogonalLinear, SLLBlock
from benchmark.layers.normalise import Normalise
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.resize import Resize
from benchmark.layers.scaled_cosine import CenterNorm, ScaledCosineAttention
from benchmark.layers.token_convolution import BoundedTokenConvolution, TokenConvolution
from benchmark.layers.tokens import LayerProject, MeanPool, Patchify, Positions


def lipsformer() -> list[nn.Module]:
    layers: list[nn.Module] = [Normalise(), Patchify(2), nn.Linear(4, 8), Positions(4, 8)]
    for _ in range(2):
        mlp = nn.Sequential(CenterNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        attention = nn.Sequential(CenterNorm(8), ScaledCosineAttention(8, 2, eps=0.1, tau=2.0))
        layers += [WeightedResidual(attention, 8), WeightedResidual(mlp, 8, initial=0.1)]
    return [*layers, CenterNorm(8), MeanPool(), NormalisedHead(8, 4)]


def windows() -> list[nn.Module]:
    attention = L2WindowAttention(4, 2, side=4, window=2, shift=1)
    nn.init.normal_(attention.bias_table, std=3.0)
    mixer = Residual(nn.Sequential(LayerProject(1.0), attention))
    return [Normalise(), Patchify(1), BoundedLinear(1, 4), mixer, MeanPool(), NormalisedHead(4, 3)]


def grid() -> list[nn.Module]:
    attention = GridAttention(8, 2, inner=2, side=2, content=1.0)
    mixers = [Absolute(4), attention, Absolute(4), ShiftTokens(2, 1), OrthogonalLinear(8, 8), Absolute(8)]
    return [Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), Positions(4, 8), *mixers, nn.Flatten(1), NormalisedHead(32, 3)]  # fmt: skip


def convolutions() -> list[nn.Module]:
    mixers = [
        Residual(BoundedTokenConvolution(8, (3, 5), norm=2.0)),
        SLLBlock(8, 12),
        Residual(nn.Sequential(BoundedTokenConvolution(8, (3,), norm=2.0), BoundedLinear(8, 8))),
        TokenConvolution(8, (3, 1)),
        nn.GELU(),
    ]
    first = [Resize(8), Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), Positions(16, 8)]
    return [*first, *mixers, MeanPool(), NormalisedHead(8, 4)]


NETWORKS = {
    "dot products": lambda: network(0),
    "vit": lambda: vit(0, nn.LayerNorm(8)),
    "vit of projections": lambda: vit(0, LayerProject(1.0)),
    "lipsformer": lipsformer,
    "windows": windows,
    "grid": grid,
    "convolutions": convolutions,
}
NO_GLOBAL_CONSTANT = ("dot products", "grid")


def made(name: str, seed: int) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """A network, images (2, 1, 4, 4) and its predictions."""
    torch.manual_seed(seed)
    model = nn.Sequential(*NETWORKS[name]()).eval().requires_grad_(False)
    for parameter in model.parameters() if seed else ():
        parameter *= 1 + 0.3 * torch.randn(parameter.shape)
    images = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    model[-1].bias -= 0.7 * model(images).mean(0)
    return model, images, model(images).argmax(1)


FAST = ("windows", "grid", "convolutions")


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS if name not in FAST)])  # fmt: skip
@pytest.mark.parametrize("seed", few([0], [1, 2]))
def test_a_network_is_certified_audited_and_not_broken(name, seed) -> None:
    model, images, labels = made(name, seed)
    radii = certify(model, images, labels, precision=0.05)
    assert (radii > 0).any()
    assert certified_at(model, images, labels, 0.95 * float(radii.max())).any()
    if name not in NO_GLOBAL_CONSTANT:
        assert (radii >= lipschitz.certify(model, images, labels) * (1 - 6e-2)).all()
    found, allowed = float32_gap(model, images, labels)
    assert 0 < found <= allowed < 0.1
    tally = audit_layers(model, images[:1], [0], "row", effort=Effort(radii=(0.1,), starts=2, steps=3))
    assert tally.layers == len(model) - 1
    assert 0.9 < tally.worst <= 1 + 1e-9
    assert_unbroken(model, images, labels, radii)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_margin_falls_further_than_its_bound(name) -> None:
    """Against random and gradient moves of the image, for every rival and both passes, whatever radius relaxations suit."""
    model, images, labels = made(name, 3)
    exact = checked_copy(model)
    for radius, around in ((1e-3, 0.0), (0.03, 0.03), (0.3, 0.1), (1.0, 2.0)):
        bounded = bound_network(exact, images.double(), labels, float32=False)
        bounded.relaxation_radius = torch.full((2,), around, dtype=torch.float64)
        assert_no_margin_falls_further(exact, bounded, images.double(), labels, radius)
