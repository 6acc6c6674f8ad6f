"""Marks that tell classes of points apart without colour: ten shapes, filled, then hollow. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

Corners = tuple[tuple[float, float], ...]

COLOURS = 6  # classes s0 to s5 of the style sheet


def _turned(corners: Corners, degrees: float) -> Corners:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return tuple((c * x - s * y, s * x + c * y) for x, y in corners)


TRIANGLE: Corners = ((0, -1.3), (1.15, 0.75), (-1.15, 0.75))
SQUARE: Corners = ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9))
PLUS: Corners = (
    (-0.42, -1.3), (0.42, -1.3), (0.42, -0.42), (1.3, -0.42), (1.3, 0.42), (0.42, 0.42),
    (0.42, 1.3), (-0.42, 1.3), (-0.42, 0.42), (-1.3, 0.42), (-1.3, -0.42), (-0.42, -0.42),
)  # fmt: skip
STAR: Corners = tuple(
    (r * math.sin(math.pi * k / 5), -r * math.cos(math.pi * k / 5)) for k, r in enumerate((1.5, 0.62) * 5)
)
SHAPES: tuple[Corners, ...] = (
    (), SQUARE, TRIANGLE, _turned(PLUS, 45), _turned(SQUARE, 45), _turned(TRIANGLE, 180), STAR, PLUS,
    _turned(TRIANGLE, 90), _turned(TRIANGLE, -90),
)  # fmt: skip  # the first, without corners, is a disc


def class_of(place: int) -> str:
    """The style of the class at `place`: a colour, hollow when all shapes are taken once."""
    shape = place % len(SHAPES)
    return f"s{shape % COLOURS}" + (" hollow" if place >= len(SHAPES) else "")


def mark(place: int, x: float, y: float, size: float) -> str:
    """SVG path data of the mark of the class at `place`, of about `size` around (x, y)."""
    return path(place, [(x, y)], size)


def path(place: int, spots: Iterable[tuple[float, float]], size: float) -> str:
    """One mark at each spot."""
    corners = SHAPES[place % len(SHAPES)]
    if not corners:
        r, across = f"{size:.1f}", f"{2 * float(f'{size:.1f}'):.1f}"
        turn = f"a{r} {r} 0 1 0 {across} 0a{r} {r} 0 1 0 -{across} 0z"
        return "".join(f"M{_short(x - float(r))} {_short(y)}{turn}" for x, y in spots)
    scaled = [(round(size * a, 1), round(size * b, 1)) for a, b in corners]
    turn = "l" + " ".join(f"{_short(c - a)} {_short(d - b)}" for (a, b), (c, d) in pairwise(scaled)) + "z"
    return "".join(f"M{_short(x + scaled[0][0])} {_short(y + scaled[0][1])}{turn}" for x, y in spots)


def _short(value: float) -> str:
    """To a tenth of a pixel."""
    return f"{round(value, 1) + 0.0:g}"
