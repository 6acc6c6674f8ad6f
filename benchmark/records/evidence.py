"""Read the per-image evidence of a row: a column for each verdict, margin, distance and radius. No torch here.

A track may attack only the first of its evaluation images. Columns of attacks and probes are null for the others; `column`
returns the attacked images alone.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ROUNDING = 1e-12  # an image that is broken at a radius itself is broken within it


def column(evidence: pa.Table, name: str) -> np.ndarray:
    """Return the column's values without nulls: see `attacked`."""
    values = evidence[name]
    return (values.drop_null() if values.null_count else values).to_numpy()


def is_whole(evidence: pa.Table, name: str) -> bool:
    """Return whether the column has a value for every image or, if it is about attacks, for the attacked ones alone."""
    values = evidence[name]
    of_attacks = is_probe(name) or ":" in name or name.startswith("probe ")
    count = attacked(evidence) if of_attacks else evidence.num_rows
    return values.null_count == len(values) - count and values.slice(0, count).null_count == 0


def attack_ids(evidence: pa.Table) -> list[str]:
    """Return the attacks that have columns, by their ids."""
    return [name.removesuffix(":success") for name in evidence.column_names if name.endswith(":success")]


def attacked(evidence: pa.Table) -> int:
    """Return how many of the first images are attacked; all where there is no attack."""
    names = [name for name in evidence.column_names if name.endswith(":success") or is_probe(name)]
    return min((len(column(evidence, name)) for name in names), default=evidence.num_rows)


def is_probe(name: str) -> bool:
    return name.startswith(("probed ", "pictured "))


def probed(evidence: pa.Table) -> dict[tuple[str, float], np.ndarray]:
    """Return which attacked images (m,) the steps `reliability` and `pictures` broke, by the norm and radius of the ball."""
    balls: dict[tuple[str, float], np.ndarray] = {}
    for name in filter(is_probe, evidence.column_names):
        _, norm, eps = name.split(" ")
        ball, broken = (norm, float(eps)), column(evidence, name)
        balls[ball] = broken | balls.get(ball, np.zeros_like(broken))
    return balls


def broken_distances(evidence: pa.Table) -> np.ndarray:
    """Return (m,) float64: l2 distances in pixels of [0, 1] of the nearest adversarial images; infinite where none is known.

    The m attacked images are the first ones; all where nothing attacks. A probe in an l2 ball counts by the ball's radius.
    """
    nearest = np.full(attacked(evidence), np.inf)
    for attack in attack_ids(evidence):
        distance = np.where(column(evidence, f"{attack}:success"), column(evidence, f"{attack}:l2"), np.inf)
        nearest = np.minimum(nearest, distance)
    for (norm, eps), broken in probed(evidence).items():
        if norm == "L2":
            nearest = np.minimum(nearest, np.where(broken, eps, np.inf))
    return nearest


def published_distances(evidence: pa.Table) -> tuple[float | None, ...]:
    """Return the same as `PerImage.broken` has them: None where no adversarial image is known, empty without an attack."""
    if not attack_ids(evidence):
        return ()
    return tuple(None if np.isinf(distance) else distance for distance in broken_distances(evidence).tolist())
