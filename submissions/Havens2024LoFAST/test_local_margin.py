"""The margin objective in certified radius: its loss by hand, its score beside the certificate, a run that resumes."""

from __future__ import annotations

import pytest
import torch
from components import assert_out_of_range
from tiny_clipped import grid_network as network
from tiny_training import blobs, run, spec
from torch import nn

from benchmark.certificates import local
from benchmark.layers.attention_grid import GridAttention, GridSensitivity
from benchmark.layers.lipschitz import NormalisedHead
from benchmark.layers.normalise import Normalise
from benchmark.layers.tokens import MeanPool, Patchify
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.methods import module
from benchmark.training.objective import Objective

local_margin = module("Havens2024LoFAST", "local_margin")
IMAGES, LABELS = blobs(0, 16)


def objective(radius: float = 0.1, margin: float = 0.2, temperature: float = 10.0) -> Objective:
    return local_margin.objective(None, radius=radius, margin=margin, temperature=temperature)


def test_the_loss_by_hand() -> None:
    model, margin = network(), objective()
    margin.attach(model, IMAGES)
    values, moved = IMAGES, torch.full((16,), 0.1)
    for layer in model:
        if isinstance(layer, GridAttention):
            moved = GridSensitivity(layer.mixing(values), layer.content).bound(moved)
        values = layer(values)
    assert (moved > 0.1).all()
    logits = values * 0.1 / moved[:, None]
    logits[torch.arange(16), LABELS] -= 0.2
    expected = nn.functional.cross_entropy(10 * logits, LABELS)
    assert torch.allclose(margin.loss(model, IMAGES, LABELS, 1.0), expected)


@pytest.mark.slow
def test_the_score_is_at_most_what_the_certificate_certifies_and_close(tmp_path) -> None:
    model = network()
    run(model, objective(), spec(epochs=3), tmp_path / "c")
    model.eval().requires_grad_(False)
    images, labels = blobs(2, 60)
    radius = float(local.certify(model, images, labels).median())
    assert radius > 0.05
    score = objective(radius=radius).score(model, images, labels)
    low, high = (local.certified_at(model, images, labels, r).double().mean() for r in (1.05 * radius, radius / 1.001))
    assert low - 0.04 <= score <= high


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(4, 2),
        nn.Sequential(nn.Flatten(1), nn.Linear(36, 4)),
        nn.Sequential(Patchify(2), MeanPool(), NormalisedHead(4, 4)),
        nn.Sequential(Normalise(0.5, 0.5), nn.Flatten(1), NormalisedHead(36, 4)),
    ],
)
def test_models_that_are_refused(model) -> None:
    with pytest.raises(BenchmarkError, match="local_margin"):
        objective().attach(model, IMAGES)


@pytest.mark.parametrize("radius", ["big", 0.0, -1, float("inf"), float("nan"), True])
def test_a_radius_that_is_none_is_refused(radius) -> None:
    assert_out_of_range(local_margin.objective, margin=0.1, temperature=1.0, radius=radius)
