"""Perturbations: exact on models whose perturbations are known, and the same each time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmark.evaluation.pictures import accumulated, noise, perturbed, rescaled, semantic_content
from benchmark.specs.threat import ThreatModel
from benchmark.verdicts.ball import distances


class OnePixelAClass(nn.Module):
    """Class k is pixel k: PGD darkens the label's pixel and lightens all others, each by the whole radius."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 3 * x.flatten(1)


MODEL = OnePixelAClass().eval()
GREYS, LABELS = torch.full((10, 1, 2, 5), 0.5), torch.arange(10)


def test_perturbations_of_a_known_model_are_exact() -> None:
    threat = ThreatModel(norm="Linf", eps=0.25)
    found = perturbed(MODEL, GREYS, LABELS, threat, steps=20)
    expected = torch.where(torch.eye(10, dtype=torch.bool), 0.25, 0.75).view_as(GREYS)
    assert torch.equal(found, expected)
    assert torch.equal(rescaled(found - GREYS, 0.25), 1 - torch.eye(10).view_as(GREYS))
    assert torch.equal(found, perturbed(MODEL, GREYS, LABELS, threat, steps=20))


def test_semantic_content_counts_what_classifiers_read_in_the_perturbation() -> None:
    classifiers = {
        "dark": lambda x: -x.flatten(1),
        "light": lambda x: x.flatten(1),
        "constant": lambda x: torch.zeros(len(x), 10),  # ties with all others
        "second": lambda x: -x.flatten(1) + 2 * torch.eye(10)[(x.flatten(1).argmin(1) + 1) % 10],
    }
    first = semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, steps=20, top=1, batch_size=4)
    assert first == {"dark": 1.0, "light": 0.0, "constant": 0.0, "second": 0.0}
    turned = semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, steps=20, top=1, negative=True)
    assert (turned["dark"], turned["light"]) == (0.0, 1.0)
    top = semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, steps=20, top=2)
    assert top == {"dark": 1.0, "light": 0.0, "constant": 0.0, "second": 1.0}
    with pytest.raises(ValueError, match="every answer would be right"):
        semantic_content(MODEL, GREYS, LABELS, classifiers, eps=0.25, top=10)
    with pytest.raises(ValueError, match="needs a classifier and an image"):
        semantic_content(MODEL, GREYS, LABELS, {}, eps=0.25)


def test_noise_is_seeded_and_names_every_class_before_one_again() -> None:
    starts, targets = noise((1, 2, 5), 4, 10, 0)
    again, same = noise((1, 2, 5), 4, 10, 0)
    assert torch.equal(starts, again)
    assert torch.equal(targets, same)
    assert not torch.equal(starts, noise((1, 2, 5), 4, 10, 1)[0])
    assert sorted(targets[:4].tolist()) == sorted(targets[4:8].tolist()) == [0, 1, 2, 3]
    assert len(starts) == len(targets) == 10


def test_accumulated_gradients_lead_to_the_class_inside_the_ball() -> None:
    starts, targets = noise((1, 2, 5), 10, 10, 0)
    threat = ThreatModel(norm="L2", eps=0.2)
    found = accumulated(MODEL, starts, targets, threat, steps=20)
    moved = distances(found, starts)["L2"]
    assert (moved <= 0.2 + 1e-12).all()
    assert (moved > 0.1).all()
    assert found.min() >= 0
    assert found.max() <= 1
    gained = (found - starts).flatten(1)
    assert (gained.argmax(1) == targets).all()
