"""A share of images with its interval."""

from __future__ import annotations

from benchmark.specs.base import Frozen


class Proportion(Frozen):
    """A share of `n` images with its 95% Wilson interval."""

    value: float
    low: float
    high: float
    count: int
    n: int
