"""Which common corruptions a track asks for.

Hendrycks and Dietterich 2019 (Benchmarking Neural Network Robustness to Common Corruptions and Perturbations): 15
corruptions, 4 more for validation, each at 5 severities. The kinds are theirs; the strengths are those of the library
that benchmark/data/corruptions.py calls, which are ImageNet-C's.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from benchmark.runtime.errors import near_miss
from benchmark.specs.base import Frozen

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
