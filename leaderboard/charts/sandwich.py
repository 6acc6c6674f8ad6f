"""The sandwich: accuracy over the l2 radius, robust above, certified below, and the unsettled images between them.

Attacks are run at a few radii, so the robust curve says little between them and nothing beyond the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmark.specs.track import Track
from leaderboard.charts.vega import Chart, layered, name, number
from leaderboard.image_radii import ImageRadii, held, intact

POINTS = 200  # radii drawn at most, with those of the track
STEPS = 100  # radii of the curves that are laid over each other
ATTACKED, GAP = "robust: not broken by any attack", "between: neither broken nor certified"
CERTIFIED, SMOOTHED = "certified", "smoothed version, certified"


@dataclass(frozen=True)
class Curves:
    """Images counted at each of `radii`, exact there; between two, "attacked" is drawn too high and the others too low.

    Attributes:
        counts: by curve; all rows have "attacked".
        off: the most that a drawn curve is off, a share of all images; 0 where every step is drawn.
    """

    radii: np.ndarray
    counts: dict[str, np.ndarray]
    off: float


def curves(images: ImageRadii, marked: Sequence[float], points: int = POINTS) -> Curves:
    """Return accuracy at no more than `points` radii, among them `marked` (the track's) and both ends."""
    falls = images.falls[np.isfinite(images.falls)]
    steps = [values for values in (falls, *images.reaches.values()) if len(values)]
    radii = np.unique([0.0, *marked, *(values[-1] for values in steps)])
    steps.sort(key=lambda values: len(np.unique(values)))
    for left, values in zip(range(len(steps), 0, -1), steps, strict=True):
        radii = np.union1d(radii, _thinned(values, max(0, points - len(radii)) // left))
    counts = _counts(images, radii)
    # drawn too high just before the next radius, or too low just after the last
    before = len(images.falls) - np.searchsorted(images.falls, radii[1:], side="left")
    hidden = [counts["attacked"][:-1] - before]
    for kind, values in images.reaches.items():
        after = len(values) - np.searchsorted(values, radii[:-1], side="right")
        hidden.append(after - counts[kind][1:])
    return Curves(radii, counts, max(int(part.max(initial=0)) for part in hidden) / images.n)


def _counts(images: ImageRadii, radii: np.ndarray) -> dict[str, np.ndarray]:
    return {"attacked": intact(images.falls, radii)} | {name: held(v, radii) for name, v in images.reaches.items()}


def sandwich(images: ImageRadii, marked: Sequence[float], attacked: Sequence[float] = ()) -> Chart:
    """Return the chart of one row; `marked` are the radii of its track, in pixels; attacks were run at `attacked` ones."""
    seen = curves(images, marked)
    drawn = {name: (100 * counts / images.n).tolist() for name, counts in seen.counts.items()}
    run = [radius in attacked for radius in seen.radii.tolist()]
    lines = [*zip(seen.radii.tolist(), *drawn.values(), run, strict=True)]
    return Chart(
        "sandwich", _caption(seen), _words(images, marked), _drawn(*(name in drawn for name in ("certified", "smoothed"))),
        ["radius", *drawn, "attack"], lines,
    )  # fmt: skip


def _caption(seen: Curves) -> str:
    parts = [
        "Percent of the attacked images over the l2 radius in pixels.",
        "Robust is an upper bound. Dots: radii at which attacks were run.",
    ]
    if "certified" in seen.counts:
        parts.append("Certified is a lower bound. Shaded: neither attack nor proof has settled these images.")
    if "smoothed" in seen.counts:
        parts.append("Dashed: the smoothed version, another classifier, which was not attacked.")
    if not seen.off:
        parts.append("Every step is drawn.")
    else:
        parts.append(
            f"{len(seen.radii)} radii are drawn, exact there. Between two of them the upper curve may be too high and a "
            f"lower one too low, by {100 * seen.off:.2g}% of the images at most, never the other way."
        )
    return " ".join(parts)


def _words(images: ImageRadii, marked: Sequence[float]) -> str:
    """Return the curves' values at the track's radii in words."""
    radii = np.array(sorted({*marked}), float)
    names = {"attacked": "robust", "certified": "certified", "smoothed": "certified of its smoothed version"}
    curves = [(names[name], counts) for name, counts in _counts(images, radii).items()]
    values = [
        f"l2 {radius:g}: " + ", ".join(f"{100 * counts[i] / images.n:.1f}% {name}" for name, counts in curves)
        for i, radius in enumerate(radii)
    ]
    return f"Accuracy over the l2 radius. {'; '.join(values)}."


def _thinned(values: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` of the sorted values, with equally many between any two."""
    different = np.unique(values)
    if len(different) <= count:
        return different
    return values[np.linspace(0, len(values) - 1, count).round().astype(int)] if count else values[:0]


def _drawn(certified: bool, smoothed: bool) -> dict[str, Any]:
    """Return Vega-Lite without data; a row without certificate has the robust curve alone."""
    names = [ATTACKED, CERTIFIED, GAP, SMOOTHED]  # each has its colour in every chart
    shown = [ATTACKED, *([CERTIFIED, GAP] if certified else []), *([SMOOTHED] if smoothed else [])]
    legend = {
        "title": None, "values": shown, "orient": "bottom", "columns": 1, "labelLimit": 0, "symbolType": "stroke",
        "symbolSize": 320, "symbolStrokeWidth": 3, "symbolOpacity": 1,
    }  # fmt: skip
    colour = name("curve", scale={"domain": names}, legend=legend)
    dash = name("curve", scale={"domain": names, "range": [[1, 0], [1, 0], [1, 0], [5, 4]]}, legend=legend)

    def line(field: str, curve: str, step: str) -> dict[str, Any]:
        return {
            "transform": [{"calculate": f"'{curve}'", "as": "curve"}],
            "mark": {"type": "line", "interpolate": step, "strokeWidth": 2.2, "clip": True},
            "encoding": {"y": _height(field), "color": colour, "strokeDash": dash},
        }

    gap = {
        "transform": [
            {"window": [{"op": "lead", "field": "certified", "as": "floor"}], "sort": [{"field": "radius"}]},
            {"calculate": "isValid(datum.floor) ? datum.floor : datum.certified", "as": "floor"},
            {"calculate": f"'{GAP}'", "as": "curve"},
        ],
        "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.25, "line": False},
        "encoding": {"y": _height("attacked"), "y2": {"field": "floor"}, "color": colour},
    }
    titles = {"attacked": "robust", "certified": "certified", "smoothed": "smoothed"}
    fields = ["attacked", *["certified"] * certified, *["smoothed"] * smoothed]
    pointed = {
        "params": [
            {"name": "near", "select": {"type": "point", "on": "pointerover", "nearest": True, "fields": ["radius"]}},
        ],
        "mark": {"type": "rule", "strokeWidth": 1},
        "encoding": {
            "opacity": {"condition": {"param": "near", "empty": False, "value": 0.6}, "value": 0},
            "tooltip": [
                number("radius", format=".4f", title="l2 radius"),
                *(number(field, format=".1f", title=f"{titles[field]}, percent") for field in fields),
            ],
        },
    }  # fmt: skip
    layers = [
        *[gap] * certified, line("attacked", ATTACKED, "step-after"), _attack_marks("attacked"),
        *[line("certified", CERTIFIED, "step-before")] * certified, *[line("smoothed", SMOOTHED, "step-before")] * smoothed,
        pointed,
    ]  # fmt: skip
    axis = {"labelFlush": False, "tickCount": 10}
    x = number("radius", title="l2 radius, pixels", scale={"nice": False, "zero": True}, axis=axis)
    return layered(320, layers, encoding={"x": x})


def _attack_marks(field: str) -> dict[str, Any]:
    """Return dots on the robust curve at the radii at which attacks were run, where `attack` is true."""
    mark = {"type": "point", "filled": True, "size": 60, "opacity": 1}
    return {"transform": [{"filter": "datum.attack"}], "mark": mark, "encoding": {"y": _height(field)}}


def _height(field: str) -> dict[str, Any]:
    return number(field, title="images, percent", scale={"domain": [0, 100]})


def l2_radii(track: Track) -> list[float]:
    """Return the l2 radii that the track speaks of: those certified, and those attacked."""
    return sorted({*track.certified_radii, *(threat.eps for threat in track.threats if threat.norm == "L2")})


def radii_of(track: Track) -> tuple[float, ...]:
    """Return radii evenly spaced from 0 to the track's largest l2 radius, with all its own between; none if it has none."""
    own = l2_radii(track)
    return tuple(sorted({round(own[-1] * i / STEPS, 6) for i in range(STEPS)} | {*own})) if own else ()


def shares(images: ImageRadii, radii: Sequence[float]) -> dict[str, list[float]]:
    """Return the shares of all evaluation images at each of `radii`, by the kinds of curves that the row has.

    "attacked": broken by no image found within the radius. "certified": certified to the radius; at 0, to any.
    "smoothed": the same of the smoothed version.
    """
    places = np.asarray(radii)
    counts = {"attacked": intact(images.falls, places)}
    counts |= {kind: held(reaches[reaches > 0], places) for kind, reaches in images.reaches.items()}
    return {kind: np.round(c / images.n, 6).tolist() for kind, c in counts.items()}


def counts_over_radii(images: ImageRadii, radii: Sequence[float]) -> dict[str, list[int]]:
    """Return by kind of curve the number of images that count, and how many count at each of `radii`, as a board ranks them.

    Certificates count all evaluated images, attacks only the attacked ones. (`shares` counts those for both.)
    """
    places = np.asarray(radii)
    numbers = {"robust": [images.n, *intact(images.falls, places).tolist()]}
    for kind, reaches in images.proven.items():
        numbers[kind] = [images.evaluated, *held(reaches[reaches > 0], places).tolist()]
    return numbers


def overlay() -> dict[str, Any]:
    """Return Vega-Lite of rows' curves.

    It draws records {row, kind, radius, accuracy, attack}, and {..., certified} of the kind "gap".

    Between two radii each line errs to its safe side: robust ones keep the value before, certified ones have the next.
    """
    kinds = {"robust, at most": [1, 0], "certified": [7, 3], "smoothed version, certified": [2, 3]}

    def curves(kind: str, step: str) -> dict[str, Any]:
        dash = name("kind", scale={"domain": [*kinds], "range": [*kinds.values()]}, legend=None)
        tooltip = [name("row"), name("kind"), number("radius"), number("accuracy", format=".1f")]
        mark = {"type": "line", "interpolate": step, "strokeWidth": 2}
        return {"transform": [{"filter": kind}], "mark": mark, "encoding": {"strokeDash": dash, "tooltip": tooltip}}

    gap = {
        "transform": [{"filter": "datum.kind == 'gap'"}],
        "mark": {"type": "area", "interpolate": "step-after", "opacity": 0.12},
        "encoding": {"y2": {"field": "certified"}},
    }
    layers = [
        gap, curves("datum.kind == 'robust, at most'", "step-after"), _attack_marks("accuracy"),
        curves("datum.kind != 'robust, at most' && datum.kind != 'gap'", "step-before"),
    ]  # fmt: skip
    axis = {"tickCount": 6, "labelFlush": True}
    legend = {"orient": "bottom", "columns": 1, "labelLimit": 320, "symbolOpacity": 1}
    encoding = {
        "x": number("radius", title="l2 radius, pixels", scale={"nice": False}, axis=axis), "y": _height("accuracy"),
        "color": name("row", title="model", sort="ascending", legend=legend),
    }  # fmt: skip
    return layered(340, layers, encoding=encoding)
