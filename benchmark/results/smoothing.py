"""What the smoothed version of a row's model certifies."""

from __future__ import annotations

from benchmark.results.certificate import CertifiedResult
from benchmark.results.proportion import Proportion
from benchmark.specs.base import Frozen
from benchmark.specs.smoothing import SmoothingSpec


class SmoothedResult(Frozen):
    """The smoothed version of a row's model, by the track's `rules`: another classifier than the one that was attacked.
    `clean` counts where it answers and is right; `spent` is the mean number of noise samples an image.
    """

    rules: SmoothingSpec
    guarantee: str
    spent: float
    clean: Proportion
    certified: tuple[CertifiedResult, ...]
