"""`submissions/<name>/submission.yaml`: a paper, its variants, and what each needs on a track."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from benchmark.specs.base import Frozen
from benchmark.specs.certificate import CertificateSpec
from benchmark.specs.threat import AttackSpec, check_distinct
from benchmark.specs.track import ADAPTIVE
from benchmark.specs.training import TrainingSpec, WeightsSpec

Division = Literal["closed", "open"]


Name = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]*$")  # no '-': it separates submission and variant in a row


class VariantOnTrack(Frozen):
    """What one variant needs on one track: `model` goes to the method's `build`. It is trained here, or has `weights`.

    `adaptive` are attacks brought against this row, by its authors or a reviewer: `submissions/<name>/<attack>.py` where
    there is one, else `benchmark/attacks/<attack>.py`. They run beside the track's suites and can only lower its numbers.
    """

    model: dict[str, int | float | bool | str] = Field(default={})  # keyword arguments of the method's `build`
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
    """One version of a paper's model."""

    title: str  # as the board shows it
    default: bool = True  # false: its rows are built, and stand on a board, by `rvb repro --all` or by name alone
    tracks: dict[str, VariantOnTrack]  # by the name of the track


class Paper(Frozen):
    title: str
    authors: str
    year: int
    url: str = ""


class Claim(Frozen):
    """A number as a paper prints it, with the place; shown, never ranked."""

    track: str
    variant: str | None = None
    metric: str  # such as `robust Linf 0.15`
    value: float  # a fraction
    source: str  # the table or figure


class Submission(Frozen):
    """`submissions/<name>/submission.yaml`."""

    name: str = Name  # the folder's
    summary: str  # a sentence for the model's page
    paper: Paper
    division: Division = "closed"  # open: random, without usable gradients, or optimising at inference
    variants: dict[str, Variant]  # by name; the row is <submission>-<variant>
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
