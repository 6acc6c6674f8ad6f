"""Small line charts as inline SVG: pure, no script, readable without colour and by screen readers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from benchmark.records.record import Record
from leaderboard.charts.svg import dot, grid, polyline, svg, text, ticks

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 42, 42, 34, 42  # margins around the plot


@dataclass(frozen=True)
class Line:
    """One line of a chart; `low` and `high` are the ends of its axis, None to take those of the values."""

    label: str
    values: list[float]
    low: float | None = None
    high: float | None = None


def line_chart(title: str, x_label: str, places: list[str], lines: list[Line]) -> Markup:
    """Return a chart of one or two lines over even `places`: the first by the left axis, the second, dashed, by the right."""
    parts = [_axis(line, side) + _curve(line, places, side) for side, line in enumerate(lines)]
    values = "; ".join(
        f"{line.label}: " + ", ".join(f"{p}: {v:.3g}" for p, v in zip(places, line.values, strict=True))
        for line in lines
    )
    parts += [text(_x(i, len(places)), HEIGHT - BOTTOM + 16, place) for i, place in enumerate(places)]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label))
    return svg(WIDTH, HEIGHT, f"{title}. {values}", *parts, kind="chart")


def reliability_charts(record: Record) -> list[tuple[str, Markup]]:
    """Return (caption, chart) of a record's curves; an empty list if it has none."""
    checks = record.reliability
    if checks is None or not checks.steps:
        return []
    threat = checks.threat.label
    accuracy = "accuracy, percent"
    return [
        (
            f"Attacked longer: PGD in {threat} after more steps. Both lines should fall, then flatten.",
            line_chart(
                f"Accuracy and mean margin against PGD steps in {threat}",
                "steps",
                [str(point.steps) for point in checks.steps],
                [
                    Line(accuracy, [100 * point.accuracy for point in checks.steps], 0, 100),
                    Line("mean margin, logits", [point.margin for point in checks.steps]),
                ],
            ),
        ),
        (
            "Attacked further: PGD in growing balls. The last holds every image, so the line must end at 0.",
            line_chart(
                f"Accuracy against the {checks.threat.norm} radius",
                f"{checks.threat.norm} radius, pixels",
                [f"{point.eps:.2g}" for point in checks.radii],
                [Line(accuracy, [100 * point.accuracy for point in checks.radii], 0, 100)],
            ),
        ),
    ]


def _ends(line: Line) -> list[float]:
    low = min(line.values) if line.low is None else line.low
    return ticks(low, max(line.values) if line.high is None else line.high)


def _x(place: int, count: int) -> float:
    """Return the x of a place: the middle of its equal part of the axis."""
    return round(LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / count, 1)


def _y(value: float, axis: list[float]) -> float:
    share = (value - axis[0]) / (axis[-1] - axis[0])
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)


def _axis(line: Line, side: int) -> Markup:
    """Return the numbers and label of a line's axis, and the grid with the left one."""
    axis, end = _ends(line), WIDTH - RIGHT
    x, anchor, word = (LEFT - 6, "end", "start") if side == 0 else (end + 6, "start", "end")
    label = Markup('<text class="line{}" x="{}" y="16" text-anchor="{}">{}</text>').format(
        side, 4 if side == 0 else WIDTH - 4, word, f"{line.label} {'(solid)' if side == 0 else '(dashed)'}"
    )
    lines = [grid(LEFT, end, _y(v, axis), _y(v, axis)) for v in (axis if side == 0 else [])]
    numbers = [text(x, _y(v, axis) + 4, f"{v:.4g}", anchor) for v in axis]
    return Markup("").join([*lines, label, *numbers])


def _curve(line: Line, places: list[str], side: int) -> Markup:
    axis = _ends(line)
    spots = [(_x(i, len(places)), _y(value, axis)) for i, value in enumerate(line.values)]
    dots = [dot(*spot, f"{p}: {v:.3g}", 3) for spot, p, v in zip(spots, places, line.values, strict=True)]
    return Markup('<g class="line{}">{}</g>').format(side, Markup("").join([polyline(spots), *dots]))
