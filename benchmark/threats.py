"""Threat models, attacks and shares of images: the frozen parts that records.py is built of. Imports nothing local.

Units: every radius is in pixels of [0, 1] at the data set's native resolution.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Norm = Literal["Linf", "L2"]


class Frozen(BaseModel):
    """A value that cannot change and that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ThreatModel(Frozen):
    """All images of [0, 1] within `eps` of the clean image in `norm`."""

    norm: Norm
    eps: float = Field(ge=0)

    @model_validator(mode="after")
    def _in_pixels(self) -> ThreatModel:
        if self.norm == "Linf" and self.eps > 1:
            raise ValueError(f"Linf eps {self.eps} is above 1; radii are in pixels in [0, 1], so 8/255 is 0.0314")
        return self

    @property
    def label(self) -> str:
        return f"{self.norm} {self.eps:g}"


class AttackSpec(ThreatModel):
    """One attack: the file `benchmark/attacks/<attack>.py`, its threat model and its parameters."""

    attack: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    seed: int = 0
    parameters: dict[str, int | float | bool | str] = {}

    @property
    def id(self) -> str:
        return f"{self.attack}-{self.norm}-{self.eps:g}"

    @property
    def threat(self) -> ThreatModel:
        return ThreatModel(norm=self.norm, eps=self.eps)


class Proportion(Frozen):
    """A share of `n` images with its 95% Wilson interval."""

    value: float
    low: float
    high: float
    count: int
    n: int
