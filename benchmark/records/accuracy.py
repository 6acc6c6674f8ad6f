"""Accuracies with their intervals, under attacks and certified; facts of the model, its certificate and its audit."""

from __future__ import annotations

from typing import Self

from benchmark.specs.base import Frozen
from benchmark.specs.submission import Division
from benchmark.specs.threat import AttackSpec, CertificateName, Engine, ThreatModel


class Proportion(Frozen):
    """A share of `n` images with its 95% Wilson interval."""

    value: float
    low: float
    high: float
    count: int
    n: int

    @classmethod
    def of(cls, count: int, n: int) -> Self:
        from scipy.stats import binomtest  # imports numpy, before which a process has to fix its arithmetic

        interval = binomtest(count, n).proportion_ci(confidence_level=0.95, method="wilson")
        return cls(value=count / n, low=float(interval.low), high=float(interval.high), count=count, n=n)


def chance_warnings(right: int, n: int, classes: int) -> list[str]:
    """Return a warning where `right` of `n` predictions are no better than chance."""
    from scipy.stats import binomtest

    if n < 16 or binomtest(right, n, 1 / classes, alternative="greater").pvalue <= 0.01:
        return []
    return [
        f"the model is right on {right} of {n} images, no more often than chance may be; are the labels in the order of "
        "its classes, and the images prepared as it wants them?"
    ]


class AttackResult(Frozen):
    """One attack: `accuracy` under it alone, and the images `remaining` correct after each of its components."""

    id: str
    suite: str
    spec: AttackSpec
    engine: Engine | None = None  # of attacks that have several
    accuracy: Proportion
    remaining: dict[str, int]
    warnings: tuple[str, ...] = ()


class RobustResult(Frozen):
    """Accuracy under all attacks inside this ball: an image counts where none of `attacks` broke it."""

    threat: ThreatModel
    accuracy: Proportion
    attacks: tuple[str, ...]


class ModelFacts(Frozen):
    """Facts of a model, measured before it is attacked."""

    parameters: int
    flops: int
    division: Division
    division_reasons: tuple[str, ...]


class AuditResult(Frozen):
    """Failed attempts of evaluation/audit.py to break a certificate: counts, and how near they came (1 is a failure)."""

    images: int  # certified images attacked at their own radius, each from `restarts` starts
    restarts: int
    attacks: tuple[str, ...]
    sample: int  # images of the costlier parts
    layers: int
    layer_trials: int
    worst_ratio: float  # the largest change of a layer that was found, over its bound
    float64_disagreements: int  # uncertified images whose verdict differs in float64
    ties: int
    planted: int
    closest_plant: float  # the largest certified radius over the distance of a planted counterexample


class Certificate(Frozen):
    """The certificate of a row.

    `float32_gap` is the largest difference between margins of the float32 network and its float64 copy on the clean images.
    `float32_bound` is the largest that error analysis allows there.
    """

    name: CertificateName
    guarantee: str
    parameters: dict[str, int | float]
    float32_gap: float
    float32_bound: float
    audit: AuditResult


class CertifiedResult(Frozen):
    threat: ThreatModel
    accuracy: Proportion
    certificate: CertificateName
