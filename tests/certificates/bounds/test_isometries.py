"""Bounds of shifts and absolute values, and radii of a network of them, attacked."""

from __future__ import annotations

import pytest
import torch

from benchmark.audit.layers import Effort, audit_layers
from benchmark.certificates import local
from benchmark.certificates.bounds.dispatch import exact_layer_bound
from benchmark.certificates.bounds.layer_bound import PerturbationSet
from benchmark.layers.isometries import Absolute, ShiftTokens
from benchmark.layers.lipschitz import NormalisedHead, OrthogonalLinear
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [Normalise(0.5, 1.0), Patchify(2), OrthogonalLinear(4, 8), Absolute(5)]
    layers += [ShiftTokens(2, 1), OrthogonalLinear(8, 8), Absolute(8), MeanPool(), NormalisedHead(8, 3)]
    return torch.nn.Sequential(*layers).eval().requires_grad_(False)


def test_no_attack_exceeds_the_bounds_of_the_layers() -> None:
    tally = audit_layers(network(), torch.rand(3, 1, 4, 4), [0, 1, 2], "row", effort=Effort(starts=4, steps=6))
    assert tally.layers == 8
    assert 0.99 < tally.worst <= 1 + 1e-9


def test_the_remainder_of_an_absolute_value_is_attained() -> None:
    """One entry at z = 0.3 that moves by D = -1: it misses 2 (1 - 0.3)."""
    layer, x = Absolute(1), torch.tensor([[0.3]], dtype=torch.float64)
    bound = exact_layer_bound(layer, x)
    one = torch.ones(1, dtype=torch.float64)
    perturbation = PerturbationSet(one.reshape(1, 1, 1), one, 0 * one, one)
    missed = abs(abs(0.3 - 1) - 0.3 + 1)
    assert missed <= float(bound.remainder(perturbation)) <= missed * (1 + 1e-9)


def test_a_network_is_certified_and_not_broken() -> None:
    model, images = network(), torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    labels = model(images).argmax(1)
    radii = local.certify(model, images, labels)
    assert (radii > 0).all()
    for radius, image, label in zip(radii, images, labels, strict=True):
        move = torch.randn(500, 1, 4, 4)
        move = move / move.flatten(1).norm(dim=1)[:, None, None, None] * radius * 0.999
        assert (model(image + move.float()).argmax(1) == label).all()


@pytest.mark.parametrize(
    ("layer", "change"),
    [
        (Absolute(2), lambda layer: setattr(layer, "folded", 9)),
        (Absolute(2), lambda layer: setattr(layer, "folded", 1.5)),
        (ShiftTokens(2, 1), lambda layer: setattr(layer, "side", 3)),
        (ShiftTokens(2, 1), lambda layer: setattr(layer, "moved", 3)),
    ],
)
def test_what_the_proof_leaves_out_is_refused(layer, change) -> None:
    change(layer)
    with pytest.raises(BenchmarkError, match=type(layer).__name__):
        exact_layer_bound(layer, torch.zeros(1, 4, 8, dtype=torch.float64))
