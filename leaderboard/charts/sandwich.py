"""The sandwich: accuracy over the l2 radius, attacked above, certified below, what is known of neither between them.

Attacks are run at a few radii, so the attacked curve says little between them and nothing beyond the last.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np

from benchmark.specs.track import Track
from leaderboard.charts.vega import Chart, data
from leaderboard.image_radii import ImageRadii, held, intact

POINTS = 200  # radii drawn at most, with those of the track
STEPS = 100  # radii of the curves that are laid over each other
ATTACKED, GAP = "attacked: right, and not known to be broken", "between: neither broken nor certified"
CERTIFIED, SMOOTHED = "certified", "smoothed version: another classifier"


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


def curves(found: ImageRadii, marked: Sequence[float], points: int = POINTS) -> Curves:
    """Accuracy over radius at no more than `points` radii, `marked` (the track's) and both ends among them."""
    falls = found.falls[np.isfinite(found.falls)]
    steps = [values for values in (falls, *found.reaches.values()) if len(values)]
    radii = np.unique([0.0, *marked, *(values[-1] for values in steps)])
    steps.sort(key=lambda values: len(np.unique(values)))
    for left, values in zip(range(len(steps), 0, -1), steps, strict=True):
        radii = np.union1d(radii, _thinned(values, max(0, points - len(radii)) // left))
    counts = _counts(found, radii)
    # drawn too high just before the next radius, or too low just after the last
    before = len(found.falls) - np.searchsorted(found.falls, radii[1:], side="left")
    hidden = [counts["attacked"][:-1] - before]
    for name, values in found.reaches.items():
        after = len(values) - np.searchsorted(values, radii[:-1], side="right")
        hidden.append(after - counts[name][1:])
    return Curves(radii, counts, max(int(part.max(initial=0)) for part in hidden) / found.n)


def _counts(found: ImageRadii, radii: np.ndarray) -> dict[str, np.ndarray]:
    return {"attacked": intact(found.falls, radii)} | {name: held(v, radii) for name, v in found.reaches.items()}


def sandwich(found: ImageRadii, marked: Sequence[float], attacked: Sequence[float] = ()) -> Chart:
    """Return the chart of one row; `marked` are the radii of its track, in pixels; attacks were run at `attacked` ones."""
    seen = curves(found, marked)
    drawn = {name: (100 * counts / found.n).tolist() for name, counts in seen.counts.items()}
    run = [radius in attacked for radius in seen.radii.tolist()]
    lines = [*zip(seen.radii.tolist(), *drawn.values(), run, strict=True)]
    return Chart(
        "sandwich", _caption(seen), _words(found, marked), _drawn(*(name in drawn for name in ("certified", "smoothed"))),
        ["radius", *drawn, "attack"], lines,
    )  # fmt: skip


def _caption(seen: Curves) -> str:
    said = (
        "Percent of the attacked images over the l2 radius in pixels. Above: right, with no adversarial image known within "
        "the radius, of whichever attack; the truth can only lie lower. Dots: radii at which attacks were run."
    )
    if "certified" in seen.counts:
        said += " Below: certified; the truth can only lie higher. Shaded: what neither attack nor proof has settled."
    if "smoothed" in seen.counts:
        said += " Dashed: the smoothed version, another classifier, which the attacks were not run on."
    if not seen.off:
        return said + " Every step is drawn."
    return (
        f"{said} Drawn are {len(seen.radii)} radii, exact there; between two of them the upper curve may be too high and a "
        f"lower one too low, by {100 * seen.off:.2g}% of the images at most, never the other way."
    )


def _words(found: ImageRadii, marked: Sequence[float]) -> str:
    """What the curves are at the track's radii."""
    radii = np.array(sorted({*marked}), float)
    names = {"attacked": "not broken", "certified": "certified", "smoothed": "certified of its smoothed version"}
    curves = [(names[name], counts) for name, counts in _counts(found, radii).items()]
    said = [
        f"l2 {radius:g}: " + ", ".join(f"{100 * counts[i] / found.n:.1f}% {name}" for name, counts in curves)
        for i, radius in enumerate(radii)
    ]
    return f"Accuracy over the l2 radius. {'; '.join(said)}."


def _thinned(values: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the values, which are in order, with equally many of them between any two."""
    different = np.unique(values)
    if len(different) <= count:
        return different
    return values[np.linspace(0, len(values) - 1, count).round().astype(int)] if count else values[:0]


@functools.cache
def _drawn(certified: bool, smoothed: bool) -> dict[str, Any]:
    """Vega-Lite without data; the chart of a row without certificate has the attacked curve alone."""
    shown = [ATTACKED, *([CERTIFIED, GAP] if certified else []), *([SMOOTHED] if smoothed else [])]
    names = [ATTACKED, CERTIFIED, GAP, SMOOTHED]  # each has its colour in every chart
    hue = alt.Scale(domain=names)
    stroke = alt.Scale(domain=names, range=[[1, 0], [1, 0], [1, 0], [5, 4]])
    base = alt.Chart(data()).encode(
        x=alt.X(
            "radius:Q",
            title="l2 radius, pixels",
            scale=alt.Scale(nice=False, zero=True),
            axis=alt.Axis(labelFlush=False, tickCount=10),
        ),
    )
    key = alt.Legend(
        title=None,
        values=shown,
        orient="bottom",
        columns=1,
        labelLimit=0,
        symbolType="stroke",
        symbolSize=320,
        symbolStrokeWidth=3,
        symbolOpacity=1,
    )

    def line(field: str, name: str, step: Literal["step-before", "step-after"]) -> alt.Chart:
        return (
            base.transform_calculate(curve=f"'{name}'")
            .mark_line(interpolate=step, strokeWidth=2.2, clip=True)
            .encode(
                y=_height(field),
                color=alt.Color("curve:N", scale=hue, legend=key),
                strokeDash=alt.StrokeDash("curve:N", scale=stroke, legend=key),
            )
        )

    layers: list[Any] = []
    if certified:
        layers.append(
            base.transform_window(floor="lead(certified)", sort=[alt.SortField("radius")])
            .transform_calculate(floor="isValid(datum.floor) ? datum.floor : datum.certified", curve=f"'{GAP}'")
            .mark_area(interpolate="step-after", opacity=0.25, line=False)
            .encode(y=_height("attacked"), y2="floor:Q", color=alt.Color("curve:N", scale=hue, legend=key))
        )
    layers.append(line("attacked", ATTACKED, "step-after"))
    layers.append(_attack_marks(base, "attacked"))
    layers += [line("certified", CERTIFIED, "step-before")] if certified else []
    layers += [line("smoothed", SMOOTHED, "step-before")] if smoothed else []
    fields = ["attacked", *(["certified"] if certified else []), *(["smoothed"] if smoothed else [])]
    near = alt.selection_point(name="near", on="pointerover", nearest=True, fields=["radius"], empty=False)
    layers.append(
        base.mark_rule(strokeWidth=1)
        .encode(
            opacity=alt.condition(near, alt.value(0.6), alt.value(0)),
            tooltip=[
                alt.Tooltip("radius:Q", format=".4f", title="l2 radius"),
                *(alt.Tooltip(f"{field}:Q", format=".1f", title=f"{field}, percent") for field in fields),
            ],
        )
        .add_params(near)
    )
    return alt.layer(*layers).properties(width="container", height=320).to_dict()


def _attack_marks(base: alt.Chart, field: str) -> alt.Chart:
    """Dots on the attacked curve at the radii at which attacks were run, where `attack` is true."""
    points = base.transform_filter("datum.attack").mark_point(filled=True, size=60, opacity=1)
    return points.encode(y=_height(field))


def _height(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", title="images, percent", scale=alt.Scale(domain=[0, 100]))


def l2_radii(track: Track) -> list[float]:
    """Return the l2 radii that the track speaks of: those certified, and those attacked."""
    return sorted({*track.certified_radii, *(threat.eps for threat in track.threats if threat.norm == "L2")})


def radii_of(track: Track) -> tuple[float, ...]:
    """Return radii evenly spaced from 0 to the track's largest l2 radius, with all its own between; none if it has none."""
    own = l2_radii(track)
    return tuple(sorted({round(own[-1] * i / STEPS, 6) for i in range(STEPS)} | {*own})) if own else ()


def shares(found: ImageRadii, radii: Sequence[float]) -> dict[str, list[float]]:
    """Return the shares of all evaluation images at each of `radii`, by the kinds of curves that the row has.

    "attacked": broken by no image found within the radius. "certified": certified to the radius; at 0, to any.
    "smoothed": the same of the smoothed version.
    """
    places = np.asarray(radii)
    counts = {"attacked": intact(found.falls, places)}
    counts |= {kind: held(reaches[reaches > 0], places) for kind, reaches in found.reaches.items()}
    return {kind: [round(share, 6) for share in (c / found.n).tolist()] for kind, c in counts.items()}


def counts_over_radii(found: ImageRadii, radii: Sequence[float]) -> dict[str, list[int]]:
    """Return by kind of curve the number of images that count, and how many count at each of `radii`, as a board ranks them.

    Certificates count all evaluated images, attacks only the attacked ones. (`shares` counts those for both.)
    """
    places = np.asarray(radii)
    numbers = {"robust": [found.n, *intact(found.falls, places).tolist()]}
    for kind, reaches in found.proven.items():
        numbers[kind] = [found.evaluated, *held(reaches[reaches > 0], places).tolist()]
    return numbers


@functools.cache
def overlay() -> dict[str, Any]:
    """Return Vega-Lite of rows' curves.

    It draws records {row, kind, radius, accuracy, attack}, and {..., certified} of the kind "gap".

    Between two radii each line errs to its safe side: attacked ones keep the value before, certified ones have the next.
    """
    kinds = {"attacked": [1, 0], "certified": [7, 3], "smoothed version, certified": [2, 3]}
    base = alt.Chart(data()).encode(
        x=alt.X("radius:Q", title="l2 radius, pixels in [0, 1]").scale(nice=False).axis(tickCount=6, labelFlush=True),
        y=_height("accuracy"),
        color=alt.Color("row:N", title="model", sort="ascending").legend(
            orient="bottom", columns=1, labelLimit=320, symbolOpacity=1
        ),
    )
    lines = base.encode(
        strokeDash=alt.StrokeDash("kind:N").scale(domain=[*kinds], range=[*kinds.values()]).legend(None),
        tooltip=["row:N", "kind:N", "radius:Q", alt.Tooltip("accuracy:Q", format=".1f")],
    )
    gap = base.transform_filter("datum.kind == 'gap'").mark_area(interpolate="step-after", opacity=0.12)
    attacked = lines.transform_filter("datum.kind == 'attacked'").mark_line(interpolate="step-after", strokeWidth=2)
    proven = lines.transform_filter("datum.kind != 'attacked' && datum.kind != 'gap'")
    certified = proven.mark_line(interpolate="step-before", strokeWidth=2)
    layers = gap.encode(y2="certified:Q") + attacked + _attack_marks(base, "accuracy") + certified
    made: dict[str, Any] = layers.properties(width="container", height=340).to_dict()
    return made
