"""A share of images with its interval."""

from __future__ import annotations

from typing import Self

from benchmark.specs.base import Frozen


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
