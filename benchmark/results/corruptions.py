"""Accuracy on corrupted copies of the evaluation images."""

from __future__ import annotations

from benchmark.results.proportion import Proportion
from benchmark.specs.base import Frozen
from benchmark.specs.corruptions import CorruptionSpec


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
