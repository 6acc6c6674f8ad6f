"""`benchmark/tracks/<name>.yaml`: the rules of one comparison. Radii are in pixels of [0, 1]."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from benchmark.runtime.errors import near_miss
from benchmark.specs.base import Frozen, repeated
from benchmark.specs.data import DataSpec, EvaluationSpec
from benchmark.specs.threat import AttackSpec, Radius, ThreatModel, check_distinct
from benchmark.specs.training import radius_problem

ADAPTIVE = "adaptive"  # the suite of attacks contributed against one row

# Hendrycks and Dietterich 2019 (Benchmarking Neural Network Robustness to Common Corruptions and Perturbations); the
# strengths are those of the library that benchmark/data/corruptions.py calls, which are ImageNet-C's
COMMON = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")  # for validation
SMALLEST = 32  # pixels a side that the corruptions need, and three channels


class CorruptionSpec(Frozen):
    """The corruptions of a track: each name at each severity, drawn by `seed` for each image separately."""

    names: tuple[str, ...] = Field(default=COMMON, min_length=1)
    severities: tuple[int, ...] = Field(default=(1, 2, 3, 4, 5), min_length=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _known_and_distinct(self) -> CorruptionSpec:
        for name in self.names:
            if name not in COMMON + EXTRA:
                raise ValueError(f"unknown corruption {name!r}{near_miss(name, COMMON + EXTRA)}")
        for severity in self.severities:
            if severity not in range(1, 6):
                raise ValueError(f"unknown severity {severity}; known: 1, 2, 3, 4, 5")
        if twice := repeated(self.names) or repeated(self.severities):
            raise ValueError(f"{twice} stands twice in the corruptions; give each name and severity once")
        return self

    @property
    def cells(self) -> tuple[tuple[str, int], ...]:
        """(name, severity) of every corrupted copy of an image, in order."""
        return tuple((name, severity) for name in self.names for severity in self.severities)


class PicturesSpec(Frozen):
    """Pictures of a model, after Debenedetti 2022 (Figures 11 to 14), by PGD of `steps` steps.

    PGD runs against the first `images` evaluation images in the Linf ball `eps`, and from as many images of noise
    towards random classes in the l2 ball of each of `radii`.
    """

    images: int = Field(default=10, gt=0, le=32)
    eps: float = Field(gt=0, le=1)
    radii: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(default=(), max_length=4)
    steps: int = Field(default=100, gt=0)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _distinct(self) -> PicturesSpec:
        if repeated(f"{radius:g}" for radius in self.radii):
            raise ValueError("a radius stands twice; give each once")
        return self


class SmoothingSpec(Frozen):
    """How every row of a track is smoothed.

    Noise of standard deviation `sigma`, `n0` samples to choose the class, at most `n` to bound its probability, with
    `looks` interim looks. For each image, the radius is wrong with probability at most `alpha`.
    """

    sigma: float = Field(gt=0, allow_inf_nan=False)
    n0: int = Field(gt=0)
    n: int = Field(gt=0)
    looks: int = Field(default=1, gt=0, le=32)
    alpha: float = Field(ge=1e-9, lt=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _looks_fit(self) -> SmoothingSpec:
        if self.n < 2 ** (self.looks - 1):
            raise ValueError(f"n {self.n} cannot be halved for {self.looks} looks; give fewer looks or a larger n")
        return self


class Track(Frozen):
    """The rules of one comparison, versioned; a change of any rule is a new version.

    `development`, `pictures` and `robustbench` are no rules, so a change there is no new version. Suites of
    `development` are for `rvb attack` alone: no stage runs them and no Record knows them.
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
    def rules(self) -> dict[str, Any]:
        """Everything that numbers depend on, as JSON values; and `pictures`, of which published files are made."""
        return self.model_dump(mode="json", exclude={"development", "title", "description", "robustbench"})

    @property
    def threats(self) -> tuple[ThreatModel, ...]:
        """Each threat model of the suites' attacks, Linf first, then by radius."""
        pairs = {(spec.norm, spec.eps) for suite in self.suites.values() for spec in suite}
        return tuple(ThreatModel(norm=n, eps=e) for n, e in sorted(pairs, key=lambda t: (t[0] != "Linf", t[1])))

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
        problems = [radius_problem(threat, self.data.shape) for threat in self.threats]
        if problem := next(filter(None, problems), None):
            raise ValueError(f"{problem}, so 128/255 is 0.502")
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
