"""What a page shows of studies, and the files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from benchmark.results.reproduced import Reproduced
from benchmark.results.study_points import PointSheet, point_sheets, points_csv
from benchmark.results.study_sheets import Sheet, sheets
from benchmark.results.study_table import Table
from leaderboard.charts.studies import figures


@dataclass(frozen=True)
class Shown:
    """One study: `reproduced` is None where that is unknown; `download` is the file of its points."""

    table: Table
    charts: Sequence[tuple[str, Markup]]
    sheets: Sequence[Sheet]
    points: Sequence[PointSheet]
    reproduced: Reproduced | None
    download: str


def shown(tables: Iterable[Table], marks: Mapping[str, Reproduced]) -> tuple[tuple[Shown, ...], dict[str, str]]:
    """Studies as a page shows them, and the files beside it: their points, as CSV."""
    found, files = [], {}
    for table in tables:
        text, result = points_csv(table.study), table.study.result
        download = f"points-{result.name}.csv" if text else ""
        if text:
            files[download] = text
        found.append(
            Shown(table, figures(table), sheets(table), point_sheets(table.study), marks.get(result.id), download)
        )
    return tuple(found), files
