"""Each image by its certified radius and the distance at which it is broken. Points below the diagonal are contradictions."""

from __future__ import annotations

from typing import Any

import numpy as np

from leaderboard.charts.vega import Chart, layered, name, number
from leaderboard.image_radii import ImageRadii

TOP, FAR = ({"op": "max", "field": field, "as": word} for field, word in (("broken", "top"), ("certified", "far")))
POINTS = 500  # images drawn at most, contradicted ones besides
BROKEN, UNBROKEN, CONTRADICTED = "broken", "never broken (at the top)", "contradiction"


def drawn_images(radii: ImageRadii, points: int = POINTS) -> np.ndarray:
    """Return the places of the images that are drawn: evenly spaced correct ones, and all that are contradicted."""
    right = np.flatnonzero(radii.right)
    if len(right) > points:
        right = right[np.linspace(0, len(right) - 1, points).round().astype(int)]
    return np.union1d(right, np.flatnonzero(radii.contradicted))


def per_image(radii: ImageRadii) -> Chart | None:
    """Return the chart; None for a row without certificate, or if no image is classified correctly."""
    right = int(radii.right.sum())
    if radii.certified is None or not right:
        return None
    images = drawn_images(radii)
    wrong = radii.contradicted
    certified, broken = radii.certified[images], radii.broken[images]
    states = np.where(np.isinf(broken), UNBROKEN, np.where(wrong[images], CONTRADICTED, BROKEN)).tolist()
    nearest = [None if value == np.inf else value for value in broken.round(6).tolist()]
    lines = [*zip(images.tolist(), certified.round(6).tolist(), nearest, states, strict=True)]
    some = f"{len(images)} of the {right} images that are right when clean, evenly taken"
    all_of_them = f"All {right} images that are right when clean"
    distance = "the l2 distance of its nearest adversarial image"
    ball = "the radius of the smallest ball in which an attack broke it (of a Linf ball, of the l2 ball around it)"
    caption = (
        f"{all_of_them if len(images) >= right else some}, a point each: its certified l2 radius, and "
        f"{distance if radii.distances else ball}. On the dashed line the two would be equal: nearer points are better "
        "settled. "
        "A point below the line would be a contradiction: certified where it is broken."
    )
    return Chart("radii", caption, _words(radii), _drawn(radii.distances), ["image", "certified", "broken", "state"], lines)


def _words(radii: ImageRadii) -> str:
    assert radii.certified is not None
    both = radii.right & np.isfinite(radii.broken) & (radii.certified > 0)
    unbroken = int((radii.right & np.isinf(radii.broken)).sum())
    words = (
        "Largest certified against smallest broken l2 radius, a point an image. "
        f"{int(radii.contradicted.sum())} contradictions; {unbroken} images were never broken."
    )
    if both.any():
        ratio = float(np.median(radii.certified[both] / np.maximum(radii.broken[both], 1e-30)))
        words += f" In the median the certified radius is {100 * ratio:.0f}% of the broken one."
    return words


def _drawn(distances: bool) -> dict[str, Any]:
    height = "nearest adversarial image, l2" if distances else "broken within an l2 ball of radius"
    states = [BROKEN, UNBROKEN, CONTRADICTED]
    points = {
        "transform": [
            {"joinaggregate": [TOP, FAR]},
            {"calculate": "isValid(datum.broken) ? datum.broken : 1.06 * max(datum.top || 0, datum.far)", "as": "height"},
        ],
        "mark": {"type": "point", "filled": True, "size": 34, "opacity": 0.65},
        "encoding": {
            "x": number("certified", title="certified l2 radius", scale={"zero": True}, axis={"labelFlush": False}),
            "y": number("height", title=height, scale={"zero": True}),
            "color": name("state", scale={"domain": states}, legend={"title": None, "orient": "bottom", "columns": 1}),
            "shape": name("state", scale={"domain": states, "range": ["circle", "triangle-up", "cross"]}),
            "tooltip": [number("image"), *(number(n, format=".4f") for n in ("certified", "broken")), name("state")],
        },
    }  # fmt: skip
    diagonal = {
        "transform": [
            {"aggregate": [FAR]}, {"calculate": "0", "as": "near"},
        ],
        "mark": {"type": "rule", "strokeDash": [4, 4]},
        "encoding": {"x": number("near"), "y": number("near"), "x2": {"field": "far"}, "y2": {"field": "far"}},
    }  # fmt: skip
    return layered(320, [diagonal, points])
