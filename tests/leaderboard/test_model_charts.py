"""What a model's charts draw is what its evidence says, and errs to one side alone."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_site import TRACK, evidence, row

from benchmark.evaluation.evidence import certified, unbroken
from benchmark.records.contributed import BrokenImage, Contribution
from benchmark.records.evidence import ROUNDING
from benchmark.specs.threat import ThreatModel
from leaderboard.charts.per_image import drawn_images, per_image
from leaderboard.charts.sandwich import POINTS, STEPS, Curves, curves, overlay, radii_of, sandwich, shares
from leaderboard.charts.training import read_history, training_charts
from leaderboard.image_radii import ImageRadii, image_radii
from leaderboard.pages.model_images import settled, state

MARKED = (0.1, 0.25, 0.5, 1.0)
FOUR_IMAGES = {
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


def random_radii(n: int, seed: int, step: int = 97) -> ImageRadii:
    """With ties, images never broken, and ones that nothing certifies."""
    rng = np.random.default_rng(seed)
    right = rng.random(n) < 0.9
    certified = np.where(right & (rng.random(n) < 0.8), rng.integers(0, step, n) / step, 0.0)
    broken = np.where(rng.random(n) < 0.8, certified + rng.integers(1, step, n) / step, np.inf)
    smoothed = np.where(rng.random(n) < 0.7, rng.integers(0, 20, n) / 20, -1.0)
    return ImageRadii(right, broken, certified, smoothed)


def drawn(seen: Curves, radius: float) -> list[int]:
    """The curves as they are drawn: a value of the attacked one holds until the next, others hold from the one before."""
    until, after = (np.searchsorted(seen.radii, radius, side="right") - 1, np.searchsorted(seen.radii, radius, side="left"))
    return [int(counts[until if name == "attacked" else after]) for name, counts in seen.counts.items()]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 600), st.integers(0, 10**6), st.sampled_from([7, 97, 100003]), st.integers(12, POINTS))
def test_drawn_curves_are_exact_at_their_radii_and_err_to_one_side_between(n: int, seed: int, step: int, points: int) -> None:
    row_radii = random_radii(n, seed, step)
    seen = curves(row_radii, MARKED, points)
    assert len(seen.radii) <= points
    assert {0.0, *MARKED} <= {*seen.radii.tolist()}
    between = np.random.default_rng(seed).random(50) * float(seen.radii[-1])
    for radius in [*seen.radii.tolist(), *between.tolist()]:
        attacked = sum(ok and b > radius + ROUNDING for ok, b in zip(row_radii.right, row_radii.broken, strict=True))
        certified = sum(ok and c >= radius for ok, c in zip(row_radii.right, row_radii.certified, strict=True))
        smoothed = sum(s >= radius for s in row_radii.smoothed)
        above, below, other = drawn(seen, radius)
        assert above >= attacked
        assert below <= certified
        assert other <= smoothed
        off = max(above - attacked, certified - below, smoothed - other)
        assert off <= seen.off * n + 1e-9
        if radius in seen.radii:
            assert off == 0


def test_few_images_are_drawn_step_by_step_and_many_say_how_far_off_they_are() -> None:
    few, many = sandwich(random_radii(40, 1), MARKED), sandwich(random_radii(10000, 1, 100003), MARKED)
    assert "Every step is drawn." in few.caption
    assert len(many.lines) <= POINTS
    assert "too high and a lower one too low, by" in many.caption
    assert curves(random_radii(10000, 1, 100003), MARKED).off < 0.02


def test_steps_are_drawn_to_the_side_that_the_bound_allows() -> None:
    layers = sandwich(random_radii(40, 1), MARKED).spec["layer"]
    kinds = {
        layer["encoding"]["y"]["field"]: layer["mark"]["interpolate"]
        for layer in layers
        if "y" in layer["encoding"] and layer["mark"]["type"] != "point"
    }
    assert kinds == {"attacked": "step-after", "certified": "step-before", "smoothed": "step-before"}
    (area,) = (layer for layer in layers if layer["mark"]["type"] == "area")
    assert area["mark"]["interpolate"] == "step-after"
    assert area["transform"][0]["window"] == [{"as": "floor", "field": "certified", "op": "lead"}]


def test_a_row_without_certificate_has_the_attacked_curve_alone() -> None:
    row_radii = ImageRadii(np.array([True, True, False]), np.array([0.2, np.inf, 0.1]))
    chart = sandwich(row_radii, [0.1, 0.3], [0.3])
    assert [line[2] for line in chart.lines] == [False, False, False, True], "where an attack was run"
    assert list(chart.heads) == ["radius", "attacked", "attack"]
    assert [line[1] for line in chart.lines] == pytest.approx([200 / 3, 200 / 3, 100 / 3, 100 / 3])
    assert [line[0] for line in chart.lines] == [0.0, 0.1, 0.2, 0.3]
    fields = [layer["encoding"]["y"]["field"] for layer in chart.spec["layer"] if "y" in layer["encoding"]]
    assert fields == ["attacked", "attacked"], "a line, and dots on it"
    assert chart.spec["layer"][0]["encoding"]["color"]["legend"]["values"] == ["robust: not broken by any attack"]
    assert per_image(row_radii) is None


def test_shares_at_each_radius() -> None:
    radii = (0.0, 0.1, 0.25, 0.3, 0.5)
    row_radii = shares(image_radii(pa.table(FOUR_IMAGES)), radii)
    assert row_radii["attacked"] == [0.75, 0.75, 0.5, 0.25, 0.0], "an image broken at a radius is lost at it"
    assert row_radii["certified"] == [0.5, 0.5, 0.25, 0.0, 0.0], "an image certified to a radius counts at it"
    assert row_radii["smoothed"] == [0.5, 0.5, 0.0, 0.0, 0.0], "the third image's class is wrong"
    plain = pa.table(FOUR_IMAGES).drop_columns(["certified_l2", "smoothed_l2", "smoothed_prediction"])
    assert shares(image_radii(plain), radii) == {"attacked": row_radii["attacked"]}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_images_are_counted_as_records_count_them(seed: int) -> None:
    rng, seen = np.random.default_rng(seed), evidence(row(), 80, seed)
    seen = seen.append_column("probed L2 0.5", pa.array(rng.random(80) < 0.2))
    seen = seen.append_column("probed Linf 0.15", pa.array(np.ones(80, bool)))
    row_radii, radii = image_radii(seen), radii_of(TRACK)
    parts = shares(row_radii, radii)
    for eps in (0.05, 0.1, 0.3, 0.5, 1.0):
        counted = int(unbroken(seen, ThreatModel(norm="L2", eps=eps)).sum())
        (line,) = settled(row_radii, [eps])
        assert line.between + (line.certified or 0) == counted
        assert parts["attacked"][radii.index(eps)] == pytest.approx(counted / 80, abs=1e-6)
        words = [state(row_radii, i, eps) for i in range(80)]
        assert [words.count(word) for word in ("certified", "between", "broken", "wrong when clean")] == [
            line.certified, line.between, line.broken, line.wrong
        ]  # fmt: skip
    for other in certified(seen, TRACK, "local"):
        assert parts["certified"][radii.index(other.threat.eps)] == pytest.approx(other.accuracy.value, abs=1e-6)
    assert all((np.diff(line) <= 0).all() for line in parts.values())


def test_what_others_contributed_counts_and_contradicts() -> None:
    contributed = SimpleNamespace(images=[SimpleNamespace(image=2, l2=0.2), SimpleNamespace(image=0, l2=0.9)])
    assert image_radii(pa.table(FOUR_IMAGES)).broken.tolist() == [0.3, 0.25, 0.5, np.inf], "by the nearest of any attack"
    assert image_radii(pa.table(FOUR_IMAGES), [contributed]).broken.tolist() == [0.3, 0.25, 0.2, np.inf]
    seen = evidence(row(), 30)
    image = int(np.flatnonzero(seen["certified_l2"].to_numpy() > 0.1)[0])
    broken_image = BrokenImage(
        image=image, threat="L2 0.5", linf=0.05, l2=0.1, prediction=1, margin=-1, lost=(), certified=0.2
    )
    contributed = Contribution(credit="Jane", sha256="a" * 64, weights="b" * 64, images=(broken_image,))
    row_radii = image_radii(seen, [contributed])
    assert row_radii.broken[image] == 0.1
    assert np.flatnonzero(row_radii.contradicted).tolist() == [image]
    assert not image_radii(seen).contradicted.any()
    chart = per_image(row_radii)
    assert [line for line in chart.lines if line[3] == "contradiction"] == [
        (image, pytest.approx(float(seen["certified_l2"][image].as_py()), abs=1e-6), 0.1, "contradiction")
    ]
    assert "1 contradictions" in chart.words


def test_points_of_many_images_are_thinned_evenly_and_contradictions_stay() -> None:
    row_radii = random_radii(10000, 3)
    wrong = np.flatnonzero(row_radii.right & (row_radii.certified > 0.5))[:7]
    row_radii.broken[wrong] = 0.3
    images = drawn_images(row_radii, 500)
    assert 500 <= len(images) <= 507
    assert {*wrong.tolist()} <= {*images.tolist()}
    assert np.diff(np.setdiff1d(images, wrong)).max() < 60, "none is far from the next"
    assert row_radii.right[images].all()
    chart = per_image(row_radii)
    assert "evenly taken" in chart.caption
    never = [line for line in chart.lines if line[2] is None]
    assert never
    assert all(line[3].startswith("never broken") for line in never)


def test_training_curves_are_those_of_the_records_weights(tmp_path) -> None:
    made = row()
    folder = tmp_path / "train"
    assert read_history(tmp_path, made) == {}
    folder.mkdir()
    history = {"loss": [2.0, 1.0, float("nan")], "score": [0.1, 0.9, 0.8], "other": [1]}
    (folder / "history.json").write_text(json.dumps(history))
    (folder / "stage.json").write_text(json.dumps({"sha256": {"model.safetensors": "c" * 64}}))
    assert read_history(tmp_path, made) == {}, "of other weights"
    (folder / "stage.json").write_text(json.dumps({"sha256": {"model.safetensors": "b" * 64}}))
    loss, scores = training_charts(made, read_history(tmp_path, made))
    assert list(loss.lines) == [
        (1, "training loss", 2.0, True), (2, "training loss", 1.0, False), (3, "training loss", None, False)
    ]  # fmt: skip
    assert [line[2] for line in scores.lines] == [0.1, 0.9, 0.8]
    assert "validation accuracy; the line stands at epoch 1" in scores.caption
    (folder / "history.json").write_text("{")
    assert training_charts(made, read_history(tmp_path, made)) == []
    long = training_charts(made, {"loss": [1.0] * 1000})[0]
    assert len(long.lines) <= 402
    assert long.lines[-1][0] == 1000
    assert long.caption.endswith("One epoch in 3 is drawn.")


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
