"""Further results of a Record: without attention, the smoothed version, corrupted copies, pictures."""

from __future__ import annotations

from pydantic import Field

from benchmark.records.accuracy import CertifiedResult, Proportion
from benchmark.specs.base import Frozen
from benchmark.specs.track import CorruptionSpec, SmoothingSpec


class WithoutAttention(Frozen):
    """`clean` accuracy of the changed network; `changed` counts the images on which it predicts another class."""

    clean: Proportion
    changed: int


class AttentionResult(Frozen):
    """The network with uniform averaging in the place of its attention, and with nothing there. Neither ranks.

    Of a network that the evaluator has in its own process, also with the mean pattern over training images, and with another
    image's (attacks/replaced_attention.py).
    """

    uniform: WithoutAttention
    none: WithoutAttention
    mean: WithoutAttention | None = Field(default=None, exclude_if=lambda mean: mean is None)
    other: WithoutAttention | None = Field(default=None, exclude_if=lambda other: other is None)


class SmoothedResult(Frozen):
    """The smoothed version of a row's model, by the track's `rules`: not the classifier that was attacked.

    `clean` counts images where it answers and is right; `spent` is the mean number of noise samples an image.
    """

    rules: SmoothingSpec
    guarantee: str
    spent: float
    clean: Proportion
    certified: tuple[CertifiedResult, ...]


class CorruptionAccuracy(Frozen):
    """Accuracy under one corruption: at each severity of the rules, in order, and their mean."""

    name: str
    severities: tuple[Proportion, ...]
    mean: Proportion


class CorruptionResult(Frozen):
    """Accuracy on corrupted copies of the evaluation images: one per image, corruption and severity of the track's `rules`.

    A mean counts copies. Its interval is Wilson's for the number of images, since copies of one image are not independent. It
    is conservative: an image's share of correct copies varies at most as a single verdict.
    """

    rules: CorruptionSpec
    parameters: str  # the source of the strengths, in a sentence for readers
    versions: dict[str, str]  # of the library and of what it imports
    accuracy: Proportion  # over all corruptions and severities
    severities: tuple[Proportion, ...]  # over all corruptions, at each severity
    corruptions: tuple[CorruptionAccuracy, ...]


class Picture(Frozen):
    """A PNG file of the record's folder `pictures`, with title, alternative text and caption."""

    file: str = Field(pattern=r"^[a-z0-9_]+\.png$")
    sha256: str
    title: str
    alt: str
    caption: str
