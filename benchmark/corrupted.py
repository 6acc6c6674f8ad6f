"""Which common corruptions a track asks for, and what a Record says of them. Frozen, typed; imports only the base.

Hendrycks and Dietterich 2019 (Benchmarking Neural Network Robustness to Common Corruptions and Perturbations): 15
corruptions, 4 more for validation, each at 5 severities. The kinds are theirs; the strengths are those of the library
that benchmark/data/corruptions.py calls, which are ImageNet-C's.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from benchmark.errors import near_miss
from benchmark.threats import Frozen, Proportion

COMMON = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 32  # pixels a side that the corruptions need, and three channels


class CorruptionSpec(Frozen):
    """The corruptions of a track: each name at each severity, drawn by `seed` for each image by itself."""

    names: tuple[str, ...] = Field(default=COMMON, min_length=1)
    severities: tuple[int, ...] = Field(default=SEVERITIES, min_length=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _known_and_distinct(self) -> CorruptionSpec:
        for name in self.names:
            if name not in COMMON + EXTRA:
                raise ValueError(f"unknown corruption {name!r}{near_miss(name, COMMON + EXTRA)}")
        for severity in self.severities:
            if severity not in SEVERITIES:
                raise ValueError(f"unknown severity {severity}; known: 1, 2, 3, 4, 5")
        for given in (self.names, self.severities):
            twice = sorted({str(one) for one in given if given.count(one) > 1})
            if twice:
                raise ValueError(f"{twice[0]} stands twice in the corruptions; give each name and severity once")
        return self

    @property
    def cells(self) -> tuple[tuple[str, int], ...]:
        """(name, severity) of every corrupted copy of an image, in order."""
        return tuple((name, severity) for name in self.names for severity in self.severities)


class CorruptionAccuracy(Frozen):
    """Accuracy under one corruption: at each severity of the rules, in their order, and the mean of those."""

    name: str
    severities: tuple[Proportion, ...]
    mean: Proportion


class CorruptionResult(Frozen):
    """Accuracy on corrupted copies of the evaluation images, one an image, corruption and severity, by the track's `rules`.

    A mean counts corrupted images; its interval is Wilson's for as many images as were corrupted, since the copies of one
    image are not independent (wider than need be: an image's share of right copies varies at most as a verdict does).
    """

    rules: CorruptionSpec
    parameters: str  # whose strengths, in a sentence for readers
    versions: dict[str, str]  # of the library and what it draws with
    accuracy: Proportion  # over all corruptions and severities
    severities: tuple[Proportion, ...]  # over all corruptions, at each severity
    corruptions: tuple[CorruptionAccuracy, ...]
