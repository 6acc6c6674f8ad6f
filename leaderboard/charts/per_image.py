"""Each image by how far it is certified and how near it is broken: above the diagonal, or one of the two is wrong."""

from __future__ import annotations

import functools
from typing import Any

import altair as alt
import numpy as np

from leaderboard.charts.vega import Chart, data
from leaderboard.image_radii import ImageRadii

POINTS = 500  # images drawn at most, contradicted ones besides
BROKEN, UNBROKEN, CONTRADICTED = "broken", "never broken (at the top)", "contradiction"


def drawn_images(found: ImageRadii, points: int = POINTS) -> np.ndarray:
    """The places of the images that are drawn: of those right when clean, evenly; all that are contradicted."""
    right = np.flatnonzero(found.right)
    if len(right) > points:
        right = right[np.linspace(0, len(right) - 1, points).round().astype(int)]
    return np.union1d(right, np.flatnonzero(found.contradicted))


def per_image(found: ImageRadii) -> Chart | None:
    """None for a row without certificate, and where no image is right when clean."""
    right = int(found.right.sum())
    if found.certified is None or not right:
        return None
    images = drawn_images(found)
    wrong = found.contradicted
    certified, broken = found.certified[images], found.broken[images]
    states = np.where(np.isinf(broken), UNBROKEN, np.where(wrong[images], CONTRADICTED, BROKEN)).tolist()
    nearest = [None if value == np.inf else round(value, 6) for value in broken.tolist()]
    lines = [*zip(images.tolist(), certified.round(6).tolist(), nearest, states, strict=True)]
    some = f"{len(images)} of the {right} images that are right when clean, evenly taken"
    all_of_them = f"All {right} images that are right when clean"
    caption = (
        f"{all_of_them if len(images) >= right else some}, a point each: its certified l2 radius, and the l2 distance of "
        "its nearest known adversarial image. On the dashed line both would be one: the nearer, the less is left unsettled. "
        "A point below it would be a contradiction: certified where it is broken."
    )
    return Chart("radii", caption, _words(found), _drawn(), ["image", "certified", "broken", "state"], lines)


def _words(found: ImageRadii) -> str:
    assert found.certified is not None
    both = found.right & np.isfinite(found.broken) & (found.certified > 0)
    unbroken = int((found.right & np.isinf(found.broken)).sum())
    said = (
        "Largest certified against smallest broken l2 radius, a point an image. "
        f"{int(found.contradicted.sum())} contradictions; {unbroken} images were never broken."
    )
    if both.any():
        ratio = float(np.median(found.certified[both] / np.maximum(found.broken[both], 1e-30)))
        said += f" In the median the certified radius is {100 * ratio:.0f}% of the broken one."
    return said


@functools.cache
def _drawn() -> dict[str, Any]:
    names = [BROKEN, UNBROKEN, CONTRADICTED]
    points = (
        alt.Chart(data())
        .transform_joinaggregate(top="max(broken)", far="max(certified)")
        .transform_calculate(height="isValid(datum.broken) ? datum.broken : 1.06 * max(datum.top || 0, datum.far)")
        .mark_point(filled=True, size=34, opacity=0.65)
        .encode(
            x=alt.X(
                "certified:Q", title="certified l2 radius", scale=alt.Scale(zero=True), axis=alt.Axis(labelFlush=False)
            ),
            y=alt.Y("height:Q", title="nearest adversarial image, l2", scale=alt.Scale(zero=True)),
            color=alt.Color(
                "state:N", scale=alt.Scale(domain=names), legend=alt.Legend(title=None, orient="bottom", columns=1)
            ),
            shape=alt.Shape("state:N", scale=alt.Scale(domain=names, range=["circle", "triangle-up", "cross"])),
            tooltip=[
                alt.Tooltip("image:Q", title="image"),
                alt.Tooltip("certified:Q", format=".4f", title="certified"),
                alt.Tooltip("broken:Q", format=".4f", title="broken"),
                alt.Tooltip("state:N", title="state"),
            ],
        )
    )
    diagonal = (
        alt.Chart(data())
        .transform_aggregate(far="max(certified)")
        .transform_calculate(near="0")
        .mark_rule(strokeDash=[4, 4])
        .encode(x="near:Q", y="near:Q", x2="far:Q", y2="far:Q")
    )
    return alt.layer(diagonal, points).properties(width="container", height=320).to_dict()
