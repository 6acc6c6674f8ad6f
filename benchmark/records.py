"""The typed, frozen records that pass between stages, to and from JSON and YAML.

Of the project it imports threats.py, certified.py, claimed.py, corrupted.py, pictured.py, recipes.py
and signals.py.

Units: every radius is in pixels of [0, 1] at the data set's native resolution. Accuracies are fractions.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from benchmark.certified import Certificate, CertificateName
from benchmark.claimed import ClaimedBoard as ClaimedBoard  # for the board
from benchmark.corrupted import SMALLEST, CorruptionResult, CorruptionSpec
from benchmark.pictured import Picture, PicturesSpec
from benchmark.recipes import TrainingResult, TrainingSpec, WeightsSpec
from benchmark.signals import Reliability
from benchmark.threats import AttackSpec, Engine, Frozen, Proportion, ThreatModel, check_distinct

TrustTier = Literal["claimed", "replayed", "re-evaluated", "rebuilt"]
Division = Literal["closed", "open"]
ADAPTIVE = "adaptive"  # the suite of the attacks that were brought against one row
Name = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*$")  # no '-': it separates submission and variant in a row


class DataSpec(Frozen):
    """Where a track's images come from: the reader `benchmark/data/<source>.py` and the split made of it.

    `test` counts images drawn for testing where the source has no test split of its own, and is None where it has.
    `sha256` pins the prepared images and labels of each split.
    """

    source: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    dataset: str | None = None  # which of a source's data sets, where it has several
    path: str | None = None
    seed: int = 0
    validation: int = Field(gt=0)
    test: int | None = Field(default=None, gt=0)
    shape: tuple[int, int, int]
    classes: int = Field(gt=1)
    sha256: dict[Literal["train", "validation", "test"], str] = Field(default={})


class EvaluationSpec(Frozen):
    """Which test images count: `images` of them, drawn once by `seed`, the same for every model."""

    images: int = Field(gt=0)
    seed: int = 0
    batch_size: int = Field(default=100, gt=0)


class SmoothingSpec(Frozen):
    """How every row of a track is smoothed: noise of deviation `sigma` (pixels), `n0` samples to choose the class, at most
    `n` to bound its probability, looked at `looks` times; a radius fails with probability at most `alpha`, each image.
    """

    sigma: float = Field(gt=0, allow_inf_nan=False)
    n0: int = Field(gt=0)
    n: int = Field(gt=0)
    looks: int = Field(default=1, gt=0, le=32)
    alpha: float = Field(gt=0, lt=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _looks_fit(self) -> SmoothingSpec:
        if self.n < 2 ** (self.looks - 1):
            raise ValueError(f"n {self.n} cannot be halved for {self.looks} looks; give fewer looks or a larger n")
        return self


class Track(Frozen):
    """The rules of one comparison, versioned; a change of any rule is a new version.

    `development` is no rule: its suites are for `rvb attack` alone, no stage runs them and no Record knows them, so a
    change there is no new version. Nor is one of `pictures` or `robustbench`.
    """

    name: str
    version: int = Field(gt=0)
    title: str
    description: str
    data: DataSpec
    evaluation: EvaluationSpec
    suites: dict[str, tuple[AttackSpec, ...]]
    development: dict[str, tuple[AttackSpec, ...]] = Field(default={})
    certified_radii: tuple[float, ...]  # l2
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
    def _corruptible(self) -> Track:
        channels, *sides = self.data.shape
        if self.corruptions and (channels != 3 or min(sides) < SMALLEST):
            raise ValueError(
                f"corruptions are for colour images of {SMALLEST}x{SMALLEST} pixels or more, these are "
                f"{'x'.join(map(str, self.data.shape))}; leave `corruptions` out"
            )
        return self


class CertificateSpec(Frozen):
    """Which certificate speaks for a variant: the file `benchmark/certificates/<name>.py`."""

    name: CertificateName
    parameters: dict[str, int | float] = Field(default={})


class VariantOnTrack(Frozen):
    """What one variant needs on one track: `model` goes to the method's `build`. It is trained here, or has `weights`.

    `adaptive` are attacks brought against this row, by its authors or a reviewer: `submissions/<name>/<attack>.py` where
    there is one, else `benchmark/attacks/<attack>.py`. They run beside the track's suites and can only lower its numbers.
    """

    model: dict[str, int | float | bool | str] = Field(default={})
    training: TrainingSpec | None = None
    weights: WeightsSpec | None = None
    certificate: CertificateSpec | None = None
    adaptive: tuple[AttackSpec, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> VariantOnTrack:
        check_distinct(self.adaptive, f"in {ADAPTIVE}")
        return self

    @model_validator(mode="after")
    def _from_one_place(self) -> VariantOnTrack:
        if (self.training is None) == (self.weights is None):
            raise ValueError("give either `training`, or `weights` that were trained elsewhere")
        return self


class Variant(Frozen):
    title: str
    tracks: dict[str, VariantOnTrack]


class Paper(Frozen):
    title: str
    authors: str
    year: int
    url: str = ""


class Claim(Frozen):
    """A number as a paper prints it, with the place; shown, never ranked."""

    track: str
    variant: str | None = None
    metric: str
    value: float
    source: str


class Submission(Frozen):
    """`submissions/<name>/submission.yaml`."""

    name: str = Name
    summary: str
    paper: Paper
    division: Division = "closed"
    variants: dict[str, Variant]
    claims: tuple[Claim, ...] = ()

    @field_validator("variants")
    @classmethod
    def _names(cls, variants: dict[str, Variant]) -> dict[str, Variant]:
        for name in variants:
            if not name.replace("_", "").replace(".", "").isalnum():
                raise ValueError(f"variant name {name!r}: use letters, digits, '_' and '.' only")
        if not variants:
            raise ValueError("no variant: give at least one")
        return variants


class AttackResult(Frozen):
    """What one attack left standing: `accuracy` after it alone; `remaining` images after each of its components."""

    id: str
    suite: str
    spec: AttackSpec
    engine: Engine | None = None  # where the attack has several
    accuracy: Proportion
    remaining: dict[str, int]
    warnings: tuple[str, ...] = ()


class RobustResult(Frozen):
    """Accuracy under every attack run inside this ball: an image counts when none of `attacks` broke it."""

    threat: ThreatModel
    accuracy: Proportion
    attacks: tuple[str, ...]


class CertifiedResult(Frozen):
    threat: ThreatModel
    accuracy: Proportion
    certificate: CertificateName


class SmoothedResult(Frozen):
    """The smoothed version of a row's model, by the track's `rules`: another classifier than the one that was attacked.
    `clean` counts where it answers and is right; `spent` is the mean number of noise samples an image.
    """

    rules: SmoothingSpec
    guarantee: str
    spent: float
    clean: Proportion
    certified: tuple[CertifiedResult, ...]


class Record(Frozen):
    """One row of a leaderboard, with what it takes to check it. Holds no time, date or host name."""

    schema_version: Literal[1] = 1
    track: str
    track_version: int
    submission: str
    variant: str
    title: str
    summary: str
    paper: Paper
    claims: tuple[Claim, ...] = ()
    trust: TrustTier
    division: Division
    division_reasons: tuple[str, ...]
    n: int
    seed: int
    clean: Proportion
    attacks: tuple[AttackResult, ...]
    robust: tuple[RobustResult, ...]
    certificate: Certificate | None = None
    certified: tuple[CertifiedResult, ...] = ()
    smoothed: SmoothedResult | None = None
    corrupted: CorruptionResult | None = None
    reliability: Reliability | None = None
    pictures: tuple[Picture, ...] = ()
    parameters: int
    flops: int
    training: TrainingResult | None  # None where the weights were trained elsewhere
    settings: VariantOnTrack
    sha256: dict[str, str]
    environment: dict[str, str]

    @property
    def row(self) -> str:
        return f"{self.submission}-{self.variant}"


class ModelFacts(Frozen):
    """What the harness measured of a model before attacking it."""

    parameters: int
    flops: int
    division: Division
    division_reasons: tuple[str, ...]


def to_json(record: BaseModel) -> str:
    """Canonical JSON: sorted keys, so equal records are equal bytes."""
    return json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False) + "\n"
