"""All rows of a board in two charts with their Pareto fronts: clean against robust and certified accuracy, and cost. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.specs.track import Track
from leaderboard.charts.vega import Chart, layered, number
from leaderboard.charts.vega import name as named
from leaderboard.rank import Row, columns, headline_columns, label

FEW = 40  # rows: with more, intervals hide the points, and names each other
NAMED = 8  # rows of a front that the words name
LONGEST = 60  # characters of a title in a chart
LABEL, LINE = 26, 16  # characters in each of two lines of a title beside its point, and pixels from one to the next
ON_FRONT = {"filter": "indexof(datum.front, datum.series) >= 0"}
SERIES = ("attacked", "certified")
HEADS = ("row", "model", "clean", *SERIES)
ENDS = ("attacked_low", "attacked_high", "certified_low", "certified_high")

Line = dict[str, Any]


def overview(rows: Sequence[Row], track: Track) -> list[Chart]:
    """Return the two charts; none if there are no rows."""
    if not rows:
        return []
    lines = [_line(row, track) for row in rows]
    names = {series: label(name) for series, name in _series(track).items()}
    if not names:
        return []
    many = len(rows)
    accuracies = (
        "A point is a model. A line is a Pareto front: no model is better in both numbers than a model on the line. "
        "Click the legend to choose a number, a point to open its model."
    )
    cost = "The lines join the models that no cheaper model surpasses. FLOPs are floating-point operations."
    clean = [line["clean"] for line in lines]
    frugal = [-line["flops"] if line["flops"] else None for line in lines]
    drawn = _drawn("clean", "clean accuracy, percent", False, many <= FEW, names)
    priced = _drawn("flops", "FLOPs of one image, log scale", True, many <= FEW, names)
    return [_chart("accuracies", accuracies, lines, clean, names, drawn), _chart("cost", cost, lines, frugal, names, priced)]


def _series(track: Track) -> dict[str, str]:
    """Return the headline number of each series."""
    kinds = dict(zip(("robust", "certified"), SERIES, strict=True))
    return {kinds[name.split()[0]]: name for name in headline_columns(track) if name.split()[0] in kinds}


def front(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Return which points are on the Pareto front: none other is as high in both and higher in one. None is on no front."""
    on_front, best, before = [False] * len(points), -math.inf, (math.inf, -math.inf)
    placed = [(x, y, place) for place, (x, y) in enumerate(points) if x is not None and y is not None]
    for x, y, place in sorted(placed, key=lambda point: (-point[0], -point[1])):
        on_front[place] = y > best or (x, y) == before
        if y > best:
            best, before = y, (x, y)
    return on_front


def _line(row: Row, track: Track) -> dict[str, Any]:
    """Return a row's headline numbers in percent, to two decimals, and its cost."""
    record, cells = row.record, dict(zip(columns(track), row.cells, strict=True))
    shown = {"clean": "clean", **_series(track)}
    title = record.title if len(record.title) <= LONGEST else f"{record.title[:LONGEST]}…"
    line: dict[str, Any] = {"row": record.row, "model": title, "parameters": record.parameters, "flops": record.flops}
    line["label"] = "\n".join(textwrap.wrap(record.title, LABEL, max_lines=2, placeholder="…"))
    for word in ("clean", *SERIES):
        cell = cells[shown[word]] if word in shown else None
        for end, value in (("", "value"), ("_low", "low"), ("_high", "high")):
            line[word + end] = None if cell is None else round(100 * getattr(cell, value), 2)
    return line


def _chart(
    name: str, caption: str, lines: list[Line], across: Sequence[float | None], names: dict[str, str], drawn: Line
) -> Chart:
    """Return a chart; `across` is the x of each line, such that more is better."""
    fronts = {word: front([(x, line[word] or None) for x, line in zip(across, lines, strict=True)]) for word in SERIES}
    extra = ("parameters", "flops") if name == "cost" else ()
    heads = [*HEADS, *extra, *((*ENDS, "label") if len(lines) <= FEW else ()), "front"]
    for place, line in enumerate(lines):
        line["front"] = " ".join(word for word in SERIES if fronts[word][place])
    words = [f"{len(lines)} models."]
    for word, shown in names.items():
        words.append(_words(shown, [line for line, on in zip(lines, fronts[word], strict=True) if on], word, name))
    return Chart(name, caption, " ".join(words), drawn, heads, [[line[head] for head in heads] for line in lines])


def _words(shown: str, lines: list[Line], word: str, name: str) -> str:
    """Return the front in words, the best model first."""
    lines = sorted(lines, key=lambda line: -line[word])
    others = [f"{line['flops']:,} FLOPs" if name == "cost" else f"clean {line['clean']:.1f}" for line in lines]
    named = [f"{line['model']} ({line[word]:.1f}, {other})" for line, other in zip(lines, others, strict=True)][:NAMED]
    more = f"; and {len(lines) - NAMED} more" if len(lines) > NAMED else ""
    return f"Pareto front for {shown}: {'; '.join(named) or 'none'}{more}."


