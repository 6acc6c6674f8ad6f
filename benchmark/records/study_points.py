"""Points of a study as panels to draw, as numbers for the page and the terminal, and as CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.spatial import cKDTree

from benchmark.records.points import Points
from benchmark.records.study import PublishedStudy, in_order
from benchmark.specs.study import is_named


@dataclass(frozen=True)
class ClassNumbers:
    """A class of points in numbers.

    `spread` is the root mean square distance from its centre. `near` is the share of its points whose nearest other point is
    of the same class, NaN where there is no other.
    """

    name: str
    count: int
    centre: tuple[float, float]
    spread: float
    near: float

    @property
    def words(self) -> str:
        near = "" if math.isnan(self.near) else f", {100 * self.near:.0f}% nearest to their own class"
        return (
            f"{self.name}: {self.count} point{'s' if self.count != 1 else ''} around "
            f"({self.centre[0]:.3g}, {self.centre[1]:.3g}), spread {self.spread:.3g}{near}"
        )


@dataclass(frozen=True)
class Panel:
    """The points of one measure in one cell, of one seed."""

    cell: str
    label: str
    seed: int
    points: Points

    @property
    def numbers(self) -> tuple[ClassNumbers, ...]:
        numbers = []
        for group, near in zip(self.points.classes, _near(self.points), strict=True):
            n = len(group.points)
            x, y = (math.fsum(values) / n for values in zip(*group.points, strict=True))
            spread = math.sqrt(math.fsum((a - x) ** 2 + (b - y) ** 2 for a, b in group.points) / n)
            numbers.append(ClassNumbers(group.name, n, (x, y), spread, near))
        return tuple(numbers)


@dataclass(frozen=True)
class PointSheet:
    """The numbers of one measure's points: for each class a name, then a text for each of `heads`."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def panels(study: PublishedStudy) -> tuple[Panel, ...]:
    """Return every measure's points, measure by measure; of each cell those of its first seed."""
    first = {run.cell: run for run in reversed(study.result.runs)}
    return tuple(
        Panel(cell.name, label, first[cell.name].seed, first[cell.name].points[label])
        for label in point_labels(study)
        for cell in study.result.cells
        if label in first[cell.name].points
    )


def drawn(study: PublishedStudy) -> tuple[Panel, ...]:
    """Return the panels of the study's scatter."""
    figure = study.study.figure
    if figure is None or figure.draw != "scatter":
        return ()
    return tuple(panel for panel in panels(study) if not figure.measures or is_named(panel.label, figure.measures))


def point_labels(study: PublishedStudy) -> list[str]:
    """Return the measures that gave points, in the study's order; those that its figure names in the figure's order."""
    return in_order(study.study, sorted({label for run in study.result.runs for label in run.points}))


def point_sheets(study: PublishedStudy) -> tuple[PointSheet, ...]:
    """Return a sheet for each measure, drawn or not."""
    every, sheets = panels(study), []
    several = len({panel.cell for panel in every}) > 1
    for label in dict.fromkeys(panel.label for panel in every):
        chosen = [panel for panel in every if panel.label == label]
        axes = chosen[0].points.axes
        rows = tuple(
            (
                f"{panel.cell}: {numbers.name}" if several else numbers.name,
                f"{numbers.count}",
                f"{numbers.centre[0]:.3g}, {numbers.centre[1]:.3g}",
                f"{numbers.spread:.3g}",
                "–" if math.isnan(numbers.near) else f"{100 * numbers.near:.1f}",
            )
            for panel in chosen
            for numbers in panel.numbers
        )
        centre = f"centre: {axes[0]}, {axes[1]}" if axes else "centre"
        heads = ("points", centre, "spread", "nearest is of its class, %")
        sheets.append(PointSheet(f"{label}, seed {chosen[0].seed}", heads, rows))
    return tuple(sheets)


def points_csv(study: PublishedStudy) -> str:
    """Return one line a point, of all seeds; "" where no measure gave any."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for label in point_labels(study):
        for run in study.result.runs:
            for group in run.points[label].classes if label in run.points else ():
                writer.writerows((label, run.cell, run.seed, group.name, x, y) for x, y in group.points)
    return f"measure,setting,seed,class,x,y\n{text.getvalue()}" if text.getvalue() else ""


def _near(points: Points) -> tuple[float, ...]:
    """Return for each class the share of points whose nearest other point is of the class; any one of equally near ones."""
    if points.count < 2:
        return (math.nan,) * len(points.classes)
    places = np.concatenate([np.array(group.points, np.float64) for group in points.classes])
    owner = np.repeat(np.arange(len(points.classes)), [len(group.points) for group in points.classes])
    _, two = cKDTree(places).query(places, k=2)
    other = np.where(two[:, 0] == np.arange(len(places)), two[:, 1], two[:, 0])
    same = owner[other] == owner
    return tuple(cast(float, same[owner == k].mean().item()) for k in range(len(points.classes)))
