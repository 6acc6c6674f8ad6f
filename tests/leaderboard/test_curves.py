"""Curves over the radius count what the Record counts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.evaluation.evidence import certified, robust
from benchmark.loading import tracks
from leaderboard.charts.curves import STEPS, curves, overlay, radii_of
from leaderboard.image_radii import image_radii

TRACK = tracks.load("digits")
EVIDENCE = {
    "label": [3, 3, 3, 3],
    "clean_margin": [0.5, 0.5, 0.5, -0.1],
    "pgd-L2-0.5:success": [True, False, True, False],
    "pgd-L2-0.5:l2": [0.4, 0.0, 0.5, 0.0],
    "fgsm-Linf-0.15:success": [True, False, False, False],
    "fgsm-Linf-0.15:l2": [0.3, 0.0, 0.0, 0.0],
    "probed L2 0.25": [False, True, False, False],
    "probed Linf 0.1": [True, True, True, True],
    "certified_l2": [0.25, 0.1, 0.0, 0.0],
    "smoothed_prediction": [3, 3, 4, 3],
    "smoothed_l2": [0.1, 0.0, 0.3, 0.2],
    "probe loss": [0.0] * 4,
}


def test_an_image_is_broken_by_the_nearest_adversarial_image_of_any_attack() -> None:
    brought = SimpleNamespace(images=[SimpleNamespace(image=2, l2=0.2), SimpleNamespace(image=0, l2=0.9)])
    evidence = pa.table(EVIDENCE)
    assert image_radii(evidence).broken.tolist() == [0.3, 0.25, 0.5, np.inf]
    assert image_radii(evidence, [brought]).broken.tolist() == [0.3, 0.25, 0.2, np.inf]  # type: ignore[list-item]


def test_shares_at_each_radius() -> None:
    radii = (0.0, 0.1, 0.25, 0.3, 0.5)
    found = curves(image_radii(pa.table(EVIDENCE)), radii)
    assert found["attacked"] == [0.75, 0.75, 0.5, 0.25, 0.0], "an image broken at a radius is lost at it"
    assert found["certified"] == [0.5, 0.5, 0.25, 0.0, 0.0], "an image certified to a radius counts at it"
    assert found["smoothed"] == [0.5, 0.5, 0.0, 0.0, 0.0], "the third image's class is wrong"
    plain = pa.table(EVIDENCE).drop_columns(["certified_l2", "smoothed_l2", "smoothed_prediction"])
    assert curves(image_radii(plain), radii) == {"attacked": found["attacked"]}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_curves_meet_the_headline_numbers_and_fall(seed: int) -> None:
    """At the track's radii, as the evidence itself is counted into a Record."""
    rng, n = np.random.default_rng(seed), 30
    columns: dict[str, np.ndarray] = {
        "label": np.full(n, 1),
        "clean_margin": rng.normal(0.5, 1, n),
        "certified_l2": rng.choice([0.0, 0.1, 0.25, 0.5, 0.7], n),
    }
    for attack in ("pgd-L2-0.5", "fgsm-Linf-0.15"):
        columns[f"{attack}:success"] = rng.random(n) < 0.4
        columns[f"{attack}:l2"] = rng.choice([0.2, 0.5, 0.8, 1.0, 1.5], n)
        columns[f"{attack}:linf"] = np.full(n, 0.15)
    columns["probed L2 0.5"] = rng.random(n) < 0.2
    evidence, radii = pa.table(columns), radii_of(TRACK)
    found = curves(image_radii(evidence), radii)
    for one in robust(evidence, TRACK):
        if one.threat.norm == "L2":
            assert found["attacked"][radii.index(one.threat.eps)] == pytest.approx(one.accuracy.value, abs=1e-6)
    for other in certified(evidence, TRACK, "local"):
        assert found["certified"][radii.index(other.threat.eps)] == pytest.approx(other.accuracy.value, abs=1e-6)
    assert all((np.diff(line) <= 0).all() for line in found.values())


def test_radii_reach_the_largest_and_hold_the_tracks_own() -> None:
    radii = radii_of(TRACK)
    assert radii[0] == 0
    assert radii[-1] == 1.0
    assert {0.1, 0.25, 0.5} <= set(radii)
    assert len(radii) >= STEPS
    linf = {"standard": tuple(a for a in TRACK.suites["standard"] if a.norm == "Linf")}
    assert radii_of(TRACK.model_copy(update={"suites": linf, "certified_radii": ()})) == ()


def test_the_drawing_names_its_records() -> None:
    """The page's script writes these fields."""
    fields = {"row", "kind", "radius", "accuracy", "certified"}
    text = str(overlay())
    assert all(f"'{field}" in text for field in fields)
    assert overlay()["data"] == {"name": "table"}
