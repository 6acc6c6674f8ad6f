"""What certified a row, what was tried against it, and how much it certifies."""

from __future__ import annotations

from benchmark.records.proportion import Proportion
from benchmark.specs.base import Frozen
from benchmark.specs.certificate import CertificateName
from benchmark.specs.threat import ThreatModel


class AuditResult(Frozen):
    """What evaluation/audit.py tried against a certificate in vain: counts, and how near it came (1 is a failure)."""

    images: int  # certified images attacked at their own radius, each from `restarts` starts
    restarts: int
    attacks: tuple[str, ...]
    sample: int  # images that the costlier parts took
    layers: int
    layer_trials: int
    worst_ratio: float  # the largest change of a layer found, over the change claimed possible
    float64_disagreements: int  # images not certified whose verdict differs in float64
    ties: int
    planted: int
    closest_plant: float  # the largest certified radius over the distance of a planted counterexample


class Certificate(Frozen):
    """What certified a row: `float32_gap` is the largest difference of a margin between the float32 network and its
    float64 copy on the clean images, `float32_bound` the largest that error analysis allows there.
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
