"""All rows of a board in two charts with their Pareto fronts: clean against robust and certified accuracy, and cost. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from benchmark.specs.track import Track
from leaderboard.charts.vega import Chart, data
from leaderboard.rank import TITLES, Row, ball, columns, headline_columns

FEW, LABELLED = 40, 16  # rows: with more, intervals hide the points, and names each other
NAMED = 8  # rows of a front that the words name
LONGEST = 60  # characters of a title in a chart
LABEL = 150  # pixels of a title beside its point
ON_FRONT = "indexof(datum.front, datum.series) >= 0"
SERIES = ("attacked", "certified")
HEADS = ("row", "model", "clean", *SERIES)
ENDS = ("attacked_low", "attacked_high", "certified_low", "certified_high")

Line = dict[str, Any]


def overview(rows: Sequence[Row], track: Track) -> list[Chart]:
    """None where there are no rows."""
    if not rows:
        return []
    lines = [_line(row, track) for row in rows]
    names = {series: label(name) for series, name in _series(track).items()}
    if not names:
        return []
    many, said = len(rows), tuple(names.items())
    accuracies = (
        "Clean accuracy against the numbers of the legend. A point is a model. A line is a Pareto front: no model is better "
        "in both numbers than one on the line. Click the legend to choose a series, a point to open its model."
    )
    cost = (
        "The cost of one image, in floating-point operations (log scale), against the numbers of the legend. The lines join "
        "the models that no cheaper one surpasses."
    )
    clean = [line["clean"] for line in lines]
    frugal = [-line["flops"] if line["flops"] else None for line in lines]
    size = many <= FEW, many <= LABELLED
    drawn = _drawn("clean", "clean accuracy, percent", False, *size, said)
    priced = _drawn("flops", "FLOPs of one image, log scale", True, *size, said)
    return [
        _chart("accuracies", accuracies, lines, clean, names, drawn),
        _chart("cost", cost, lines, frugal, names, priced),
    ]


def label(name: str) -> str:
    """A headline number's name as the board says it."""
    word, _, rest = name.partition(" ")
    return f"{TITLES.get(word, word)} {ball(rest)}".strip()


def _series(track: Track) -> dict[str, str]:
    """By series the headline number that it draws."""
    kinds = dict(zip(("robust", "certified"), SERIES, strict=True))
    return {kinds[name.split()[0]]: name for name in headline_columns(track) if name.split()[0] in kinds}


