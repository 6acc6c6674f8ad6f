"""Rules of the pictures."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmark.specs.pictures import PicturesSpec


def test_rules_that_make_no_sense() -> None:
    for wrong in (
        {"eps": 8},
        {"eps": 0.1, "images": 0},
        {"eps": 0.1, "radii": [1, 2, 3, 4, 5]},
        {"eps": 0.1, "radii": [1, 1]},
        {"eps": 0.1, "radii": [0]},
    ):
        with pytest.raises(ValidationError):
            PicturesSpec.model_validate(wrong)
