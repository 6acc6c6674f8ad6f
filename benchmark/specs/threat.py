"""Threat models, attacks and certificates, as YAML declares them.

Units: every radius is in pixels of [0, 1] at the data set's native resolution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from benchmark.specs.base import Frozen, repeated

Norm = Literal["Linf", "L2"]
Engine = Literal["fast", "reference"]  # of AutoAttack: this project's, and the authors' unchanged files


FRACTION = re.compile(r"\s*([\d.]+(?:e-?\d+)?)\s*/\s*([\d.]+)\s*", re.IGNORECASE)


def plain_number(value: object) -> object:
    """Return a value unchanged. Raise ValueError for a bool and for text with "_", which pydantic takes for numbers."""
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise ValueError(f"Input should be a number, not {value!r}")
    return value


def as_number(value: object) -> object:
    """Return text such as "8/255" as a number; anything else unchanged."""
    fraction = FRACTION.fullmatch(value) if isinstance(value, str) else None
    try:
        return float(fraction[1]) / float(fraction[2]) if fraction else value
    except (ValueError, ZeroDivisionError):
        return value


# in pixels of [0, 1]; YAML may say 8/255
Radius = Annotated[float, BeforeValidator(as_number), BeforeValidator(plain_number), Field(ge=0)]


class ThreatModel(Frozen):
    """All images in [0, 1] within `eps` of the clean image in `norm`."""

    norm: Norm
    eps: Radius

    @model_validator(mode="after")
    def _in_pixels(self) -> ThreatModel:
        if self.norm == "Linf" and self.eps > 1:
            raise ValueError(f"Linf eps {self.eps} is above 1; radii are in pixels in [0, 1], so 8/255 is 0.0314")
        return self

    @property
    def label(self) -> str:
        return f"{self.norm} {self.eps:g}"

    @property
    def exact(self) -> str:
        """The same with all digits of the radius, where `label` has six."""
        return f"{self.norm} {repr(self.eps).removesuffix('.0')}"


class AttackSpec(ThreatModel):
    """One attack: the file `benchmark/attacks/<attack>.py`, its threat model and its parameters.

    `name` distinguishes it from another attack of the same file and threat model, in its id and on the page.
    """

    attack: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=60)  # files are named after it
    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$", max_length=60)
    seed: int = 0  # of all that the attack draws
    parameters: dict[str, int | float | bool | str] = Field(default={})  # the file's own

    @property
    def id(self) -> str:
        return f"{self.name or self.attack}-{self.norm}-{self.eps:g}"

    @property
    def threat(self) -> ThreatModel:
        return ThreatModel(norm=self.norm, eps=self.eps)

    @model_validator(mode="after")
    def _own_name(self) -> AttackSpec:
        if self.name and self.attack != "autoattack" and passes_for_autoattack(self.name):
            raise ValueError(f"{self.name!r} would pass for AutoAttack, which {self.attack} is not; give another name")
        return self


def passes_for_autoattack(name: str) -> bool:
    return "autoattack" in name.replace("_", "")


def check_distinct(attacks: Sequence[AttackSpec], where: str) -> None:
    """Raise ValueError if two attacks have the same id: the verdicts of one would hide the other's."""
    if twice := repeated(attack.id for attack in attacks):
        raise ValueError(f"the attack {twice} stands twice {where}; give each once, or a `name` to one of them")


def _sound(name: str) -> str:
    if name.startswith("unsound"):
        raise ValueError(f"{name!r} holds published formulas that are no bounds; nothing can be certified by it")
    return name


CertificateName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$"), AfterValidator(_sound)]


class CertificateSpec(Frozen):
    """The certificate of a variant: the file `benchmark/certificates/<name>.py`, and its parameters."""

    name: CertificateName
    parameters: dict[str, int | float] = Field(default={})
