"""`benchmark/tracks/<name>.yaml`: the rules of one comparison."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from benchmark.specs.base import Frozen
from benchmark.specs.corruptions import SMALLEST, CorruptionSpec
from benchmark.specs.data import DataSpec, EvaluationSpec
from benchmark.specs.pictures import PicturesSpec
from benchmark.specs.smoothing import SmoothingSpec
from benchmark.specs.threat import AttackSpec, Radius, ThreatModel, check_distinct

ADAPTIVE = "adaptive"  # the suite of the attacks that were brought against one row


class Track(Frozen):
    """The rules of one comparison, versioned; a change of any rule is a new version.

    `development` is no rule: its suites are for `rvb attack` alone, no stage runs them and no Record knows them, so a
    change there is no new version. Nor is one of `pictures` or `robustbench`.
    """

    name: str  # the file's name, which gives it
    version: int = Field(gt=0)
    title: str
    description: str
    data: DataSpec
    evaluation: EvaluationSpec
    suites: dict[str, tuple[AttackSpec, ...]]  # every row meets every attack
    development: dict[str, tuple[AttackSpec, ...]] = Field(default={})
    certified_radii: tuple[Radius, ...]  # l2
    smoothing: SmoothingSpec | None = None
    corruptions: CorruptionSpec | None = None
    pictures: PicturesSpec | None = None
    robustbench: Literal["cifar10", "cifar100", "imagenet"] | None = None  # the same data set on RobustBench

    @property
    def threats(self) -> tuple[ThreatModel, ...]:
        """Each threat model that an attack of the suites looks into, Linf first, then by radius."""
        found = {(spec.norm, spec.eps) for suite in self.suites.values() for spec in suite}
        return tuple(ThreatModel(norm=n, eps=e) for n, e in sorted(found, key=lambda t: (t[0] != "Linf", t[1])))

    @model_validator(mode="after")
    def _distinct(self) -> Track:
        check_distinct([attack for suite in self.suites.values() for attack in suite], "in the suites")
        for name, suite in self.development.items():
            check_distinct(suite, f"in the development suite {name}")
        for name in sorted({ADAPTIVE, *self.suites} & {*self.development}):
            raise ValueError(f"a suite {name} is published; give the one in development another name")
        if ADAPTIVE in self.suites:
            raise ValueError(f"the suite {ADAPTIVE} is each row's own: submission.yaml declares it, no track does")
        if any(attack.attack == "quick" for suite in self.suites.values() for attack in suite):
            raise ValueError("the attack quick is a part of AutoAttack, for development; publish autoattack")
        return self

    @model_validator(mode="after")
    def _in_pixels(self) -> Track:
        farthest = math.prod(self.data.shape) ** 0.5
        for threat in self.threats:
            if threat.norm == "L2" and threat.eps > farthest:
                raise ValueError(
                    f"{threat.label} is above {farthest:.3g}, the distance of a black image from a white one; radii are in "
                    "pixels in [0, 1], so 128/255 is 0.502"
                )
        return self

    @model_validator(mode="after")
    def _corruptible(self) -> Track:
        channels, *sides = self.data.shape
        if self.corruptions and (channels != 3 or min(sides) < SMALLEST):
            raise ValueError(
                f"corruptions are for colour images of {SMALLEST}x{SMALLEST} pixels or more, these are "
                f"{'x'.join(map(str, self.data.shape))}; leave `corruptions` out"
            )
        return self