def _drawn(across: str, title: str, cheap: bool, few: bool, names: Mapping[str, str]) -> dict[str, Any]:
    """Return Vega-Lite without data.

    Args:
        cheap: on a log scale, less is better.
        few: with intervals, and the names of rows on the fronts.
        names: by series the number that it draws.
    """
    series = [*names]
    choose = " : ".join([*(f"datum.{{0}} == '{word}' ? {word}Title" for word in series), "''"])  # the page's script sets them
    legend = {
        "title": None, "orient": "top", "symbolSize": 90, "symbolOpacity": 1, "labelExpr": choose.format("value"),
    }  # fmt: skip
    colour = named("series", scale={"domain": series}, legend=legend)
    shape = named("series", scale={"domain": series, "range": ["circle", "diamond"]}, legend=legend)
    transform = [
        {"fold": series, "as": ["series", "accuracy"]},
        {"filter": "isValid(datum.accuracy) && isValid(datum.clean)" + (" && datum.flops > 0" if cheap else "")},
        {"calculate": "datum[datum.series + '_low']", "as": "low"},
        {"calculate": "datum[datum.series + '_high']", "as": "high"},
        {"calculate": "'models/' + datum.row + '/index.html'", "as": "page"},
        {"calculate": choose.format("series"), "as": "number"},
    ]
    lines = {
        "transform": [ON_FRONT],
        "mark": {"type": "line", "interpolate": "step-after" if cheap else "step-before", "strokeWidth": 1.5},
        "encoding": {
            "color": colour, "strokeDash": named("series", scale={"range": [[1, 0], [5, 3]]}, legend=None),
            "opacity": _where_chosen(0.75),
        },
    }  # fmt: skip
    points = {
        "params": [{"name": "series", "select": {"type": "point", "fields": ["series"]}, "bind": "legend"}],
        "mark": {"type": "point", "filled": True, "size": 90 if few else 45, "cursor": "pointer"},
        "encoding": {
            "color": colour, "shape": shape, "href": named("page"), "opacity": _where_chosen(0.9 if few else 0.45),
            "tooltip": [
                named("model"), named("row"), number("clean", format=".1f"), named("number"),
                number("accuracy", format=".1f"),
                *([number("flops", title="FLOPs", format=",")] if cheap else []),
            ],
        },
    }  # fmt: skip
    intervals = {
        "mark": {"type": "rule", "strokeWidth": 1},
        "encoding": {"y": number("low"), "y2": {"field": "high"}, "color": colour, "opacity": _where_chosen(0.35, 0.03)},
    }
    scale = {"nice": False, "padding": 12, **({"type": "log"} if cheap else {"zero": False})}
    axis = {"labelFlush": True, **({"format": "~s", "tickCount": 5} if cheap else {"tickCount": 8})}
    encoding = {
        "x": number(across, title=title, scale=scale, axis=axis),
        "y": number("accuracy", title="percent of images", scale={"domainMin": 0, "nice": True}),
    }
    layers: list[dict[str, Any]] = [*[intervals] * few, lines, points, *(_labels(across) if few else [])]
    titles = [{"name": f"{word}Title", "value": value} for word, value in names.items()]
    return layered(230, layers, params=titles, transform=transform, encoding=encoding)


def _where_chosen(opacity: float, otherwise: float = 0.05) -> dict[str, Any]:
    return {"condition": {"param": "series", "value": opacity}, "value": otherwise}


def _labels(across: str) -> list[dict[str, Any]]:
    """The names of the models on a front, each towards the middle of the chart: of robust ones above their points, of
    certified ones beneath, but for those near the axis. A name that would lie on the one before it on the front is left out.
    """
    near = f"abs(log(datum.beside / datum.{across})) < 0.4 * log(datum.greatest / datum.least)"
    transform = [
        {
            "joinaggregate": [
                {"op": "min", "field": across, "as": "least"}, {"op": "max", "field": across, "as": "greatest"},
                {"op": "max", "field": "accuracy", "as": "top"},
            ],
        },
        {"calculate": f"pow(datum.{across}, 2) <= datum.least * datum.greatest", "as": "left"},
        {"calculate": f"datum.series == '{SERIES[1]}' && datum.accuracy > datum.top / 8", "as": "beneath"},
        ON_FRONT,
        {
            "window": [{"op": "lag", "field": "accuracy", "as": "before"}, {"op": "lag", "field": across, "as": "beside"}],
            "sort": [{"field": "accuracy", "order": "descending"}], "groupby": ["series"],
        },
        {"filter": f"!(isValid(datum.before) && datum.before - datum.accuracy < datum.top / 15 && {near})"},
    ]  # fmt: skip
    return [  # each layer has all points: Vega warns of one that is left without any
        {
            "transform": [*transform, {"calculate": f"{side} && {height} ? datum.label : ''", "as": "name"}],
            "mark": {"type": "text", "align": align, "dx": dx, "dy": dy, "lineBreak": "\n", "baseline": "middle"},
            "encoding": {"text": named("name"), "opacity": _where_chosen(1)},
        }
        for side, align, dx in (("datum.left", "left", -4), ("!datum.left", "right", 4))
        for height, dy in (
            ("!datum.beneath", {"expr": f"indexof(datum.name, '\\n') < 0 ? -13 : {-13 - LINE}"}),
            ("datum.beneath", 13),
        )
    ]