def front(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Which points no other one surpasses: at least as high in both coordinates, higher in one. None is on no front."""
    found, best, before = [False] * len(points), -math.inf, (math.inf, -math.inf)
    known = [(x, y, place) for place, (x, y) in enumerate(points) if x is not None and y is not None]
    for x, y, place in sorted(known, key=lambda one: (-one[0], -one[1])):
        found[place] = y > best or (x, y) == before
        if y > best:
            best, before = y, (x, y)
    return found


def _line(row: Row, track: Track) -> dict[str, Any]:
    """A row's headline numbers in percent, to two decimals, and what it costs."""
    record, cells = row.record, dict(zip(columns(track), row.cells, strict=True))
    shown = {"clean": "clean", **_series(track)}
    title = record.title if len(record.title) <= LONGEST else f"{record.title[:LONGEST]}…"
    line: dict[str, Any] = {"row": record.row, "model": title, "parameters": record.parameters, "flops": record.flops}
    for word in ("clean", *SERIES):
        cell = cells[shown[word]] if word in shown else None
        for end, value in (("", "value"), ("_low", "low"), ("_high", "high")):
            line[word + end] = None if cell is None else round(100 * getattr(cell, value), 2)
    return line


def _chart(
    name: str, caption: str, lines: list[Line], across: Sequence[float | None], names: dict[str, str], drawn: Line
) -> Chart:
    """`across`: the coordinate of each line along the x-axis, such that more is better."""
    fronts = {word: front([(x, line[word]) for x, line in zip(across, lines, strict=True)]) for word in SERIES}
    extra = ("parameters", "flops") if name == "cost" else ()
    heads = [*HEADS, *extra, *(ENDS if len(lines) <= FEW else ()), "front"]
    for place, line in enumerate(lines):
        line["front"] = " ".join(word for word in SERIES if fronts[word][place])
    words = [f"{len(lines)} models."]
    for word, shown in names.items():
        words.append(_words(shown, [line for line, on in zip(lines, fronts[word], strict=True) if on], word, name))
    return Chart(name, caption, " ".join(words), drawn, heads, [[line[head] for head in heads] for line in lines])


def _words(shown: str, lines: list[Line], word: str, name: str) -> str:
    """The front, from the best on."""
    lines = sorted(lines, key=lambda line: -line[word])
    others = [f"{line['flops']:,} FLOPs" if name == "cost" else f"clean {line['clean']:.1f}" for line in lines]
    named = [f"{line['model']} ({line[word]:.1f}, {other})" for line, other in zip(lines, others, strict=True)][:NAMED]
    more = f"; and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    return f"Pareto front for {shown}: {'; '.join(named) or 'none'}{more}."


@functools.cache
def _drawn(
    across: str, title: str, cheap: bool, few: bool, labelled: bool, names: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    """`cheap`: on a log scale, less is better; `few`: with intervals; `labelled`: with the names of rows on the fronts."""
    shown: list[Any] = [series for series, _ in names]
    scale = alt.Scale(type="log", nice=False, padding=12) if cheap else alt.Scale(zero=False, nice=False, padding=12)
    base = (
        alt.Chart(data())
        .transform_fold(shown, as_=["series", "accuracy"])
        .transform_filter("isValid(datum.accuracy) && isValid(datum.clean)" + (" && datum.flops > 0" if cheap else ""))
        .transform_calculate(
            low="datum[datum.series + '_low']", high="datum[datum.series + '_high']",
            page="'models/' + datum.row + '/index.html'",
        )
    )  # fmt: skip
    chosen = alt.selection_point(fields=["series"], bind="legend", name="series")
    titles = [
        alt.param(name=f"{series}Title", value=title) for series, title in names
    ]  # the page's script changes them
    said = " : ".join([*(f"datum.value == '{series}' ? {series}Title" for series, _ in names), "''"])
    legend = alt.Legend(title=None, orient="top", symbolSize=90, symbolOpacity=1, labelExpr=said)
    colour = alt.Color("series:N", scale=alt.Scale(domain=shown), legend=legend)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=shown, range=["circle", "diamond"]), legend=legend)
    axis = alt.Axis(format="~s", tickCount=5, labelFlush=True) if cheap else alt.Axis(tickCount=8, labelFlush=True)
    x = alt.X(f"{across}:Q", title=title, scale=scale, axis=axis)
    y = alt.Y("accuracy:Q", title="percent of images", scale=alt.Scale(domainMin=0, nice=True))
    when = alt.when(chosen)
    on_front = base.transform_filter(ON_FRONT)
    lines = on_front.mark_line(interpolate="step-after" if cheap else "step-before", strokeWidth=1.5).encode(
        x, y, colour, strokeDash=alt.StrokeDash("series:N", scale=alt.Scale(range=[[1, 0], [5, 3]]), legend=None),
        opacity=when.then(alt.value(0.75)).otherwise(alt.value(0.05)),
    )  # fmt: skip
    points = base.mark_point(filled=True, size=90 if few else 45, cursor="pointer").encode(
        x, y, colour, shape, href="page:N",
        opacity=when.then(alt.value(0.9 if few else 0.45)).otherwise(alt.value(0.05)),
        tooltip=[
            alt.Tooltip("model:N"), alt.Tooltip("row:N"), alt.Tooltip("clean:Q", format=".1f"), alt.Tooltip("series:N"),
            alt.Tooltip("accuracy:Q", format=".1f"), *([alt.Tooltip("flops:Q", title="FLOPs", format=",")] if cheap else []),
        ],
    )  # fmt: skip
    layers = [*([_intervals(base, x, colour, when)] if few else []), lines, points]
    layers += _labels(base, across, x, y, when) if labelled else []
    made = alt.layer(*layers).add_params(chosen, *titles).properties(width="container", height=290).to_dict()
    return {key: value for key, value in made.items() if key != "config"}  # the page has its own


def _intervals(base: alt.Chart, x: alt.X, colour: alt.Color, when: Any) -> alt.Chart:
    opacity = when.then(alt.value(0.35)).otherwise(alt.value(0.03))
    return base.mark_rule(strokeWidth=1).encode(x, alt.Y("low:Q"), alt.Y2("high:Q"), colour, opacity=opacity)


def _labels(base: alt.Chart, across: str, x: alt.X, y: alt.Y, when: Any) -> list[alt.Chart]:
    """The names of the models on a front, each towards the middle of the chart: of attacked ones above their points, of
    certified ones beneath, but for those near the axis. A name that would lie on the one before it on the front is left out.
    """
    ends = base.transform_joinaggregate(least=f"min({across})", greatest=f"max({across})", top="max(accuracy)")
    ends = ends.transform_calculate(
        left=f"pow(datum.{across}, 2) <= datum.least * datum.greatest",
        beneath=f"datum.series == '{SERIES[1]}' && datum.accuracy > datum.top / 8",
    )
    named = ends.transform_filter(ON_FRONT).transform_window(
        before="lag(accuracy)",
        beside=f"lag({across})",
        sort=[alt.SortField("accuracy", "descending")],
        groupby=["series"],
    )
    near = f"abs(log(datum.beside / datum.{across})) < 0.4 * log(datum.greatest / datum.least)"
    named = named.transform_filter(
        f"!(isValid(datum.before) && datum.before - datum.accuracy < datum.top / 15 && {near})"
    )
    opacity = when.then(alt.value(1)).otherwise(alt.value(0.05))
    sides: list[tuple[str, Any, int]] = [("datum.left", "left", -4), ("!datum.left", "right", 4)]
    return [  # each layer has all points: Vega warns of one that is left without any
        named.transform_calculate(name=f"{side} && {height} ? datum.model : ''")
        .mark_text(align=align, dx=dx, dy=dy, limit=LABEL)
        .encode(x, y, text="name:N", opacity=opacity)
        for side, align, dx in sides
        for height, dy in (("!datum.beneath", -10), ("datum.beneath", 14))
    ]
