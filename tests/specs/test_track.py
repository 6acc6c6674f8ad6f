"""Tracks are frozen, and read as they were written."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmark.loading import tracks
from benchmark.specs.base import to_json
from benchmark.specs.threat import AttackSpec
from benchmark.specs.track import Track


def test_records_are_frozen_and_round_trip() -> None:
    track = tracks.load("digits")
    with pytest.raises(ValidationError):
        track.version = 2
    assert Track.model_validate_json(to_json(track)) == track


def test_an_attack_twice_in_a_track_is_refused() -> None:
    track = tracks.load("digits").model_dump()
    track["suites"]["more"] = [AttackSpec(attack="fgsm", norm="Linf", eps=0.15).model_dump()]
    with pytest.raises(ValidationError, match=r"fgsm-Linf-0\.15 stands twice"):
        Track.model_validate(track)
