"""Failure indicators: how far the row's attacks can be trusted."""

from __future__ import annotations

from benchmark.specs.base import Frozen
from benchmark.specs.threat import ThreatModel


class FailureIndicator(Frozen):
    """One indicator of attack failure (Pintor et al. 2022).

    `measured` is a sentence with the numbers; `explanation` says what it means if the indicator is not `sound`.
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
    """l2 norms of the margin's gradient (logits per pixel) at the `images` that are correct when clean.

    `zeros` counts gradients that are zero or not finite; `quantiles` are (share of images below, norm) of the others.
    """

    images: int
    zeros: int
    quantiles: tuple[tuple[float, float], ...]


class Reliability(Frozen):
    """All failure indicators of a row (`signals`), and the curves behind some of them.

    Curves are measured in `threat`; `radii` in balls around it. A row that is correct on no image has neither curves nor
    gradients.
    """

    threat: ThreatModel
    signals: tuple[FailureIndicator, ...]
    gradients: GradientNorms | None = None
    steps: tuple[StepPoint, ...] = ()
    radii: tuple[RadiusPoint, ...] = ()

    @property
    def failing(self) -> tuple[FailureIndicator, ...]:
        return tuple(indicator for indicator in self.signals if not indicator.sound)
