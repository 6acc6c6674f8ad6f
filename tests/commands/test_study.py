"""What `rvb study` prints."""

from __future__ import annotations

import math
import re

import pytest
from published_study import published
from rich.console import Console

from benchmark.commands import study


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_wider_than_the_console_is_printed_in_parts_and_no_number_is_lost(width, monkeypatch, capsys) -> None:
    monkeypatch.setattr(study, "console", Console(width=width, highlight=False, soft_wrap=True))
    shown = published({"a long name of a setting": [0.5, 0.75], "second": [0.25, 0.25], "third": [math.nan, math.nan]})
    study.print_study(shown)
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
    study.print_study(shown)
    tables = capsys.readouterr().out.split("┏")
    assert ["second" in part.split("└")[0] for part in tables[1:]] == [True, False]
