"""What a page shows of studies, and the files beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from benchmark.results.record import Record
from benchmark.results.reproduced import Reproduced
from benchmark.results.study_points import PointSheet, point_sheets, points_csv
from benchmark.results.study_table import Sheet, Table, sheets
from leaderboard.charts.studies import figures
from leaderboard.seeds import belongs_on_page


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


def on_page(
    record: Record, tables: Sequence[Table], marks: Mapping[str, Reproduced]
) -> tuple[tuple[Shown, ...], dict[str, str]]:
    """The studies on the page of a row, and the files beside it."""
    return shown((table for table in tables if belongs_on_page(table.study, record)), marks)
