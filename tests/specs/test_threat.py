"""Threat models in pixels of [0, 1]."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmark.loading import methods
from benchmark.specs.threat import AttackSpec, ThreatModel


def test_linf_radius_in_the_wrong_unit_is_refused_with_a_hint() -> None:
    with pytest.raises(ValidationError, match=r"pixels in \[0, 1\]"):
        ThreatModel(norm="Linf", eps=8)
    with pytest.raises(ValidationError):
        ThreatModel(norm="L2", eps=-0.1)
    assert ThreatModel(norm="L2", eps=3.0).label == "L2 3"


def test_only_autoattack_may_have_its_name() -> None:
    spec = {"norm": "L2", "eps": 1.0}
    assert AttackSpec(attack="autoattack", name="autoattack_again", **spec).id == "autoattack_again-L2-1"
    with pytest.raises(ValidationError, match="would pass for AutoAttack"):
        AttackSpec(attack="pgd", name="auto_attack", **spec)
    assert methods.attack_file("autoattack") == Path("benchmark/attacks/autoattack.py")
