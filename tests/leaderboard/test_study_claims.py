"""What a paper prints beside what came out: verdicts by the seeds' interval."""

from __future__ import annotations

import math

import pytest
from published_study import published
from scipy import stats

from benchmark.records.accuracy import Proportion
from benchmark.records.study_table import Table, table
from benchmark.specs.study import Study
from benchmark.specs.submission import Claim
from leaderboard.record_claims import obstacle
from leaderboard.study_claims import ClaimSheet, Tally, claim_sheet

CURVE = (0.1, 2.0, None)


def studied(values: dict[str, list[float]], claims: dict, **study) -> Table:
    return table(published(values, claims=claims, **study))


def claim(value: float, metric: str = "clean", track: str = "digits", source: str = "Table 9") -> Claim:
    return Claim(track=track, metric=metric, value=value, source=source)


def rebuilt(made: Table) -> ClaimSheet | None:
    """With every number of accuracy stated for the same data."""
    values = [printed["clean"] for printed in made.study.study.claims.values()]
    return claim_sheet(made.study.study, made, [claim(value) for value in values])


@pytest.mark.parametrize(
    ("stated", "verdict"),
    [
        ([claim(0.9)], "below"), ([claim(0.9, source="Table 9, 100 images")], "below"), ([], "other data"),
        ([claim(0.8)], "other data"), ([claim(0.9, track="cifar10")], "other data"),
        ([claim(0.9, track="cifar10"), claim(0.9, source="1,000 images")], "other images"),
        ([claim(0.9, "certified L2 0.1")], "other method"),
    ],
)  # fmt: skip
def test_a_difference_is_drawn_only_where_the_paper_states_the_number_for_the_same_thing(stated, verdict) -> None:
    made = studied({"a": [0.5, 0.51, 0.52]}, {"a": {"clean": 0.9}})
    sheet = claim_sheet(made.study.study, made, stated)
    assert [(n.verdict, n.difference is not None) for n in sheet.compared] == [(verdict, verdict == "below")]

    comparable = studied({"a": [0.5, 0.51, 0.52]}, {"a": {"clean": 0.9}}, claims_comparable=("clean",))
    (number,) = claim_sheet(comparable.study.study, comparable).compared
    assert number.verdict == "below"


@pytest.mark.parametrize(
    ("metric", "name", "reason"),
    [
        ("clean", "clean", None), ("AutoAttack Linf 8/255", "robust Linf 0.0313725", None), ("robust L2 0.5", "robust L2 0.5", None),
        ("robust Linf 0.031373", "robust Linf 0.0313725", None), ("PGD-50 L2 0.5", "pgd-50 L2 0.5", None),
        ("PGD-50 L2 0.5 (normalised)", "pgd-50 L2 0.5", "other radius"), ("AutoAttack L2 0.5", "robust L2 1", "other radius"),
        ("robust Linf 0.04", "robust Linf 0.0313725", "other radius"), ("AutoAttack L2 8/0", "robust L2 0.5", "other method"),
        ("robust L2 .", "robust L2 0.5", "other method"), ("PGD L2 0.5", "pgd-50 L2 0.5", "other method"),
        ("AutoAttack Linf 0.5", "robust L2 0.5", "other method"), ("certified L2 1 by CROWN", "certified L2 1", "other method"),
        ("robust", "robust L2 0.5", "other method"), ("clean L2 1", "clean", "other method"), ("certified L2 1", "", "other method"),
    ],
)  # fmt: skip
def test_radius_and_method_are_the_papers(metric: str, name: str, reason: str | None) -> None:
    assert obstacle(claim(0.5, metric), "digits", name, 100) == reason


