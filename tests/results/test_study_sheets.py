"""Curves of a published study, as readers see them: a sheet of their own, a sentence each, and drawn together."""

from __future__ import annotations

import pytest
from one_training import TRAINING

from benchmark.results import study_table
from benchmark.results.study import PublishedStudy
from benchmark.results.study_table import sheets
from leaderboard.charts.studies import figures

RADII = [0.01, 0.03, 0.1]
CURVES = {"m: ascent": [1.0, 3.0, 9.0], "m: a bound": [1.5, 4.5, 15.0], "m: a wild bound": [100.0, 300.0, 900.0]}
CLAIMED = [2.0, 6.0, 20.0]


@pytest.fixture
def table() -> study_table.Table:
    """Two networks of one setting, with three curves by radius, of which two are drawn and one is claimed elsewhere."""
    cell = {"name": "8 heads", "set": {"model.heads": 8}}
    measures = [{"measure": "own", "name": "m"}]
    runs = [
        {
            "cell": "8 heads", "seed": seed, "training": TRAINING, "parameters": 7, "weights": "w",
            "values": {name: [value + 0.1 * seed for value in curve] for name, curve in CURVES.items()},
        }
        for seed in (0, 1)
    ]  # fmt: skip
    study = {
        "title": "T", "source": "Table 9", "track": "digits", "variant": "v", "seeds": [0, 1], "cells": [cell],
        "measures": measures, "claims": {"8 heads": {"m: a bound": CLAIMED}},
        "figure": {"draw": "together", "measures": ["m: ascent", "m: a bound"], "x": ""},
    }  # fmt: skip
    result = {
        "submission": "Sub", "name": "grid", "track": "digits", "track_version": 2, "variant": "v", "n": 100,
        "cells": [{**cell, "levels": {"cell": "8 heads"}, "settings": {}}], "measures": measures, "runs": runs,
        "x": dict.fromkeys(CURVES, RADII), "sha256": {}, "environment": {},
    }  # fmt: skip
    return study_table.table(PublishedStudy.model_validate({"study": study, "result": result}))


def test_curves_have_their_places_side_by_side(table) -> None:
    (sheet,) = sheets(table)
    assert sheet.title == "m"
    assert sheet.heads == ("0.01", "0.03", "0.1")
    assert {row.name for row in sheet.rows} == {"ascent", "a bound", "a wild bound"}
    claimed = {row.name: [entry.claimed for _, entry in row.entries] for row in sheet.rows}
    assert table.words == ("One setting, nothing to compare.",), "said once"
    assert claimed == {"a bound": CLAIMED, "ascent": [None] * 3, "a wild bound": [None] * 3}


def test_curves_of_one_cell_are_drawn_together(table) -> None:
    ((caption, chart),) = figures(table)
    assert caption.startswith("8 heads.")
    assert [name in chart for name in ("ascent", "a bound")] == [True, True]
    assert chart.count("<polyline") == 2 * 2  # each line, and its mark in the legend
    assert "wild" not in chart, "it would flatten the others"
