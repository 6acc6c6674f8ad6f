"""Shares of images with their intervals, accuracy under attacks, and facts of the model that are measured before them."""

from __future__ import annotations

from typing import Self

from benchmark.specs.base import Frozen
from benchmark.specs.submission import Division
from benchmark.specs.threat import AttackSpec, Engine, ThreatModel


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
