"""The sandwich: accuracy over the l2 radius, attacked above, certified below, what is known of neither between them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np

from leaderboard.charts.vega import Chart, data
from leaderboard.image_radii import ImageRadii

POINTS = 200  # radii drawn at most, with those of the track
ATTACKED, GAP = "attacked: right, and not known to be broken", "between: neither broken nor certified"
CERTIFIED, SMOOTHED = "certified", "smoothed version, certified (another classifier)"


@dataclass(frozen=True)
class Curves:
    """Images counted at each of `radii`, exact there. Drawn so that between two radii they can only err to one side:
    `attacked` keeps its value up to the next radius (too high), `certified` and `smoothed` have the next one's (too low).

    Attributes:
        n: how many images there are.
        off: the most that a drawn curve is off between two radii, a share of all images; 0 where every step is drawn.
    """

    n: int
    radii: np.ndarray
    attacked: np.ndarray
    certified: np.ndarray | None
    smoothed: np.ndarray | None
    off: float


def curves(found: ImageRadii, marked: Sequence[float], points: int = POINTS) -> Curves:
    """Accuracy over radius at no more than `points` radii, `marked` (the track's) and both ends among them."""
    known = [found.broken[found.right]]
    known += [values[values >= 0] for values in (found.certified, found.smoothed) if values is not None]
    steps = [values[np.isfinite(values)] for values in known]
    fixed = np.unique([0.0, *marked, *(values.max() for values in steps if len(values))])
    room = max(0, points - len(fixed)) // len(steps)
    radii = np.unique(np.concatenate([fixed, *(_thinned(np.unique(values), room) for values in steps)]))
    attacked = found.attacked(radii)
    certified = found.held(radii) if found.certified is not None else None
    smoothed = found.smoothed_held(radii) if found.smoothed is not None else None
    hidden = [attacked[:-1] - _below(found.broken[found.right], radii[1:])]
    hidden += [_above(v, radii[:-1]) - seen[1:] for v, seen in _lower(found, certified, smoothed)]
    off = max((int(part.max()) for part in hidden if len(part)), default=0)
    return Curves(found.n, radii, attacked, certified, smoothed, off / found.n)


def sandwich(found: ImageRadii, marked: Sequence[float]) -> Chart:
    """The chart of one row; `marked` are the radii of its track, in pixels."""
    seen = curves(found, marked)
    parts = {"attacked": seen.attacked, "certified": seen.certified, "smoothed": seen.smoothed}
    drawn = {name: (100 * part / seen.n).tolist() for name, part in parts.items() if part is not None}
    lines = [*zip(seen.radii.tolist(), *drawn.values(), strict=True)]
    return Chart(
        "sandwich", _caption(seen), _words(found, marked), _drawn(*(name in drawn for name in ("certified", "smoothed"))),
        ["radius", *drawn], lines,
    )  # fmt: skip


def _caption(seen: Curves) -> str:
    said = "Percent of all images over the l2 radius in pixels. Above: right, with no adversarial image known within the radius, of whichever attack; the truth can only lie lower."
    if seen.certified is not None:
        said += " Below: certified; the truth can only lie higher. Shaded: what neither attack nor proof has settled."
    if seen.smoothed is not None:
        said += " Dashed: the smoothed version, another classifier, which the attacks were not run on."
    if not seen.off:
        return said + " Every step is drawn."
    return (
        f"{said} Drawn are {len(seen.radii)} radii, exact there; between two of them the upper curve may be too high and a "
        f"lower one too low, by {100 * seen.off:.2g} points at most, never the other way."
    )


def _words(found: ImageRadii, marked: Sequence[float]) -> str:
    """What the curves are at the track's radii."""
    radii = np.array(sorted({*marked}), float)
    said = []
    for i, radius in enumerate(radii):
        parts = [f"{100 * found.attacked(radii)[i] / found.n:.1f}% not broken"]
        if found.certified is not None:
            parts.append(f"{100 * found.held(radii)[i] / found.n:.1f}% certified")
        if found.smoothed is not None:
            parts.append(f"smoothed version {100 * found.smoothed_held(radii)[i] / found.n:.1f}% certified")
        said.append(f"l2 {radius:g}: {', '.join(parts)}")
    return f"Accuracy over the l2 radius. {'; '.join(said)}."


def _thinned(values: np.ndarray, count: int) -> np.ndarray:
    """At most `count` of the sorted values, evenly by their place."""
    if len(values) <= count:
        return values
    return values[np.linspace(0, len(values) - 1, count).round().astype(int)] if count else values[:0]


def _lower(
    found: ImageRadii, certified: np.ndarray | None, smoothed: np.ndarray | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The values of the curves that are drawn from below, and their counts."""
    kept = []
    if found.certified is not None and certified is not None:
        kept.append((found.certified[found.right], certified))
    if found.smoothed is not None and smoothed is not None:
        kept.append((found.smoothed, smoothed))
    return kept


def _below(broken: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """(m,) int: how many are not broken just before each radius."""
    return len(broken) - np.searchsorted(np.sort(broken), radii, side="left")


def _above(values: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """(m,) int: how many are certified just after each radius."""
    return len(values) - np.searchsorted(np.sort(values), radii, side="right")


@functools.cache
def _drawn(certified: bool, smoothed: bool) -> dict[str, Any]:
    """Vega-Lite without data; the chart of a row without certificate has the attacked curve alone."""
    shown = [ATTACKED, *([CERTIFIED, GAP] if certified else []), *([SMOOTHED] if smoothed else [])]
    dashes = {ATTACKED: [1, 0], CERTIFIED: [1, 0], GAP: [1, 0], SMOOTHED: [5, 4]}
    hue = alt.Scale(domain=shown)
    stroke = alt.Scale(domain=shown, range=[dashes[name] for name in shown])
    base = alt.Chart(data()).encode(
        x=alt.X("radius:Q", title="l2 radius, pixels", scale=alt.Scale(nice=False, zero=True)),
    )
    key = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=0, symbolType="stroke", symbolStrokeWidth=3)

    def line(field: str, name: str, step: str) -> alt.Chart:
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


def _height(field: str) -> alt.Y:
    return alt.Y(f"{field}:Q", title="images, percent", scale=alt.Scale(domain=[0, 100]))
