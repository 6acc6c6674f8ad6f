"""Threat models in pixels of [0, 1]."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmark.specs.threat import ThreatModel


def test_linf_radius_in_the_wrong_unit_is_refused_with_a_hint() -> None:
    with pytest.raises(ValidationError, match=r"pixels in \[0, 1\]"):
        ThreatModel(norm="Linf", eps=8)
    with pytest.raises(ValidationError):
        ThreatModel(norm="L2", eps=-0.1)
    assert ThreatModel(norm="L2", eps=3.0).label == "L2 3"
