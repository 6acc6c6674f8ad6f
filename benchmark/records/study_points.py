"""Points of a study as panels to draw, as numbers for the page and the terminal, and as CSV. Pure."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.spatial import cKDTree

from benchmark.records.points import Points
from benchmark.records.study import PublishedStudy, is_named, measure_of


@dataclass(frozen=True)
class ClassNumbers:
    """What a class looks like without the picture.

    `spread` is the root mean square distance from its centre; `near` the share of its points whose nearest other point is
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
        near = _near(self.points)
        found = []
        for one, share in zip(self.points.classes, near, strict=True):
            n, (x, y) = len(one.points), (math.fsum(v) / len(one.points) for v in zip(*one.points, strict=True))
            spread = math.sqrt(math.fsum((a - x) ** 2 + (b - y) ** 2 for a, b in one.points) / n)
            found.append(ClassNumbers(one.name, n, (x, y), spread, share))
        return tuple(found)


@dataclass(frozen=True)
class PointSheet:
    """The numbers of one measure's points, class by class: a name, then a text for each of `heads`."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def panels(study: PublishedStudy) -> tuple[Panel, ...]:
    """Every measure's points, in each cell those of its first seed, measure by measure."""
    first = {run.cell: run for run in reversed(study.result.runs)}
    return tuple(
        Panel(cell.name, label, first[cell.name].seed, first[cell.name].points[label])
        for label in point_labels(study)
        for cell in study.result.cells
        if label in first[cell.name].points
    )


def drawn(study: PublishedStudy) -> tuple[Panel, ...]:
    """Those of the study's scatter."""
    figure = study.study.figure
    if figure is None or figure.draw != "scatter":
        return ()
    return tuple(one for one in panels(study) if not figure.measures or is_named(one.label, figure.measures))


def point_labels(study: PublishedStudy) -> tuple[str, ...]:
    """The measures that gave points, in the study's order, those that the figure names in its."""
    order, figure = [measure.label for measure in study.study.measures], study.study.figure
    named = [*figure.measures] if figure else []
    found = dict.fromkeys(label for run in study.result.runs for label in run.points)
    places = {label: (named.index(label) if label in named else len(named), label) for label in found}
    return tuple(sorted(found, key=lambda label: (order.index(measure_of(label)), places[label])))


def point_sheets(study: PublishedStudy) -> tuple[PointSheet, ...]:
    """A sheet a measure, drawn or not."""
    found, sheets = panels(study), []
    several = len({panel.cell for panel in found}) > 1
    for label in dict.fromkeys(panel.label for panel in found):
        chosen = [panel for panel in found if panel.label == label]
        axes = chosen[0].points.axes
        rows = tuple(
            (f"{panel.cell}: {one.name}" if several else one.name, *_texts(one))
            for panel in chosen
            for one in panel.numbers
        )
        centre = f"centre: {axes[0]}, {axes[1]}" if axes else "centre"
        heads = ("points", centre, "spread", "nearest is of its class, %")
        sheets.append(PointSheet(f"{label}, seed {chosen[0].seed}", heads, rows))
    return tuple(sheets)


def points_csv(study: PublishedStudy) -> str:
    """A line a point, of all seeds; "" where no measure gave any."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for label in point_labels(study):
        for run in study.result.runs:
            for one in run.points[label].classes if label in run.points else ():
                writer.writerows((label, run.cell, run.seed, one.name, x, y) for x, y in one.points)
    return f"measure,setting,seed,class,x,y\n{text.getvalue()}" if text.getvalue() else ""


def _texts(one: ClassNumbers) -> tuple[str, ...]:
    near = "–" if math.isnan(one.near) else f"{100 * one.near:.1f}"
    return (f"{one.count}", f"{one.centre[0]:.3g}, {one.centre[1]:.3g}", f"{one.spread:.3g}", near)


def _near(points: Points) -> tuple[float, ...]:
    """By class the share of points whose nearest other is of it; of equally near ones, any."""
    if points.count < 2:
        return (math.nan,) * len(points.classes)
    places = np.array([place for one in points.classes for place in one.points])
    owner = np.repeat(np.arange(len(points.classes)), [len(one.points) for one in points.classes])
    _, two = cKDTree(places).query(places, k=2)
    other = np.where(two[:, 0] == np.arange(len(places)), two[:, 1], two[:, 0])
    same = owner[other] == owner
    return tuple(cast(float, same[owner == k].mean().item()) for k in range(len(points.classes)))
