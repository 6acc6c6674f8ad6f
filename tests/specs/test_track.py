"""Tracks are frozen, and read as they were written."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from benchmark.loading import tracks
from benchmark.specs.base import to_json
from benchmark.specs.track import Track

FGSM = {"attack": "fgsm", "norm": "Linf", "eps": 0.15}


def test_records_are_frozen_and_round_trip() -> None:
    track = tracks.load("digits")
    with pytest.raises(ValidationError):
        track.version = 2
    assert Track.model_validate_json(to_json(track)) == track


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"suites": {"a": [FGSM], "b": [FGSM]}, "development": {}}, r"fgsm-Linf-0\.15 stands twice"),
        ({"development": {"standard": []}}, "a suite standard is published"),
        ({"development": {"adaptive": []}}, "a suite adaptive is published"),
        ({"suites": {"adaptive": []}, "development": {}}, "the suite adaptive is each row's own"),
        ({"suites": {"standard": [{"attack": "quick", "norm": "L2", "eps": 1.0}]}}, "quick is a part of AutoAttack"),
        ({"development": {"d": [{"attack": "pgd", "norm": "L2", "eps": 1.0}] * 2}}, "stands twice in the development suite d"),
    ],
)  # fmt: skip
def test_tracks_with_suites_that_could_be_mistaken_are_refused(change, message) -> None:
    with pytest.raises(ValidationError, match=message):
        Track.model_validate(tracks.load("digits").model_dump() | change)


def test_a_development_suite_may_repeat_an_attack_of_the_published_ones() -> None:
    track = tracks.load("digits").model_dump()
    track["development"]["more"] = [*track["suites"]["standard"], *track["development"]["quick"]]
    assert Track.model_validate(track).threats == tracks.load("digits").threats