def test_a_printed_number_lies_within_the_seeds_above_or_below_them() -> None:
    values = {"in": [0.50, 0.56, 0.53], "low": [0.5, 0.51, 0.52], "high": [0.5, 0.51, 0.52]}
    sheet = rebuilt(studied(values, {"in": {"clean": 0.5}, "low": {"clean": 0.9}, "high": {"clean": 0.1}}))
    assert [(name, line[0].verdict) for name, line in sheet.lines if line[0]] == [
        ("in", "within"), ("low", "below"), ("high", "above"),
    ]  # fmt: skip
    number = sheet.lines[0][1][0]
    assert number.estimate == pytest.approx(0.03)
    low, high = stats.t.interval(0.95, 2, loc=0.53 - 0.5, scale=stats.sem(values["in"]))
    assert (number.difference.low, number.difference.high) == pytest.approx((low, high))
    assert Tally.of([sheet, None, sheet]) == {"within": 2, "below": 2, "above": 2}


def test_equal_seeds_are_an_image_apart_at_least() -> None:
    """Of 100 images: three equal shares have no spread, and would contradict every claim."""
    sheet = rebuilt(studied({"a": [0.5] * 3, "b": [0.5] * 3}, {"a": {"clean": 0.51}, "b": {"clean": 0.55}}))
    assert [number.verdict for number in sheet.compared] == ["within", "below"]


def test_one_seed_tells_nothing_and_what_was_not_run_is_said() -> None:
    cells = [{"name": name, "set": {}} for name in ("a", "gone")]
    made = studied({"a": [0.5]}, {"a": {"clean": 0.7}, "gone": {"clean": 0.2, "m: curve": CURVE}}, cells=cells)
    sheet = rebuilt(made)
    assert [column.title for column in sheet.columns] == ["clean", "m: curve at 0.1", "m: curve at 0.2"]
    assert [[number and number.verdict for number in line] for _, line in sheet.lines] == [
        ["one seed", None, None], ["not run", "not run", "not run"],
    ]  # fmt: skip
    first = sheet.compared[0]
    assert (first.estimate, first.counted) == (pytest.approx(-0.2), Proportion.of(50, 100))
    assert math.isnan(sheet.compared[-1].estimate)
    tally = Tally.of([sheet])
    assert (tally.claimed, tally.tested, tally["not run"], tally["within"]) == (4, 0, 3, 0)


def test_the_figures_other_numbers_stand_beside_the_printed_ones_and_count_as_none() -> None:
    figure = {"draw": "curves", "measures": ["m: curve"]}
    sheet = rebuilt(studied({"a": [0.5], "b": [0.5]}, {"a": {"clean": 0.7}}, figure=figure))
    assert [[(n.claimed, n.rebuilt.mean) for n in line if n and n.rebuilt] for _, line in sheet.lines] == [
        [(0.7, 0.5), (None, 0.5), (None, 2.0), (None, 3.0)]
    ]
    assert Tally.of([sheet]) == {"one seed": 1}


def test_a_study_without_claims_has_no_sheet() -> None:
    made = studied({"a": [0.5]}, {})
    assert claim_sheet(made.study.study) is claim_sheet(made.study.study, made) is None


def test_a_declared_study_shows_its_claims_by_radius_in_percent_with_all_digits_of_the_paper() -> None:
    study = Study.model_validate(
        {
            "title": "T", "source": "Table 1", "track": "digits", "variant": "v", "cells": [{"name": "a"}, {"name": "b"}],
            "measures": [
                {"measure": "certified", "name": "here", "radii": [0.1, 0.25]}, {"measure": "own"},
                {"measure": "attack", "name": "FGSM-1", "attack": {"attack": "fgsm", "norm": "Linf", "eps": 1}},
            ],
            "claims": {"b": {"FGSM-1": 0.2, "own: curve": [10.45, 2.5], "here": [0.2905, None]}, "a": {"FGSM-1": 0.1}},
        }
    )  # fmt: skip
    sheet = claim_sheet(study)
    assert [name for name, _ in sheet.lines] == ["a", "b"]
    titles = [column.title for column in sheet.columns]
    assert titles == ["here at 0.1", "own: curve at 1", "own: curve at 2", "FGSM-1 Linf 1"]
    texts = [(n.column.title, n.column.printed(n.claimed), n.verdict) for n in sheet.compared[1:]]
    assert texts[:3] == [
        ("here at 0.1", "29.05", "not run"), ("own: curve at 1", "10.45", "not run"), ("own: curve at 2", "2.5", "not run"),
    ]  # fmt: skip
