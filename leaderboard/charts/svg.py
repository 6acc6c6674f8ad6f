"""Parts of inline SVG charts: readable without colour, a script, or the picture itself (`aria-label`).

Words are escaped here; numbers need no escaping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from markupsafe import Markup, escape

COLOURS = 12  # classes s0 to s11 of the style sheet, each with a colour and dashes of its own


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers a round step apart, from at or below `low` to at or above `high`."""
    size = max(abs(low), abs(high))
    span = high - low if high - low > 1e-9 * size + 1e-12 else max(size, 1.0)  # a flat line has an axis too
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= span / 4 * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, max(last, first + 1) + 1)]


def svg(width: int, height: float, label: str, *parts: Markup, kind: str = "chart study") -> Markup:
    """Return the whole chart; `label` is its description in words."""
    head = f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    return Markup(f'{head} aria-label="{escape(label)}">{"".join(parts)}</svg>')


def text(x: float, y: float, words: object, anchor: str = "middle") -> Markup:
    return Markup(f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>')


def grid(x1: float, x2: float, y1: float, y2: float) -> Markup:
    """Return a line of the grid."""
    return Markup(f'<line class="grid" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>')


def left_axis(axis: Iterable[float], y: Callable[[float], float], left: float, right: float) -> Markup:
    """Return the axis' numbers and lines from `left` to `right`, at the heights `y`."""
    return Markup("").join(
        grid(left, right, y(tick), y(tick)) + text(left - 6, y(tick) + 4, f"{tick:g}", "end") for tick in axis
    )


def dot(x: float, y: float, title: str, radius: float = 2.5) -> Markup:
    return Markup(f'<circle cx="{x}" cy="{y}" r="{radius}"><title>{escape(title)}</title></circle>')


def polyline(spots: Iterable[tuple[float, float]]) -> Markup:
    return Markup(f'<polyline points="{" ".join(f"{x},{y}" for x, y in spots)}"/>')


def short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
