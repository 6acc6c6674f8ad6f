"""One row of a leaderboard, with everything needed to check it: record.json, which steps/collect.py writes.

Units: every radius is in pixels of [0, 1] at the data set's native resolution. Accuracies are fractions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from benchmark.records.accuracy import AttackResult, Certificate, CertifiedResult, Proportion, RobustResult
from benchmark.records.beside import AttentionResult, CorruptionResult, Picture, SmoothedResult
from benchmark.records.reliability import Reliability
from benchmark.records.training import TrainingResult
from benchmark.specs.base import Frozen
from benchmark.specs.submission import Claim, Division, Paper, VariantOnTrack
from benchmark.specs.track import Track

TrustTier = Literal["claimed", "replayed", "re-evaluated", "rebuilt"]


class Record(Frozen):
    """One row of a leaderboard, with everything needed to check it. It holds no time, date or host name.

    `attention` is the accuracy without it, None for a model that has none. `measured` holds, by name, results of steps that
    have no field here. `reason` is why a published Record replaced another. `wall` names the parts of the sandbox that
    confined the submitted code (docs/sandbox.md), or is "none". JSON leaves these four out where they are empty.
    """

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
    attention: AttentionResult | None = None
    reliability: Reliability | None = None
    pictures: tuple[Picture, ...] = ()
    parameters: int
    flops: int
    training: TrainingResult | None  # None where the weights were trained elsewhere
    settings: VariantOnTrack
    sha256: dict[str, str]
    environment: dict[str, str]
    wall: str = ""
    measured: dict[str, JsonValue] = Field(default={})
    reason: str = ""

    @model_serializer(mode="wrap")
    def _without_nothing(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = serialise(self)
        for name in ("attention", "wall", "measured", "reason"):
            if not content[name]:
                del content[name]
        return content

    @property
    def row(self) -> str:
        return f"{self.submission}-{self.variant}"

    @property
    def codes(self) -> dict[str, str]:
        """The digest of each step's code, by the step's name."""
        return {name[5:]: digest for name, digest in self.sha256.items() if name.startswith("code ")}


def headline_names(track: Track) -> list[str]:
    """Return the names of a row's headline numbers on `track`, in the order of a table's columns."""
    certified = [f"certified L2 {radius:g}" for radius in track.certified_radii]
    smoothed = [f"smoothed L2 {radius:g}" for radius in track.certified_radii] if track.smoothing else []
    corrupted = ["corrupted"] if track.corruptions else []
    return ["clean", *(f"robust {threat.label}" for threat in track.threats), *certified, *smoothed, *corrupted]


def headline(record: Record) -> dict[str, Proportion]:
    """Return a Record's headline numbers by those names. A row without a certificate has no certified ones.

    "smoothed" ones are certified too, for another classifier: the smoothed version of the row's model. "corrupted" is the
    mean over corruptions and severities.
    """
    numbers = {"clean": record.clean}
    numbers |= {f"robust {r.threat.label}": r.accuracy for r in record.robust}
    numbers |= {f"certified {c.threat.label}": c.accuracy for c in record.certified}
    smoothed = record.smoothed.certified if record.smoothed else ()
    numbers |= {f"smoothed {c.threat.label}": c.accuracy for c in smoothed}
    return numbers | ({"corrupted": record.corrupted.accuracy} if record.corrupted else {})


def order(numbers: Mapping[str, Proportion], names: Sequence[str], row: str) -> tuple[float | str, ...]:
    """Return the key by which tables sort rows: robust accuracies (without attacks clean), certified ones, clean, name."""
    robust, certified = ([name for name in names if name.startswith(kind)] for kind in ("robust", "certified"))
    return (*(-numbers[key].value if key in numbers else 1.0 for key in (*(robust or ["clean"]), *certified, "clean")), row)


def on_other_images(records: Iterable[Record]) -> str:
    """Return in words which two rows of one version of a track were tested on different images; "" if none were."""
    first: dict[int, Record] = {}
    for record in records:
        before = first.setdefault(record.track_version, record)
        if len({record.sha256.get("data test"), before.sha256.get("data test")} - {None}) > 1:
            return f"{before.row} and {record.row} of {record.track} were tested on different images; build both on the same"
    return ""
