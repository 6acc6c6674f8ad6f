"""Violins drawn from quantiles: their shape is the distribution's, and their words say it without the picture."""

from __future__ import annotations

import re

import numpy as np
import pytest
from one_training import TRAINING

from benchmark.results import study_table
from benchmark.results.study import PublishedStudy
from benchmark.results.study_table import sheets
from leaderboard.charts.studies import figures
from leaderboard.charts.violins import BINS, Violin

LEVELS = tuple(i / 20 for i in range(21))

CURVES = ("J: sigma: block 1", "J: sigma: block 2")


def violin(values: list[float]) -> Violin:
    return Violin("block 1", LEVELS, tuple(np.quantile(values, LEVELS).tolist()))


@pytest.mark.parametrize("values", [np.random.default_rng(0).normal(3, 0.7, 500), np.repeat([1.0, 4.0], 50), [2.0] * 9])
def test_all_mass_is_drawn_where_it_is(values) -> None:
    found = violin(list(values)).density(0.0, 6.0)
    assert sum(found) == pytest.approx(1)
    centres = (np.arange(BINS) + 0.5) * 6 / BINS
    assert abs(np.dot(centres, found) - np.mean(values)) < 6 / BINS + 0.1
    half = sum(share for share, centre in zip(found, centres, strict=True) if centre <= 3)
    assert half == pytest.approx(np.mean(np.asarray(values) <= 3), abs=0.08)


def test_values_at_the_upper_end_are_drawn() -> None:
    assert violin([6.0] * 5).density(0.0, 6.0)[-1] == pytest.approx(1)


@pytest.fixture
def table() -> study_table.Table:
    """Two cells of one seed with a number, two distributions and a curve that is none."""
    cells = [{"name": name} for name in ("<deep>", "flat")]
    measures = [{"measure": "jacobian", "name": "J"}]
    x = {"J: sigma: block 1": LEVELS, "J: sigma: block 2": LEVELS, "J: bound: block 1": LEVELS, "J: other": (0.1, 0.2)}
    values = {"J: sigma: mean": 2.0, "J: other": [1.0, 2.0]} | {
        name: [shift + level for level in LEVELS] for shift, name in enumerate(x) if name != "J: other"
    }
    runs = [
        {"cell": cell["name"], "seed": 0, "training": TRAINING, "parameters": 7, "weights": "w", "values": values}
        for cell in cells
    ]
    study = {
        "title": "T", "source": "Figure 3", "track": "digits", "variant": "v", "seeds": [0], "cells": cells,
        "measures": measures, "figure": {"draw": "violins", "measures": ["J: sigma"]},
    }  # fmt: skip
    result = {
        "submission": "Sub", "name": "figure3", "track": "digits", "track_version": 2, "variant": "v", "n": 100,
        "cells": [{**cell, "levels": {"cell": cell["name"]}, "settings": {}} for cell in cells], "measures": measures,
        "runs": runs, "x": x, "sha256": {}, "environment": {},
    }  # fmt: skip
    return study_table.table(PublishedStudy.model_validate({"study": study, "result": result}))


def test_a_chart_a_cell_with_a_violin_a_block_and_all_of_it_in_words(table) -> None:
    charts = figures(table)
    assert [caption.partition(". ")[0] for caption, _ in charts] == ["<deep>: J: sigma", "flat: J: sigma"]
    for _, chart in charts:
        assert str(chart).count('<g class="violin">') == 2
        assert "block 1: median 0.5, 5% below 0.05, 5% above 0.95; block 2: median 1.5," in str(chart)
        assert "NaN" not in str(chart)
    assert "<deep>" not in str(charts[0][1]), "names are escaped"
    widths = [
        max(float(x) for x in re.findall(r"([\d.]+),", points))
        - min(float(x) for x in re.findall(r"([\d.]+),", points))
        for points in re.findall(r'polygon points="([^"]+)"', str(charts[0][1]))
    ]
    assert widths[0] == pytest.approx(widths[1], rel=0.1), "two equal distributions are as wide"


def test_the_sheet_shows_some_levels_and_no_sentence_names_one(table) -> None:
    first, *_ = sheets(table)
    shown = {row.name: [column.x for column, _ in row.entries] for row in first.rows}
    assert shown["flat: sigma: block 1"] == [0.05, 0.25, 0.5, 0.75, 0.95]
    assert shown["flat: bound: block 1"] == [0.05, 0.25, 0.5, 0.75, 0.95], "not drawn, of the same measure and levels"
    assert not [words for words in table.words if "block" in words]
    assert [words for words in table.words if words.startswith("J: sigma: mean")]


def test_a_cell_of_fewer_blocks_has_fewer_violins_and_one_without_any_no_chart(table) -> None:
    for lacking, counts in ((("J: sigma: block 2",), [2, 1]), (("J: sigma: block 1", "J: sigma: block 2"), [2])):
        content = table.study.model_dump()
        for label in lacking:
            del content["result"]["runs"][1]["values"][label]
        found = study_table.table(PublishedStudy.model_validate(content))
        rows = {row.name for sheet in sheets(found) for row in sheet.rows}
        assert {name for name in rows if name.startswith("flat: sigma")} == {
            f"flat: {label.removeprefix('J: ')}" for label in CURVES if label not in lacking
        }
        charts = figures(found)
        assert [str(chart).count('<g class="violin">') for _, chart in charts] == counts
        assert not any("nan" in str(chart) for _, chart in charts)
