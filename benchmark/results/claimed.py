"""What another board says of models: `claimed`, shown beside a track's rows, never ranked. Frozen, typed."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from benchmark.specs.base import Frozen
from benchmark.specs.threat import ThreatModel

Share = Field(ge=0, le=1, allow_inf_nan=False)


class ClaimedRow(Frozen):
    """One model's numbers as they are published, none of them measured here. Accuracies are fractions.

    `external` is a lower robust accuracy than AutoAttack's that somebody found by another attack. `source` is the
    published file, `sha256` its digest.
    """

    name: str = Field(min_length=1)
    title: str
    authors: str
    venue: str = ""
    link: str = ""
    architecture: str
    additional_data: bool | None = None
    threat: ThreatModel
    clean: float = Share
    autoattack: float = Share
    external: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    unreliable: bool = False
    footnote: str = ""
    source: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @property
    def robust(self) -> float:
        """The lowest robust accuracy known."""
        return self.autoattack if self.external is None else min(self.autoattack, self.external)

    @field_validator("link")
    @classmethod
    def _a_web_address(cls, link: str) -> str:
        if link and not link.startswith(("https://", "http://")):
            raise ValueError(f"{link!r} is no web address")
        return link

    @model_validator(mode="after")
    def _plausible(self) -> ClaimedRow:
        if self.robust > self.clean:
            raise ValueError(f"robust accuracy {self.robust:g} above clean accuracy {self.clean:g}")
        return self


class ClaimedBoard(Frozen):
    """`leaderboard/claimed/<track>/<board>.json`: the rows of another board that fit a track's data set and radii."""

    board: str
    url: str
    rows: tuple[ClaimedRow, ...]
