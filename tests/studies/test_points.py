"""Measures that return points of named classes: checked, kept through a resumed study, published, drawn by a scatter alone."""

from __future__ import annotations

import json
import math
import re

import pytest
import tiny_study
import torch
from tiny_project import edit

from benchmark.records.points import CLASSES, MOST, Points
from benchmark.records.study import PublishedStudy, read_published
from benchmark.records.study_points import points_csv
from benchmark.records.study_table import table
from benchmark.runtime.errors import BenchmarkError
from benchmark.runtime.paths import PUBLISHED
from benchmark.specs import tracks
from benchmark.specs.base import to_json
from benchmark.specs.study import MeasureSpec
from benchmark.studies.measuring import Measured, certified, own
from benchmark.studies.results import collect_study

MEASURES = """\
def confidence(model, images, labels, *, seed, shrink):
    near = [(float(k), seed + float(p)) for k, p in enumerate(model(images).amax(1))]
    return {"logits": {"clean": near, "<shrunk>": [(x, y / shrink) for x, y in near]}}
"""
SMALL = ("seeds: [0, 1]\ncells:\n  - {name: as it is}\n", "seeds: [0]\ncells:\n")
STUDY = "submissions/Tiny2026Linear/studies/grid.yaml"


def measured(returned: object, name: str = "m") -> Measured:
    one = torch.zeros(1)
    return own(lambda *_, **__: returned, torch.nn.Identity(), one, one, MeasureSpec(measure=name), 0, {})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0], "returned list, not a dict"),
        ({"a": math.nan}, "'a': Input should be a finite number (got nan)"),
        ({"a": "x"}, "'a': Input should be a valid number (got x)"),
        ({"a": [1.0, 2.0], "x": [0.0]}, "the curve 'a' has 2 values for 1 places in 'x'"),
        ({"a": [1.0]}, "the curve 'a' has 1 values for 0 places in 'x'"),
        ({"a": [True], "x": [0.0]}, "'a': 0: Input should be a valid number (got True)"),
        ({"a": 1.0, "b": torch.zeros(2)}, "returned a tensor of shape (2,) for 1 images; (1,) is due"),
        ({"a": torch.zeros(1)}, "returned no number, no list of numbers and no points"),
        ({"p": {}}, "measure m: 'p': Dictionary should have at least 1 item"),
        ({"p": {"a": []}}, "'a': List should have at least 1 item"),
        ({"p": {"a": 1.0}}, "(got 1.0); by class a list of points (x, y), two finite numbers up to 1e+12 each, is due"),
        ({"p": {"a": [(1.0, 2.0, 3.0)]}}, "'a': 0: Tuple should have at most 2 items"),
        ({"p": {"a": [(1.0, math.nan)]}}, "'a': 0: 1: Input should be a finite number (got nan)"),
        ({"p": {"a": [(1e13, 0)]}}, "'a': 0: 0: Input should be less than or equal to 1000000000000"),
        ({"p": {"a": [(True, 0)]}}, "'a': 0: 0: Input should be a valid number (got True)"),
        ({"p": {3: [(0, 0)]}}, "3: '[key]': Input should be a valid string"),
        ({"p": {" ": [(0, 0)]}}, "' ': '[key]': String should match"),
        ({"p": {"a": [(0, 0)] * (MOST + 1)}}, "5001 points are more than 5,000 in all; take fewer images"),
        ({"p": {str(k): [(0, 0)] for k in range(CLASSES + 1)}}, "21 classes are more than the 20 that marks can tell"),
        ({"p": {"a": [(0, 0)]}, "axes": ["x"]}, "two words, or none where the axes mean nothing, is due"),
        ({"a": 1.0, "axes": ["x", "y"]}, "returned 'axes', which name those of points, and no points"),
    ],
)
def test_what_is_no_number_and_no_point_is_refused(returned, message) -> None:
    with pytest.raises(BenchmarkError, match=re.escape(message)):
        measured(returned)


