"""Curves of a study as tables of their own, for the page and the terminal. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmark.results.quantiles import SHOWN, curves_like_quantiles
from benchmark.results.study_table import Column, Entry, Table


@dataclass(frozen=True)
class Row:
    """One curve of one cell."""

    name: str
    entries: tuple[tuple[Column, Entry], ...]


@dataclass(frozen=True)
class Sheet:
    """One measure's curves over the places `heads`."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]


def sheets(table: Table) -> tuple[Sheet, ...]:
    """Each measure's curves, places side by side; of quantiles some levels alone."""
    quantiles = curves_like_quantiles(table.study)
    measures: dict[str, dict[str, list[int]]] = {}
    for i, column in enumerate(table.columns):
        if column.x is not None and (column.label not in quantiles or column.x in SHOWN):
            measures.setdefault(column.label.partition(": ")[0], {}).setdefault(column.label, []).append(i)
    found = []
    for measure, curves in measures.items():
        first = [table.columns[i] for i in next(iter(curves.values()))]
        rows = tuple(
            Row(
                _of_curve(line.cell, label, len(table.lines)),
                tuple((table.columns[i], line.entries[i]) for i in places),
            )
            for line in table.lines
            for label, places in curves.items()
            if not all(math.isnan(line.entries[i].mean) for i in places)  # as of a block that a setting has not
        )
        found.append(Sheet(measure + first[0].unit, tuple(f"{column.x:g}" for column in first), rows))
    return tuple(found)


def _of_curve(cell: str, label: str, cells: int) -> str:
    curve = label.partition(": ")[2]
    return ": ".join(part for part in (cell if cells > 1 or not curve else "", curve) if part)
