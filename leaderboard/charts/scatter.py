"""Points of named classes as inline SVG. Pure, no script, readable without colour: each class has a mark of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from benchmark.records.points import PointClass, Points
from benchmark.records.study_points import Panel, drawn
from benchmark.records.study_table import Table
from leaderboard.charts.svg import COLOURS, grid, short, svg, text, ticks

WIDTH, TOP, BOTTOM = 460, 24, 354  # of the frame
EDGE, INSIDE = 6, 12  # around the frame, and within it free of points
LEFT, BELOW = 46, 38  # for the numbers of axes that mean something
LETTER = 6.1  # about the width of one in the legend
LONGEST = 60  # letters of a title or a name

NO_MEANING = "The axes have no meaning of their own: look at which points lie together."
Corners = tuple[tuple[float, float], ...]


def _turned(corners: Corners, degrees: float) -> Corners:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return tuple((c * x - s * y, s * x + c * y) for x, y in corners)


TRIANGLE: Corners = ((0, -1.3), (1.15, 0.75), (-1.15, 0.75))
SQUARE: Corners = ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9))
PLUS: Corners = (
    (-0.42, -1.3), (0.42, -1.3), (0.42, -0.42), (1.3, -0.42), (1.3, 0.42), (0.42, 0.42),
    (0.42, 1.3), (-0.42, 1.3), (-0.42, 0.42), (-1.3, 0.42), (-1.3, -0.42), (-0.42, -0.42),
)  # fmt: skip
STAR: Corners = tuple((r * math.sin(math.pi * k / 5), -r * math.cos(math.pi * k / 5)) for k, r in enumerate((1.5, 0.62) * 5))
SHAPES: tuple[Corners, ...] = (
    (), SQUARE, TRIANGLE, _turned(PLUS, 45), _turned(SQUARE, 45), _turned(TRIANGLE, 180), STAR, PLUS,
    _turned(TRIANGLE, 90), _turned(TRIANGLE, -90),
)  # fmt: skip  # the first, without corners, is a disc


def class_of(place: int) -> str:
    """Return the style of the class at `place`: a colour, and hollow once all shapes are taken."""
    shape = place % len(SHAPES)
    return f"s{shape % COLOURS}" + (" hollow" if place >= len(SHAPES) else "")


def path(place: int, spots: Iterable[tuple[float, float]], size: float) -> str:
    """Return SVG path data: the mark of the class at `place`, of about `size`, at each spot."""
    corners = SHAPES[place % len(SHAPES)]
    if not corners:
        r, across = f"{size:.1f}", f"{2 * float(f'{size:.1f}'):.1f}"
        turn = f"a{r} {r} 0 1 0 {across} 0a{r} {r} 0 1 0 -{across} 0z"
        return "".join(f"M{_tenth(x - float(r))} {_tenth(y)}{turn}" for x, y in spots)
    scaled = [(round(size * a, 1), round(size * b, 1)) for a, b in corners]
    turn = "l" + " ".join(f"{_tenth(c - a)} {_tenth(d - b)}" for (a, b), (c, d) in pairwise(scaled)) + "z"
    return "".join(f"M{_tenth(x + scaled[0][0])} {_tenth(y + scaled[0][1])}{turn}" for x, y in spots)


def _tenth(value: float) -> str:
    """Return a number of pixels, rounded to a tenth."""
    return f"{round(value, 1) + 0.0:g}"


@dataclass(frozen=True)
class Frame:
    """Maps values to pixels, with one scale for both axes."""

    left: float
    middle: tuple[float, float]
    unit: float  # a pixel's, in values

    def at(self, x: float, y: float) -> tuple[float, float]:
        centre_x, centre_y = (self.left + WIDTH - EDGE) / 2, (TOP + BOTTOM) / 2
        return centre_x + (x - self.middle[0]) / self.unit, centre_y - (y - self.middle[1]) / self.unit

    def ends(self, axis: int) -> tuple[float, float]:
        """Return the values at both ends of an axis."""
        half = self.unit * ((WIDTH - EDGE - self.left) if axis == 0 else (BOTTOM - TOP)) / 2
        return self.middle[axis] - half, self.middle[axis] + half


def scatters(table: Table) -> list[tuple[str, Markup]]:
    """Return (caption, chart) of each cell and measure. Panels of a measure whose axes have a meaning share them."""
    panels = drawn(table.study)
    seeds = len({run.seed for run in table.study.result.runs})
    charts = []
    for panel in panels:
        alike = [other.points for other in panels if other.label == panel.label and other.points.axes]
        frame = _frame(alike if panel.points.axes else [panel.points])
        title = f"{panel.cell}: {panel.label}" if len(table.lines) > 1 else panel.label
        which = f"Seed {panel.seed}, the first of {seeds}." if seeds > 1 else f"Seed {panel.seed}."
        axes = "One scale for both axes." if panel.points.axes else NO_MEANING
        charts.append((f"{title}. {which} {axes}", _chart(title, which, panel, frame)))
    return charts


def _frame(clouds: Iterable[Points]) -> Frame:
    """Return the frame that holds all points; one unit wide if they are all equal."""
    clouds = list(clouds)
    places = [pair for points in clouds for cloud in points.classes for pair in cloud.points]
    low = [min(pair[axis] for pair in places) for axis in (0, 1)]
    spans = [max(pair[axis] for pair in places) - low[axis] for axis in (0, 1)]
    left = LEFT if clouds[0].axes else EDGE
    room = (WIDTH - EDGE - left - 2 * INSIDE, BOTTOM - TOP - 2 * INSIDE)
    unit = max(span / pixels for span, pixels in zip(spans, room, strict=True)) or 1 / room[0]
    return Frame(left, (low[0] + spans[0] / 2, low[1] + spans[1] / 2), unit)


def _chart(title: str, which: str, panel: Panel, frame: Frame) -> Markup:
    points, numbers, foot = panel.points, panel.numbers, BOTTOM + (BELOW if panel.points.axes else EDGE)
    size = min(4.0, max(1.9, 75 / math.sqrt(points.count)))
    marks = Markup("").join(
        Markup('<path class="{}" d="{}"><title>{}</title></path>').format(
            class_of(place), path(place, [frame.at(*pair) for pair in cloud.points], size), described.words
        )
        for place, (cloud, described) in enumerate(zip(points.classes, numbers, strict=True))
    )
    legend, height = _legend(points.classes, foot)
    axes = _axes(points.axes, frame) if points.axes else Markup("")
    many = f"{points.count} point{'s' if points.count != 1 else ''} in {len(points.classes)} class"
    words = f"{title}. {which} {many}{'es' if len(points.classes) != 1 else ''}. " + "; ".join(
        described.words for described in numbers
    )
    drawn = Markup(
        '<rect class="frame" x="{}" y="{}" width="{}" height="{}"/><g class="points">{}{}</g>'
    ).format(frame.left, TOP, WIDTH - EDGE - frame.left, BOTTOM - TOP, marks, legend)  # fmt: skip
    return svg(WIDTH, height, words, text(WIDTH / 2, 14, short(title, LONGEST)), axes, drawn)


def _axes(names: tuple[str, str], frame: Frame) -> Markup:
    """Return grid, numbers and names of the axes."""
    parts, left = [], frame.left
    for tick in _within(*frame.ends(0)):
        x = round(frame.at(tick, 0)[0], 1)
        parts += [grid(x, x, TOP, BOTTOM), text(x, BOTTOM + 15, f"{tick:g}")]
    for tick in _within(*frame.ends(1)):
        y = round(frame.at(0, tick)[1], 1)
        parts += [grid(left, WIDTH - EDGE, y, y), text(left - 5, round(y + 4, 1), f"{tick:g}", "end")]
    across, up = (short(name, LONGEST) for name in names)
    turned = Markup('<text x="10" y="{y}" text-anchor="middle" transform="rotate(-90 10 {y})">{}</text>')
    parts += [text((left + WIDTH - EDGE) / 2, BOTTOM + 30, across), turned.format(up, y=(TOP + BOTTOM) / 2)]
    return Markup("").join(parts)


def _within(low: float, high: float) -> list[float]:
    """Return round numbers between both ends; none if the values are too close to tell apart."""
    return [tick for tick in ticks(low, high) if low <= tick <= high]


def _legend(classes: Sequence[PointClass], top: float) -> tuple[Markup, int]:
    """Return marks and names of the classes, in as many columns as fit, and the y at which the legend ends."""
    names = [short(cloud.name, LONGEST) for cloud in classes]
    step = LETTER * max(map(len, names)) + 26
    columns = max(1, int((WIDTH - 2 * EDGE) // step))
    parts = []
    for place, name in enumerate(names):
        x, y = EDGE + step * (place % columns) + 6, top + 14 + 16 * (place // columns)
        parts.append(
            Markup('<path class="{}" d="{}"/><text x="{}" y="{}">{}</text>')
            .format(class_of(place), path(place, [(x, y)], 4.5), round(x + 10, 1), y + 4, name)
        )  # fmt: skip
    return Markup("").join(parts), int(top + 16 * math.ceil(len(names) / columns) + 12)
