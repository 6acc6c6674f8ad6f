"""The certificate of a row, attempts to break it, and certified accuracy."""

from __future__ import annotations

from benchmark.records.attack import Proportion
from benchmark.specs.base import Frozen
from benchmark.specs.threat import CertificateName, ThreatModel


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
