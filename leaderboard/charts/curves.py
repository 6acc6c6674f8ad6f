"""Accuracy over the l2 radius, of one row: the truth lies between what attacks leave and what is certified. Pure.

Attacks are run at a few radii, so the attacked curve says little between them and nothing beyond the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import altair as alt
import numpy as np

from benchmark.specs.track import Track
from leaderboard.charts.vega import data
from leaderboard.image_radii import ImageRadii, held, intact

STEPS = 100


def radii_of(track: Track) -> tuple[float, ...]:
    """Evenly spaced from 0 to the largest l2 radius of the track, with all its own between; none where it has none."""
    own = {t.eps for t in track.threats if t.norm == "L2"} | {*track.certified_radii}
    if not own:
        return ()
    return tuple(sorted({round(max(own) * i / STEPS, 6) for i in range(STEPS)} | own))


def curves(found: ImageRadii, radii: Sequence[float]) -> dict[str, list[float]]:
    """Return the shares of all evaluation images at each of `radii`, by the kinds of curves that the row has.

    "attacked": broken by no image found within the radius. "certified": certified to the radius; at 0, to any.
    "smoothed": the same of the smoothed version.
    """
    places = np.asarray(radii)
    counts = {"attacked": intact(found.falls, places)}
    counts |= {kind: held(reaches[reaches > 0], places) for kind, reaches in found.reaches.items()}
    return {kind: [round(share, 6) for share in (c / found.n).tolist()] for kind, c in counts.items()}


@cache
def overlay() -> dict[str, Any]:
    """Return Vega-Lite of rows' curves: records {row, kind, radius, accuracy}, and {..., certified} of the kind "gap".

    Between two radii each line errs to its safe side: attacked ones keep the value before, certified ones have the next.
    """
    kinds = {"attacked": [1, 0], "certified": [7, 3], "smoothed version, certified": [2, 3]}
    base = alt.Chart(data()).encode(
        x=alt.X("radius:Q", title="l2 radius, pixels in [0, 1]").scale(nice=False).axis(tickCount=6, labelFlush=True),
        y=alt.Y("accuracy:Q", title="accuracy, percent").scale(domain=[0, 100]),
        color=alt.Color("row:N", title="model", sort=None).legend(
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
    layers = gap.encode(y2="certified:Q") + attacked + certified
    made: dict[str, Any] = layers.properties(width="container", height=340).to_dict()
    return made
