"""Float32 runs of the layers against what their error analysis allows."""

from __future__ import annotations

import copy

import pytest
import torch
from searched import few
from tiny_layers import CURVED, LINEAR, built, draw, vit
from torch import nn

from benchmark.certificates.bounds.layer_bound import exact_layer_bound
from benchmark.certificates.local import float32_gap
from benchmark.layers.residual import Residual, WeightedResidual
from benchmark.layers.tokens import LayerProject


@pytest.mark.parametrize(("layer", "shape"), [*CURVED.values(), *LINEAR], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("scale", few([1.0], [0.1, 10.0]))
def test_no_layer_rounds_more_than_its_bound(layer, shape, scale) -> None:
    """Every float32 layer against its float64 copy on float32 inputs off the nominal ones."""
    exact = built(layer, 3)
    single = copy.deepcopy(exact).float()
    exact = copy.deepcopy(single).double()
    x = (scale * draw(80, *shape)).float()
    moved = x + 0.1 * draw(80, *shape, seed=1).float()
    delta = (moved.double() - x.double()).flatten(1).norm(dim=1)
    layer_bound = exact_layer_bound(exact, x.double())
    for at, budget in ((x, torch.zeros_like(delta)), (moved, delta)):
        rounding = layer_bound.rounding(budget)
        assert (rounding < torch.inf).all()
        if not isinstance(
            layer, nn.Sequential | Residual | WeightedResidual
        ):  # what a sequence rounds stands in its bound
            assert ((single(at).double() - exact(at.double())).flatten(1).norm(dim=1) <= rounding).all()
        strayed = (single(at).double() - exact(x.double())).flatten(1).norm(dim=1)
        assert (strayed <= layer_bound.bound(budget) * (1 + 1e-12) + rounding).all()


@pytest.mark.parametrize(
    "layer",
    [nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Sigmoid(), nn.Softplus(), nn.Softplus(3.0), nn.LeakyReLU(0.1)],
    ids=str,
)
def test_activations_round_each_entry_within_their_bound(layer) -> None:
    """Single entries from the deep tails to 0, where a relative bound is hardest; contiguous and not."""
    z = torch.cat([torch.linspace(-30, 30, 40001), torch.logspace(-30, 2, 2000), -torch.logspace(-30, 2, 2000)])
    for x in (z, torch.stack([z, z], dim=1)[:, 0]):
        error = (layer(x).double() - layer(x.double())).abs()
        assert (error <= exact_layer_bound(layer, x.double()[:, None]).rounding(torch.zeros(len(x)).double())).all()


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), LayerProject(1.0)], ids=["layernorm", "projection"])
def test_float32_margins_of_a_vit_stay_within_the_error_analysis(norm) -> None:
    for seed in range(3):
        model, images = vit(seed, norm), torch.rand(50, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        found, allowed = float32_gap(model, images, model(images).argmax(1))
        assert 0 < found <= allowed < 0.1
