"""Accuracies of a study, counted by image."""

from __future__ import annotations

import torch

from benchmark.specs.study import MeasureSpec
from benchmark.studies.measuring import certified


def test_an_image_is_certified_at_the_radii_that_its_own_reaches_if_it_is_right() -> None:
    measure = MeasureSpec(measure="certified", radii=(0.1, 0.25))
    right, radii = torch.tensor([True, True, True, False]), torch.tensor([0.25, 0.1, 0.0, 1.0], dtype=torch.float64)
    measured = certified(measure, right, radii)
    assert measured.values == {"certified": (0.5, 0.25)}
    assert measured.verdicts == {"certified": ("1100", "1000")}
    assert measured.x == {"certified": (0.1, 0.25)}
