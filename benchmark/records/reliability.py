"""What a Record says of how far the row's attacks can be believed."""

from __future__ import annotations

from benchmark.specs.base import Frozen
from benchmark.specs.threat import ThreatModel


class FailureIndicator(Frozen):
    """One indicator of attack failure (Pintor et al. 2022): what was measured, in a sentence with its numbers, and what it
    means if it is not `sound`.
    """

    name: str
    measured: str
    sound: bool
    explanation: str


class StepPoint(Frozen):
    """PGD after `steps` steps: the mean margin (logits) of the images correct when clean; the share of all still correct."""

    steps: int
    margin: float
    accuracy: float


class RadiusPoint(Frozen):
    """PGD within `eps` (pixels): the share of all images still correct."""

    eps: float
    accuracy: float


class GradientNorms(Frozen):
    """l2 norms of the margin's gradient (logits a pixel) at the images correct when clean, `images` of them: for how many it
    is zero or not finite, and (share of images below, norm) pairs of the others.
    """

    images: int
    zeros: int
    quantiles: tuple[tuple[float, float], ...]


class Reliability(Frozen):
    """All failure indicators of a row (`signals`), and the curves that some were read from, measured in `threat` and, for
    radii, in balls around it.

    A row that is correct on no image has neither curves nor gradients.
    """

    threat: ThreatModel
    signals: tuple[FailureIndicator, ...]
    gradients: GradientNorms | None = None
    steps: tuple[StepPoint, ...] = ()
    radii: tuple[RadiusPoint, ...] = ()

    @property
    def failing(self) -> tuple[FailureIndicator, ...]:
        return tuple(indicator for indicator in self.signals if not indicator.sound)