def test_points_stand_beside_numbers_rounded_by_their_extent_and_kept_as_text() -> None:
    both = measured({"share": 0.5, "p": {"b": [(1, 2)], "a": [[3, 4]]}, "axes": ("u", "v")})
    assert both.values == {"m: share": 0.5}
    points = both.points["m: p"]
    assert [(group.name, group.points) for group in points.classes] == [("b", ((1, 2),)), ("a", ((3, 4),))]
    assert points.axes == ("u", "v")
    assert measured({"m": {"a": [(0, 0)]}}).points.keys() == {"m"}
    points = measured({"p": {"a": [(0.123456789, 1000.0), (-1e-9, 0.0)]}}).points["m"]
    assert points.classes[0].points == ((0.1, 1000.0), (0.0, 0.0))
    assert Points.model_validate_json(to_json(points)) == points
    assert json.loads(to_json(points))["classes"][0]["points"] == "0.1,1000.0 0.0,0.0"
    fine = measured({"p": {"a": [(3 + 1e-7, 0.0), (3 + 2.12345e-7, 0.0)]}}).points["m"].classes[0].points
    assert fine[1][0] - fine[0][0] == pytest.approx(1.12345e-7, rel=1e-3)
    assert measured({"p": {"a": [(7, 7)]}}).points["m"].classes[0].points == ((7, 7),)
    for damaged in ("", "1,2 3", "1,2,3", "nan,1", "a,b"):
        with pytest.raises(ValueError, match="points"):
            Points.model_validate({"classes": [{"name": "a", "points": damaged}]})


def test_what_is_published_still_loads_and_only_points_make_a_sheet() -> None:
    studies = [study for track in tracks.names() for study in read_published(PUBLISHED / track / "studies")]
    assert studies
    for study in studies:
        assert PublishedStudy.model_validate_json(to_json(study)) == study
        assert bool(points_csv(study)) == any(run.points for run in study.result.runs)
    assert any(not run.points for study in studies for run in study.result.runs)


@pytest.fixture
def project(studied):
    """A study of two cells whose measure gives points and no number, as working directory."""
    tiny_study.add(studied, SMALL)
    (studied.root / "submissions/Tiny2026Linear/measures.py").write_text(MEASURES)
    edit(STUDY, "{draw: bars}", "{draw: scatter, measures: [confidence]}")
    return studied


@pytest.mark.slow
@pytest.mark.usefixtures("project", "walled")
def test_a_study_keeps_its_points_and_publishes_them() -> None:
    published = tiny_study.run()
    assert PublishedStudy.model_validate_json(to_json(published)) == published
    for run in published.result.runs:
        groups = [(group.name, len(group.points)) for group in run.points["confidence"].classes]
        assert groups == [("clean", 10), ("<shrunk>", 10)], "in the measure's order"
        assert "confidence" not in run.values
    assert not [column for column in table(published).columns if column.label == "confidence"]
    for figure, message in (
        ("draw: scatter, measures: [clean, confidence]", "scatter of 'clean', which has no points; those with points: conf"),
        ("draw: bars, measures: [confidence]", "bars of 'confidence', which are points, no numbers; use `draw: scatter`"),
    ):  # fmt: skip
        edit(STUDY, "draw: scatter, measures: [confidence]", figure)
        with pytest.raises(BenchmarkError, match=re.escape(message)):
            collect_study(tiny_study.load())
        edit(STUDY, figure, "draw: scatter, measures: [confidence]")
    edit(STUDY, "draw: scatter, measures: [confidence]", "draw: bars")
    assert collect_study(tiny_study.load()).study.figure


@pytest.mark.slow
def test_a_scatter_of_numbers_is_refused_and_one_of_a_measure_that_is_left_out_is_not(project) -> None:
    edit(STUDY, "measures: [confidence]", "measures: [clean, PGD]")
    with pytest.raises(BenchmarkError, match="scatter draws points; clean, PGD give numbers; draw bars, or name"):
        tiny_study.load()
    edit(STUDY, "measures: [clean, PGD]", "measures: [confidence]")
    edit(STUDY, "{measure: confidence,", "{measure: confidence, needs: no_such_package,")
    assert "confidence" in tiny_study.run().result.left_out
    (project.root / "submissions/Tiny2026Linear/measures.py").write_text(tiny_study.MEASURES)
    edit(STUDY, ", needs: no_such_package", "")
    with pytest.raises(BenchmarkError, match="scatter of 'confidence', which has no points; those with points: none"):
        tiny_study.run()
    edit(STUDY, ", measures: [confidence]", "")
    with pytest.raises(BenchmarkError, match=r"scatter of what is measured, which has no points; .* points: none"):
        collect_study(tiny_study.load())


def test_an_image_is_certified_at_the_radii_that_its_own_reaches_if_it_is_right() -> None:
    measure = MeasureSpec(measure="certified", radii=(0.1, 0.25))
    right, radii = torch.tensor([True, True, True, False]), torch.tensor([0.25, 0.1, 0.0, 1.0], dtype=torch.float64)
    measured = certified(measure, right, radii)
    assert measured.values == {"certified": (0.5, 0.25)}
    assert measured.verdicts == {"certified": ("1100", "1000")}
    assert measured.x == {"certified": (0.1, 0.25)}
