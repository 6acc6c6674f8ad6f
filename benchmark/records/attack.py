"""Accuracy under attacks, and what the harness measured of the model before them."""

from __future__ import annotations

from benchmark.records.proportion import Proportion
from benchmark.specs.base import Frozen
from benchmark.specs.submission import Division
from benchmark.specs.threat import AttackSpec, Engine, ThreatModel


class AttackResult(Frozen):
    """One attack's result: `accuracy` under it alone, and the images `remaining` correct after each of its components."""

    id: str
    suite: str
    spec: AttackSpec
    engine: Engine | None = None  # where the attack has several
    accuracy: Proportion
    remaining: dict[str, int]
    warnings: tuple[str, ...] = ()


class RobustResult(Frozen):
    """Accuracy under every attack run inside this ball: an image counts when none of `attacks` broke it."""

    threat: ThreatModel
    accuracy: Proportion
    attacks: tuple[str, ...]


class ModelFacts(Frozen):
    """What the harness measured of a model before attacking it."""

    parameters: int
    flops: int
    division: Division
    division_reasons: tuple[str, ...]
