"""A study's figure as inline SVG: bars with the spread of seeds, lines over an axis, curves and others. Pure, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from benchmark.records.study_table import Column, Entry, Line, Table
from benchmark.specs.study import last_word, measure_named, measure_of
from leaderboard.charts.scatter import scatters
from leaderboard.charts.svg import COLOURS, dot, grid, left_axis, polyline, short, svg, text, ticks
from leaderboard.charts.violins import violins
from leaderboard.rank import ball

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 460, 46, 14, 12, 40
BAR = 24
QUANTITIES = {  # of submissions' measures: what their curves are
    "layer_bounds": "change of the layer's output, l2",
    "margin_lost": "margin lost, logits",
    "perturbed": "bound on the change of the layer's output, l2",
    "single_head": "change of the head's attention or values, l2",
}


@dataclass(frozen=True)
class Series:
    """One line of a chart: a mean and a spread at some places."""

    label: str
    points: tuple[tuple[float, Entry], ...]  # place on the axis, values of the seeds there


def figures(table: Table) -> list[tuple[str, Markup]]:
    """Return (caption, chart) of a study; none if it asks for none or no column fits."""
    figure = table.study.study.figure
    if figure is None:
        return []
    if figure.draw == "violins":
        return violins(table)
    if figure.draw == "scatter":
        return scatters(table)
    chosen = [(i, column) for i, column in enumerate(table.columns) if not figure.measures or column.label in figure.measures]
    spread = "Points are seeds, their mean is the {}."
    if figure.draw == "bars":
        return [(f"{ball(column.title)}. {spread.format('bar')}", _bars(table, i, column)) for i, column in chosen]
    if figure.draw == "lines":
        flat = [(i, column) for i, column in chosen if column.x is None]
        return [(f"{ball(c.title)}. {spread.format('line')}", _lines(table, i, c, figure.x)) for i, c in flat]
    labels = dict.fromkeys(column.label for _, column in chosen if column.x is not None)
    if figure.draw == "together":
        where = {column.x for _, column in chosen if column.x is not None}
        fits = [label for label in labels if {c.x for _, c in chosen if c.label == label} == where]
        return [
            (f"{line.cell}. {spread.format('line')}", _together(table, place, fits))
            for place, line in enumerate(table.lines)
            if any(line.entries[i].values for i, column in chosen if column.label in fits)
        ]
    return [(f"{label}. {spread.format('line')}", _curves(table, label)) for label in labels]


def _bars(table: Table, index: int, column: Column) -> Markup:
    """Return a bar a cell, from 0 to the mean, with its seeds as dots and the claimed number as a cross."""
    scale, values = 100 if column.share else 1, [v for line in table.lines for v in line.entries[index].values]
    axis = [0.0, 20, 40, 60, 80, 100] if column.share else ticks(min(0.0, *values), max(0.0, *values))
    longest = max(len(line.cell) for line in table.lines)
    left = min(230, 14 + 6.4 * longest)
    height = TOP + BAR * len(table.lines) + BOTTOM

    def x(value: float) -> float:
        return round(left + (WIDTH - left - RIGHT) * (scale * value - axis[0]) / (axis[-1] - axis[0]), 1)

    parts = [
        grid(x(t / scale), x(t / scale), TOP, height - BOTTOM) + text(x(t / scale), height - BOTTOM + 16, f"{t:g}")
        for t in axis
    ]
    for place, line in enumerate(table.lines):
        entry, y = line.entries[index], TOP + BAR * (place + 0.5)
        start, end = sorted((x(0), x(entry.mean if entry.values else 0)))
        bar = Markup('<rect class="bar" x="{}" y="{}" width="{}" height="16"/>')
        parts += [text(left - 8, y + 4, short(line.cell, 34), "end"), bar.format(start, y - 8, max(end - start, 0.5))]
        parts += [dot(x(v), y, f"{line.cell}: {column.text(v)}") for v in entry.values]
        if entry.claimed is not None:
            parts.append(
                Markup('<path class="claim" d="M{0} {1}l6 6m0 -6l-6 6"><title>claimed: {2}</title></path>')
                .format(x(entry.claimed) - 3, y - 3, column.text(entry.claimed))
            )  # fmt: skip
    label = ball(column.title) + (", percent" if column.share else "")
    return _svg(column.title, table.lines, index, column, parts, height, label, height - 8)


def _lines(table: Table, index: int, column: Column, axis: str) -> Markup:
    """Return lines over the levels of `axis`, evenly spaced, one for each combination of the other axes."""
    cells = table.study.result.cells
    levels = list(dict.fromkeys(cell.levels[axis] for cell in cells))
    groups: dict[str, list[tuple[float, Entry]]] = {}
    for cell, line in zip(cells, table.lines, strict=True):
        others = [f"{last_word(k)} {v}" if k != "cell" else v for k, v in cell.levels.items() if k != axis]
        place = (levels.index(cell.levels[axis]) + 0.5) / len(levels)
        if line.entries[index].values:
            groups.setdefault(", ".join(others), []).append((place, line.entries[index]))
    series = [Series(label, tuple(points)) for label, points in groups.items()]
    places = [((i + 0.5) / len(levels), level) for i, level in enumerate(levels)]
    return _plot(table, index, column, series, places, last_word(axis), [column.label])


def _curves(table: Table, label: str) -> Markup:
    """Return a line a cell over the places of a curve, to scale."""
    chosen, at, places = _places(table, label)
    series = [
        Series(line.cell, tuple((place, line.entries[i]) for place, (i, _) in zip(at, chosen, strict=True)))
        for line in table.lines
        if line.entries[chosen[0][0]].values
    ]
    return _plot(table, chosen[0][0], chosen[0][1], series, places, _across(table, chosen[0][1]), [label])


def _across(table: Table, column: Column) -> str:
    """Return the title of a curve's axis: the parameter of the measure whose values are the places."""
    measure = measure_named(table.study.study, column.label)
    if measure is None:
        return "place on the curve"
    where = tuple(c.x for c in table.columns if c.label == column.label)
    parameters = {"radii": measure.radii, **measure.parameters}
    named = next((name for name, values in parameters.items() if values == where), "")
    if named == "radii":
        return "l2 radius, pixels" if column.share else "l2 radius"
    named = named or ("block" if where == tuple(range(1, len(where) + 1)) else "place on the curve")
    return named.removesuffix("s").replace("_", " ")


