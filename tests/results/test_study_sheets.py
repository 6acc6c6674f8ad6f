"""Curves of a published study, as readers see them: a sheet of their own, a sentence each, and drawn together."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.results import study_table
from benchmark.results.study import PublishedStudy
from benchmark.results.study_sheets import sheets
from leaderboard.study_charts import figures

PUBLISHED = Path("leaderboard/results/digits/studies")


@pytest.fixture
def table() -> study_table.Table:
    return study_table.table(
        PublishedStudy.model_validate_json((PUBLISHED / "Havens2024LoFAST-table3.json").read_text())
    )


def test_curves_have_their_places_side_by_side(table) -> None:
    (sheet,) = sheets(table)
    assert sheet.title == "output moves"
    assert sheet.heads == ("0.01", "0.03", "0.05", "0.07", "0.09", "0.1")
    assert {row.name for row in sheet.rows} >= {"ascent", "this project", "Theorem 1", "SpecFormer"}
    claimed = {row.name: [entry.claimed for _, entry in row.entries] for row in sheet.rows}
    assert claimed["Theorem 1"] == [0.0291, 0.0875, 0.1462, 0.2052, 0.2646, 0.2943]
    assert claimed["this project"] == [None] * 6


def test_one_setting_is_said_once_to_compare_with_nothing(table) -> None:
    assert table.words == ("One setting, nothing to compare.",)


def test_curves_of_one_cell_are_drawn_together(table) -> None:
    ((caption, chart),) = figures(table)
    assert caption.startswith("8 heads.")
    assert [name in chart for name in ("ascent", "this project", "Theorem 1", "naive")] == [True] * 4
    assert chart.count("<polyline") == 2 * 4  # each line, and its mark in the legend
    assert "SpecFormer" not in chart, "it would flatten the others"
