"""What a Record has beside attacks and certificates: other attention, the smoothed version, corrupted copies."""

from __future__ import annotations

from pydantic import Field

from benchmark.records.certificate import CertifiedResult
from benchmark.records.proportion import Proportion
from benchmark.specs.base import Frozen
from benchmark.specs.track import CorruptionSpec, SmoothingSpec


class WithoutAttention(Frozen):
    """`clean` accuracy of the network so changed, another classifier; on how many images it predicts another class."""

    clean: Proportion
    changed: int


class AttentionResult(Frozen):
    """The network with uniform averaging in the place of its attention, and with nothing there. Neither ranks.

    Where layers make their patterns known (layers/competitive_attention.py): with the mean pattern over training images, and
    with another image's.
    """

    uniform: WithoutAttention
    none: WithoutAttention
    mean: WithoutAttention | None = Field(default=None, exclude_if=lambda mean: mean is None)
    other: WithoutAttention | None = Field(default=None, exclude_if=lambda other: other is None)


class SmoothedResult(Frozen):
    """The smoothed version of a row's model, by the track's `rules`: another classifier than the one that was attacked.
    `clean` counts where it answers and is right; `spent` is the mean number of noise samples an image.
    """

    rules: SmoothingSpec
    guarantee: str
    spent: float
    clean: Proportion
    certified: tuple[CertifiedResult, ...]


class CorruptionAccuracy(Frozen):
    """Accuracy under one corruption: at each severity of the rules, in their order, and the mean of those."""

    name: str
    severities: tuple[Proportion, ...]
    mean: Proportion


class CorruptionResult(Frozen):
    """Accuracy on corrupted copies of the evaluation images, one an image, corruption and severity, by the track's `rules`.

    A mean counts corrupted images; its interval is Wilson's for as many images as were corrupted, since the copies of one
    image are not independent. The interval is conservative: an image's share of correct copies varies at most as one verdict.
    """

    rules: CorruptionSpec
    parameters: str  # whose strengths, in a sentence for readers
    versions: dict[str, str]  # of the library and what it draws with
    accuracy: Proportion  # over all corruptions and severities
    severities: tuple[Proportion, ...]  # over all corruptions, at each severity
    corruptions: tuple[CorruptionAccuracy, ...]
