"""What a Record says of how far the row's attacks can be believed."""

from __future__ import annotations

from benchmark.specs.base import Frozen
from benchmark.specs.threat import ThreatModel


class Signal(Frozen):
    """One sign that attacks work or fail: what was measured, in a sentence with its numbers, and what it would mean for
    people if it is not `sound`.
    """

    name: str
    measured: str
    sound: bool
    explanation: str


class StepPoint(Frozen):
    """PGD after `steps` steps: the mean margin (logits) of the images right when clean, and the share of all still right."""

    steps: int
    margin: float
    accuracy: float


class RadiusPoint(Frozen):
    """PGD within `eps` (pixels): the share of all images still right."""

    eps: float
    accuracy: float


class GradientNorms(Frozen):
    """l2 norms of the margin's gradient (logits a pixel) at the `images` right when clean: how many of them have none
    (zero or not finite), and (share of images below, norm) pairs of the others.
    """

    images: int
    zeros: int
    quantiles: tuple[tuple[float, float], ...]


class Reliability(Frozen):
    """Every signal of a row, and the curves that some were read from, measured in `threat` and, for radii, around it.

    A row that is right on no image has neither curves nor gradients.
    """

    threat: ThreatModel
    signals: tuple[Signal, ...]
    gradients: GradientNorms | None = None
    steps: tuple[StepPoint, ...] = ()
    radii: tuple[RadiusPoint, ...] = ()

    @property
    def doubts(self) -> tuple[Signal, ...]:
        return tuple(signal for signal in self.signals if not signal.sound)
