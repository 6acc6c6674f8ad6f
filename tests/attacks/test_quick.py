"""The development attack `quick` is the first two parts of AutoAttack."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear, grey_images

from benchmark.attacks import autoattack, quick
from benchmark.specs import tracks
from benchmark.specs.threat import ThreatModel


def test_quick_is_the_first_two_parts_of_autoattack_by_another_name() -> None:
    model, images = Linear().eval().requires_grad_(False), grey_images(6)
    labels = model(images).argmax(1)
    threat = ThreatModel(norm="L2", eps=float(model.radius(images, labels, "L2").median()))
    assert quick.components == autoattack.components[:2]
    for part in quick.components:
        found = quick.attack(model, images, labels, threat, seed=0, component=part)
        assert torch.equal(found, autoattack.attack(model, images, labels, threat, seed=0, component=part))
    with pytest.raises(ValueError, match="no component 'square'"):
        quick.attack(model, images, labels, threat, seed=0, component="square")
    with pytest.raises(ValueError, match="no component 'fab'"):
        autoattack.attack(model, images, labels, threat, seed=0, component="fab")
    specs = tracks.load("digits").development["quick"]
    assert [spec.id for spec in specs] == ["quick-Linf-0.15", "quick-L2-0.5"]
