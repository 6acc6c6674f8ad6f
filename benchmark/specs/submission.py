"""What submissions/<name>/submission.yaml may say: a paper, its variants, and the settings of each on a track.

`Submission` is the whole file. Unknown keys are refused. Other files have parts of it: training.py the recipe, threat.py
attacks and certificates.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from benchmark.specs.base import Frozen
from benchmark.specs.threat import AttackSpec, CertificateSpec, check_distinct
from benchmark.specs.track import ADAPTIVE
from benchmark.specs.training import TrainingSpec, WeightsSpec

Division = Literal["closed", "open"]
LONGEST = 60  # characters of a submission's or variant's name: files are named after both, a stage and an attack
# no '-', which separates submission and variant in a row; no '.', at which DVC splits names
Name = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_]*$", max_length=LONGEST)


def is_web_address(url: str) -> bool:
    """Return whether a page may link to it: http or https, and a host."""
    return re.fullmatch(r"https?://[^\s/?#]\S*", url) is not None


def _checked_address(url: str) -> str:
    if url and not is_web_address(url):
        raise ValueError(
            f"{url[:60]!r} is no web address; write one that begins with https://, such as https://doi.org/<DOI> "
            "or https://arxiv.org/abs/<number>"
        )
    return url


WebAddress = Annotated[str, AfterValidator(_checked_address)]  # or ""


class VariantOnTrack(Frozen):
    """The settings of one variant on one track: `model` goes to the method's `build`.

    The variant is trained here, or has `weights`. `adaptive` are attacks contributed against this row, by its authors
    or a reviewer: `submissions/<name>/<attack>.py` if that exists, else `benchmark/attacks/<attack>.py`. They run
    beside the track's suites and can only lower its numbers.
    """

    model: dict[str, int | float | bool | str] = Field(default={})  # keyword arguments of the method's `build`
    training: TrainingSpec | None = None
    weights: WeightsSpec | None = None
    certificate: CertificateSpec | None = None
    # published, no bounds; shown, never counted
    unsound_formulas: tuple[Literal["certvit", "certvit_released"], ...] = ()
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
    extension: bool = False  # whether the paper has no such network: the page of the paper says so
    # whether `rvb repro` builds its rows by default; or a list of tracks on which it does
    default: bool | tuple[str, ...] = True
    tracks: dict[str, VariantOnTrack]  # by the name of the track

    @model_validator(mode="after")
    def _default_where_it_is(self) -> Variant:
        if not isinstance(self.default, bool) and (unknown := {*self.default} - self.tracks.keys()):
            raise ValueError(f"default names {min(unknown)}, which is none of the variant's tracks: {', '.join(self.tracks)}")
        return self


class Paper(Frozen):
    title: str
    authors: str
    year: int
    url: WebAddress = ""  # its page, such as https://doi.org/<DOI> or https://arxiv.org/abs/<number>


class Claim(Frozen):
    """A number as a paper prints it, with its place in the paper; shown, never ranked."""

    track: str
    variant: str | None = None
    metric: str  # such as `robust Linf 0.15`
    value: float  # a fraction: 0.5 for 50%
    source: str  # the table or figure

    @field_validator("value")
    @classmethod
    def _a_fraction(cls, value: float) -> float:
        if not 0 <= value <= 1:
            percent = f"; write {value / 100:g} for {value:g}%" if 1 < value <= 100 else ""
            raise ValueError(f"{value:g} is no fraction from 0 to 1{percent}")
        return value


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
            if problem := _name_problem(name, [*variants]):
                raise ValueError(f"variant name {name[:LONGEST]!r}{problem}")
        if not variants:
            raise ValueError("no variant: give at least one")
        return variants


def _name_problem(name: str, names: list[str]) -> str:
    """Return what is wrong with a variant's name; "" if it is valid."""
    if "." in name:
        return f" holds a dot, at which DVC splits names; write {name.replace('.', '_')[:LONGEST]!r}"
    if not re.fullmatch(r"[A-Za-z0-9_]+", name):
        return ": use the letters a to z, digits and '_' only"
    if len(name) > LONGEST:
        return f"... has {len(name)} characters; use {LONGEST} at most"
    alike = [other for other in names if other != name and other.lower() == name.lower()]
    if alike:
        return f" differs from {alike[0]!r} in case only, and some file systems take them for one; rename one"
    return ""
