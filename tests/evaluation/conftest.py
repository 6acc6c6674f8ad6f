"""What the tests of attacks' evaluation share: a linear model, twelve images near grey, and their labels."""

from __future__ import annotations

import pytest
import torch
from pyautoattack.square import SquareAttack
from tiny_models import Linear, grey_images

from benchmark.attacks.engine import square


@pytest.fixture
def model(monkeypatch) -> Linear:
    """A linear model; Square asks few times, by either engine."""
    monkeypatch.setattr(square, "QUERIES", 50)
    monkeypatch.setattr(SquareAttack, "n_queries", property(lambda _: 50, lambda *_: None), raising=False)
    return Linear(classes=6)


@pytest.fixture
def images() -> torch.Tensor:
    return grey_images(12)


@pytest.fixture
def labels(model, images) -> torch.Tensor:
    """The model's predictions, but for the last image's."""
    with torch.no_grad():
        predicted = model(images).argmax(1)
    predicted[11] = (predicted[11] + 1) % 6
    return predicted
