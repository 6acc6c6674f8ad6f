"""Small line charts as inline SVG: pure, no script, readable without colour and by screen readers."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup, escape

from benchmark.records.record import Record
from leaderboard.charts.svg import dot, grid, polyline, svg, text, ticks
from leaderboard.rank import ball

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
    words = [[f"{place}: {value:.3g}" for place, value in zip(places, line.values, strict=True)] for line in lines]
    # the middles of equal parts of the axis
    across = [round(LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / len(places), 1) for i in range(len(places))]
    parts = [_line(line, side, across, words[side]) for side, line in enumerate(lines)]
    parts += [text(x, HEIGHT - BOTTOM + 16, place) for x, place in zip(across, places, strict=True)]
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label))
    values = "; ".join(f"{line.label}: {', '.join(values)}" for line, values in zip(lines, words, strict=True))
    return svg(WIDTH, HEIGHT, f"{title}. {values}", *parts, kind="chart")


def _line(line: Line, side: int, across: list[float], words: list[str]) -> Markup:
    """Return a line with the numbers and the label of its axis, and with the grid where that is the left one."""
    axis = ticks(min(line.values) if line.low is None else line.low, max(line.values) if line.high is None else line.high)

    def y(value: float) -> float:
        share = (value - axis[0]) / (axis[-1] - axis[0])
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    end = WIDTH - RIGHT
    x, anchor, label_x, label_anchor, style = (
        (LEFT - 6, "end", 4, "start", "solid") if side == 0 else (end + 6, "start", WIDTH - 4, "end", "dashed")
    )
    words_of_axis = escape(f"{line.label} ({style})")
    label = f'<text class="line{side}" x="{label_x}" y="16" text-anchor="{label_anchor}">{words_of_axis}</text>'
    lines = [grid(LEFT, end, y(value), y(value)) for value in (axis if side == 0 else [])]
    numbers = [text(x, y(value) + 4, f"{value:.4g}", anchor) for value in axis]
    spots = [(place, y(value)) for place, value in zip(across, line.values, strict=True)]
    dots = [dot(*spot, title, 3) for spot, title in zip(spots, words, strict=True)]
    curve = f'<g class="line{side}">{"".join([polyline(spots), *dots])}</g>'
    return Markup("".join([*lines, label, *numbers, curve]))


def reliability_charts(record: Record) -> list[tuple[str, Markup]]:
    """Return (caption, chart) of a record's curves; an empty list if it has none."""
    checks = record.reliability
    if checks is None or not checks.steps:
        return []
    threat = ball(checks.threat.label)
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
