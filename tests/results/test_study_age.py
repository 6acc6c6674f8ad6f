"""A published study against what it would be made with today: each change is a reason, and nothing else is."""

from __future__ import annotations

import dataclasses

import pytest
from one_training import TRAINING

from benchmark.results.study import StudyResult
from benchmark.results.study_age import StudyToday, changed_settings, reasons
from benchmark.specs.study import MeasureSpec
from benchmark.specs.submission import VariantOnTrack

RECIPE = {"objective": "standard", "epochs": 1, "batch_size": 2, "learning_rate": 0.1}
MEASURES = ({"measure": "clean"}, {"measure": "own", "parameters": {"k": 1}})
CELLS = ("a", "b", "c", "d", "e")


def result(**changes) -> StudyResult:
    runs = [
        {"cell": cell, "seed": seed, "training": TRAINING, "parameters": 7, "weights": "w", "values": {"clean": 0.5}}
        for cell in CELLS
        for seed in (0, 1)
    ]
    made = {
        "submission": "Sub", "name": "grid", "track": "tiny", "track_version": 2, "variant": "v", "n": 100,
        "cells": [{"name": cell, "levels": {}, "settings": {"training": RECIPE}} for cell in CELLS],
        "measures": MEASURES, "runs": runs, "x": {}, "sha256": {"code": "c", "data test": "t", "data train": "r", "verdicts": "v"},
        "environment": {"torch": "2.11.0"},
    }  # fmt: skip
    return StudyResult.model_validate(made | changes)


def settings(**changes) -> VariantOnTrack:
    return VariantOnTrack.model_validate({"training": RECIPE | changes})


TODAY = StudyToday(
    track_version=2,
    images=100,
    seeds=(0, 1),
    measures=tuple(map(MeasureSpec.model_validate, MEASURES)),
    cells={cell: settings() for cell in CELLS},
    code="c",
    data={"test": "t", "train": "r"},
)


def test_a_study_made_with_the_same_is_todays() -> None:
    assert reasons(result(), TODAY) == []
    assert reasons(result(environment={"torch": "2.10.0"}), TODAY) == [], "the pipeline does not run it again for that"
    brought = [{"attack": "own", "norm": "L2", "eps": 1}]
    adaptive = {cell: VariantOnTrack.model_validate({"training": RECIPE, "adaptive": brought}) for cell in CELLS}
    assert reasons(result(), dataclasses.replace(TODAY, cells=adaptive)) == [], "studies run no attack of a row's own"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"code": "x"}, "made with other code"),
        ({"data": {"test": "x", "train": "r"}}, "made with other data: test"),
        ({"data": {"test": "t", "train": "r", "validation": "v"}}, "made with other data: validation"),
        ({"track_version": 3}, "track version 2 then, 3 now"),
        ({"images": 50}, "images 100 then, 50 now"),
        ({"seeds": (0, 1, 2)}, "seeds 0, 1 then, 0, 1, 2 now"),
        ({"cells": TODAY.cells | {"b": settings(epochs=2)}}, "settings differ: cell b"),
        ({"cells": {cell: settings(epochs=2) for cell in CELLS}}, "settings differ: cell a, b, c and 2 more"),
        ({"cells": {cell: settings() for cell in "abcd"}}, "cell no longer asked for: e"),
        ({"cells": TODAY.cells | {"f": settings()}}, "cell not measured: f"),
        ({"measures": TODAY.measures[:1]}, "measure no longer asked for: own"),
        ({"measures": TODAY.measures[::-1]}, "measures stand in another order"),
        (
            {"measures": (*TODAY.measures, MeasureSpec(measure="more"))},
            "measure not taken: more",
        ),
        (
            {"measures": (TODAY.measures[0], MeasureSpec(measure="own", parameters={"k": 2}))},
            "measure differs: own",
        ),
    ],
)
def test_each_change_is_one_reason(change, reason) -> None:
    today = dataclasses.replace(TODAY, **change)
    assert reasons(result(), today) == [reason]
    assert bool(changed_settings(result(), today)) == ("made with" not in reason)


def test_every_reason_is_told() -> None:
    today = dataclasses.replace(TODAY, code="x", images=50, data={"test": "x", "train": "x"})
    assert reasons(result(), today) == [
        "made with other code", "images 100 then, 50 now", "made with other data: test, train"
    ]  # fmt: skip


def test_data_that_are_not_here_are_not_compared() -> None:
    assert reasons(result(), dataclasses.replace(TODAY, data=None)) == []


def test_settings_that_no_longer_validate_differ_and_new_ones_have_their_default() -> None:
    cells = [{"name": cell, "levels": {}, "settings": {"training": RECIPE}} for cell in CELLS]
    cells[1]["settings"] = {"training": RECIPE | {"gone": 1}}
    cells[2]["settings"] = {"training": RECIPE | {"sam": 0.0}}
    assert reasons(result(cells=cells), TODAY) == ["settings differ: cell b"]
