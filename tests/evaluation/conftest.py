"""What the tests of attacks' evaluation share."""

from __future__ import annotations

import pytest
import torch
from tiny_models import Linear, grey_images

from benchmark.attacks.engine import square


@pytest.fixture
def linear(monkeypatch) -> tuple[Linear, torch.Tensor, torch.Tensor]:
    """A linear model, twelve images near grey and their labels, of which the last is wrong; few queries for Square."""
    monkeypatch.setattr(square, "QUERIES", 50)
    model, images = Linear(classes=6), grey_images(12)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[11] = (labels[11] + 1) % 6
    return model, images, labels
