"""CW without a radius: what it finds on a linear model, whose distances are known, and at the box's corners."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear, grey_images
from torch import nn

from benchmark.attacks import cw
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.threat import ThreatModel
from benchmark.studies.measures.cw_distance import measure

OPTIONS = {"steps": 400, "step_size": 0.005, "c": 10.0, "radii": [0.01, 0.1, 5.0]}


@pytest.fixture
def attacked() -> tuple[Linear, torch.Tensor, torch.Tensor]:
    """Twelve images near grey, of which the model is wrong about the last."""
    model, images = Linear(classes=6), grey_images(12)
    labels = model(images).argmax(1)
    labels[11] = (labels[11] + 1) % 6
    return model.eval().requires_grad_(False), images, labels


def test_distances_are_those_of_a_linear_model(attacked) -> None:
    model, images, labels = attacked
    measured = measure(model, images, labels, seed=0, **OPTIONS)
    exact = model.radius(images, labels, "L2")[:11]
    assert measured["broken"] == 1
    assert (measured["l2"][:11] >= exact * (1 - 1e-6)).all(), "no image is nearer than the boundary"
    assert exact.mean() <= measured["mean l2"] < 1.15 * exact.mean(), "and CW comes close"
    assert measured["l2"][11] == 0
    assert measured["x"] == OPTIONS["radii"]
    within = [float((measured["l2"] > radius).sum()) / 12 for radius in OPTIONS["radii"]]
    assert measured["accuracy within"] == within
    assert within[-1] == 0
    assert measured["median l2"] in measured["l2"].tolist()


def test_black_white_and_saturated_images_give_numbers(attacked) -> None:
    """Where a pixel is 0 or 1 the attack's tanh is flat: it hardly moves, but nothing becomes NaN."""
    model, images, _ = attacked
    images = images[:4].clone()
    images[1], images[2], images[3, ..., :3] = 0.0, 1.0, 1.0
    labels = model(images).argmax(1)
    measured = measure(model, images, labels, seed=0, **OPTIONS)
    assert measured["l2"][[0, 3]].isfinite().all()
    ball = ThreatModel(norm="L2", eps=6.0)
    moved = cw.attack(model, images, labels, ball, seed=0, steps=400, step_size=0.005, c=10.0)
    assert moved.isfinite().all()
    assert ((moved >= 0) & (moved <= 1)).all()


def test_where_nothing_breaks_no_distance_is_claimed(attacked) -> None:
    _, images, labels = attacked

    class Sure(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 100 * nn.functional.one_hot(labels, 6).float() + 0 * x.flatten(1)[:, :6]

    with pytest.raises(BenchmarkError, match="no image was broken, so no distance is known"):
        measure(Sure().eval(), images, labels, seed=0, **OPTIONS)
