"""Distributions over images as inline SVG violins, drawn from quantiles. Pure, no script, readable without colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from benchmark.records.study_table import Line, Table, quantile_curves
from leaderboard.charts.svg import left_axis, svg, text, ticks

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 460, 46, 14, 12, 40
HEIGHT = 290
BINS = 36


@dataclass(frozen=True)
class Violin:
    """A distribution by its quantiles, rising, at levels from 0 to 1; each is the mean over seeds."""

    name: str
    levels: tuple[float, ...]
    quantiles: tuple[float, ...]

    def at(self, level: float) -> float:
        """Return the quantile at a level, interpolated linearly."""
        return float(np.interp(level, self.levels, self.quantiles))

    def density(self, low: float, high: float) -> list[float]:
        """Return the share of images in each of BINS equal bins; mass is even between neighbouring quantiles."""
        size, shares = (high - low) / BINS, [0.0] * BINS
        for (p, a), (q, b) in pairwise(zip(self.levels, self.quantiles, strict=True)):
            for place in range(BINS):
                start, end = low + place * size, low + (place + 1) * size
                if b > a:
                    shares[place] += (q - p) * max(0.0, min(b, end) - max(a, start)) / (b - a)
                elif start <= a < end or (place == BINS - 1 and a >= end):
                    shares[place] += q - p  # quantiles that are equal: all of it at one value
        return shares

    @property
    def words(self) -> str:
        return f"{self.name}: median {self.at(0.5):.3g}, 5% below {self.at(0.05):.3g}, 5% above {self.at(0.95):.3g}"


def violins(table: Table) -> list[tuple[str, Markup]]:
    """Return (caption, chart) of each cell and of each measure whose curves are quantiles, with a violin a curve."""
    groups: dict[str, list[str]] = {}
    for label in quantile_curves(table.study):
        groups.setdefault(label.rpartition(": ")[0] or label, []).append(label)
    charts = []
    for group, labels in groups.items():
        rows = [[_violin(table, line, label) for label in labels if _has(table, line, label)] for line in table.lines]
        every = [violin for row in rows for violin in row]
        low, high = min(v.quantiles[0] for v in every), max(v.quantiles[-1] for v in every)
        for line, row in zip(table.lines, rows, strict=True):
            if not row:
                continue
            title = f"{line.cell}: {group}" if len(table.lines) > 1 else group
            caption = f"{title}. Widths are shares of images; the line is the median, the box holds half of the images."
            charts.append((caption, _chart(title, row, low, high)))
    return charts


def _has(table: Table, line: Line, label: str) -> bool:
    """Whether the cell has the curve: a network of fewer blocks has fewer curves."""
    return any(line.entries[i].values for i, column in enumerate(table.columns) if column.label == label)


def _violin(table: Table, line: Line, label: str) -> Violin:
    places = [(i, column) for i, column in enumerate(table.columns) if column.label == label]
    return Violin(
        name=label.rpartition(": ")[2],
        levels=tuple(column.x or 0.0 for _, column in places),
        quantiles=tuple(line.entries[i].mean for i, _ in places),
    )


def _chart(title: str, row: Sequence[Violin], low: float, high: float) -> Markup:
    """Return violins side by side over one axis from `low` to `high`, the same for all cells."""
    axis = ticks(low, high)
    bottom, step = HEIGHT - BOTTOM, (WIDTH - LEFT - RIGHT) / len(row)
    widest = max(share for violin in row for share in violin.density(axis[0], axis[-1]))

    def y(value: float) -> float:
        return round(bottom - (bottom - TOP) * (value - axis[0]) / (axis[-1] - axis[0]), 1)

    parts = [left_axis(axis, y, LEFT, WIDTH - RIGHT)]
    for place, violin in enumerate(row):
        middle, half = LEFT + step * (place + 0.5), 0.42 * step
        size = (axis[-1] - axis[0]) / BINS
        edge = [
            (half * share / widest, y(axis[0] + size * (i + 0.5)))
            for i, share in enumerate(violin.density(axis[0], axis[-1]))
        ]
        outline = [(middle + w, at) for w, at in edge] + [(middle - w, at) for w, at in reversed(edge)]
        quarter, median, top = (y(violin.at(level)) for level in (0.25, 0.5, 0.75))
        parts.append(
            Markup(
                '<g class="violin"><title>{}</title><polygon points="{}"/><rect x="{}" y="{}" width="6" height="{}"/>'
                '<line x1="{}" x2="{}" y1="{}" y2="{}"/></g>'
            ).format(
                violin.words, " ".join(f"{x:.1f},{at}" for x, at in outline), round(middle - 3, 1), top,
                max(round(quarter - top, 1), 0.5), round(middle - 9, 1), round(middle + 9, 1), median, median,
            )
        )  # fmt: skip
        name = violin.name if 7 * len(violin.name) < step else violin.name.rpartition(" ")[2]
        parts.append(text(round(middle, 1), bottom + 16, name))
    words = "; ".join(violin.words for violin in row)
    return svg(WIDTH, HEIGHT, f"{title}. {words}", *parts, text(WIDTH / 2, HEIGHT - 7, title))
