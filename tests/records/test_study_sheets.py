"""Curves and points of a published study, as readers see them: sheets of their own, charts, every point as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from itertools import product

import pytest
from published_study import ADVERSARIAL, CLEAN, published, scattered
from rich.console import Console

from benchmark.commands import study as command
from benchmark.commands.study import print_study
from benchmark.records import study_table
from benchmark.records.study import PublishedStudy
from benchmark.records.study_points import drawn, panels, point_sheets, points_csv
from leaderboard.charts.studies import figures


def test_the_sheet_tells_of_each_class_of_the_first_seed_and_the_csv_of_every_point() -> None:
    (sheet,) = point_sheets(scattered())
    assert sheet.title == "m: tsne, seed 0"
    assert sheet.heads == ("points", "centre", "spread", "nearest is of its class, %")
    names = [f"{cell}: {name}" for cell in ("base", "<other>") for name in ("clean", "<adversarial>")]
    assert [row[0] for row in sheet.rows] == names
    assert sheet.rows[0] == ("base: clean", "3", "0.333, 0.333", f"{math.sqrt(4 / 9):.3g}", "66.7")
    assert sheet.rows[1][-1] == "66.7", "one adversarial point lies among the clean ones"
    assert sheet.rows[2][2] == "5.33, 0.333"
    assert point_sheets(scattered(("u", "v")))[0].heads[1] == "centre: u, v"
    assert {column.label for column in study_table.table(scattered()).columns} == {"clean", "m: curve"}
    lines = list(csv.DictReader(io.StringIO(points_csv(scattered()))))
    assert len(lines) == 2 * 2 * (len(CLEAN) + len(ADVERSARIAL))
    assert lines[0] == {"measure": "m: tsne", "setting": "base", "seed": "0", "class": "clean", "x": "0.0", "y": "0.0"}
    assert {(line["seed"], line["class"]) for line in lines} == {*product("01", ("clean", "<adversarial>"))}


@pytest.mark.parametrize(("classes", "near"), [([[(1, 1)]], [math.nan]), ([[(1, 1)] * 3, [(5, 5)]], [1.0, 0.0])])
def test_a_single_point_and_equal_points_have_numbers(classes, near) -> None:
    content = scattered().model_dump()
    content["result"]["runs"][0]["points"]["m: tsne"]["classes"] = [
        {"name": f"{k}", "points": points} for k, points in enumerate(classes)
    ]
    numbers = panels(PublishedStudy.model_validate(content))[0].numbers
    assert [group.near for group in numbers] == pytest.approx(near, nan_ok=True)
    assert all(group.spread == 0 for group in numbers)
    assert "1 point around" in numbers[-1].words


def test_the_figure_chooses_what_is_drawn_and_the_sheet_has_all() -> None:
    assert len(drawn(scattered())) == len(drawn(scattered(figure={"draw": "scatter", "measures": ["m"]}))) == 2
    for figure in ({"draw": "scatter", "measures": ["clean"]}, {"draw": "bars"}):
        assert drawn(scattered(figure=figure)) == ()
        assert len(point_sheets(scattered(figure=figure))) == 1


@pytest.mark.parametrize("axes", [{}, {"axes": {"training.epochs": [1, 2], "training.batch_size": [8, 16]}}])
def test_a_study_of_points_alone_has_no_numbers_to_show(axes, capsys) -> None:
    study = scattered(numbers=False)
    content = study.model_dump()
    if axes:
        for cell, level in zip(content["result"]["cells"], "12", strict=True):
            cell["levels"] = {"training.epochs": level, "training.batch_size": "8"}
    numbers = study_table.table(PublishedStudy.model_validate(content))
    assert (numbers.columns, numbers.flat, numbers.effects, numbers.words, numbers.compared) == ((), (), (), (), False)
    print_study(study)
    assert "m: tsne, seed 0" in capsys.readouterr().out


def test_curves_have_their_places_side_by_side_and_those_named_are_drawn_together() -> None:
    """Two networks of one setting, with three curves by radius, of which two are drawn and one is claimed elsewhere."""
    radii, claimed = [0.01, 0.03, 0.1], [2.0, 6.0, 20.0]
    curves = {"m: ascent": [1.0, 3.0, 9.0], "m: a bound": [1.5, 4.5, 15.0], "m: a wild bound": [100.0, 300.0, 900.0]}
    figure = {"draw": "together", "measures": ["m: ascent", "m: a bound"], "x": ""}
    content = published({"8 heads": [0.0, 0.0]}, figure, claims={"8 heads": {"m: a bound": claimed}}).model_dump()
    content["result"]["x"] = dict.fromkeys(curves, radii)
    for run in content["result"]["runs"]:
        run["values"] = {name: [value + 0.1 * run["seed"] for value in curve] for name, curve in curves.items()}
    table = study_table.table(PublishedStudy.model_validate(content))
    (sheet,) = study_table.sheets(table)
    assert sheet.title == "m"
    assert sheet.heads == ("0.01", "0.03", "0.1")
    by_name = {row.name: [entry.claimed for _, entry in row.entries] for row in sheet.rows}
    assert by_name == {"a bound": claimed, "ascent": [None] * 3, "a wild bound": [None] * 3}
    assert table.words == ("One setting, nothing to compare.",), "said once"
    ((caption, chart),) = figures(table)
    assert caption.startswith("8 heads.")
    assert [name in chart for name in ("ascent", "a bound")] == [True, True]
    assert chart.count("<polyline") == 2 * 2  # each line, and its mark in the legend
    assert "wild" not in chart, "it would flatten the others"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_wider_than_the_console_is_printed_in_parts_and_no_number_is_lost(width, monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "console", Console(width=width, highlight=False, soft_wrap=True))
    shown = published({"a long name of a setting": [0.5, 0.75], "second": [0.25, 0.25], "third": [math.nan, math.nan]})
    print_study(shown)
    said = capsys.readouterr().out
    tables = said[: said.rindex("└")]
    assert "…" not in said
    for number in ("62.5 (50.0 to 75.0)", "25.0 (25.0 to 25.0)", "0.625 (0.5 to 0.75)", "2 (2 to 2)", "3 (3 to 3)"):
        assert number in tables
    assert max(map(len, tables.splitlines())) <= width
    assert len(re.findall("┏", tables)) == {60: 4, 80: 3, 200: 2}[width]
    assert tables.count("third") == tables.count("second") > 0  # of its curve two numbers are known


def test_a_line_of_which_nothing_is_known_is_left_out(capsys) -> None:
    shown = published({"first": [0.5, 0.75], "second": [0.25, 0.25]})
    for run in shown.result.runs:
        if run.cell == "second":
            run.values["m: curve"] = [math.nan] * 3
    print_study(shown)
    tables = capsys.readouterr().out.split("┏")
    assert ["second" in part.split("└")[0] for part in tables[1:]] == [True, False]
