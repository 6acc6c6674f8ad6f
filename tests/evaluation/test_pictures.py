"""Perturbations: exact on models whose perturbations are known, and the same each time."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import Through
from torch import nn

from benchmark.attacks.ball import distances
from benchmark.evaluation.pictures import CELL, GAP, accumulated, grey, noise, perturbed, png, rescaled
from benchmark.specs.threat import ThreatModel

# class k is pixel k: PGD darkens the label's pixel and lightens all others, each by the whole radius
MODEL = Through(nn.Flatten(), after=lambda z, x: 3 * z).eval()
GREYS, LABELS = torch.full((10, 1, 2, 5), 0.5), torch.arange(10)


def test_perturbations_of_a_known_model_are_exact() -> None:
    threat = ThreatModel(norm="Linf", eps=0.25)
    moved = perturbed(MODEL, GREYS, LABELS, threat, steps=20)
    assert torch.equal(moved, torch.where(torch.eye(10, dtype=torch.bool), 0.25, 0.75).view_as(GREYS))
    assert torch.equal(rescaled(moved - GREYS, 0.25), 1 - torch.eye(10).view_as(GREYS))
    assert torch.equal(moved, perturbed(MODEL, GREYS, LABELS, threat, steps=20))


def test_noise_is_seeded_and_names_every_class_before_one_again() -> None:
    starts, targets = noise((1, 2, 5), 4, 10, 0)
    assert all(torch.equal(a, b) for a, b in zip((starts, targets), noise((1, 2, 5), 4, 10, 0), strict=True))
    assert not torch.equal(starts, noise((1, 2, 5), 4, 10, 1)[0])
    assert sorted(targets[:4].tolist()) == sorted(targets[4:8].tolist()) == [0, 1, 2, 3]
    assert len(starts) == len(targets) == 10


def test_accumulated_gradients_lead_to_the_class_inside_the_ball() -> None:
    starts, targets = noise((1, 2, 5), 10, 10, 0)
    moved = accumulated(MODEL, starts, targets, ThreatModel(norm="L2", eps=0.2), steps=20)
    distance = distances(moved, starts)["L2"]
    assert ((distance <= 0.2 + 1e-12) & (distance > 0.1)).all()
    assert 0 <= moved.min() <= moved.max() <= 1
    assert ((moved - starts).flatten(1).argmax(1) == targets).all()


def test_grey_and_grids() -> None:
    colours = torch.eye(3).view(3, 3, 1, 1)
    assert grey(colours).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])
    assert torch.equal(grey(GREYS), GREYS)
    rows = [torch.rand(3, 3, 16, 20), torch.rand(3, 1, 16, 20)]
    data = png(rows)
    assert data == png([row.clone() for row in rows])
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    assert CELL // 20 == 2
    assert pixels.shape == (2 * (32 + GAP) + GAP, 3 * (40 + GAP) + GAP, 3)
    top, left = GAP + 34, GAP + 42  # second row, second image
    shown = pixels[top : top + 32 : 2, left : left + 40 : 2]
    assert np.array_equal(shown[..., 0], np.rint(rows[1][1, 0].numpy() * 255))
    assert np.array_equal(shown[..., 0], shown[..., 2])
    assert (pixels[:GAP] == 255).all()
    greys = [torch.rand(1, 1, 100, 90)] * 2
    assert np.asarray(Image.open(io.BytesIO(png(greys)))).shape == (200 + 3 * GAP, 90 + 2 * GAP)
    for wrong in ([], [rows[0], rows[1][:2]], [torch.rand(1, 2, 4, 4)]):
        with pytest.raises(ValueError, match="a grid"):
            png(wrong)