def _upwards(table: Table, labels: Sequence[str]) -> str:
    """Return the title of the axis of values: what the measure of the curves is, or its name."""
    measures = [measure_named(table.study.study, label) for label in labels]
    names = dict.fromkeys(
        QUANTITIES.get(m.measure, measure_of(label)) for m, label in zip(measures, labels, strict=True) if m
    )
    return ", ".join(names) if len(names) == 1 else "value"


def _together(table: Table, cell: int, labels: Sequence[str]) -> Markup:
    """Return a line a curve of one cell, all over the same places."""
    entries, series = table.lines[cell].entries, []
    for label in labels:
        chosen, at, places = _places(table, label)
        if not entries[chosen[0][0]].values:
            continue
        series.append(Series(label, tuple((p, entries[i]) for p, (i, _) in zip(at, chosen, strict=True))))
    return _plot(table, chosen[0][0], chosen[0][1], series, places, _across(table, chosen[0][1]), labels)


def _places(table: Table, label: str) -> tuple[list[tuple[int, Column]], list[float], list[tuple[float, str]]]:
    """Return the columns of a curve, their places on the axis, and the marks of the axis."""
    chosen = [(i, column) for i, column in enumerate(table.columns) if column.label == label]
    where = [column.x or 0.0 for _, column in chosen]
    low, span = min(where), (max(where) - min(where)) or 1.0
    at = [0.03 + 0.94 * (x - low) / span for x in where]
    marks: list[tuple[float, str]] = []
    for place, x in zip(at, where, strict=True):
        if not marks or place - marks[-1][0] > 0.08:
            marks.append((place, ball(f"{x:.4g}")))
    return chosen, at, marks


def _plot(
    table: Table,
    index: int,
    column: Column,
    series: Sequence[Series],
    places: list[tuple[float, str]],
    x_label: str,
    labels: Sequence[str],
) -> Markup:
    scale = 100 if column.share else 1
    values = [v for line in series for _, entry in line.points for v in entry.values]
    axis = [0.0, 20, 40, 60, 80, 100] if column.share else ticks(min(0.0, *values), max(values))
    legend = 16 * len(series) + 12 if len(series) > 1 else 0  # below the title of the axis
    top, bottom, height = TOP + 14, 250, 250 + BOTTOM + legend

    def y(value: float) -> float:
        return round(bottom - (bottom - top) * (scale * value - axis[0]) / (axis[-1] - axis[0]), 1)

    def x(place: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * place, 1)

    title = "percent of images" if column.share else short(_upwards(table, labels), 60)
    parts = [text(4, 12, title, "start"), left_axis(axis, lambda tick: y(tick / scale), LEFT, WIDTH - RIGHT)]
    parts += [text(x(p), bottom + 16, word) for p, word in places]
    for number, line in enumerate(series):
        drawn = [polyline((x(p), y(entry.mean)) for p, entry in line.points)]
        drawn += [dot(x(p), y(v), f"{line.label}: {column.text(v)}") for p, entry in line.points for v in entry.values]
        if legend:
            foot = height - legend + 16 * number + 6
            name = Markup('<text x="{}" y="{}">{}</text>').format(LEFT + 34, foot + 4, short(line.label, 64))
            drawn += [polyline([(LEFT, foot), (LEFT + 28, foot)]), name]
        parts.append(Markup('<g class="s{}">{}</g>').format(number % COLOURS, Markup("").join(drawn)))
    return _svg(column.label, table.lines, index, column, parts, height, x_label, bottom + 33)


def _svg(
    title: str, lines: Sequence[Line], index: int, column: Column, parts: list[Markup], height: float, foot: str, at: float
) -> Markup:
    means = "; ".join(f"{line.cell}: {column.text(line.entries[index].mean)}" for line in lines)
    return svg(WIDTH, height, f"{title}. {means}", *parts, text(WIDTH / 2, at, foot))
