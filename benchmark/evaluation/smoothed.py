"""The evidence of a model's smoothed version: held against its own counts, and counted.

The smoothed version is another classifier than the one that was attacked, so attacks say nothing against its radii. Its
gate is `check_smoothed`: the radius of each image must follow from the counts that stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from scipy.special import betainc, ndtr

from benchmark.evaluation.evidence import column, finite_column, reaching
from benchmark.evaluation.proportion import proportion
from benchmark.results.beside import SmoothedResult
from benchmark.runtime.errors import BenchmarkError
from benchmark.specs.track import SmoothingSpec


def check_smoothed(evidence: pa.Table, rules: SmoothingSpec, row: str) -> None:
    """Holds the smoothed radii against their counts: `count` of `samples` on the candidate must be less likely than
    alpha / looks for every smoothed classifier whose radius is smaller than the one given.

    Raises:
        BenchmarkError: the counts do not carry a radius, or contradict each other or the rules; with the image's index.
    """
    radius = finite_column(evidence, "smoothed_l2", row)
    names = ("prediction", "candidate", "count", "samples", "spent")
    prediction, candidate, count, samples, spent = (finite_column(evidence, f"smoothed_{name}", row) for name in names)
    answered = radius > 0
    fits = (radius >= 0) & (prediction == np.where(answered, candidate, -1)) & (count >= 0) & (count <= samples)
    fits &= (samples >= 1) & (samples + rules.n0 <= spent) & (spent <= rules.n + rules.n0)
    some = np.maximum(count, 1)  # no hit at all carries no radius; betainc wants a positive count
    tail = np.where(count > 0, betainc(some, np.maximum(samples - some, 0) + 1, ndtr(radius / rules.sigma)), 1.0)
    wrong = np.flatnonzero(~fits | (answered & (tail > rules.alpha / rules.looks)))
    if len(wrong):
        image = int(wrong[0])
        raise BenchmarkError(
            f"{row}: image {image} has smoothed l2 radius {radius[image]:.6g} and class {prediction[image]}, which do not "
            f"follow from {count[image]} of {samples[image]} samples on class {candidate[image]}, {spent[image]} drawn; "
            "nothing is published"
        )


def smoothed(evidence: pa.Table, radii: Sequence[float], rules: SmoothingSpec, guarantee: str) -> SmoothedResult:
    """The smoothed version's numbers: right where it answers with the label; certified where its radius reaches too."""
    right = column(evidence, "smoothed_prediction") == column(evidence, "label")
    radius = column(evidence, "smoothed_l2")
    return SmoothedResult(
        rules=rules,
        guarantee=guarantee,
        spent=float(column(evidence, "smoothed_spent").mean()),
        clean=proportion(right),
        certified=reaching(radii, right, radius, "smoothing"),
    )
