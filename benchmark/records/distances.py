"""How far each attacked image's nearest known adversarial image is, from the evidence of a row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

PROBES = ("probed L2 ", "pictured L2 ")  # columns of images broken within a ball, whose distances are not kept


def broken_distances(evidence: pa.Table) -> np.ndarray:
    """Return (m,) float64: l2 distances in pixels of [0, 1] of the nearest adversarial images; infinite where none is known.

    The m attacked images are the first ones; all where nothing attacks. A probe in an l2 ball counts by the ball's radius.
    """
    names = evidence.column_names
    attacks = [name for name in names if name.endswith(":success")]
    m = min((evidence.num_rows - evidence[name].null_count for name in attacks), default=evidence.num_rows)

    def attacked(name: str) -> np.ndarray:
        return np.asarray(evidence[name].slice(0, m).to_numpy())

    nearest = np.full(m, np.inf)
    for name in names:
        attack, _, kind = name.rpartition(":")
        if kind == "success" and f"{attack}:l2" in names:
            distance = np.where(attacked(name), attacked(f"{attack}:l2"), np.inf)
        elif name.startswith(PROBES):
            distance = np.where(attacked(name), float(name.rpartition(" ")[2]), np.inf)
        else:
            continue
        np.minimum(nearest, distance, out=nearest)
    return nearest


def published_distances(evidence: pa.Table) -> tuple[float | None, ...]:
    """Return the same as `PerImage.broken` has them: None where no adversarial image is known, empty without an attack."""
    if not any(name.endswith(":success") for name in evidence.column_names):
        return ()
    return tuple(None if np.isinf(distance) else distance for distance in broken_distances(evidence).tolist())
